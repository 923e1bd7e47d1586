"""Findings from flight recorder dumps, RAS answers, stacks and proxy dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.analysis.facts.job import Job
from psmkit.analysis.rules import flight, foreign, proxy_dumps, ras_answers, stacks
from psmkit.model import Finding, Severity
from tests import ras
from tests.analysis.outside import coded, errors, nccl, run_rule
from tests.analysis.test_watchdog import status, timeout


def find(job: Job) -> list[Finding]:
    return [f for rule in (foreign, flight, ras_answers, stacks, proxy_dumps) for f in rule.find(job)]


def entry(seq: int, state: str = "completed", op: str = "all_reduce", size: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "state": state,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "/job/train.py", "line": 41}],
        **more,
    }


def dump(*entries: dict[str, Any], nranks: int = 3) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(nranks)))}}
    return {"version": "2.4", "pg_config": config, "entries": list(entries)}


def flights(folder: Path, *dumps: dict[str, Any] | None, log: str = "") -> list[Finding]:
    texts = {f"trace_rank_{r}__json": json.dumps(d) for r, d in enumerate(dumps) if d is not None}
    if log:
        texts["job"] = log
    return run_rule(find, folder, **texts)


def test_documents_count_as_read_and_a_cut_dump_is_named_and_accuses_nobody(tmp_path: Path) -> None:
    paths = [tmp_path / f"trace_rank_{rank}.json" for rank in range(3)]
    for path in paths:
        path.write_text(json.dumps(dump(entry(1), entry(2), entry(3, "started"))))
    whole = paths[1].read_text()
    for length in range(whole.index("nccl:all_reduce"), len(whole) - 1, 7):
        paths[1].write_text(whole[:length])
        report = psmkit.analyze([str(path) for path in paths])
        assert report.coverage.bytes == 2 * len(whole) + length
        assert f"{paths[1]} is cut: the flight recorder dump was read" in " ".join(report.coverage.notes)
        assert not any(f.culprits for f in report.findings)
    paths[1].write_text(whole)
    assert not any("is cut" in note for note in psmkit.analyze([str(path) for path in paths]).coverage.notes)


def test_a_cut_dump_whose_status_shows_where_its_rank_is_still_proves_it(tmp_path: Path) -> None:
    waiting = dump(entry(1), entry(2), entry(3, "started"))
    late = {
        "pg_status": {"0": {"last_enqueued_collective": 2, "last_completed_collective": 2}},
        **dump(entry(1), entry(2)),
    }
    for rank, value in enumerate((waiting, late, waiting)):
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(value)[: -9 if value is late else None])
    report = psmkit.analyze([str(path) for path in sorted(tmp_path.iterdir())])
    assert [(f.code, f.culprits) for f in report.findings] == [("PSM302", (1,))]


# --- flight recorder --------------------------------------------------------------------------------------------------


def test_a_rank_that_never_called_the_collective(tmp_path: Path) -> None:
    waiting = dump(entry(1), entry(2), entry(3, "started"))
    (found,) = flights(tmp_path, waiting, dump(entry(1), entry(2)), waiting)
    assert (found.code, found.culprits, found.severity) == ("PSM302", (1,), Severity.ERROR)
    assert "number 3" in found.title
    assert "train.py:41" in found.evidence[0].text
    assert found.evidence[0].file.endswith("trace_rank_1.json")


def test_most_ranks_may_be_missing_where_two_wait(tmp_path: Path) -> None:
    waiting, short = dump(entry(1), entry(2, "started"), nranks=5), dump(entry(1), nranks=5)
    (found,) = flights(tmp_path, waiting, waiting, short, short, short)
    assert (found.code, found.culprits) == ("PSM302", (2, 3, 4))
    (one,) = flights(tmp_path, waiting, short, short, short, short)
    assert (one.code, one.culprits) == ("PSM302", ())  # rank 0 may have called one collective too many


def test_dumps_of_a_job_that_is_level_say_nothing(tmp_path: Path) -> None:
    assert flights(tmp_path, *[dump(entry(1), entry(2))] * 3) == []
    # One rank behind is no fault while nobody waits for it.
    assert flights(tmp_path, dump(entry(1), entry(2)), dump(entry(1)), dump(entry(1), entry(2))) == []


@pytest.mark.parametrize(("more", "word"), [({"op": "broadcast"}, "broadcast"), ({"size": 9}, "of 9 elements")])
def test_the_first_collective_that_differs(more: dict[str, Any], word: str, tmp_path: Path) -> None:
    good = dump(entry(1), entry(2, "started"), entry(3, "scheduled"))
    (found,) = flights(tmp_path, good, good, dump(entry(1), entry(2, "started", **more)))
    assert (found.code, found.culprits) == ("PSM301", (2,))
    assert "number 2" in found.title
    assert word in found.title


def test_sizes_that_may_differ_are_no_mismatch(tmp_path: Path) -> None:
    dumps = [dump(entry(1), entry(2, "started", op="all_to_all", size=r + 1)) for r in range(3)]
    assert coded(flights(tmp_path, *dumps), "PSM301") == []


def test_what_completed_under_another_name_is_history(tmp_path: Path) -> None:
    assert flights(tmp_path, dump(entry(1)), dump(entry(1, op="broadcast")), dump(entry(1))) == []


def test_a_ring_that_lost_its_begin_is_compared_where_both_have_entries(tmp_path: Path) -> None:
    full = dump(entry(1, op="broadcast"), entry(2), entry(3, "started"))
    (found,) = flights(tmp_path, full, dump(entry(2), entry(3, "started")), dump(entry(2)))
    assert (found.code, found.culprits) == ("PSM302", (2,))


def test_a_collective_that_all_called_and_none_finished(tmp_path: Path) -> None:
    waiting = dump(entry(1), entry(2, "started"))
    (found,) = flights(tmp_path, waiting, waiting, waiting)
    assert (found.code, found.culprits, found.severity) == ("PSM305", (), Severity.WARNING)
    (proven,) = flights(tmp_path, waiting, waiting, waiting, log=timeout(0, 2) + status(0, 2, 2))
    assert proven.severity is Severity.ERROR


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    waiting = dump(entry(1), entry(2, "started"))
    (found,) = flights(tmp_path, waiting, None, waiting)
    assert found.culprits == (1,)
    assert "no dump of rank 1" in found.title


def test_a_rank_whose_gpu_has_not_begun(tmp_path: Path) -> None:
    started = dump(entry(1), entry(2, "started"))
    (found,) = flights(tmp_path, started, dump(entry(1), entry(2, "scheduled")), started)
    assert (found.code, found.culprits) == ("PSM302", (1,))


def test_a_send_that_nobody_receives(tmp_path: Path) -> None:
    def p2p(op: str) -> dict[str, Any]:
        return entry(1, "started", op=op, is_p2p=True, p2p_seq_id=1)

    found = flights(tmp_path, dump(p2p("send 0->1"), nranks=2), dump(nranks=2))
    assert [(f.code, f.culprits) for f in found] == [("PSM303", (1,))]
    assert flights(tmp_path, dump(p2p("send 0->1"), nranks=2), dump(p2p("recv 1<-0"), nranks=2)) == []


def test_dumps_without_a_rank_are_told(tmp_path: Path) -> None:
    texts = {"a__json": json.dumps(dump(entry(1))), "b__json": json.dumps(dump(entry(1)))}
    (found,) = run_rule(find, tmp_path, **texts)
    assert (found.code, found.severity) == ("PSM604", Severity.INFO)


def test_dumps_alone_are_analysable(tmp_path: Path) -> None:
    waiting = dump(entry(1), entry(2, "started"))
    for rank, d in enumerate((waiting, dump(entry(1)), waiting)):
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(d))
    report = psmkit.analyze([str(tmp_path)])
    assert (report.verdict, [c.global_rank for c in report.culprits]) == ("hung", [1])


# --- RAS --------------------------------------------------------------------------------------------------------------

RAS = (
    "NCCL version 2.27.5 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\n"
    + ras.head("    0         1         1         4         4         4   RUNNING  {errors}\n")
    + "\nErrors\n======\n\n{error}\nWarnings\n========\n\n{warning}\n"
)
MISSING = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 1002 on node 10.0.0.1 managing GPU 2

#0-0 (000000000000abc0) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 2
"""
BEHIND = """\
#0-0 (000000000000abc0) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation {most}
  Rank 1 has launched up to operation {least} -- GPU 1 managed by process 1001 on node 10.0.0.1
"""


