"""Evidence beside the line that a verdict rests on: kills for memory, Xids of the kernel, several ranks that waited for the same one, RAS, ends."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report, Severity
from tests.analysis.outside import nccl

KILLED = (
    "E0301 10:00:00.000000 90 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: 1 (pid: 903) of binary: /usr/bin/python3\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "-" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60 + "\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n  host      : cn3\n  rank      : 9 (local_rank: 1)\n  exitcode  : {code} (pid: 903)\n"
    "  error_file: <N/A>\n" + "-" * 60 + "\n"
)  # fmt: skip
#: Another rank that gave up later.
ABORTED = KILLED.format(code=-6).replace("903", "911").replace("cn3", "cn4").replace(": 9 (", ": 12 (")
OOM = "slurmstepd{}: error: Detected 1 oom_kill event in StepId=88.0. Some of the step tasks have been OOM Killed.\n"
REAPED = "[ 1234.5] oom_reaper: reaped process 955 (python3), now anon-rss:0kB, file-rss:0kB\n"


def analyzed(folder: Path, **texts: str) -> Report:
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    return psmkit.analyze([str(folder)])


@pytest.mark.parametrize("line", [OOM.format(""), OOM.format("-cn3"), REAPED], ids=["slurm", "slurm's host", "kernel"])
def test_a_report_of_a_kill_for_memory_is_the_advice_for_a_killed_rank(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=KILLED.format(code=-9) + line + ABORTED)
    found = next(f for f in report.findings if f.ranks == (9,))
    assert report.reason.startswith("rank 9 ") and "reports a kill for memory (job.log:" in found.next_step
    assert "dmesg" not in found.next_step and any(e.text in line for e in found.evidence)


@pytest.mark.parametrize(
    ("code", "line"),
    [(-9, ""), (-9, OOM.format("-cn8")), (-11, OOM.format(""))],
    ids=["none", "another host", "a crash"],
)
def test_no_other_end_is_taken_for_a_kill_for_memory(code: int, line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=KILLED.format(code=code) + line)
    found = next(f for f in report.findings if f.ranks == (9,))
    assert "kill for memory" not in found.next_step


LINK = "(Worker_TP{0} pid={1}) [rank{0}]:[E910 08:35:50.000000001 ProcessGroupNCCL.cpp:2068] [PG ID 2 PG GUID 3 Rank {0}] Process group watchdog thread terminated with exception: CUDA error: uncorrectable NVLink error detected during the execution\n"
XID = "[Thu Sep 10 08:35:49 2026] NVRM: Xid (PCI:0000:{}:00): {}, {}RXPIPE Fatal XC0 i0 Link 00\n"
LINKS = LINK.format(2, 403) + LINK.format(3, 404)


def xids(number: int = 145) -> str:
    out = ""
    for bus, pid in (("66", 403), ("76", 404)):
        out += XID.format(bus, number, "") + XID.format(bus, 45, f"pid={pid}, name=VLLM::Worker_TP, ")
    return out


def test_the_gpus_that_the_kernel_names_are_those_of_the_ranks_to_blame(tmp_path: Path) -> None:
    report = analyzed(tmp_path, server=LINKS, dmesg=xids())
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [2, 3]
    assert "Xid 145 of the GPU at 0000:66:00 (rank 2) and Xid 145 of the GPU at 0000:76:00 (rank 3)" in report.reason
    found = report.findings[0]
    assert "read dmesg" not in found.next_step and any("NVRM" in e.text for e in found.evidence)


@pytest.mark.parametrize("dmesg", ["", xids(31)], ids=["no kernel log", "a fault of the program"])
def test_without_an_error_of_the_hardware_in_the_kernel_log_both_ranks_are_named(dmesg: str, tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, server=LINKS, dmesg=dmesg or "[Thu Sep 10 08:35:49 2026] nvidia 0000:56:00.0: enabling device\n"
    )
    first = next(f for f in report.findings if f.title.startswith("CUDA error on ranks 2 and 3"))
    assert first.culprits == (2, 3) and "driver reports" not in first.title and "dmesg" in first.next_step


RAISES = (
    "[2026-03-01 10:10:00{tag}] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/opt/scheduler.py", line 12, in run\n    work = group.gather(x)\n'
    "torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', "
    "but store->get('0') got error: {error}\n"
)  # fmt: skip
LATE = "wait timeout after 600000ms, keys: /2//cuda//0"


def waits(*ranks: int, tag: str = " TP{}", error: str = LATE) -> str:
    return "".join(RAISES.format(rank=r, tag=tag.format(r), error=error) for r in ranks)


def test_ranks_that_waited_for_one_rank_are_one_finding(tmp_path: Path) -> None:
    report = analyzed(tmp_path, node0=waits(1, 2, 3), node1=waits(4, 5, 6, 7))
    assert report.reason == "ranks 1-7 never got the communicator id from rank 0 of their group"
    assert len([f for f in report.findings if f.severity.weight == report.findings[0].severity.weight]) == 1
    assert [(c.rank, c.comm) for c in report.culprits] == [(0, None)]


def test_the_rank_of_a_group_is_not_that_of_the_job_where_no_tag_says_so(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=waits(1, 2, 3, tag=""))
    assert report.reason.startswith("ranks 1-3 never got")
    assert [(c.rank, c.comm) for c in report.culprits] == [(0, "its process group")]


def test_ranks_of_several_groups_stay_apart(tmp_path: Path) -> None:
    report = analyzed(tmp_path, node0=waits(1, tag=""), node1=waits(1, tag=""))
    found = [f for f in report.findings if "never got the communicator id" in f.title]
    assert {f.title for f in found} == {"rank 1 never got the communicator id from rank 0 of its group"}
    assert report.culprits == ()


def test_a_single_wait_names_nobody_for_sure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=waits(1))
    assert report.reason == "rank 1 never got the communicator id from rank 0 of its group" and report.culprits == ()


def operations(rank: int, steps: int) -> str:
    """The log of a rank that launched so many collectives."""
    head = f"n0:{1000 + rank}:{1000 + rank} [{rank}] NCCL INFO "
    calls = ("AllGather", "ReduceScatter", "AllReduce")
    return nccl(rank, nranks=4, host="n0") + "".join(
        f"{head}{calls[at % 3]}: opCount {at:x} sendbuff 0x7f2a40000000 recvbuff 0x7f2a44000000 count 1 datatype 7 op 0 root 0 comm 0x55{rank:04x} [nranks=4] stream 0x7a31e0c0\n"
        for at in range(steps)
    )


def answer(rank: int, *operations: str) -> str:
    """An answer of ncclras in which one rank is behind."""
    return (
        "NCCL version 2.26.2 compiled with CUDA 12.4\nCUDA runtime version 12040, driver version 12080\n\nJob summary\n===========\n\n"
        "  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n      1          4            1          4        4\n\n"
        "Communicators... (0.00s)\n=============\n\nGroup     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n"
        "    0         1         1         4         4         4   RUNNING  MISMATCH\n\nErrors\n======\n\nWarnings\n========\n\n#0-0 (abc0) MISMATCH\n"
        + "".join(
            f"  Communicator ranks have different {op} operation counts\n  3 ranks have launched up to operation 4\n  1 ranks have launched up to operation 3\n"
            f"  Rank {rank} -- GPU {rank} managed by process {1000 + rank} on node 10.0.0.1\n"
            for op in operations
        )
        + "\n"
    )  # fmt: skip


ALL = ("AllGather", "ReduceScatter", "AllReduce")


def behind(folder: Path, ras: str) -> Report:
    for rank in range(4):
        (folder / f"rank{rank}.log").write_text(operations(rank, 9 if rank == 2 else 12))
    (folder / "ras.txt").write_text(ras)
    return psmkit.analyze([str(folder)])


def test_one_ras_answer_that_shows_what_the_logs_show_is_evidence(tmp_path: Path) -> None:
    report = behind(tmp_path, answer(2, *ALL))
    assert report.verdict == "inconclusive" and [s.rank for s in report.suspects] == [2]
    (found,) = [f for f in report.findings if f.title.startswith("RAS shows rank 2 (n0:1002) behind, as the logs do")]
    assert found.severity is Severity.WARNING and all(f"{op} (3 of 4)" in found.title for op in ALL)
    assert {e.file.rpartition("/")[2] for e in found.evidence} == {"ras.txt"}


def test_one_ras_answer_about_another_rank_stays_a_note(tmp_path: Path) -> None:
    report = behind(tmp_path, answer(1, *ALL))
    assert not any("as the logs do" in f.title for f in report.findings)
    assert {f.severity for f in report.findings if f.code == "PSM304"} == {Severity.INFO}


WAY = "n0:1001:1101 [1] NCCL INFO {}:114 -> 2\n"


@pytest.mark.parametrize(
    ("file", "stage"),
    [("transport/shm.cc", "connect"), ("transport.cc", "connect"), ("graph/search.cc", "topology"), ("init.cc", "topology")],
)  # fmt: skip
def test_the_source_file_of_an_error_shows_the_stage(file: str, stage: str, tmp_path: Path) -> None:
    lines = nccl(0, 1, nranks=2).splitlines(keepends=True)[:2]
    text = "".join(lines) + "n0:1001:1101 [1] NCCL INFO Trees [0] -1/-1/-1->1->0\n" + WAY.format(file)
    report = analyzed(tmp_path, job=text.replace("node0", "n0"))
    assert {r.rank: r.stage for r in report.ranks}[1] == stage


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ("node0:10", "is not complete"),
        ("node0:1001:1101 [1] NC", "is not complete"),
        ("no", "may be cut"),
        ("node0:1001:1001 [1] NCCL INFO Connected all rings", None),
        ("epoch 3 done", None),
        ("", None),
    ],
)
def test_a_last_line_that_stops_in_the_head_of_a_line_is_cut(end: str, note: str | None, tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=nccl(0, 1, nranks=2) + end)
    told = [n for n in report.coverage.notes if "the last line of" in n]
    assert [note in n for n in told] == [True] if note is not None else told == []
