"""The parts of a recording, without a command."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from psmkit.live import procfs
from psmkit.live.recording import archive, child, evidence, journal, rest, settings
from psmkit.live.recording.layout import FACT, Layout, RecordError, archive_name
from psmkit.live.recording.team import team_of
from psmkit.live.recording.watch import Quiet, Seen, Watch
from psmkit.model.inspection import InspectedThread, Inspection, Standing, StateObject, Value


def process(pid: int, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "host": "n", "role": "rank", "rank": pid, "ended": None, "status": None, "signal": None, **more}


def document(*processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"schema": FACT, "started": 100.0, "processes": list(processes), "quiet": [], "events": []}
    return {**base, "stopped": None, "ended": None, **more}


def texts(found: dict[str, Any]) -> list[str]:
    """The lines about processes."""
    return [text for line in journal.lines(found) if "the command" not in (text := line.partition("] ")[2])]


def test_first_death_is_one_and_what_a_launcher_ends_after_it_follows() -> None:
    found = document(process(1, ended=103.0, signal=15), process(0, ended=102.0, signal=9))
    assert texts(found) == [
        "psm record: process n:0, rank 0, was ended by SIGKILL after 2.000 s",
        "psm record: process n:1, rank 1, was ended by SIGTERM when the job was being ended after 3.000 s",
    ]


def test_signal_of_a_launcher_after_an_end_of_unknown_status_follows_from_it() -> None:
    found = texts(document(process(0, ended=102.0), process(1, ended=103.0, signal=15)))
    assert "is gone" in found[0]
    assert "when the job was being ended" in found[1]


def test_ends_before_the_user_ended_the_job_are_their_own() -> None:
    found = document(process(0, ended=102.0, signal=11), process(1, ended=110.0, status=1), stopped=109.0)
    assert ["being ended" in text for text in texts(found)] == [False, True]


QUIET = {"since": 100.0, "at": 400.0, "seconds": 300.0, "proven": True, "over": None, "used": {"0": 0.5}}


@pytest.mark.parametrize(
    ("quiet", "more", "stands"),
    [
        ({}, {}, "stood still"),
        ({"proven": False}, {}, "was silent"),
        ({"over": 401.0}, {}, None),  # it worked again, and nobody ended it
        ({"over": 401.0}, {"stopped": 401.2}, "stood still"),  # it printed that it was being ended
        ({"over": 401.0}, {"stopped": 900.0}, None),
        ({"over": 401.0}, {"stopped": 401.2, "ended": {"time": 402.0, "status": 0, "signal": None}}, None),
    ],
)
def test_standing_still_is_said_unless_the_job_went_on(
    quiet: dict[str, Any], more: dict[str, Any], stands: str | None
) -> None:
    found = texts(document(process(0), quiet=[{**QUIET, **quiet}], **more))
    assert (stands in found[0]) if stands else not found


@pytest.mark.parametrize(
    ("seconds", "used", "pause", "ranks", "proven"),
    [
        (300.0, 1.0, 10.0, 2, True),
        (300.0, 1.0, 100.0, 2, False),  # as silent before
        (300.0, 290.0, 10.0, 2, False),  # it computes
        (700.0, 690.0, 10.0, 2, True),  # for longer than torch waits
        (300.0, 1.0, 10.0, 0, False),  # no rank has begun
    ],
)
def test_long_rest_of_ranks_proves_a_hang(seconds: float, used: float, pause: float, ranks: int, proven: bool) -> None:
    assert Quiet(0.0, seconds, seconds, {1: used}, pause, ranks).proven is proven


def test_progress_is_a_line_or_a_record_and_nothing_else(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    watch = Watch(layout, 10.0, now=0.0)
    watch.adopt(os.getpid(), ["me"], {"RANK": "0"})
    log, record = layout.logs / "x.log", layout.records / "x.rec"
    log.write_text("one\n")
    record.write_bytes(b"\1" * 100)
    assert watch.moved(0, 1.0) is None
    assert watch.moved(0, 8.0) is None
    record.write_bytes(b"\2" * 100)  # as long as before
    assert watch.moved(0, 12.0) is None
    assert watch.moved(0, 18.0) is None
    found = watch.moved(0, 23.0)
    assert found is not None
    assert found.seconds == 11.0
    assert watch.moved(0, 24.0) is None  # said once
    log.write_text("one\ntwo\n")
    assert watch.moved(0, 25.0) is None
    assert found.over is not None
    watch.close()


def test_report_of_a_stall_is_no_progress(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    watch = Watch(layout, 10.0, now=0.0)
    watch.adopt(os.getpid(), ["me"], {"RANK": "0"})
    log, record = layout.logs / "x.log", layout.records / "x.rec"
    log.write_text("n:1:1 [0] NCCL INFO one\n")
    assert watch.moved(0, 1.0) is None
    with log.open("a") as file:
        file.write("n:1:2 [0] NCCL INFO psm p2p send rank 0 peer 1 channel 0 stalled for 10000 ms in stage offer\n")
    record.write_bytes(b"stalled")
    assert watch.moved(0, 6.0) is None
    found = watch.moved(0, 12.0)
    assert found is not None
    assert found.seconds == 11.0
    watch.close()


def test_full_disk_ends_the_copy_and_not_the_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    started = child.start([sys.executable, "-c", "print('x' * 99)"], dict(os.environ), Path("/dev/full"))
    while started.streams:
        for stream in list(started.streams):
            started.pump(stream)
    assert started.process.wait(60) == 0
    started.close()
    assert capfd.readouterr().out == "x" * 99 + "\n"
    assert started.trouble == os.strerror(errno.ENOSPC).lower()


def test_full_disk_keeps_the_folder_and_leaves_no_half_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    layout.manifest.write_text(json.dumps(document()))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tarfile.TarFile.addfile", full)
    with pytest.raises(
        RecordError, match=r"no space left on device; the evidence is in .*: make room, then .* --salvage"
    ):
        archive.close(layout.root)
    assert [path.name for path in tmp_path.iterdir()] == ["a.psmkit"]
    monkeypatch.undo()
    assert archive.close(layout.root) == archive_name(layout.root, "zst")


def test_lines_after_the_end_was_asked_for_are_kept_apart(tmp_path: Path) -> None:
    from tests.live.recorded import Archive

    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    layout.manifest.write_text(json.dumps(document(sizes_when_stopped={"logs/x.log": 6})))
    (layout.logs / "x.log").write_text("one\ntwo and\nlost its peer\n")
    found = Archive(archive.close(layout.root))
    assert found["logs/x.log"] == "one\ntwo and\n"
    assert found["ended/logs/x.log"] == f"{FACT}: printed while the job was being ended\nlost its peer\n"


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("[1.0] Out of memory: Killed process 42 (python) total-vm:1kB", True),
        ("[1.0] Out of memory: Killed process 43 (python) total-vm:1kB", False),
        ("[1.0] python[43]: segfault at 0 ip 0 sp 0 error 4", False),
        ("[1.0] traps: prog[42] general protection fault", True),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", True),
    ],
)
def test_kernel_lines_about_processes_of_others_are_left_out(line: str, ours: bool) -> None:
    assert evidence._is_ours(line, {42}) is ours


def test_words_with_secrets_are_masked() -> None:
    found = settings.masked({"A_TOKEN": "x", "B": "http://u:p@h/", "MY_KEY": "", "NCCL_DEBUG": "INFO"})
    assert found == {"A_TOKEN": "(masked)", "B": "http://(masked)@h/", "MY_KEY": "", "NCCL_DEBUG": "INFO"}
    assert settings.masked_words(["p", "--token", "x", "--lr", "1", "password=x"]) == [
        "p", "--token", "(masked)", "--lr", "1", "password=(masked)",
    ]  # fmt: skip


def test_team_needs_a_rank_and_a_job() -> None:
    assert team_of({}) is None
    assert team_of({"RANK": "1"}) is None
    assert team_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}) is None
    first = team_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
    second = team_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
    assert first is not None
    assert second is not None
    assert first.local == 1
    assert first.key != second.key


@pytest.mark.parametrize(
    ("tasks", "node", "size"), [("3", "0", 3), ("2(x3),1", "3", 1), ("2(x3),1", "2", 2), ("2", "7", None)]
)
def test_slurm_says_how_many_agents_a_host_has(tasks: str, node: str, size: int | None) -> None:
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "3",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": node,
    }
    found = team_of(env)
    assert found is not None
    assert found.size == size


def test_ranks_of_pytorch_are_asked_for_their_dumps(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    pipe = layout.flight / "pipe_rank_0.pipe"
    os.mkfifo(pipe)
    with pytest.raises(Exception, match="no process has a flight recorder"):  # nobody listens
        evidence._dump(layout)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        select.select([fd], [], [], 30)
        (layout.flight / "trace_rank_0").write_bytes(b"dump")

    thread = threading.Thread(target=answer)
    thread.start()
    assert evidence._dump(layout) == "flight"
    thread.join()
    os.close(fd)


def test_ras_is_asked_twice_since_equal_answers_prove_that_nothing_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    monkeypatch.setattr("psmkit.live.ras.ask", lambda port: f"answer of {port}")
    watch = Watch(layout, None)
    noted = journal.Journal(layout, ["me"], settings.Settings({}), "0")
    evidence.take(layout, watch, noted, 4242, number=1)
    assert [(layout.ras / f"ras-1{x}.txt").read_text() for x in "ab"] == ["answer of 4242"] * 2
    assert {entry["what"] for entry in noted.failed} == {"flight recorder", "stacks"}


def test_status_of_an_ended_process_is_read_before_its_parent_takes_it() -> None:
    for code, expected in (("import sys; sys.exit(5)", 5), ("import os; os.kill(os.getpid(), 9)", -9)):
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], dict(os.environ))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert procfs.exit_code(pid) == expected
        os.waitpid(pid, 0)
        assert procfs.exit_code(pid) is None
        assert procfs.cpu_time(pid) == 0.0


def test_descendants_are_found_through_several_parents() -> None:
    found = procfs.descendants([os.getppid()])
    assert found[os.getpid()] == os.getppid()


def look(
    at: float,
    cpu: float,
    *,
    step: int = 3,
    kind: str = "idle",
    moving: bool = False,
    stands: bool = True,
    ended: float = 0.0,
) -> rest.Look:
    thread = InspectedThread(8, "psm progress", "proxy progress thread", kind, "waits", "S")
    words = (Value("step", step, moving), Value("age_ms", round(1000 * at)), Value("seen", round(1e9 * at)))
    found = Inspection(
        7, "n", ("p",), at, threads=(thread,), state=(StateObject("connection", "to rank 1", values=words),),
        standing=(Standing("data", 1, "rank 0 waits for rank 1", "psm.steps"),) if stands else (),
    )  # fmt: skip
    return rest.Look(at, found, {7: 0.1, 8: cpu}, 0.1 + cpu + ended)


@pytest.mark.parametrize(
    ("second", "rests"),
    [
        (look(20.0, 2.2), True),
        (look(20.0, 2.2, step=4), False),  # it goes on
        (look(20.0, 2.2, moving=True), False),
        (look(20.0, 2.2, kind="elsewhere"), False),  # code of the program
        (look(20.0, 2.2, kind="device"), False),  # its kernel may work for long
        (look(20.0, 0.3, kind="elsewhere"), True),  # no thread worked
        (look(20.0, 2.2, stands=False), False),
        (look(20.0, 2.2, ended=3.0), False),  # by threads that are gone
    ],
)
def test_polling_in_libpsm_is_no_work_when_two_looks_show_that_nothing_moves(second: rest.Look, rests: bool) -> None:
    assert rest.rests(look(10.0, 1.0), second) is rests


def test_reason_not_to_end_a_silent_job_names_its_busiest_rank() -> None:
    seen = {pid: Seen(pid, 1, ["p"], 0.0, rank) for pid, rank in ((4, 0), (5, 1))}
    quiet = Quiet(0.0, 100.0, 100.0, {4: 11.0, 5: 7.0}, 10.0, 2)
    kind, why = rest.doubt(quiet, seen) or ("", "")
    assert kind == "busy"
    assert why.startswith("rank 0 used 11 % of a core, and 1 more used over 5 %, so it may still work")
    quiet.resting = {4, 5}
    assert rest.doubt(quiet, seen) is None
    assert (rest.doubt(Quiet(0.0, 100.0, 100.0, {4: 0.0}, 60.0, 2), seen) or ("",))[0] == "pause"
    assert (rest.doubt(Quiet(0.0, 100.0, 100.0, {4: 0.0}, 0.0, 0), seen) or ("",))[0] == "ranks"


def test_file_of_a_later_run_is_not_salvaged(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a.psmkit")
    layout.make()
    kept, other = tmp_path / "kept.log", tmp_path / "other.log"
    kept.write_text("one\n")
    other.write_text("two\n")
    files = {str(kept): kept.stat().st_ino, str(other): other.stat().st_ino + 1, str(tmp_path / "gone"): 1}
    found = document(elsewhere={"files": files, "records": []}, failed=[])
    evidence.copy_left(layout, found)
    assert [path.name for path in layout.copied.iterdir()] == ["kept.log"]
    assert sorted(entry["why"] for entry in found["failed"]) == ["another file has its name now", "it is gone"]


def test_end_of_the_command_is_said_with_what_outlives_it() -> None:
    ended = {"time": 101.5, "status": 3, "signal": None}
    assert journal.lines(document(ended=ended))[0].endswith("psm record: the command ended with status 3 after 1.500 s")
    killed = {"time": 101.5, "status": None, "signal": 9}
    found = journal.lines(document(process(1, role="other"), ended=killed, stopped=101.0))[0]
    assert found.endswith(
        "was ended by SIGKILL when the job was being ended after 1.500 s; 1 process of the job is left"
    )
