"""Evidence without lines of calls: answers of RAS, records of libpsm and of the net plugin, events of the profiler; and a case again."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from psmkit.model.errors import PsmkitError
from psmkit.reproduce.case import NoOperationsError, extract
from psmkit.reproduce.replay import folder_of, read
from psmkit.reproduce.runs import on_simulator
from psmkit.reproduce.write import tasks, write
from psmkit.telemetry.recording import Recorder
from psmkit.telemetry.take import Take
from tests.analysis.test_foreign import BEHIND, ras
from tests.analysis.test_net_requests import Rows
from tests.analysis.texts import Rank
from tests.reproduce.jobs import dumps, entry, logs
from tests.telemetry.made import COLL_T, P2P_T, RECV, SEND, Comm
from tests.telemetry.takes import collective, comm

CROSSED = "comm a 0-1\n0: allreduce 1K float32 sum\nend\ncomm b 0-1\nallgather 8 int8\nend\ncomm a 0-1\n1: allreduce 1K float32 sum\nend\n"


def test_counts_of_ras_give_the_operations_by_which_ranks_are_ahead(tmp_path: Path) -> None:
    one = ras("MISMATCH", "", BEHIND.format(most=9, least=7))
    (tmp_path / "ras.txt").write_text(one + one)
    case = extract([str(tmp_path / "ras.txt")])
    assert "".join(tasks(case.operations)) == "0,2-3: allreduce 8M float32 sum\nend\n" * 2
    assert case.symptom is not None and (case.symptom.kind, case.symptom.culprits) == ("collective", (1,))
    assert on_simulator(case).returns is True


def _answer(counts: list[int], comm: str = "0xabc0") -> str:
    ranks = [
        {"rank": n, "host": "h", "pid": 1000 + n, "cuda_dev": n, "status": {}, "collective_counts": {"AllReduce": c, "Broadcast": 2}}
        for n, c in enumerate(counts)
    ]  # fmt: skip
    comms = [{"hash": comm, "size": len(counts), "ranks": ranks, "missing_ranks": []}]
    return json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": comms}) + "\n"


def test_ranks_that_are_even_in_an_answer_of_ras_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ras.json"
    path.write_text(_answer([4, 5, 5]) * 2)
    assert "".join(tasks(extract([str(path)]).operations)) == "1-2: allreduce 8M float32 sum\nend\n"
    path.write_text(_answer([4, 4, 4]))
    with pytest.raises(NoOperationsError, match="no rank is ahead"):
        extract([str(path)])


def _written(folder: Path, ranks: list[Rank]) -> Path:
    for rank in ranks:
        (folder / f"nccl.rank{rank.rank}.log").write_text("".join(line + "\n" for line in rank.lines))
    return folder


def test_numbers_that_no_job_has_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(_answer([4, 5, 5]).replace('"size": 3', '"size": 4294967296') * 2)
    with pytest.raises(NoOperationsError):
        extract([str(tmp_path / "ras.json")])
    rows = [entry("all_reduce", 1, "started")]
    paths = dumps(tmp_path, {0: rows, 1: rows}, 2)
    for path in paths:
        path.write_text(path.read_text().replace("[0, 1]", "[0, 999999999]"))
    assert extract([str(p) for p in paths]).operations.ranks == 2


def _steps(folder: Path, begun: tuple[int, int], stage: str) -> Path:
    """Logs of two ranks with rows of one connection: the sender has begun an operation more."""
    ranks = [Rank(0, 2), Rank(1, 2)]
    for me, (role, seq, what) in enumerate((("send", begun[0], "stalled"), ("recv", begun[1], "ended"))):
        moved, seen = 1_000_000_000, 9_000_000_000 if me == 0 else 1_000_000_000
        at = "offer" if me == 0 else stage
        ranks[me].line(f"record of process {ranks[me].pid}, rank {me}, command job, begun 2026-11-22T05:00:00.000000")
        ranks[me].line(
            f"psm steps {role} rank {me} peer {1 - me} channel 0/0 of 8 slots, pair b4 stream 0x10: operation {seq} {what} in stage {at}, step=1 "
            f"slot=1 recvTail=9 sendHead=1 base=1 nsteps=1 posted=0 transmitted=0 done=0 canSend=NO offer=0 answer=0 zeroCopy=0 "
            f"moved={moved} seen={seen} event=0"
        )
    ranks[0].line(
        f"psm op send rank 0 peer 1 channel 0: operation {begun[0]} of 4194304 bytes is Progress (active), 1 together, connection 1 buffer 0x10 "
        "handle 0 since=1"
    )
    return _written(folder, ranks)


def test_rows_of_both_ends_give_the_operation_that_one_has_not_begun(tmp_path: Path) -> None:
    case = extract([str(_steps(tmp_path, (3, 2), "ended"))])
    assert "".join(tasks(case.operations)) == "0: send 4M uint8 to=1\nend\n"
    assert case.symptom is not None and (case.symptom.kind, case.symptom.culprits) == ("send/recv", (1,))
    assert on_simulator(case).returns is True


def test_requests_of_the_net_plugin_give_messages(tmp_path: Path) -> None:
    rows = Rows()
    for n in range(3):
        rows.send(n, n + 1, n + 1.5, size=1 << 20).recv(n, n + 1, n + 1.5, room=1 << 20)
    rows.recv(3, 10, room=1 << 20).end(0, looked=10.9).end(1, looked=20)
    case = extract([str(_written(tmp_path, rows.lives().logs))])
    assert "".join(tasks(case.operations)) == "1: recv 8M float32 from=0\nend\n"
    assert any("net plugin" in text for text in case.guesses)


def test_windows_of_the_profiler_give_calls_in_order(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = Comm(rank, 2, context=rank)
        file.add(COLL_T, 100, 200, seq=0, count=1024, func=4, datatype=7, channels=1)
        for func, start in ((SEND, 300), (RECV, 301)):
            file.add(P2P_T, start, start + 50, group=7, count=64, func=func, datatype=1, peer=1 - rank, channels=1)
        if rank == 0:
            file.add(COLL_T, 400, seq=1, count=8, func=0, root=1, datatype=9, channels=1)
        file.write(tmp_path)
    case = extract([str(tmp_path)])
    assert "".join(tasks(case.operations)) == (
        "allreduce 1K float32 sum\nend\n0: send 64 uint8 to=1\n0: recv 64 uint8 from=1\n1: send 64 uint8 to=0\n1: recv 64 uint8 from=0\nend\n"
        "0: broadcast 8 bfloat16 root=1\nend\n"
    )


def test_a_recording_gives_calls_without_an_analysis(tmp_path: Path) -> None:
    take = Take(1, 1, comms=np.concatenate([comm(0), comm(1)]))
    take.rows = np.concatenate([line for rank in (0, 1) for line in collective(rank, 0)])
    recorder = Recorder(str(tmp_path / "run.arrow"), 1 << 30)
    recorder.add(take)
    recorder.close()
    case = extract([str(tmp_path / "run.arrow")])
    assert "".join(tasks(case.operations)) == "allreduce 1K float32 sum\nend\n" and case.symptom is None


@pytest.mark.parametrize("text", ["0: send 8M float32 to=1\nend\n", CROSSED])
def test_a_case_folder_is_the_case_again(tmp_path: Path, text: str) -> None:
    case = extract([str(logs(tmp_path / "logs", text, 2 if "comm" not in text else None))])
    (tmp_path / "case").mkdir()
    write(tmp_path / "case", case)
    for name in ("case", "case/case.toml"):
        folder = folder_of([str(tmp_path / name)])
        assert folder is not None
        again = read(folder)
        assert "".join(tasks(again.operations)) == "".join(tasks(case.operations))
        assert again.config == case.config and again.guesses == case.guesses
        assert again.symptom is not None and case.symptom is not None
        assert replace(again.symptom, ranks=case.symptom.ranks) == case.symptom


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('schema = "psmkit.case/1"', 'schema = "else"', "schema 'else', expected 'psmkit.case/1'"),
        ("ranks = 2", "ranks = -2", "ranks = -2, expected a number from 1"),
        ("nodes = 1", "nodes = 99999999999", "nodes = 99999999999, expected a number from 1"),
        ("culprits = [1]", "culprits = 3", "culprits = 3, expected a list of ranks"),
        ("[job]", "[job", "the file is damaged, it is not TOML"),
        ('schema = "psmkit.case/1"', "", "the file is damaged: it has no schema"),
        ("[seen]", "", "the file is damaged: it ends before its table"),
    ],
)
def test_a_damaged_case_is_refused_in_one_line(tmp_path: Path, old: str, new: str, error: str) -> None:
    (tmp_path / "case").mkdir()
    write(tmp_path / "case", extract([str(logs(tmp_path / "logs", "0: send 8M float32 to=1\nend\n", 2))]))
    toml = tmp_path / "case" / "case.toml"
    toml.write_text(toml.read_text().replace(old, new))
    with pytest.raises(PsmkitError, match=error):
        read(tmp_path / "case")


@pytest.mark.parametrize(
    ("gone", "given", "error"),
    [
        ("case.tasks", "case", "case.tasks is missing beside case.toml"),
        ("case.tasks", "case/case.toml", "case.tasks is missing beside case.toml"),
        ("case.toml", "case", "case.toml is missing beside case.tasks"),
    ],
)
def test_a_missing_file_of_a_case_is_named(tmp_path: Path, gone: str, given: str, error: str) -> None:
    (tmp_path / "case").mkdir()
    write(tmp_path / "case", extract([str(logs(tmp_path / "logs", "0: send 8M float32 to=1\nend\n", 2))]))
    (tmp_path / "case" / gone).unlink()
    with pytest.raises(PsmkitError, match=error):
        folder_of([str(tmp_path / given)])


def test_a_dump_without_entries_says_so(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text('{"version":"2.10","entries":[]}')
    with pytest.raises(NoOperationsError, match="the flight recorder dump has no entries"):
        extract([str(path)])


@pytest.mark.parametrize(
    ("key", "given", "release"),
    [
        ("nccl_version", "2.27.3", 22703),
        ("comm_lib_version", "2.28.9", 22809),
        ("nccl_version", "2.27.3" + "9" * 400, None),
    ],
)
def test_the_release_of_a_dump_is_taken_where_it_is_one(
    tmp_path: Path, key: str, given: str, release: int | None
) -> None:
    paths = dumps(tmp_path, {0: [entry("all_reduce", 1)], 1: [entry("all_reduce", 1)]}, 2)
    for path in paths:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: given}))
    case = extract([str(path) for path in paths])
    assert any("from nccl_version" in text for text in case.taken) == (release is not None)
    assert any("no line or dump shows the release" in text for text in case.guesses) == (release is None)
    assert release is None or case.config.release == release


def test_a_cut_dump_is_named_and_does_not_make_its_rank_late(tmp_path: Path) -> None:
    calls = [entry("all_reduce", seq) for seq in range(1, 8)] + [entry("all_reduce", 8, "started")]
    paths = dumps(tmp_path, dict.fromkeys(range(3), calls), 3)
    for path in paths:  # the entries last, as torch writes them
        value = json.loads(path.read_text())
        path.write_text(json.dumps({"pg_config": value["pg_config"], "entries": value["entries"]}))
    paths[2].write_text(paths[2].read_text()[:1400])
    case = extract([str(path) for path in paths])
    assert f"{paths[2]} is cut: the flight recorder dump was read up to its last complete value" in case.guesses
    assert "".join(tasks(case.operations)) == "allreduce 1K float32 sum\nend\n" * 8


def test_a_damaged_pickle_beside_whole_dumps_is_named(tmp_path: Path) -> None:
    calls = [entry("all_reduce", 1), entry("all_reduce", 2, "started")]
    paths = dumps(tmp_path, dict.fromkeys(range(2), calls), 3)
    data = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": calls}, protocol=2)
    (tmp_path / "nccl_trace_rank_2").write_bytes(data[: len(data) // 2])
    case = extract([*map(str, paths), str(tmp_path / "nccl_trace_rank_2")])
    assert f"{tmp_path / 'nccl_trace_rank_2'} was not read: the pickle ends early" in case.guesses
