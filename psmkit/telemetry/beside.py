"""What record files hold next to the windows: libpsm's steps, and the offset between a process's clock and the epoch."""

from __future__ import annotations

import time

from psmkit.logparse.recordfiles import record_names
from psmkit.logparse.records import open_record
from psmkit.model.arrays.whole import np
from psmkit.telemetry.take import OFFSET, STEP, Array, empty, text

__all__ = ["Clocks", "read_steps"]

_STEPS = "psm.steps"


class Clocks:
    """The offset from a communicator's clock to the epoch, from the header of its file, where the process stored both clocks."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def offsets(self, comms: Array) -> Array:
        """The offset of each communicator; if its file is gone, that of this process."""
        own = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        ids = comms["id"].tolist()
        for number, file in zip(ids, comms["file"].tolist(), strict=True):
            if number not in self._known:
                self._known[number] = self._read(text(file, 256), own)
        self._known = {number: self._known[number] for number in ids}
        return np.array(list(self._known.items()), OFFSET)

    @staticmethod
    def _read(path: str, own: int) -> int:
        try:
            found = open_record(path, only=())
        except (OSError, ValueError):
            return own
        return found.wall_ns - found.clock_ns if found.valid and found.wall_ns else own


def read_steps(folder: str, clock_ns: int) -> Array:
    """The rows of psm.steps of the live processes of a folder."""
    parts = []
    try:
        names = record_names(folder)
    except OSError:
        return empty(STEP)
    for path in names:
        try:
            with open(path, "rb", buffering=0) as file:
                # Most files have no such section, and some are large.
                if _STEPS.encode() not in file.read(4096):
                    continue
                found = open_record(path, file, only=(_STEPS,))
        except OSError:
            continue
        if found.owner == "clean":
            continue
        parts += [_steps(section.rows, found.pid, clock_ns) for section in found.sections if len(section)]
    return np.concatenate(parts) if parts else empty(STEP)


def _steps(rows: Array, pid: int, clock_ns: int) -> Array:
    out = np.zeros(len(rows), STEP)
    out["pid"] = pid
    for name in STEP.names or ():
        if "f_" + name in (rows.dtype.names or ()):
            out[name] = rows["f_" + name]
    out["age_ns"] = np.maximum(0, clock_ns - rows["f_moved"].astype("i8"))
    return out
