"""The lines of chains of errors, to tell other lines from them."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference.chains import LINE_BITS, keys
from psmkit.analysis.inference.faults import Cascade, Column, cascades
from psmkit.logparse.tables import Events
from psmkit.logparse.types import Event
from psmkit.model.arrays import np, npt

__all__ = ["Reported", "reported"]


class Reported:
    """The lines of some cascades: ``event in reported``."""

    def __init__(self, items: Iterable[Cascade]) -> None:
        chosen = list(items)
        rows = [c._at + row for c in chosen for row in c.shape.rows]
        found = np.sort(chosen[0]._lines.keys[rows]) if chosen else np.zeros(0, np.int64)
        self._keys = array("q", found.tobytes())

    def __contains__(self, event: Event) -> bool:
        key = (event.proc << LINE_BITS) + event.ref.seq
        at = bisect.bisect_left(self._keys, key)
        return at < len(self._keys) and self._keys[at] == key

    def among(self, events: Events, rows: Column) -> npt.NDArray[np.bool_]:
        """Which of these rows are such lines."""
        wanted, known = keys(events.proc[rows], events.first[rows]), np.frombuffer(self._keys, dtype=np.int64)
        # the known ones are sorted, so isin(), which hashes both, would be slower
        return np.searchsorted(known, wanted, "right") > np.searchsorted(known, wanted, "left")


@once
def reported(job: Job) -> Reported:
    """The lines of all cascades of a job."""
    return Reported(cascades(job))