def ras(errors: str = "OK", error: str = "", warning: str = "") -> str:
    return RAS.format(errors=errors, error=error, warning=warning)


def test_a_rank_that_ras_misses(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, ras__txt=ras("INCOMPLETE", MISSING))
    assert (found.code, found.ranks, found.comm) == ("PSM407", (2,), "0xabc0")
    assert "1002" in found.title


def test_one_answer_without_a_rank_proves_no_hang_and_the_same_answer_later_does(tmp_path: Path) -> None:
    def gone(most: int) -> str:
        return ras("INCOMPLETE", MISSING, BEHIND.format(most=most, least=8))

    (found,) = coded(run_rule(find, tmp_path, ras__txt=gone(9)), "PSM407")
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "Query RAS again" in found.next_step
    (found,) = coded(run_rule(find, tmp_path, ras__txt=gone(9) + gone(9)), "PSM407")
    assert (found.severity, found.culprits) == (Severity.ERROR, (2,))
    # between the two answers the others launched operations, so they wait for nobody
    (found,) = coded(run_rule(find, tmp_path, ras__txt=gone(9) + gone(29)), "PSM407")
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    report = psmkit.analyze([str(tmp_path / "ras.txt")])
    assert (report.verdict, report.culprits) == ("inconclusive", ())
    # without numbers of operations, two answers do not show that the job stands still
    (found,) = coded(run_rule(find, tmp_path, ras__txt=ras("INCOMPLETE", MISSING) * 2), "PSM407")
    assert found.severity is Severity.WARNING


