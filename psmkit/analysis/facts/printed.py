"""Count what processes printed, and read values from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Value
from psmkit.model.arrays import np, npt

__all__ = ["Printed", "counts", "number", "printed"]


def number(fields: Mapping[str, Value] | None, name: str) -> int | None:
    """An integer field, None if it is missing or has another type."""
    value = fields.get(name) if fields is not None else None
    return value if isinstance(value, int) else None


#: Up to this number of cells, a table of all keys takes less time than to sort them.
_CELLS = 1 << 20


def _places(keys: npt.NDArray[np.int64], cells: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The different keys, ascending, and the place of each key among them. All keys are below ``cells``."""
    if cells > _CELLS:
        found, place = np.unique(keys, return_inverse=True)
        return found, place
    known = np.zeros(cells, dtype=np.bool_)
    known[keys] = True
    return np.flatnonzero(known), (np.cumsum(known) - 1)[keys]


class Printed:
    """How often each process printed each message, as columns. A message may be both kept and counted; the larger number is right."""

    def __init__(self, job: Job) -> None:
        events, counts = job.scan.events, job.scan.counts
        self.names: Sequence[str] = sorted({*events.names, *counts.names})
        number = {name: at for at, name in enumerate(self.names)}
        width = max(len(number), 1)
        sums = []
        for table in (counts, events):
            kind = np.array([number.get(name, 0) for name in table.kinds], dtype=np.int64)
            sums.append(((table.proc.astype(np.int64) + 1) * width + kind[table.message], table.times))
        keys, place = _places(np.concatenate([key for key, _ in sums]), (len(job.scan.processes) + 1) * width)
        parts = np.split(place, [len(sums[0][0])])
        times = [
            np.bincount(at, weights=n, minlength=len(keys)) for at, (_, n) in zip(parts, sums, strict=True) if len(keys)
        ]
        self.proc, self.kind = (keys // width - 1).astype(np.int32), (keys % width).astype(np.int32)
        self.times = np.maximum(*times).astype(np.int64) if times else np.zeros(0, dtype=np.int64)
        # where the rows of each process begin, from -1 on
        self._begins = np.searchsorted(
            self.proc, np.arange(-1, len(job.scan.processes) + 1, dtype=self.proc.dtype)
        ).tolist()
        self._sums: dict[tuple[str, ...], Mapping[int, int]] = {}

    def of(self, proc: int) -> dict[str, int]:
        """How often a process printed each of its messages."""
        if not -1 <= proc < len(self._begins) - 2:
            return {}
        low, high = self._begins[proc + 1 : proc + 3]
        return {
            self.names[kind]: times
            for kind, times in zip(self.kind[low:high].tolist(), self.times[low:high].tolist(), strict=True)
        }

    def sums(self, *names: str) -> Mapping[int, int]:
        """How often each process printed these messages (exact names, or prefixes that end with a dot), without those that did not."""
        if names not in self._sums:
            wanted = [
                at
                for at, name in enumerate(self.names)
                if any(name == want or (want.endswith(".") and name.startswith(want)) for want in names)
            ]
            rows = np.isin(self.kind, wanted)
            out: dict[int, int] = defaultdict(int)
            for proc, times in zip(self.proc[rows].tolist(), self.times[rows].tolist(), strict=True):
                out[proc] += times
            self._sums[names] = dict(out)
        return self._sums[names]


def printed(job: Job, proc: int, *names: str) -> int:
    """How often a process printed these messages (exact names, or prefixes that end with a dot)."""
    return counts(job).sums(*names).get(proc, 0)


@once
def counts(job: Job) -> Printed:
    """How often each process printed each message."""
    return Printed(job)
