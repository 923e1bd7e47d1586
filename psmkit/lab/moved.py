"""How many bytes the ranks of a run move, by the step recorder: what is slow moves, and what hangs does not."""

from __future__ import annotations

from pathlib import Path

from psmkit.logparse.records import open_record
from psmkit.model.errors import PsmkitError

__all__ = ["Meter", "amount"]

_SECTION = "psm.steps"
_TRIES = 5
_End = tuple[int, int, int, int, str]


class Meter:
    """Counts what the ends of the connections in a record directory have moved since the last call, by rank: bytes sent and received."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[_End, int] = {}

    def __call__(self) -> dict[int, int]:
        """Bytes by rank; a rank without a connection is missing."""
        found: dict[int, int] = {}
        ends = self._ends()
        for _ in range(_TRIES):  # a row that its rank is writing cannot be read: an end that moves fast may be missing
            if self._last.keys() <= ends.keys():
                break
            ends = self._ends() | ends
        for end, (steps, chunk) in ends.items():
            more = max(steps - self._last.get(end, 0), 0)
            self._last[end] = steps
            found[end[0]] = found.get(end[0], 0) + more * chunk
        return found

    def _ends(self) -> dict[_End, tuple[int, int]]:
        """Of each end the steps since its first byte, and the bytes of a step in its current operation."""
        out: dict[_End, tuple[int, int]] = {}
        for path in sorted(self._folder.glob("*.rec")):
            try:
                rows = [record.fields for record in open_record(str(path)).records() if record.section == _SECTION]
            except (OSError, PsmkitError):  # it is just made, or just gone
                continue
            for row in rows:
                rank, peer, channel, index, base, done, nbytes, nsteps = (
                    int(row[name])
                    for name in ("rank", "peer", "channel", "conn_index", "base", "done", "nbytes", "nsteps")
                )
                end = (rank, peer, channel, index, str(row["role"]))
                out[end] = (base + done, nbytes // max(nsteps, 1))
        return out


def amount(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