def test_a_rank_that_ras_misses_and_a_watchdog_prove_a_hang(tmp_path: Path) -> None:
    text = nccl(0, 1, 2, 3, nranks=4) + ras("INCOMPLETE", MISSING) + timeout(0)
    (found,) = coded(run_rule(find, tmp_path, job=text), "PSM407")
    assert (found.severity, found.culprits) == (Severity.ERROR, (2,))


def test_a_rank_that_ras_gave_up(tmp_path: Path) -> None:
    dead = MISSING.replace(
        "INCOMPLETE\n  Missing communicator data from 1 job process",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)",
        1,
    )
    (found,) = run_rule(find, tmp_path, ras__txt=ras("INCOMPLETE", dead))
    assert found.culprits == (2,)
    assert "is dead according to RAS" in found.title


def test_a_complaint_in_words_that_nobody_knows_is_never_no_error(tmp_path: Path) -> None:
    words = "#0-0 (000000000000abc0) MISMATCH\n  Communicator ranks disagree about the weather\n"
    (found,) = run_rule(find, tmp_path, ras__txt=ras("MISMATCH", warning=words))
    assert (found.code, found.severity) == ("PSM304", Severity.WARNING)
    assert "MISMATCH in 0xabc0: Communicator ranks disagree about the weather" in found.title
    for complaint in ("MISMATCH", "INCOMPLETE", "NEWWORD"):  # only the row of the table has it
        (found,) = run_rule(find, tmp_path, ras__txt=ras(complaint))
        assert f"reports {complaint} in a communicator of 4 ranks" in found.title
        assert "no error" not in found.title


def test_one_rank_in_the_singular_is_a_rank_behind(tmp_path: Path) -> None:
    one = BEHIND.format(most=9, least=8).replace(
        "Rank 1 has launched up to operation 8 --", "1 rank has launched up to operation 8\n  Rank 1 --"
    )
    (found,) = run_rule(find, tmp_path, ras__txt=ras("MISMATCH", warning=one))
    assert (found.code, found.ranks) == ("PSM304", (1,))


def test_a_healthy_answer_is_no_proof_of_health(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, ras__txt=ras())
    assert (found.code, found.severity, found.known_issue) == ("PSM604", Severity.INFO, "NVIDIA/nccl#1730")


def test_one_answer_with_counts_that_differ_proves_nothing(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, ras__txt=ras("MISMATCH", "", BEHIND.format(most=9, least=8)))
    assert (found.code, found.severity, found.culprits) == ("PSM304", Severity.INFO, ())


def test_the_ranks_behind_may_be_the_many(tmp_path: Path) -> None:
    few = BEHIND.replace(
        "3 ranks have launched up to operation {most}", "3 ranks have launched up to operation {least}"
    ).replace("Rank 1 has launched up to operation {least}", "Rank 1 has launched up to operation {most}")
    one = ras("MISMATCH", "", few.format(most=9, least=8))
    (found,) = run_rule(find, tmp_path, ras__txt=one + one)
    assert found.culprits == ()
    assert "3 ranks" in found.title


def test_the_same_counts_twice_prove_a_rank_behind(tmp_path: Path) -> None:
    one = ras("MISMATCH", "", BEHIND.format(most=9, least=8))
    (found,) = run_rule(find, tmp_path, ras__txt=one + one)
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))
    moved = ras("MISMATCH", "", BEHIND.format(most=29, least=28))
    assert errors(run_rule(find, tmp_path, ras__txt=one + moved)) == []


