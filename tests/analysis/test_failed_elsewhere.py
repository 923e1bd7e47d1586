"""A rank that fails outside NCCL, and the errors that other ranks print because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report, Severity
from tests.analysis.outside import nccl
from tests.analysis.test_crashes import elastic
from tests.analysis.texts import analyzed

STACK = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "t.py", line 8, in <module>\n[rank1]:     loss.backward()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.21 GiB is free.\n"
LOST = "node0:1000:1900 [0] NCCL INFO [Service thread] Connection closed by localRank 1\n"
EXIT = "E1120 09:14:05.331000 900 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 1001) of binary: /usr/bin/python\n"
REMOTE = "[Proxy Service 0] Failed to execute operation {} from rank 0, retcode {}"
PROGRESS = "[Service thread] Error encountered progressing operation=Connect, res=6, closing connection"


def warn(text: str) -> str:
    return f"node0:1000:1901 [0] proxy.cc:1521 NCCL WARN {text}\n"


def blamed(report: Report) -> list[int | None]:
    return [c.rank for c in report.culprits]


@pytest.mark.parametrize("stack", [STACK, ""])
@pytest.mark.parametrize("end", [EXIT, elastic(1, 1), ""])
@pytest.mark.parametrize(
    "said", [REMOTE.format("Connect", 6), REMOTE.format("Setup", 6), REMOTE.format("Connect", 3), PROGRESS]
)
def test_a_remote_error_follows_from_the_rank_that_ran_out_of_memory_before_it(
    said: str, end: str, stack: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, job=stack + "[rank1]: " + OOM.format(3) + LOST + warn(said) + end)
    assert report.verdict == "failed" and blamed(report) == [1]
    assert "out of device memory" in report.reason and "3.00 GiB" in report.reason
    assert all(f.culprits != (0,) for f in report.findings)
    assert not any("follows from no other error" in f.explanation for f in report.findings)


def test_the_root_cause_of_the_launcher_names_the_rank_of_an_error_without_a_tag(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, job=nccl(0, 1, nranks=2) + OOM.format(3) + warn(REMOTE.format("Connect", 6)) + elastic(1, 1)
    )
    assert blamed(report) == [1] and "out of device memory (3.00 GiB)" in report.reason


def test_the_order_of_lines_in_two_files_does_not_matter(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        a0=nccl(0, nranks=2) + warn(REMOTE.format("Connect", 6)),
        a1=nccl(1, nranks=2) + "[rank1]: " + OOM.format(3),
    )
    assert blamed(report) == [1]


def test_an_exception_before_a_remote_error_is_the_cause(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=STACK + "[rank1]: KeyError: 'tokens'\n" + LOST + warn(REMOTE.format("Connect", 6)))
    assert blamed(report) == [1] and "KeyError" in report.reason


def test_an_error_of_the_process_itself_stays_the_cause(tmp_path: Path) -> None:
    start = nccl(0, 1, nranks=2)
    cuda = "node0:1000:1901 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 719 'unspecified launch failure'\n"
    later = start + cuda + warn(REMOTE.format("Connect", 1)) + "[rank1]: " + OOM.format(3) + EXIT
    assert any(f.culprits == (0,) and f.severity is Severity.ERROR for f in analyzed(tmp_path, job=later).findings)


def test_a_request_that_failed_for_a_reason_of_its_own_blames_its_rank(tmp_path: Path) -> None:
    own = nccl(0, 1, nranks=2) + warn(REMOTE.format("Setup", 1))
    assert blamed(analyzed(tmp_path, job=own)) == [0]


def test_a_lone_remote_error_fails_the_run_and_does_not_blame_its_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=nccl(0, 1, nranks=2) + warn(REMOTE.format("Connect", 6)))
    assert report.verdict == "failed" and 0 not in blamed(report)


def test_a_lack_of_memory_that_the_program_survives_explains_nothing(tmp_path: Path) -> None:
    work = "".join(f"node0:1001:1001 [1] NCCL INFO Channel {at:02d} : 1 -> 0 via P2P/IPC\n" for at in range(30))
    text = "[rank1]: " + OOM.format(3) + nccl(0, 1, nranks=2) + work + warn(REMOTE.format("Connect", 3))
    report = analyzed(tmp_path, job=text)
    assert "out of device memory" not in report.reason
    assert not any("rank 1 failed before" in f.explanation for f in report.findings)
    assert analyzed(tmp_path, job="[rank1]: " + OOM.format(3) + nccl(0, 1, nranks=2, ended=True)).verdict == "healthy"


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OOM.format(3), "exited with code 1: out of device memory (3.00 GiB)", "PSM509"),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n",
            "exited with code 1: CUDA error: an illegal memory access was encountered",
            "PSM405",
        ),
    ],
)
def test_the_end_of_a_process_and_the_error_of_its_device_are_one_finding(
    error: str, said: str, code: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, job="[rank1]: " + error + elastic(1, 1))
    assert said in report.reason and blamed(report) == [1]
    lead = report.causes[0]
    assert [report.findings[n].code for n in (lead.finding, *lead.same)] == ["PSM402", code]
    assert "Read the last lines" not in report.findings[lead.finding].next_step


def test_the_error_of_another_rank_is_not_the_reason_of_an_exit(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job="[rank0]: " + OOM.format(3) + EXIT)
    assert not any("rank 1" in f.title and "out of device memory" in f.title for f in report.findings)


def raised(text: str, tag: str = "") -> str:
    lines = ("Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    main()", text)
    return "".join(f"{tag}{line}\n" for line in lines)


def other_failure(rank: int) -> str:
    return (
        f"Failures:\n[1]:\n  time      : 2026-01-01_00:00:00\n  host      : node0\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : 1 (pid: {1000 + rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
    )


def errors(report: Report) -> list[str]:
    return [f.code for f in report.findings if f.severity is Severity.ERROR]


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'a-configuration-with-a-long-name.json'"


def test_two_ranks_that_each_raised_an_exception_are_both_named(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=raised(MISSING) * 2 + other_failure(1) + elastic(0, 1))
    assert blamed(report) == [0, 1] and report.reason.endswith(MISSING)
    assert errors(report) == ["PSM402"]
    assert not any("follows from it" in f.explanation for f in report.findings)


def test_one_traceback_is_not_that_of_two_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=raised(MISSING) + other_failure(1) + elastic(0, 1))
    assert blamed(report) == [0]
    other = raised(MISSING, "[rank0]: ") + raised("KeyError: 3", "[rank1]: ") + other_failure(1) + elastic(0, 1)
    assert blamed(analyzed(tmp_path, job=other)) == [0]


def test_all_ranks_that_raised_the_exception_of_the_first_end_are_named(tmp_path: Path) -> None:
    text = "ModuleNotFoundError: No module named 'flash_attn'"
    logs = "".join(raised(text, f"[rank{rank}]: ") for rank in range(4))
    report = analyzed(tmp_path, job=logs + elastic(2, 1))
    assert blamed(report) == [0, 1, 2, 3] and errors(report) == ["PSM402"]
    three = "".join(raised(text if rank < 3 else "KeyError: 3", f"[rank{rank}]: ") for rank in range(4))
    assert blamed(analyzed(tmp_path, job=three + elastic(2, 1))) == [0, 1, 2]


def test_a_long_exception_is_cut_with_a_mark(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=raised(MISSING))
    assert MISSING in report.reason or report.reason.rstrip().endswith("\N{HORIZONTAL ELLIPSIS}")
