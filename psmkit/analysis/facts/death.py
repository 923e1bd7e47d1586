"""The end of one process, and how it is said."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from dataclasses import field

from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = ["ASKED", "FAULTS", "KILLED", "Death", "in_order", "lost_node", "manner", "signal_name", "signal_of"]

#: Signals that a process usually raises itself; the others come from another process.
FAULTS = frozenset({signals.SIGSEGV, signals.SIGBUS, signals.SIGILL, signals.SIGFPE, signals.SIGSYS, signals.SIGTRAP})
#: Signals with which another process asks one to end.
ASKED = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT})
#: The signal of the OOM killer, and of anybody who ends a process at once.
KILLED = signals.SIGKILL

#: Lines about the kernel's OOM killer. Ray, Dask and batch systems watch the memory of their processes themselves.
_BY_KERNEL = ("sys.kernel.oom", *(f"launch.ended.{name}." for name in ("kernel", "alps", "systemd")), "launch.k8s.oom")
# As strsignal() names them, in lower case.
_WORDS = {
    "killed": signals.SIGKILL,
    "segmentation fault": signals.SIGSEGV,
    "aborted": signals.SIGABRT,
    "bus error": signals.SIGBUS,
    "illegal instruction": signals.SIGILL,
    "floating point exception": signals.SIGFPE,
    "terminated": signals.SIGTERM,
    "out of memory": signals.SIGKILL,
}


@dataclass(slots=True)
class Death:
    """The end of one process. Unknown parts are None. ``signal`` is a number; ``code`` is an exit code other than a signal.

    ``oom`` means that memory ran out, ``raised`` that torch.multiprocessing.spawn reports its exception, ``root`` that the launcher calls it the first failure, ``by_peer`` that its last words say that
    another process closed a connection, ``listed`` that a launcher lists it among others and does not call it the first, ``itself`` that it reports a failure of its own, ``later`` that it
    failed after the first one. ``time`` is
    the launcher's, as text that sorts. ``local`` is its rank on its host, as torchrun counts, or if ``counted`` the number that another launcher gives to its workers. ``task`` is the number that Slurm gives to the launcher of several ranks. ``where`` names a library or holds
    the last printed text. ``untold``: no line shows the exit code. ``events`` are the lines about this death,
    ``reason`` is the one that says why it ended.
    """

    events: list[Event] = field(default_factory=list)
    rank: int | None = None
    proc: int | None = None
    pid: int | None = None
    host: str | None = None
    signal: int | None = None
    code: int | None = None
    oom: bool = False
    raised: bool = False
    root: bool = False
    by_peer: bool = False
    listed: bool = False
    itself: bool = False
    later: bool = False
    time: str = ""
    local: int | None = None
    counted: bool = False
    task: int | None = None
    untold: bool = False
    where: str | None = None
    reason: Event | None = None
    #: Those of many events.
    _known: set[tuple[Ref, str]] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sent(self) -> bool:
        """Whether it was ended on purpose, as launchers do with the remaining ranks."""
        return self.signal in ASKED

    def exited(self, value: object) -> None:
        """Interpret an exit code: minus a signal, 128 plus a signal, or the program's own code."""
        if not isinstance(value, int):
            return
        if value < 0:
            self.signal = -value
        elif 128 < value < 128 + 65:
            self.signal = value - 128
        else:
            self.code = value

    def take(self, other: Death) -> None:
        """Merge another line about the same process; known values stay."""
        own = self.events
        if len(own) > 4:  # most have two or three, and a set takes longer to make
            if self._known is None or len(self._known) != len(own):
                self._known = {(e.ref, e.name) for e in own}
            for event in other.events:
                if (place := (event.ref, event.name)) not in self._known:
                    self._known.add(place)
                    own.append(event)
        else:
            known = [(e.ref, e.name) for e in own]
            own += [e for e in other.events if (e.ref, e.name) not in known]
        self.rank = other.rank if self.rank is None else self.rank
        self.proc = other.proc if self.proc is None else self.proc
        self.pid = other.pid if self.pid is None else self.pid
        self.host = other.host if self.host is None else self.host
        if self.code is None or (self.untold and other.code is not None):
            self.code, self.untold = other.code, other.untold
        if self.local is None:
            self.local, self.counted = other.local, other.counted
        self.task = other.task if self.task is None else self.task
        self.where = other.where if self.where is None else self.where
        self.reason = other.reason if self.reason is None else self.reason
        # Some handlers catch SIGSEGV and then abort: the fault is the cause.
        if self.signal is None or (self.signal == signals.SIGABRT and other.signal in FAULTS):
            self.signal = other.signal
        self.oom |= other.oom
        self.raised |= other.raised
        self.root |= other.root
        self.by_peer |= other.by_peer
        self.itself |= other.itself
        self.listed &= other.listed
        self.later |= other.later
        self.time = self.time or other.time


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for a signal without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def manner(death: Death) -> str:
    """How a process died, after its name: ``was killed by SIGKILL``."""
    if death.oom and all(e.name.startswith("launch.slurm.") for e in death.events):
        return "ran out of host memory: the OOM killer ended it or a child of it"
    if death.oom:
        killer = any(e.name.startswith(_BY_KERNEL) for e in death.events)
        return "was killed because memory ran out" + (" (SIGKILL by the OOM killer)" if killer else "")
    if death.signal == signals.SIGKILL:
        return "was killed by SIGKILL"
    if death.signal is not None:
        return f"died by {signal_name(death.signal)}" + (f" ({death.where})" if death.where else "")
    if death.raised:
        return "was ended by an exception" + (f": {death.where}" if death.where else "")
    if death.untold:
        return "ended" + (f": {death.where}" if death.where else "")
    if death.code is not None:
        return f"exited with code {death.code}" + (f": {death.where}" if death.where else "")
    return "died" + (f" ({death.where})" if death.where else "")


def signal_of(text: object) -> int | None:
    """The number of a signal's name, ``SIGSEGV``, or of a text that begins as strsignal() does: ``Killed``."""
    if not isinstance(text, str):
        return None
    found = getattr(signals, text, None) if text.startswith("SIG") else None
    if isinstance(found, signals.Signals):
        return int(found)
    low = text.strip().lower()
    return next((int(number) for word, number in _WORDS.items() if low.startswith(word)), None)


def in_order(origins: Sequence[Death], followers: Sequence[Death]) -> bool:
    """Whether the log shows that the first of these ends came before the others: the launcher calls it the first, or sent the others a signal, or they stand below it."""
    if not origins:
        return False
    first = min(e.ref.seq for e in origins[0].events)
    stream = origins[0].events[0].stream
    return origins[0].root or all(
        d.sent or all(e.stream == stream and e.ref.seq > first for e in d.events) for d in followers
    )


def lost_node(death: Death) -> bool:
    """Whether a launcher reports that a node is gone, not a process."""
    only = (death.rank, death.pid, death.local, death.signal, death.code) == (None,) * 5
    return only and death.host is not None and (death.where or "").endswith("lost the node")