def test_an_answer_in_the_middle_of_a_log(tmp_path: Path) -> None:
    text = (
        nccl(0, 1, 2, 3, nranks=4) + ras("INCOMPLETE", MISSING, BEHIND.format(most=9, least=8)) + timeout(0) + status(0)
    )
    found = run_rule(find, tmp_path, job=text)
    assert [(f.code, f.culprits) for f in errors(found)] == [("PSM407", (2,)), ("PSM304", (1,))]
    assert found[0].processes == ("node0:1002",)
    assert found[0].evidence[0].line > 8
    assert "INCOMPLETE" in found[0].evidence[0].text
    quiet = nccl(0, nranks=1) + "Job summary\nRank 0 -- GPU hours: 7\n#1-2 (beef) DONE\n"
    assert run_rule(find, tmp_path, job=quiet) == []


def test_an_answer_without_a_complaint_inside_a_log_is_read(tmp_path: Path) -> None:
    for tag in ("", "[1,0]<stdout>:"):
        answer = "".join(f"{tag}{line}\n" for line in ras("OK").splitlines())
        (found,) = run_rule(find, tmp_path, job=nccl(0, nranks=4) + answer + timeout(0) + status(0))
        assert (found.code, found.severity) == ("PSM604", Severity.INFO)
        assert "1 communicator of 4 ranks shows no error" in found.title
        assert "RUNNING" in found.evidence[0].text
        # an answer that is cut shows less
        cut = answer[: answer.index("Errors\n")]
        assert run_rule(find, tmp_path, job=nccl(0, nranks=4) + cut + timeout(0) + status(0)) == []


def test_json_answers(tmp_path: Path) -> None:
    def rank(n: int, count: int, error: int = 0) -> dict[str, Any]:
        state = {"init_state": 0, "async_error": error, "abort_flag": False}
        return {
            "rank": n,
            "host": "h",
            "pid": 1000 + n,
            "cuda_dev": n,
            "status": state,
            "collective_counts": {"AllReduce": count},
        }

    def answer(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = (), at: str = "10:00:00") -> str:
        comm = {"hash": "0xabc0", "size": 3, "ranks": ranks, "missing_ranks": missing}
        said = {"nccl_version": "2.29.1", "timestamp": at, "communicators_count": 1, "communicators": [comm]}
        return json.dumps({**said, "ras": {"timeouts_count": 0}}) + "\n"

    gone = {"rank": 2, "host": "h", "pid": 1002, "status": {"unresponsive": True, "considered_dead": False}}
    once = answer(rank(0, 4), rank(1, 4), missing=(gone,))
    (found,) = run_rule(find, tmp_path, ras__json=once)
    assert (found.code, found.ranks, found.severity) == ("PSM407", (2,), Severity.WARNING)
    (found,) = run_rule(find, tmp_path, ras__json=once + once)
    assert found.severity is Severity.WARNING  # the same answer, given twice
    again = answer(rank(0, 4), rank(1, 4), missing=(gone,), at="10:01:00")
    (found,) = run_rule(find, tmp_path, ras__json=once + again)
    assert (found.code, found.culprits, found.severity) == ("PSM407", (2,), Severity.ERROR)
    left = {**gone, "status": {"unresponsive": False, "considered_dead": False}}
    assert errors(run_rule(find, tmp_path, ras__json=answer(rank(0, 4), rank(1, 4), missing=(left,)))) == []
    (failed,) = run_rule(find, tmp_path, ras__json=answer(rank(0, 4), rank(1, 4, 6), rank(2, 4, 2)))
    assert (failed.code, failed.culprits) == ("PSM401", (2,))
    assert "system error" in failed.title


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "worker-0 | "])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_answer_in_json_inside_a_log(prefix: str, indent: int | None, newline: str, tmp_path: Path) -> None:
    gone = {"rank": 2, "host": "h", "pid": 1002, "status": {"unresponsive": True, "considered_dead": False}}
    comm = {"hash": "0xabc0", "size": 3, "ranks": [], "missing_ranks": [gone]}
    answer = json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm]}, indent=indent)
    before, after = nccl(0, 1, nranks=3), "the job goes on {not json}\n"
    text = "".join(prefix + line + newline for line in (before + answer + "\n" + after).splitlines())
    (found,) = coded(run_rule(find, tmp_path, job=text), "PSM407")
    assert found.ranks == (2,)
    assert found.evidence[0].line == len(before.splitlines()) + (2 if indent else 1)


# --- stacks -----------------------------------------------------------------------------------------------------------


