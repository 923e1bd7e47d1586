"""Lines that frameworks and launchers print around NCCL's."""

from __future__ import annotations

from psmkit.synth.job import Job

__all__ = ["heartbeat", "mpirun_signal", "torchrun_failure", "watchdog"]


def watchdog(job: Job, silent: frozenset[int] = frozenset(), op: str = "ALLREDUCE") -> None:
    """PyTorch gives up on every rank that runs and is not ``silent``: it is the slowest collective that nobody finished."""
    finished = job.finished()
    for p in job.processes:
        if not p.runs or p.rank in silent or p.ops <= finished:
            continue
        head = f"[rank{p.rank}]:[E1121 01:45:22.{100 + p.rank}408271 ProcessGroupNCCL.cpp"
        job.stderr(
            p.rank,
            f"{head}:629] [Rank {p.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={finished + 1}, OpType={op}, "
            f"NumelIn={job.plan.count}, NumelOut={job.plan.count}, Timeout(ms)=600000) ran for 6000{10 + p.rank} milliseconds before timing out.",
        )
        job.stderr(
            p.rank,
            f"{head}:1785] [PG ID 0 PG GUID 0(default_pg) Rank {p.rank}] Exception (either an error or timeout) detected by watchdog at work: "
            f"{finished + 1}, last enqueued NCCL work: {p.ops}, last completed NCCL work: {finished}.",
        )


def heartbeat(job: Job) -> None:
    """PyTorch's monitor sees in every process that runs that its watchdog makes no progress: a call of NCCL does not return."""
    for p in job.processes:
        if p.runs:
            job.stderr(
                p.rank,
                f"[rank{p.rank}]:[E1121 01:53:22.{100 + p.rank % 800}408271 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {p.rank}] "
                "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically "
                "indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog",
            )


def torchrun_failure(job: Job, rank: int, code: int, signal: str = "") -> None:
    """torchrun saw a worker end and stops the others."""
    p = job.processes[rank]
    stamp = "1121 01:36:01.204000 5990 torch/distributed/elastic/multiprocessing/api.py"
    for q in job.processes:
        if q.runs and q.host == p.host:
            job.stderr(None, f"W{stamp}:897] Sending process {q.pid} closing signal SIGTERM")
    job.stderr(
        None,
        f"E{stamp}:869] failed (exitcode: {code}) local_rank: {p.local} (pid: {p.pid}) of binary: /usr/bin/python3",
    )
    traceback = (
        f"Signal {-code} ({signal}) received by PID {p.pid}"
        if signal
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    for text in (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "train.py FAILED",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-21_01:36:01",
        f"  host      : {p.host}",
        f"  rank      : {p.rank} (local_rank: {p.local})",
        f"  exitcode  : {code} (pid: {p.pid})",
        "  error_file: <N/A>",
        f"  traceback : {traceback}",
        "============================================================",
    ):
        job.stderr(None, text)


def mpirun_signal(job: Job, rank: int, number: int, name: str) -> None:
    """mpirun saw a process die by a signal."""
    p = job.processes[rank]
    line = "-" * 74
    job.stderr(None, line)
    job.stderr(
        None,
        f"mpirun noticed that process rank {p.rank} with PID {p.pid} on node {p.host} exited on signal {number} ({name}).",
    )
    job.stderr(None, line)
