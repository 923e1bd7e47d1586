"""From logs and dumps to the operations of each rank."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from psmkit.analysis.facts import foreign
from psmkit.analysis.facts.job import make_job
from psmkit.logparse import scan
from psmkit.model.errors import PsmkitError
from psmkit.plan.programs import parse_program
from psmkit.plan.types import Func
from psmkit.reproduce.case import NoOperationsError, extract
from psmkit.reproduce.write import tasks
from psmkit.synth.scenarios import generate
from tests.reproduce.jobs import dumps, entry, logs


def _tasks(paths: list[Path] | Path) -> str:
    return "".join(tasks(extract([str(p) for p in (paths if isinstance(paths, list) else [paths])]).operations))


MIXED = """allreduce 1K float32 sum
end
0: send 4K float32 to=1
0: recv 4K float32 from=1
1: send 4K float32 to=0
1: recv 4K float32 from=0
end
broadcast 100 bfloat16 root=1
end
0: send 8 uint8 to=1 times=3
1: recv 8 uint8 from=0 times=3
end
"""


def test_logs_give_the_task_file_that_made_them(tmp_path: Path) -> None:
    assert _tasks(logs(tmp_path / "logs", MIXED, 2)) == MIXED


def test_communicators_of_some_ranks_keep_the_order_of_each_rank(tmp_path: Path) -> None:
    text = "comm a 0-1\nallreduce 8 float32 sum\nend\ncomm b 2,1\n0: send 4 int32 to=1\n1: recv 4 int32 from=0\nend\ncomm a 0-1\nallgather 4 int8\nend\n"
    case = extract([str(logs(tmp_path / "logs", text))])
    assert [c.ranks for c in case.operations.comms] == [(0, 1), (2, 1)]
    assert [int(c) for c in case.operations.by_rank[1]["comm"]] == [0, 1, 0]
    made = "".join(tasks(case.operations))
    assert [line.split()[2] for line in made.splitlines() if line.startswith("comm ")] == ["0-1", "2,1", "0-1"]


def test_communicators_without_an_id_get_names_that_a_task_file_takes(tmp_path: Path) -> None:
    text = "comm a 0-1\nallreduce 8 float32 sum\nend\ncomm b 0-1\nallgather 4 int8\nend\n"
    folder = logs(tmp_path / "logs", text)
    for path in folder.glob("nccl.*"):
        path.write_text(re.sub(r" commId \S+", "", path.read_text()))
    program = parse_program(_tasks(folder))
    assert len(program.comms) == 2 and not any("#" in comm.name for comm in program.comms)


def test_one_line_of_alltoall_becomes_sends_and_recvs(tmp_path: Path) -> None:
    folder = logs(tmp_path / "logs", "allreduce 8 float32 sum\nend\n", 3)
    for path in folder.glob("nccl.*"):
        path.write_text(path.read_text().replace("AllReduce:", "AlltoAll:"))
    ours = extract([str(folder)]).operations.by_rank[1]
    assert [(Func(f), int(p)) for f, p in zip(ours["func"], ours["peer"], strict=True)] == [
        (Func.SEND, 0), (Func.RECV, 0), (Func.SEND, 2), (Func.RECV, 2),
    ]  # fmt: skip
    assert list(ours["last"]) == [0, 0, 0, 1]


def test_an_opcount_that_stays_at_0_makes_groups_a_guess(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name, text in generate("healthy_both", "2.27").files().items():
        (tmp_path / "logs" / name).write_text(text)
    case = extract([str(tmp_path / "logs")])
    assert any("opCount stays at 0" in text for text in case.guesses)
    assert int(case.operations.by_rank[0]["last"].sum()) == 8  # four collectives, four exchanges


def test_settings_come_from_the_log_and_the_rest_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name, text in generate("healthy_both", "2.21").files().items():
        (tmp_path / "logs" / name).write_text(text)
    case = extract([str(tmp_path / "logs")])
    assert case.config.p2p_channels == 2
    assert case.assumed == ("work_fifo_bytes",)
    assert any("2.21.5" in text and "2.22.3" in text for text in case.guesses)


def test_a_rank_without_a_log_is_filled_in_from_its_peers(tmp_path: Path) -> None:
    folder = logs(tmp_path / "logs", MIXED, 2)
    (folder / "nccl.rank1.log").unlink()
    case = extract([str(folder)])
    swapped = MIXED.replace(
        "1: send 4K float32 to=0\n1: recv 4K float32 from=0\n", "1: recv 4K float32 from=0\n1: send 4K float32 to=0\n"
    )  # in the order of the peer
    assert "".join(tasks(case.operations)) == swapped
    assert any(
        text.startswith("rank 1 left no whole log or dump: its 7 operations in 4 groups") for text in case.guesses
    )


def test_dumps_begin_with_the_oldest_operation_that_all_ranks_still_have(tmp_path: Path) -> None:
    first = [entry("all_reduce", seq) for seq in range(10)]
    second = [entry("all_reduce", seq) for seq in range(6, 11)]
    second[-1]["state"] = "started"
    case = extract([str(p) for p in dumps(tmp_path, {0: first, 1: second}, 2)])
    assert (
        "".join(tasks(case.operations)) == "allreduce 1K float32 sum\nend\n" * 4 + "1: allreduce 1K float32 sum\nend\n"
    )
    assert any("6 completed operations" in text for text in case.taken)
    assert case.flight


def test_sends_of_one_number_are_a_group_and_a_recv_implies_a_send(tmp_path: Path) -> None:
    mine = [entry("recv 0<-1", 1, "started"), entry("recv 0<-1", 1, "started"), entry("send 0->1", 2, "scheduled")]
    case = extract([str(p) for p in dumps(tmp_path, {0: mine}, 2)])
    assert "".join(tasks(case.operations)) == (
        "0: recv 1K float32 from=1 times=2\n1: send 1K float32 to=0 times=2\nend\n0: send 1K float32 to=1\n1: recv 1K float32 from=0\nend\n"
    )


def test_pickles_are_read_and_never_executed(tmp_path: Path) -> None:
    data = {"version": "2.5", "entries": [entry("all_reduce", 1, "started")], "pg_config": {"0": {"ranks": "[0, 1]"}}}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(data))
    assert len(extract([str(tmp_path / "nccl_trace_rank_0")]).operations) == 2

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "made").write_text, ("x",))

    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps(data | {"pg_status": Evil()}))
    with pytest.raises(PsmkitError):
        extract([str(tmp_path / "nccl_trace_rank_1")])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("scenario", ["stop_in_init"])
def test_logs_without_calls_are_refused(tmp_path: Path, scenario: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(generate(scenario, "2.27").merged())
    with pytest.raises(NoOperationsError, match="no call of a collective"):
        extract([str(path)])


def test_a_long_dump_is_read_whole_behind_an_analysis_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_MOST_ENTRIES", 8)
    monkeypatch.setattr(foreign, "_LEAST_ENTRIES", 4)
    ours = [entry("all_reduce", seq) for seq in range(1, 51)]
    ours[2]["state"] = "started"
    behind = [entry("all_reduce", seq) for seq in range(1, 50)]
    paths = [str(p) for p in dumps(tmp_path, {0: [*ours], 1: behind}, 2)]
    with scan(paths) as result:
        (first, second) = (item.flights[0] for item in foreign.inputs(make_job(result)))
    assert [e.seq for e in first.entries] == [3, 48, 49, 50] and first.dropped == 46 and second.dropped == 45
    case = extract(paths)
    assert [len(case.operations.by_rank[rank]) for rank in (0, 1)] == [50, 49]


def test_a_batch_and_calls_without_a_task_are_left_out(tmp_path: Path) -> None:
    ours = [
        entry("coalesced", 1),
        entry("all_reduce", 1),
        entry("send 0->7", 1),
        entry("_broadcast_oop", 2),
        entry("broadcast", 3),
    ]
    case = extract([str(p) for p in dumps(tmp_path, {0: ours, 1: ours}, 2)])
    assert "".join(tasks(case.operations)) == "allreduce 1K float32 sum\nend\nbroadcast 1K float32 root=0\nend\n"
    left = [text for text in case.guesses if "left out" in text]
    assert (
        len(left) == 2
        and left[0].startswith("2 entries of _broadcast_oop")
        and left[1].startswith("2 entries of send or recv")
    )
    assert any(text.startswith("broadcast of pg0: a dump does not show the root") for text in case.guesses)
