"""One take of the windows: plain arrays from which metrics, spans and recordings are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psmkit.model.arrays.whole import np, npt
from psmkit.telemetry.layout import COMM, LINK, LOSSES, OP, ROW, TIME

__all__ = ["OFFSET", "STEP", "Array", "Take", "empty", "text", "word"]

Array = npt.NDArray[Any]

# The offset from a communicator's clock to the epoch.
OFFSET = np.dtype([("comm", "u4"), ("offset", "i8")])

# A row of libpsm's psm.steps, with its owner.
STEP = np.dtype(
    [
        *((name, "i4") for name in ("pid", "rank", "peer")),
        ("channel", "u4"),
        *((name, "u8") for name in ("connection", "seq", "nbytes", "nsteps", "posted", "transmitted", "done")),
        ("age_ns", "i8"),
        ("role", "S8"),
        ("what", "S12"),
        ("stage", "S12"),
    ]
)


def empty(kind: np.dtype[Any]) -> Array:
    """An empty array of rows."""
    return np.empty(0, kind)


@dataclass(slots=True)
class Take:
    """The data taken at one time. ``wall_ns`` is a time of the epoch, ``clock_ns`` one of this host's monotonic clock; sums cover the time
    since ``since_ns`` (epoch). ``rows`` are raw rows (for recordings only), ``rows_dropped`` those beyond their limit. ``open_rows`` are
    events that have not ended."""

    wall_ns: int
    clock_ns: int
    comms: Array = field(default_factory=lambda: empty(COMM))
    ops: Array = field(default_factory=lambda: empty(OP))
    links: Array = field(default_factory=lambda: empty(LINK))
    times: Array = field(default_factory=lambda: empty(TIME))
    spans: Array = field(default_factory=lambda: empty(ROW))
    rows: Array = field(default_factory=lambda: empty(ROW))
    open_rows: Array = field(default_factory=lambda: empty(ROW))
    steps: Array = field(default_factory=lambda: empty(STEP))
    offsets: Array = field(default_factory=lambda: empty(OFFSET))
    losses: Array = field(default_factory=lambda: empty(LOSSES))
    rows_dropped: int = 0
    since_ns: int = 0

    def epoch(self, comm: int, clock_ns: int) -> int:
        """Convert a time of a communicator's clock to ns of the epoch."""
        at = np.flatnonzero(self.offsets["comm"] == comm)
        offset = int(self.offsets["offset"][at[0]]) if len(at) else self.wall_ns - self.clock_ns
        return max(clock_ns + offset, 0)


def text(raw: bytes, most: int = 64) -> str:
    """Untrusted text from shared memory: at most ``most`` characters, all printable."""
    found = bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")[:most]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in found)


def word(names: tuple[str, ...], number: int, none: str = "none") -> str:
    """The name for a number from the plugin: 255 means none, 128 and above are names of the communicator's own."""
    if number < len(names):
        return names[number]
    return none if number == 255 else f"custom{number - 128}" if number >= 128 else f"unknown{number}"
