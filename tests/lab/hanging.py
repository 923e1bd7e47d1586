"""A run of the lab that goes on until it is ended: its rank 1 leaves out an operation, and the others wait for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psmkit.lab.running import RunningJob, running

__all__ = ["DEADLINE", "hanging_run", "of_runner"]

DEADLINE = 60.0


def of_runner(pid: int) -> RunningJob | None:
    return next((job for job in running() if job.runner == pid), None)


def until(pid: int, holds: str) -> RunningJob:
    """The run of a runner, once the log of rank 1 has such a line last."""
    end = time.monotonic() + DEADLINE
    while True:
        job = of_runner(pid)
        # /proc can show a process without its environment for a moment
        whole = job is not None and [rank.rank for rank in job.ranks] == list(range(job.started or 0))
        if job is not None and whole and any(rank.rank == 1 and holds in rank.said for rank in job.ranks):
            return job
        assert time.monotonic() < end, f"the run did not get there: {job}"
        time.sleep(0.05)


@contextmanager
def hanging_run(folder: Path, *library: str) -> Iterator[RunningJob]:
    """The run in a new folder: of libpsm, once its rank 1 is done; of a NCCL library, if one is given, once its rank 1 is there."""
    command, skips, said = (("nccl", *library), "send", "") if library else (("run",), "recv", "ended: PSM_OK")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "psmkit", "lab", *command, "--ranks", "3", "--pattern", "alltoall"),
            *("--size", "64K", "--differ", f"rank=1,skip={skips}", "--deadline", "300", "--out", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield until(process.pid, said)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(DEADLINE)
        finally:
            process.kill()
            process.wait()
