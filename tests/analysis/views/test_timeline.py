"""A job as a timeline: rows, marks, spans and arrows, each with its line."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from psmkit.analysis.story import story as tell
from psmkit.model.errors import InputError
from psmkit.model.story import Story
from psmkit.model.timeline import Timeline, Unit
from tests.analysis.texts import Rank, watchdog

LOGS = Path(__file__).parents[2] / "data" / "logs"
STOPPED = LOGS / "fault_a2_n4_sigstop_rank1_in_setup"
EIGHT = LOGS / "passsm-8gpu.log"


def story_of(*paths: Path | str) -> Story:
    return tell(list(paths))


@pytest.fixture(scope="module")
def stopped() -> Story:
    """Four ranks, one of which was stopped before its Setup."""
    return story_of(STOPPED)


@pytest.fixture(scope="module")
def eight() -> Story:
    """The log of 8 GPUs: all proxy calls and fd exchanges are complete."""
    return story_of(EIGHT)


def spans(timeline: Timeline, name: str) -> list[int]:
    kind = next((at for at, kind in enumerate(timeline.kinds) if kind.name == name), -1)
    return [at for at in range(len(timeline.spans)) if timeline.spans.kind[at] == kind]


def test_each_rank_has_a_row_and_its_threads_below_it(stopped: Story) -> None:
    tops = [t for t in stopped.timeline.tracks if t.parent < 0]
    assert [t.rank for t in tops] == [0, 1, 2, 3]
    names = {t.name.partition(" (")[0] for t in stopped.timeline.tracks if t.parent == 0}
    assert names >= {"main", "RAS", "proxy service", "proxy progress"}


def test_each_known_line_is_a_mark_at_its_line(stopped: Story) -> None:
    timeline = stopped.timeline
    assert len(timeline.marks) == stopped.report.coverage.matched
    places = {(int(f), int(n)) for f, n in zip(timeline.marks.file, timeline.marks.line, strict=True)}
    assert len(places) == len(timeline.marks)
    at = timeline.files.index(f"{STOPPED}/nccl.rank1.vm.20406.log")
    assert (at, 295) in places


def test_marks_and_spans_are_ordered_within_their_tracks(stopped: Story) -> None:
    for track, at in (
        (stopped.timeline.marks.track, stopped.timeline.marks.at),
        (stopped.timeline.spans.track, stopped.timeline.spans.begin),
    ):
        rows = list(zip(track.tolist(), at.tolist(), strict=True))
        assert rows == sorted(rows)


def test_all_calls_of_a_clean_control_plane_are_closed_spans(eight: Story) -> None:
    timeline = eight.timeline
    # one call has a begin line whose answer came at once; the fd exchanges have a span at each end
    assert len(spans(timeline, "fd")) == len(spans(timeline, "fd.service")) == 7
    assert not timeline.spans.open.any()


def test_arrows_lead_from_an_answer_to_its_reader_and_point_right(eight: Story) -> None:
    arrows = eight.timeline.arrows
    names = [eight.timeline.kinds[kind].name for kind in arrows.kind]
    assert names.count("response") == 37
    assert names.count("fd request") == names.count("fd answer") == 7
    assert (arrows.head > arrows.tail).all()
    assert (arrows.line > 0).all() and (arrows.head_line > 0).all()


def test_files_without_time_stamps_are_in_a_logical_order(stopped: Story) -> None:
    axis = stopped.timeline.axis
    assert axis.unit is Unit.ORDER and "not times" in axis.about
    starts = spans(stopped.timeline, "init")
    ends = [stopped.timeline.spans.end[at] for at in starts]
    assert max(stopped.timeline.spans.begin[at] for at in starts) < min(
        ends
    )  # no rank completes what another has not started


def test_a_process_that_owes_a_step_is_drawn_as_one_that_does_not_go_on(stopped: Story) -> None:
    timeline = stopped.timeline
    (at,) = spans(timeline, "wait.proven")
    assert timeline.tracks[timeline.spans.track[at]].rank == 1
    assert timeline.spans.label[at] == "does not go on: Setup"
    assert timeline.spans.open[at]


def test_the_story_has_debts_links_and_lines(stopped: Story) -> None:
    assert [(d.rank, d.owes.split()[0]) for d in stopped.debtors] == [
        (0, "Connect"),
        (1, "Setup"),
        (2, "Connect"),
        (3, "Connect"),
    ]
    assert ("PSM_P2P/CUMEM", 2) in {
        (link.via, link.channels) for link in stopped.links if (link.source, link.target) == (0, 1)
    }
    (excerpt,) = stopped.texts[f"{STOPPED}/nccl.rank1.vm.20406.log"]
    assert excerpt.first == 1 and len(excerpt.lines) == 300


def stamped(tmp_path: Path, shift: float) -> Story:
    """Two hosts, each with the lines of an init; the clock of the second is ``shift`` seconds ahead."""
    for rank in (0, 1):
        lines = Rank(rank, 2, host=f"node{rank}")
        ahead = shift if rank else 0.0

        def at(second: float, ahead: float = ahead) -> str:
            return f"2026-03-01 10:00:{second + ahead:09.6f}"

        lines.line("NCCL version 2.27.7+cuda12.9", time=at(1.0))
        shape = f"comm {lines.comm} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 10000 commId 0x5c2b7a1e9d3f4680"
        lines.line(f"ncclCommInitRankConfig {shape} - Init START", time=at(2.0))
        lines.line(f"ncclCommInitRankConfig {shape} - Init COMPLETE", time=at(2.5))
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines.lines) + "\n")
    return story_of(tmp_path)


def test_stamped_logs_are_drawn_on_a_time_axis(tmp_path: Path) -> None:
    timeline = stamped(tmp_path, 0.0).timeline
    assert timeline.axis.unit is Unit.SECONDS
    assert sorted(set(timeline.marks.at.tolist())) == pytest.approx([0.0, 1.0, 1.5])
    assert [clock.offset for clock in timeline.axis.clocks] == [0.0, 0.0]


@pytest.mark.parametrize("shift", [20.0, -20.0 + 21.0])
def test_a_clock_that_runs_ahead_is_moved_as_little_as_the_exchanges_ask(tmp_path: Path, shift: float) -> None:
    timeline = stamped(tmp_path, shift).timeline
    clock = timeline.axis.clocks[1]
    assert clock.host == "node1" and clock.consistent and clock.error is not None
    # each rank starts before the other completes: the true correction is within the error
    assert abs(clock.offset + shift) <= clock.error + 1e-6
    starts = spans(timeline, "init")
    assert max(timeline.spans.begin[at] for at in starts) <= min(timeline.spans.end[at] for at in starts) + 1e-6


def test_a_send_has_an_arrow_to_its_recv(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = Rank(rank, 2)
        shape = f"comm {lines.comm} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 10000 commId 0x5c2b7a1e9d3f4680"
        lines.line(f"ncclCommInitRankConfig {shape} - Init START").line(
            f"ncclCommInitRankConfig {shape} - Init COMPLETE"
        )
        call = "Recv" if rank else "Send"
        lines.line(
            f"{call}: opCount 0 sendbuff (nil) recvbuff 0x7f00 count 4 datatype 7 op 0 root {1 - rank} comm {lines.comm} [nranks=2] stream 0x5"
        )
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines.lines) + "\n")
    timeline = story_of(tmp_path).timeline
    kinds = [timeline.kinds[kind].name for kind in timeline.arrows.kind]
    assert kinds == ["send to recv"]
    assert [timeline.tracks[t[0]].rank for t in (timeline.arrows.tail_track, timeline.arrows.head_track)] == [0, 1]


def test_an_input_that_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="read only once"):
        story_of("-")


def test_long_logs_keep_the_lines_around_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psmkit.analysis.views.story._WHOLE", 1000)
    story = story_of(STOPPED)
    kept = {
        e.first + n: text for e in story.texts[f"{STOPPED}/nccl.rank1.vm.20406.log"] for n, text in enumerate(e.lines)
    }
    assert "New proxy send connection 2" in kept[295]
    assert {291, 300} <= set(kept) and len(kept) < 100


def test_lines_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psmkit.analysis.views.lines.MOST", 100)
    timeline = story_of(EIGHT).timeline
    assert len(timeline.marks) == 100
    assert timeline.dropped == 114


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of psmkit's lab with logs and records."""
    with tarfile.open(LOGS.parent / "v01" / "runs.tar.xz") as archive:
        members = [m for m in archive.getmembers() if m.name.startswith("fault-hang-step/")]
        archive.extractall(tmp_path, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path / "fault-hang-step"


def test_lines_of_torch_are_in_the_row_of_their_rank(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("\n".join(Rank(0, 2).ready().lines) + "\n" + watchdog(0, 1))
    timeline = story_of(log).timeline
    tops = {track.rank: at for at, track in enumerate(timeline.tracks) if track.parent < 0}
    assert set(tops) == {0, 1}  # rank 1 has no line of NCCL
    for rank, lines in ((0, 1), (1, 1)):
        (own,) = [at for at, t in enumerate(timeline.tracks) if t.parent == tops[rank] and t.name == "other programs"]
        assert (timeline.marks.track == own).sum() == lines


def test_memory_has_arrows_from_its_maker_to_those_who_map_it(recorded: Path) -> None:
    timeline = story_of(recorded).timeline
    mine = [at for at in range(len(timeline.arrows)) if timeline.kinds[timeline.arrows.kind[at]].name == "memory"]
    assert mine
    for at in mine:
        ends = [timeline.tracks[track[at]].rank for track in (timeline.arrows.tail_track, timeline.arrows.head_track)]
        assert ends[0] != ends[1] and timeline.arrows.head[at] > timeline.arrows.tail[at]


def test_a_record_stands_right_of_the_log_of_its_process(recorded: Path) -> None:
    timeline = story_of(recorded).timeline
    record = {at for at, name in enumerate(timeline.files) if name.endswith(".rec")}
    for top in [at for at, track in enumerate(timeline.tracks) if track.parent < 0 and track.rank is not None]:
        mine = [
            (float(at), int(file) in record)
            for track, at, file in zip(timeline.marks.track, timeline.marks.at, timeline.marks.file, strict=True)
            if timeline.tracks[track].parent == top
        ]
        assert max(at for at, is_record in mine if not is_record) < min(at for at, is_record in mine if is_record)


def test_an_excerpt_without_a_stage_is_drawn(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("node0:7001:7001 [0] NCCL INFO comm.cc:17 -> 3\nnode0:7001:7001 [0] NCCL INFO group.cc:106 -> 3\n")
    assert len(story_of(log).timeline.marks) == 2


def test_time_stamps_that_go_back_in_time_are_no_axis(tmp_path: Path) -> None:
    lines = Rank(0, 1).line("NCCL version 2.27.7+cuda12.9", time="2026-03-01 10:00:00")
    lines.line("cudaDriverVersion 12080", time="2026-03-01 02:00:01").line(
        "cudaDriverVersion 12080", time="2026-03-01 10:00:02"
    )
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines.lines) + "\n")
    axis = story_of(log).timeline.axis
    assert axis.unit is Unit.ORDER and "contradict" in axis.about


def test_a_rank_without_a_log_has_a_row(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        (tmp_path / f"rank{rank}.log").write_text("\n".join(Rank(rank, 4).ready().work().lines) + "\n")
    tracks = [t for t in story_of(tmp_path).timeline.tracks if t.parent < 0]
    assert [t.rank for t in tracks] == [0, 1, 2, 3]
    assert "no line of it" in tracks[1].name


def test_ranks_that_connect_for_work_are_shown_as_connecting(stopped: Story) -> None:
    timeline = stopped.timeline
    rows = [at for at in range(len(timeline.spans)) if timeline.kinds[timeline.spans.kind[at]].group == "stage"]
    last = {int(timeline.spans.track[at]): timeline.spans.label[at] for at in rows}
    assert set(last.values()) == {"connect"}  # what the table of ranks says, too


def test_a_wait_for_a_rank_without_a_log_is_not_proven(tmp_path: Path) -> None:
    for path in STOPPED.glob("*.log"):
        if "rank1" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    story = story_of(tmp_path)
    assert not [wait for wait in story.waits if wait.proven and not wait.target]
