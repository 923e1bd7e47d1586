"""Agents of one job on one host: `mpirun -n 8 psmkit record -- prog` starts eight. One leads and watches; the last to leave packs.

They meet in the folder of the recording: a file decides who leads, each writes a file about its own command, and nobody waits for a message.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.live import procfs
from psmkit.live.recording.layout import Layout, RecordError, write
from psmkit.live.recording.watch import RANK_NAMES, number_in

__all__ = ["Member", "Team", "folder_of", "join", "leader_lives", "leaving", "members", "others_live", "team_of"]

_LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
#: What names a job of a launcher. All variables of a row must be there; agents with equal values belong together.
_JOBS = (
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMI_JOBID",),
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ("MASTER_ADDR", "MASTER_PORT"),
)
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_MOST_NODES = 100_000
_LEADER = ".leader.json"
_PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class Team:
    """The job of a launcher that this agent belongs to. ``size`` is the number of agents on this host, None if the launcher does not say."""

    key: str
    local: int | None
    size: int | None


@dataclass(slots=True)
class Member:
    """An agent and its command. ``code`` is the status of the command, or minus a signal; None while it runs, or if the agent was killed."""

    agent: int
    birth: int
    child: int
    rank: int | None
    code: int | None = None
    ended: float | None = None
    stopped: float | None = None

    @property
    def living(self) -> bool:
        """Whether the agent runs."""
        return self.ended is None and procfs.start_time(self.agent) == self.birth


def team_of(environment: Mapping[str, str]) -> Team | None:
    """The job of the launcher that started this process as one of several ranks; None: no launcher did."""
    env = dict(environment)
    if number_in(env, (*RANK_NAMES, *_LOCAL_RANKS)) is None:
        return None
    for names in _JOBS:
        if all(env.get(name) for name in names):
            text = "\0".join(f"{name}={env[name]}" for name in names)
            key = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
            return Team(key, number_in(env, _LOCAL_RANKS), number_in(env, _LOCAL_SIZES) or _tasks_of_slurm(env))
    return None


def _tasks_of_slurm(env: Mapping[str, str]) -> int | None:
    """The number of tasks on this node: that of its place in a list such as ``2(x3),1``."""
    node, tasks = number_in(dict(env), ("SLURM_NODEID",)), []
    for each, times in _TASKS.findall(env.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [int(each)] * min(int(times or 1), _MOST_NODES)
    return tasks[node] if node is not None and node < len(tasks) else None


def join(layout: Layout, team: Team, port: int) -> tuple[bool, int]:
    """Join the agents of this host: the first to create a file leads. Returns whether this one does, and the port for RAS that all use.

    Raises:
        RecordError: the folder holds another recording, or the leader does not come.
    """
    leader = layout.root / _LEADER
    try:
        os.close(os.open(leader, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        write(leader, json.dumps({"key": team.key, "port": port, "agent": os.getpid()}) + "\n")
        return True, port
    except FileExistsError:
        pass
    except OSError as error:
        raise RecordError(f"cannot record into {layout.root}: {(error.strerror or str(error)).lower()}") from None
    end = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(OSError, ValueError):  # it is empty for a moment
            told = json.loads(leader.read_text())
            if told.get("key") != team.key:
                raise RecordError(
                    f"{layout.root} holds another recording: pack it with psmkit record --salvage, or give -o NAME"
                )
            return False, int(told["port"])
        if time.monotonic() > end:
            raise RecordError(f"no agent of this job leads in {layout.root}; the folder is left from an earlier one")
        time.sleep(0.02)


def enter(layout: Layout, child: int, rank: int | None) -> Member:
    """Write down this agent's command."""
    member = Member(os.getpid(), procfs.start_time(os.getpid()), child, rank)
    save(layout, member)
    return member


def save(layout: Layout, member: Member) -> None:
    """Renew the file of this agent; a full disk changes nothing."""
    with contextlib.suppress(OSError):
        fields: dict[str, Any] = {name: getattr(member, name) for name in Member.__slots__}
        write(layout.members / f"{member.agent}.json", json.dumps(fields) + "\n")


def members(layout: Layout) -> list[Member]:
    """The agents that have joined."""
    out = []
    for path in sorted(layout.members.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            out.append(Member(**json.loads(path.read_text())))
    return out


def others_live(layout: Layout) -> bool:
    """Whether another agent of this host runs."""
    return any(m.living for m in members(layout) if m.agent != os.getpid())


@contextlib.contextmanager
def leaving(layout: Layout) -> Iterator[None]:
    """One agent at a time may find out whether it is the last."""
    door = os.open(layout.root / ".door", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: two may pack, one after the other
            fcntl.flock(door, fcntl.LOCK_EX)
        yield
    finally:
        os.close(door)


def leader_lives(layout: Layout) -> bool:
    """Whether the agent that watches runs."""
    try:
        told = json.loads((layout.root / _LEADER).read_text())
    except (OSError, ValueError):
        return False
    return any(m.living for m in members(layout) if m.agent == told.get("agent"))


def folder_of(name: str, team: Team | None, host: str, suffix: str) -> Path:
    """The folder of a recording; agents of a team on several hosts of one file system have one each."""
    return Path(f"{name}.{host}{suffix}" if team is not None else f"{name}{suffix}").absolute()
