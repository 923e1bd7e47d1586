"""The runs of the lab that go on now on this host, by what they leave: the folder for shared memory names the runner, its children are the ranks, and
their environment names the folder of the evidence. Only reads; runs of other users are not seen."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from psmkit.lab import leftovers
from psmkit.live import procfs

__all__ = ["RunningJob", "RunningRank", "running"]

_KINDS = {"psm_rank": "lab run", "psm_nccl_rank": "lab nccl"}
_TAIL = 4096  # bytes of a log that hold its last line


@dataclass(frozen=True, slots=True)
class RunningRank:
    """A rank that has not ended. ``state``: ``runs``, ``stopped``, ``ended`` (a zombie). ``quiet`` is the seconds since its log grew, ``said`` the log's last line."""

    rank: int
    pid: int
    state: str
    quiet: float | None
    said: str


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A run: ``kind`` is ``lab run``, ``lab nccl`` or ``lab``; ``runner`` the process of psmkit; ``started`` the number of its ranks at first, None if none is left to say it.

    ``folder`` is where it keeps its evidence, None if no rank is left to say it.
    """

    kind: str
    runner: int
    seconds: float
    folder: Path | None
    started: int | None
    ranks: tuple[RunningRank, ...]

    @property
    def records(self) -> Path | None:
        """The record directory of the ranks."""
        return self.folder / "records" if self.folder is not None else None


def running(folder: Path = Path("/dev/shm")) -> list[RunningJob]:
    """The runs of this user whose runner is alive; ``folder`` is where they keep their shared memory."""
    runners = sorted({pid for _, pid, alive in leftovers.run_folders(folder) if alive})
    if not runners:
        return []
    children: dict[int, list[int]] = {runner: [] for runner in runners}
    for pid, parent in procfs.parents().items():
        if parent in children:
            children[parent].append(pid)
    return [_job(runner, sorted(children[runner])) for runner in runners]


def _job(runner: int, children: list[int]) -> RunningJob:
    kind, folder, started, ranks = "lab", None, None, []
    for pid in children:
        env = procfs.environment_of(pid)
        if "PSM_LAB_SOCKET" not in env or not env.get("PSM_RANK", "").isdecimal():
            continue  # another child of psmkit: a debugger that takes stacks
        log = Path(env["NCCL_DEBUG_FILE"]) if env.get("NCCL_DEBUG_FILE", "").startswith("/") else None
        if log is not None and log.parent.name == "logs":
            folder = log.parents[1]
        if env.get("PSM_RANKS", "").isdecimal():
            started = int(env["PSM_RANKS"])
        kind = _KINDS.get(procfs.program_of(pid), kind)
        state = procfs.state_of(pid)
        quiet, said = _last(log)
        word = "stopped" if state in procfs.STOPPED else "ended" if state in ("", "Z", "X") else "runs"
        ranks.append(RunningRank(int(env["PSM_RANK"]), pid, word, quiet, said))
    ranks.sort(key=lambda rank: rank.rank)
    return RunningJob(kind, runner, procfs.age_of(runner), folder, started, tuple(ranks))


def _last(log: Path | None) -> tuple[float | None, str]:
    """Seconds since a log grew, and its last line."""
    if log is None:
        return None, ""
    try:
        with open(log, "rb") as file:
            info = os.fstat(file.fileno())
            file.seek(max(info.st_size - _TAIL, 0))
            lines = file.read(_TAIL).decode(errors="replace").split("\n")
    except OSError:
        return None, ""
    return max(time.time() - info.st_mtime, 0.0), next((line for line in reversed(lines) if line.strip()), "")
