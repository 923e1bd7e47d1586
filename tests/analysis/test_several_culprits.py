"""Several ranks that each report a failure of their own: each of a few is a culprit, most of them or one that names another is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed


def fatal(rank: int, *stack: str) -> str:
    head = f"Abort(20{rank}) on node {rank} (rank {rank} in comm 0): Fatal error in PMPI_Bcast: Other MPI error, error stack:\n"
    return head + "".join(
        f"{line}\n" for line in stack or ("PMPI_Bcast(44)..: MPI_Bcast failed", "MPIR_Bcast(9)...: no memory")
    )


def abort(rank: int) -> str:
    return f"Abort(7) on node {rank} (rank {rank} in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process {rank}\n"


def caught(rank: int, condition: str, signal: str = "SIGABRT(6)") -> str:
    check = f"app: /src/ring.cc:{rank}: void post(int): Assertion `{condition}' failed.\n" if condition else ""
    return f"{check}*** Caught a fatal signal (proc {rank}): {signal}\n"


def ranks(text: str, tmp_path: Path) -> tuple[str, list[int | None]]:
    report = analyzed(tmp_path, text)
    return str(report.verdict), [c.rank for c in report.culprits]


@pytest.mark.parametrize(
    "text, expected",
    [
        (fatal(40) + fatal(71), [40, 71]),
        (abort(2) + abort(5) + abort(9), [2, 5, 9]),
        (abort(0) + abort(1) + abort(4) + abort(5) + abort(7), [0, 1, 4, 5, 7]),
        (caught(12, "n > 0") + caught(9, "m != n") + caught(17, "p"), [12, 9, 17]),
        (caught(12, "", "SIGSEGV(11)") + caught(9, "", "SIGSEGV(11)"), [12, 9]),
        (
            "".join(
                f"[n{n}:4711] *** An error occurred in MPI_Bcast\n[n{n}:4711] *** reported by process [12,{n}]\n[n{n}:4711] *** MPI_ERR_TRUNCATE: message truncated\n"
                for n in (40, 71)
            ),
            [40, 71],
        ),
    ],
)
def test_each_of_a_few_ranks_that_report_their_own_failure_is_a_culprit(
    text: str, expected: list[int], tmp_path: Path
) -> None:
    assert ranks(text, tmp_path) == ("failed", expected)


@pytest.mark.parametrize(
    "text",
    [
        "".join(abort(rank) for rank in range(4)),  # all of them
        "".join(abort(rank) for rank in (0, 1, 2, 3, 5, 6)),  # most of them
        "".join(abort(rank) for rank in range(20, 30)),  # too many to be single failures
        fatal(40, "recv_cb(3)..: Connection reset by peer") + fatal(71, "recv_cb(3)..: connection closed"),
        "".join(
            f"[1,{rank}]<stderr>:{line}\n"
            for rank in (40, 71)
            for line in fatal(rank, "progress(9)..: Communication error with rank 12").splitlines()
        ),
    ],
)
def test_ranks_that_fail_alike_or_because_of_others_are_no_culprits(text: str, tmp_path: Path) -> None:
    assert ranks(text, tmp_path) == ("failed", [])


def test_workers_that_a_launcher_lists_are_no_culprits(tmp_path: Path) -> None:
    def block(rank: int) -> str:
        return f"[{rank}]:\n  time      : 2026-03-01_10:00:00\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: {900 + rank})\n"

    assert ranks("Failures:\n" + block(1) + block(6), tmp_path) == ("failed", [])


def test_one_crash_stays_one_finding(tmp_path: Path) -> None:
    report = analyzed(tmp_path, caught(3, "n > 0"))
    assert [c.rank for c in report.culprits] == [3] and "SIGABRT" in report.reason and "n > 0" in report.reason


def test_a_launcher_names_the_first_that_it_observed(tmp_path: Path) -> None:
    text = (
        "First observed failure (earliest timestamp):\n  rank      : 3 (local_rank 1)\n"
        "  exitcode  : -6 (SIGABRT), pid 4711\n  error_file: <none written>\n"
    )
    (who,) = analyzed(tmp_path, text).culprits
    assert (who.rank, who.pid) == (3, 4711)


def test_the_host_at_the_other_end_of_a_connection_of_open_mpi_is_the_culprit(tmp_path: Path) -> None:
    text = (
        "An MPI communication peer process has unexpectedly disconnected.\n\n"
        "  Local host: n4\n  Local PID:  812\n  Peer host:  n9\n"
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed" and [c.host for c in report.culprits] == ["n9"]


def test_the_ranks_below_a_wrapped_line_of_horovod_are_read(tmp_path: Path) -> None:
    text = (
        "[1,0]<stderr>:[2026-03-01 10:00:00.1: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, "
        "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may\n"
        " indicate that different ranks are trying to submit different tensors, which will cause deadlock.\n"
        "[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:5: [allreduce.1, allreduce.2 ...]\n"
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "hung" and [c.rank for c in report.culprits] == [5]


def test_a_program_that_prints_the_exception_of_a_task_of_ray_names_its_process(tmp_path: Path) -> None:
    text = (
        "Exception occurred while running Trainer's function setup: exception is ray::Trainer.setup() (pid=4711, ip=10.0.0.7, actor_id=0a, "
        'repr=<t.Trainer object at 0x7e>)\n  File "/app/t.py", line 4, in setup\n    self.connect()\n'
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed" and [(c.pid, c.host) for c in report.culprits] == [(4711, "10.0.0.7")]
    assert "an exception" in report.reason


def test_a_task_of_dask_that_failed_is_a_failure(tmp_path: Path) -> None:
    text = "distributed.worker - WARNING - Compute Failed\nFunction:  fit\nargs:      ([1, 2])\n"
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed" and not report.culprits


def test_the_traceback_of_a_spawned_process_is_not_called_missing(tmp_path: Path) -> None:
    text = (
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process 2 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 9, in run\n    dist.init_process_group("nccl")\n'
        "RuntimeError: Distributed package doesn't have NCCL built in\n"
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    assert not any("does not show" in (f.next_step or "") for f in report.findings)
