"""One death for each process, from the lines that tell of it."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable

from psmkit.analysis.facts.death import Death

__all__ = ["Deaths"]

_ANY = object()  # any host


class Deaths:
    """Deaths in the order of their lines, one for each process. There may be as many as ranks."""

    def __init__(self) -> None:
        self.all: list[Death] = []
        self._places: dict[tuple[object, ...], list[int]] = defaultdict(list)  # deaths by what names a process
        self._before: tuple[object, ...] | None = None  # what names the process of the line before
        self._at = 0  # its death

    def add(self, death: Death, place: Callable[[Death], None]) -> None:
        """Merge a line with the death of the same process, or add a death. ``place`` finds the process in the lines of NCCL."""
        named = (death.proc, death.rank, death.pid, death.host) if death.pid is not None else None
        if named is not None and named == self._before:
            self.all[self._at].take(death)  # most lines of a process stand together
            return
        place(death)
        self._before, self._at = named, self._add(death)

    def _add(self, death: Death) -> int:
        at = self._same(death)
        if at is None:
            at = len(self.all)
            self.all.append(death)
        else:
            known = self.all[at]
            before = known.rank, known.pid, known.host
            known.take(death)
            if (known.rank, known.pid, known.host) == before:
                return at
        self._note(at)
        return at

    def _note(self, at: int) -> None:
        death = self.all[at]
        places: list[tuple[object, ...]] = [("rank", death.rank)] if death.rank is not None else []
        if death.pid is not None:
            ranks = ("pid",) if death.rank is not None else ("pid", "pid without rank")
            places += [(kind, death.pid, host) for kind in ranks for host in (death.host, _ANY)]
        elif death.local is not None and death.host is not None:
            places.append(("local", death.local, death.host))
        for place in places:
            # a death is noted again when another line tells more about it
            noted = self._places[place]
            if not noted or noted[-1] < at:
                noted.append(at)
            elif noted[-1] != at:
                bisect.insort(noted, at)

    def _same(self, death: Death) -> int | None:
        """The first death that may be the same: ranks decide, then process ids on hosts that do not differ."""
        places: list[tuple[object, ...]] = [("rank", death.rank)] if death.rank is not None else []
        if death.pid is not None:
            kind = "pid" if death.rank is None else "pid without rank"
            places += [(kind, death.pid, host) for host in ((death.host, None) if death.host is not None else (_ANY,))]
        elif death.local is not None and death.host is not None:
            places.append(("local", death.local, death.host))
        found = [at for place in places if (at := self._first(place, death)) is not None]
        return min(found) if found else None

    def _first(self, place: tuple[object, ...], death: Death) -> int | None:
        """The first death at a place. Those whose rank or host became known since are dropped from it."""
        noted = self._places.get(place)
        while noted:
            if _same(self.all[noted[0]], death):
                return noted[0]
            del noted[0]
        return None


def _same(one: Death, other: Death) -> bool:
    if one.rank is not None and other.rank is not None:
        return one.rank == other.rank
    if one.pid is not None and other.pid is not None:
        return one.pid == other.pid and (one.host is None or other.host is None or one.host == other.host)
    told = one.local, one.host, one.signal, one.code
    return (
        one.local is not None and one.host is not None and told == (other.local, other.host, other.signal, other.code)
    )
