"""The same failure of several processes at one time: each of them is a culprit, and what came later or follows from it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.texts import analyzed

_XID = "Mar  1 10:{:02}:01 {} kernel: NVRM: Xid (PCI:0000:{}:00): {}, pid={}, name=python, {}.\n"
_LOST = "GPU has fallen off the bus"
_SEGV = "{}srun: error: n{}: task {}: Segmentation fault\n"
_SHM = "{}n{}:{}:{} [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
_OOM = "Mar  1 10:{:02}:01 n{} kernel: Out of memory: Killed process {} (python) total-vm:100kB, anon-rss:90kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n"
_WATCHDOG = "[rank{0}]:[E301 10:00:{1}.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group watchdog thread terminated with exception: CUDA error: {2}\n"
_RAYLET = "(raylet, ip=10.0.0.{0}) Worker exit detail: Task was killed due to the node running low on memory. Memory on the node (IP: 10.0.0.{0}, ID: 5c{0}) where the task (actor ID: 77{0}, name=W.run, pid=71{0}, memory used=8.00GB) was running was 60.0GB / 62.0GB (0.96), which exceeds the memory usage threshold of 0.95.\n"
_SSH = "ssh: connect to host {} port 22: Connection refused\n"
_POD = "worker-{}   0/1     OOMKilled   0   5m\n"
_ACCESS = "an illegal memory access was encountered"
_WORKER = "  time      : 2026-03-01_10:00:{2:02}\n  host      : n{0}\n  rank      : {1} (local_rank: {1})\n  exitcode  : {3} (pid: {4})\n  error_file: <N/A>\n"
_ROOT = "Root Cause (first observed failure):\n[0]:\n"
_EXIT = "srun: error: n{0}: task {0}: Exited with exit code {1}\n"


def worker(rank: int, second: int = 5, code: int = 1, host: int = 1) -> str:
    return _WORKER.format(host, rank, second, code, 900 + rank)


def summary(first: str, *others: str) -> str:
    listed = "".join(f"[{n}]:\n{other}" for n, other in enumerate(others, 1))
    return f"{'=' * 60}\ntrain.py FAILED\nFailures:\n{listed}{'-' * 60}\n{_ROOT}{first}{'=' * 60}\n"


def thrown(tag: str, text: str = "ValueError: 12 rows, expected 16") -> str:
    stack = ["Traceback (most recent call last):", '  File "/app/train.py", line 8, in <module>', "    step()", text]
    return "".join(f"{tag}{line}\n" for line in stack)


def who(folder: Path, log: str, **more: str) -> list[object]:
    """The culprits by rank, else by process, else by host."""
    culprits = analyzed(folder, log, **more).culprits
    return [next(v for v in (c.rank, c.pid, c.host) if v is not None) for c in culprits]


def segv(node: int, stamp: str = "") -> str:
    return _SEGV.format(stamp, node, node)


def shm(node: int, stamp: str = "") -> str:
    return _SHM.format(stamp, node, 70 + node, 70 + node)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (_XID.format(0, "n3", "1b", 79, 47, _LOST) + _XID.format(0, "n5", "3d", 79, 81, _LOST), [47, 81]),
        (_XID.format(0, "n3", "1b", 79, 47, _LOST) + _XID.format(0, "n5", "1b", 79, 81, _LOST), [47, 81]),
        (_XID.format(0, "n3", "1b", 79, 79, _LOST) + _XID.format(0, "n5", "3d", 79, 81, _LOST), [79, 81]),
        (_OOM.format(0, 3, 47) + _OOM.format(0, 5, 81), [47, 81]),
        (segv(3) + segv(5), [3, 5]),
        (segv(3, "[2026-03-01 10:00:00] ") + segv(5, "[2026-03-01 10:00:01] "), [3, 5]),
        ("".join(map(segv, range(3, 15))), [*range(3, 15)]),
        (shm(3) + shm(5), [73, 75]),
        (_RAYLET.format(3) + _RAYLET.format(5), [713, 715]),
        (_POD.format(3) + _POD.format(5), ["worker-3", "worker-5"]),
        ("".join(_SSH.format(f"n{n}") for n in range(3, 9)), [f"n{n}" for n in range(3, 9)]),
        (_WATCHDOG.format(0, "00", _ACCESS) + _WATCHDOG.format(3, "01", _ACCESS), [0, 3]),
        (
            "".join(
                f"n{n}:{n}:{n} [0] transport/net_ib.cc:901 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory\n"
                for n in (3, 5, 7)
            ),
            [3, 5, 7],
        ),
        (
            "".join(
                f"[rank{r}]: terminate called after throwing an instance of 'std::bad_alloc'\n[rank{r}]:   what():  std::bad_alloc\n"
                for r in (0, 3)
            ),
            [0, 3],
        ),
        (
            "".join(
                f"[rank{r}]: RuntimeError: DataLoader worker (pid 81{r}) is killed by signal: Killed. \n"
                for r in (0, 3)
            ),
            [0, 3],
        ),
        (summary(worker(0), worker(3)), [0, 3]),
        (summary(worker(0, code=-11), worker(3, code=-11)), [0, 3]),
        (summary(worker(0)) + summary(worker(8, host=2)), [0, 8]),
        (_EXIT.format(3, 1) + _EXIT.format(5, 1) + "srun: Terminating StepId=4711.0\n", [3, 5]),
        (thrown("[rank0]: ") + thrown("[rank3]: "), [0, 3]),
        (thrown("[default0]:") + thrown("[default3]:"), [0, 3]),
        (thrown("(W pid=71, ip=10.0.0.3) ") + thrown("(W pid=72, ip=10.0.0.5) "), [71, 72]),
        (
            "".join(
                f"(VllmWorker rank={r} pid=7{r}) ERROR 03-01 10:00:00 [executor.py:52] ValueError: 12 rows, expected 16\n"
                for r in (0, 3)
            ),
            [0, 3],
        ),
    ],
)
def test_each_process_with_the_same_failure_is_a_culprit(log: str, expected: list[object], tmp_path: Path) -> None:
    assert who(tmp_path, log) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # later by their times
        (_XID.format(0, "n3", "1b", 79, 47, _LOST) + _XID.format(20, "n5", "3d", 79, 81, _LOST), [47]),
        (_OOM.format(0, 3, 47) + _OOM.format(7, 5, 81), [47]),
        (segv(3, "[2026-03-01 10:00:00] ") + segv(5, "[2026-03-01 10:05:00] "), [3]),
        (shm(3, "[2026-03-01 10:00:00] ") + shm(5, "[2026-03-01 10:05:00] "), [73]),
        (_WATCHDOG.format(0, "00", _ACCESS) + _WATCHDOG.format(3, "47", _ACCESS), [0]),
        # later, because the launcher ended the job between them
        (segv(3) + "srun: Terminating StepId=4711.0\n" + segv(5), [3]),
        # another failure
        (
            _XID.format(0, "n3", "1b", 79, 47, _LOST) + _XID.format(0, "n5", "3d", 48, 81, "DBE (double bit error)"),
            [47],
        ),
        (_WATCHDOG.format(0, "00", _ACCESS) + _WATCHDOG.format(3, "00", "unspecified launch failure"), [0]),
        (summary(worker(0), worker(3, second=6)), [0]),
        (summary(worker(0, code=-11), worker(3, second=9, code=-11)), [0]),
        (summary(worker(0), worker(3, code=2)), [0]),
        (summary(worker(0), worker(3, code=-15)), [0]),
        (_EXIT.format(3, 1) + "srun: Terminating StepId=4711.0\n" + _EXIT.format(5, 1), [3]),
        ("".join(_EXIT.format(n, 1) for n in range(8)), [0]),  # most of them: what the first did ends the others
        (thrown("[rank0]: ") + thrown("[rank3]: ", "RuntimeError: Connection reset by peer"), [0]),
        (thrown("(W pid=71, ip=10.0.0.3) ") + thrown("(W pid=72, ip=10.0.0.5) ", "KeyError: 'lr'"), []),
        # one GPU that reports twice
        (_XID.format(0, "n3", "1b", 79, 47, _LOST) + _XID.format(0, "n3", "1b", 79, 47, _LOST), [47]),
    ],
)
def test_a_failure_that_came_later_or_is_another_one_adds_no_culprit(
    log: str, expected: list[object], tmp_path: Path
) -> None:
    assert who(tmp_path, log) == expected


def test_the_earliest_of_several_files_is_the_culprit(tmp_path: Path) -> None:
    late, early = _XID.format(20, "n3", "1b", 79, 47, _LOST), _XID.format(0, "n5", "1b", 79, 81, _LOST)
    assert who(tmp_path, late, z=early) == [81]


def test_failures_just_before_and_after_midnight_are_at_one_time(tmp_path: Path) -> None:
    first = _XID.format(0, "n3", "1b", 79, 47, _LOST).replace("10:00:01", "23:59:59")
    assert who(tmp_path, first + _XID.format(0, "n5", "3d", 79, 81, _LOST).replace("10:00:01", "00:00:00")) == [47, 81]


def test_the_report_counts_those_that_it_does_not_name(tmp_path: Path) -> None:
    text = render(analyzed(tmp_path, "".join(_SSH.format(f"n{n}") for n in range(3, 15))), "text")
    shown = text[text.index("who:") : text.index("proof:")]
    assert [f"n{n}" in shown for n in (3, 4, 5, 6, 7)] == [True] * 4 + [False] and ", and 8 more" in shown


@pytest.mark.parametrize("log", ["", segv(3).replace("Segmentation fault", "Exited with exit code 0")])
def test_a_job_without_a_failure_has_no_culprit(log: str, tmp_path: Path) -> None:
    ready = "a:70:79 [0] NCCL INFO ncclCommInitRank comm 0x55a000 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5c2b7a1e9d3f4680 - Init COMPLETE\n"
    end = "a:70:79 [0] NCCL INFO comm 0x55a000 rank 0 nranks 1 cudaDev 0 busId 1000 - Destroy COMPLETE\n"
    report = analyzed(tmp_path, ready + end + log)
    assert (report.verdict, report.culprits) == ("healthy", ())


_DEVICE = "CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total capacity of 80.00 GiB of which 3.10 GiB is free.\n"


@pytest.mark.parametrize("head", ["[n1.lab] Rank {0}, Local Rank {0}, ", "Rank {0} (local rank {0}): ", "[Rank {0}] "])
def test_ranks_that_a_program_puts_before_its_lines_ran_out_of_memory_alike(tmp_path: Path, head: str) -> None:
    """The proof is of the first rank of the summary, not the first line of all."""
    printed = "".join(head.format(rank) + _DEVICE.format("9.50", rank) for rank in (2, 1, 0))
    report = analyzed(tmp_path, printed + summary(worker(0), worker(1), worker(2), worker(3, code=2)))
    assert [c.rank for c in report.culprits] == [0, 1, 2]
    assert report.findings[0].evidence[0].line == 3


def test_another_lack_of_memory_is_not_alike(tmp_path: Path) -> None:
    printed = "".join(f"[Rank {rank}] " + _DEVICE.format(size, rank) for rank, size in ((2, "9.50"), (0, "1.00")))
    report = analyzed(tmp_path, printed + summary(worker(0), worker(2, code=2)))
    assert [c.rank for c in report.culprits] == [0]
    assert report.findings[0].evidence[0].line == 2


def _npu(pid: int, code: int = 561103) -> str:
    head = "ERROR 03-01 10:00:05 [executor.py:597] "
    text = f"RuntimeError: zero_:build/CMakeFiles/some_device_library.dir/compiler_depend.ts:26 call failed, error code is {code}"
    stack = ["Traceback (most recent call last):", '  File "/app/worker.py", line 8, in start', "    zeros()", text]
    return "".join(
        f"{head}{line}\n" for line in [*stack, f"[ERROR] 2026-03-01-10:00:05 (PID:{pid}, Device:1) call failed."]
    )


@pytest.mark.parametrize(("second", "expected"), [(561103, [412, 411]), (107002, [412])])
def test_equal_exceptions_are_of_the_processes_that_lines_below_state(
    tmp_path: Path, second: int, expected: list[int]
) -> None:
    report = analyzed(tmp_path, _npu(412) + _npu(411, second))
    assert [c.pid for c in report.culprits] == expected
    assert "error code is 561103" in report.reason  # a long path leaves room for the reason