def spy(pid: int, *frames: str) -> str:
    return (
        f'Process {pid}: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n'
        + "".join(f"    {frame} (x.py:{n})\n" for n, frame in enumerate(frames, start=1))
    )


def test_who_stands_elsewhere(tmp_path: Path) -> None:
    waits = [spy(1000 + r, "all_reduce", "step", "<module>") for r in (0, 1, 2)]
    found = run_rule(
        find,
        tmp_path,
        job=nccl(0, 1, 2, 3, nranks=4),
        spy__txt="".join(waits) + spy(1003, "read", "load_batch", "<module>"),
    )
    odd = [f for f in found if f.severity is not Severity.INFO]
    assert [(f.code, f.severity) for f in odd] == [("PSM313", Severity.WARNING)]
    assert "rank 3 (node0:1003) waits for a batch of the data loader (load_batch at x.py:2)" in odd[0].title
    assert (odd[0].processes, odd[0].suspects, odd[0].culprits) == (("node0:1003",), (3,), ())
    level = run_rule(find, tmp_path, spy__txt="".join(waits))
    assert [(f.code, f.severity) for f in level] == [("PSM316", Severity.INFO)]
    assert "processes 1000, 1001 and 1002" in level[0].title


def test_threads_are_named_by_their_role(tmp_path: Path) -> None:
    gdb = (
        "Thread 3 (Thread 0x7f5 (LWP 1003)):\n#0  futex_wait () at futex.h:1\n#1  0x00 in ncclProxyGetPostedOps () at proxy.cc:713\n#2  ncclProxyProgress () at proxy.cc:868\n\n"
        "Thread 2 (Thread 0x7f6 (LWP 1002)):\n#0  0x00 in poll () from /lib64/libc.so.6\n#1  ncclProxyService () at proxy.cc:1437\n\n"
        "Thread 1 (Thread 0x7f7 (LWP 1000)):\n#0  0x00 in poll () from /lib64/libc.so.6\n#1  0x00 in ncclPollProxyResponse () at proxy.cc:1\n#2  0x00 in ncclProxyCallBlocking () at proxy.cc:2\n"
    )
    (found,) = run_rule(find, tmp_path, gdb__txt=gdb)
    assert found.severity is Severity.INFO
    assert (
        "process 1000: the main thread waits for an answer of the proxy service (ncclPollProxyResponse" in found.title
    )
    assert "proxy progress thread waits for new operations (idle)" in found.explanation
    assert "proxy service thread waits for requests (idle)" in found.explanation


# --- proxy dumps ------------------------------------------------------------------------------------------------------

DUMP = "ACTIVE OPS\n[0-0|12| Recv 3R/0 3R/1]\n| `-> [0-1|14| Recv 3/0]\nv\n[X]\n"


def test_an_empty_dump_is_no_idleness(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=nccl(0, nranks=2) + "ACTIVE OPS\n[X]\n")
    assert (found.code, found.severity, found.known_issue) == ("PSM604", Severity.INFO, "NVIDIA/nccl#1930")
    # A dump that is cut is not known to be empty.
    assert run_rule(find, tmp_path, job=nccl(0, nranks=2) + "ACTIVE OPS\n") == []


def test_a_dump_tells_who_waits_for_whom(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=nccl(0, nranks=4) + DUMP)
    assert (found.code, found.severity, found.culprits) == ("PSM304", Severity.INFO, ())
    assert "Recv with rank 3, 2 connections: waits for data from the peer (R)" in found.title
    assert "rank 3" in found.next_step


def test_the_same_dump_twice_does_not_move(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, job=nccl(0, nranks=4) + DUMP + DUMP)
    assert found.severity is Severity.WARNING
    moved = run_rule(find, tmp_path, job=nccl(0, nranks=4) + DUMP + DUMP.replace("|12|", "|16|"))
    assert [f.severity for f in moved] == [Severity.INFO] * 2


def test_a_dump_of_finished_operations_says_nothing(tmp_path: Path) -> None:
    assert run_rule(find, tmp_path, job=nccl(0, nranks=4) + "ACTIVE OPS\n[0-0|12| Send 3D/0]\n|\nv\n[X]\n") == []


# --- inputs that cannot be read ---------------------------------------------------------------------------------------


def test_a_foreign_input_without_content_is_told(tmp_path: Path) -> None:
    (found,) = run_rule(find, tmp_path, broken__json='{"pg_config": {"0"')
    assert (found.code, found.severity) == ("PSM604", Severity.INFO)
    assert "broken.json" in found.title
