"""What one look at the windows gave: plain arrays, which metrics, spans and recordings are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit.telemetry.layout import COMM, LINK, LOSSES, OP, ROW, TIME

__all__ = ["OFFSET", "STEP", "Array", "Take", "empty", "text", "word"]

Array = npt.NDArray[Any]

# What is added to a time of a communicator's clock to make it one of the epoch.
OFFSET = np.dtype([("comm", "u4"), ("offset", "i8")])

# A row of libpsm's psm.steps, with whose it is.
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
    """No rows."""
    return np.empty(0, kind)


@dataclass(slots=True)
class Take:
    """What was taken at one time. ``wall_ns`` is of the epoch, ``clock_ns`` of the monotonic clock of this host; sums are since ``since_ns``,
    of the epoch. ``rows`` are raw rows (kept
    for recordings only), ``rows_dropped`` those beyond their limit; ``open_rows`` are events that have not ended."""

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
        """A time of a communicator's clock in ns of the epoch."""
        at = np.flatnonzero(self.offsets["comm"] == comm)
        offset = int(self.offsets["offset"][at[0]]) if len(at) else self.wall_ns - self.clock_ns
        return max(clock_ns + offset, 0)


def text(raw: bytes, most: int = 64) -> str:
    """Text that another process wrote into shared memory: no more than ``most`` characters, all of them printable."""
    found = bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")[:most]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in found)


def word(names: tuple[str, ...], number: int, none: str = "none") -> str:
    """The name of a number that the plugin noted: 255 stands for none, 128 and more for names of the communicator's own."""
    if number < len(names):
        return names[number]
    return none if number == 255 else f"custom{number - 128}" if number >= 128 else f"unknown{number}"
