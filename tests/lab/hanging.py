"""A run of the lab that goes on until it is ended: its rank 1 leaves out its last receive, and the others wait for it."""

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
        if job is not None and any(rank.rank == 1 and holds in rank.said for rank in job.ranks):
            return job
        assert time.monotonic() < end, f"the run did not get there: {job}"
        time.sleep(0.05)


@contextmanager
def hanging_run(folder: Path) -> Iterator[RunningJob]:
    """The run, once its rank 1 is done; ``folder`` is new."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "psmkit", "lab", "run", "--ranks", "3", "--pattern", "alltoall", "--size", "1M"),
            *("--differ", "rank=1,skip=recv", "--deadline", "300", "--out", str(folder)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield until(process.pid, "ended: PSM_OK")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(DEADLINE)
        finally:
            process.kill()
            process.wait()
