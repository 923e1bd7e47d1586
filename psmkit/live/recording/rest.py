"""Whether a silent process that uses CPU time only polls inside NCCL or libpsm: two inspections of it, some time apart, show it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psmkit.live import procfs
from psmkit.live.recording.watch import BUSY, FACTOR, IDLE, Quiet, Seen

if TYPE_CHECKING:
    from psmkit.model.inspection import Inspection, StateObject

__all__ = ["Look", "Looks", "doubt", "rests"]

#: The places of a thread (psmkit/logparse/foreign/places.toml) in which it polls for others. A thread that waits for its GPU is left out: a
#: kernel may work for long. So are the calls of other libraries.
_POLLS = frozenset({"bootstrap", "connect", "fd", "fifo", "idle", "progress", "proxy"})
# Words that move by themselves.
_CLOCKS = re.compile(r"(?:\b|_)(?:time|age|clock|beat|heartbeat|epoch|seconds|seen)(?:\b|_)", re.IGNORECASE)
#: Seconds between two looks at a process, and how often one more is taken of a silent job.
_APART = 10.0
_MOST = 3


@dataclass(frozen=True, slots=True)
class Look:
    """An inspection of a process, and the CPU time of its threads ``at`` that moment; ``total`` counts threads that have ended, too."""

    at: float
    inspection: Inspection
    cpu: Mapping[int, float]
    total: float


@dataclass(slots=True)
class Looks:
    """The looks at the processes of a job in one silence, and the reasons for which it was not ended, so that each is said once."""

    since: float = 0.0
    looks: dict[int, list[Look]] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Forget what was seen before a new silence."""
        self.looks, self.said = {}, set()

    def note(self, inspections: Iterable[Inspection]) -> None:
        """Keep inspections that were just taken."""
        for one in inspections:
            self.looks.setdefault(one.pid, []).append(
                Look(time.monotonic(), one, procfs.thread_times(one.pid), procfs.cpu_time(one.pid))
            )

    def due(self, busy: Iterable[int], now: float) -> bool | None:
        """Whether to look again at these processes now. False: later; None: one more look cannot show that they only poll."""
        own = [self.looks.get(pid, []) for pid in busy]
        if any(not looks or len(looks) > _MOST or not _can_poll(looks[-1]) for looks in own):
            return None
        return all(now - looks[-1].at >= _APART for looks in own)

    def resting(self) -> set[int]:
        """The processes whose last two looks show that they only poll."""
        return {pid for pid, looks in self.looks.items() if len(looks) > 1 and rests(*looks[-2:])}


def rests(first: Look, second: Look) -> bool:
    """Whether a process only polls: no word of progress moved within or between two looks, and each thread that worked polls in NCCL or libpsm."""
    words = _words(first.inspection)
    if not words or words != _words(second.inspection) or not (_can_poll(first) and _can_poll(second)):
        return False
    most = IDLE * max(second.at - first.at, 1e-3)
    used = {tid: cpu - first.cpu.get(tid, 0.0) for tid, cpu in second.cpu.items()}
    if second.total - first.total - sum(used.values()) > most:  # threads that have ended since worked
        return False
    busy = {tid for tid, cpu in used.items() if cpu > most}
    return all(busy <= {t.tid for t in look.inspection.threads if t.kind in _POLLS} for look in (first, second))


def _can_poll(look: Look) -> bool:
    """Whether an inspection read words of progress, none of them moved, and it shows a step in which the process stands."""
    found = look.inspection
    values = [value for one in _objects(found.state) for value in one.values if not _CLOCKS.search(value.name)]
    counts = any(type(value.value) is int for value in values)
    return bool(look.cpu) and bool(found.standing) and counts and not any(value.moving for value in values)


def _words(found: Inspection) -> dict[tuple[str, int, str], int | str]:
    return {
        (one.name, one.address, value.name): value.value
        for one in _objects(found.state)
        for value in one.values
        if not _CLOCKS.search(value.name)
    }


def _objects(state: Iterable[StateObject]) -> Iterator[StateObject]:
    for one in state:
        yield one
        yield from _objects(one.parts)


def doubt(quiet: Quiet, seen: Mapping[int, Seen]) -> tuple[str, str] | None:
    """Why a silence proves no hang: the kind of the reason, and the reason in words. None: it does."""
    if quiet.proven:
        return None
    if not quiet.ranks:
        return "ranks", "no rank of it has begun"
    if quiet.seconds < FACTOR * quiet.pause:
        return (
            "pause",
            f"it was silent for {quiet.pause:.0f} s before and went on; {FACTOR} times as long counts as a hang",
        )
    busy = sorted(quiet.busy, key=lambda pid: -quiet.used[pid])
    one = seen[busy[0]]
    who = f"rank {one.rank}" if one.rank is not None else f"process {one.pid} ({' '.join(one.command[:1])})"
    more = f", and {len(busy) - 1} more used over {100 * IDLE:.0f} %" if len(busy) > 1 else ""
    used = f"{100 * quiet.used[one.pid] / quiet.seconds:.0f} % of a core{more}"
    return "busy", f"{who} used {used}, so it may still work; after {BUSY:.0f} s of silence the job counts as hung"
