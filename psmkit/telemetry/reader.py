"""The consumer of the profiler's windows: finds the record files of a directory, takes windows and sums them up.

All arrays are numpy structured arrays of the C structs (:mod:`psmkit.telemetry.layout`), one row per item, owned by the caller. Times are ns
(points in time by ``CLOCK_MONOTONIC`` of this boot), sizes are bytes, ranks are those of the communicator, -1 if unknown. Sums cover the time
since the last ``take_*`` of their kind. A reader must be used by one thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from psmkit._native.telemetry import ffi, lib
from psmkit.model.arrays.whole import np, npt
from psmkit.model.errors import PsmkitError
from psmkit.telemetry.layout import COMM, LINK, LOSSES, OP, ROW, TIME

__all__ = ["WITHHELD", "Fit", "Reader", "fit", "set_times"]

Rows = npt.NDArray[np.void]

_DTYPES = {
    "struct psm_tel_comm": COMM,
    "struct psm_tel_op": OP,
    "struct psm_tel_link": LINK,
    "struct psm_tel_span_stat": TIME,
    "struct psm_tel_row": ROW,
    "struct psm_tel_losses": LOSSES,
}
_POINTERS = {dtype: f"{name}[]" for name, dtype in _DTYPES.items()}
for _name, _dtype in _DTYPES.items():
    if ffi.sizeof(_name) != _dtype.itemsize:
        raise ImportError(f"{_name} has {ffi.sizeof(_name)} bytes in C, {_dtype.itemsize} here: build psmkit again")


class Reader:
    """Takes the windows of all ranks on this host.

    directory: folder of the record files; None: that of this user. consume: if False, the reader changes nothing and counts each row once, when
    it has ended. Raises :class:`PsmkitError` if the directory cannot be read.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, consume: bool = True) -> None:
        error = ffi.new("char[]", 512)
        path = ffi.NULL if directory is None else ffi.new("char[]", os.fsencode(directory))
        handle = lib.psm_tel_open(path, int(consume), error, len(error))
        if handle == ffi.NULL:
            raise PsmkitError(ffi.string(error).decode("utf-8", "replace"))
        self._handle: Any = ffi.gc(handle, lib.psm_tel_close)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the files so that another consumer may take them. Idempotent."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def _open(self) -> Any:
        if self._handle is None:
            raise PsmkitError("this reader of the profiler's windows is closed")
        return self._handle

    def set(self, *, interval_ns: int = 0, force_ns: int = 0, spans: int = 64, rows: int = 0, keys: int = 4096) -> None:
        """Set what to take and keep.

        interval_ns: age at which a window in use is closed; force_ns: age at which a closed window is taken although it has open events
        (0: the plugin's setting). spans: operations kept as trees per take; rows: raw rows kept per take; keys: maximum keys of each
        table of sums; the rest is summed under "other".
        """
        settings = ffi.new(
            "struct psm_tel_settings *",
            {"interval_ns": interval_ns, "force_ns": force_ns, "spans": spans, "rows": rows, "keys": keys},
        )
        lib.psm_tel_set(self._open(), settings)

    def poll(self, final: bool = False) -> int:
        """Look for new files and take what is ready; with ``final`` take everything by force. Returns the number of windows taken. Never blocks."""
        taken = int(lib.psm_tel_poll(self._open(), int(final)))
        if taken < 0:
            raise MemoryError("no memory for the profiler's windows")
        return taken

    def _take(self, function: Callable[..., int], dtype: np.dtype[np.void], *more: Any) -> Rows:
        handle, c_type = self._open(), _POINTERS[dtype]
        rows = np.empty(0, dtype)
        # In one thread the data stays the same between the two calls, except for open_now.
        while (there := int(function(handle, ffi.from_buffer(c_type, rows), len(rows), *more))) > len(rows):
            rows = np.zeros(there, dtype)
        return rows[:there]

    def comms(self) -> Rows:
        """The communicators: (n,) of COMM. An ended communicator is returned once more after its last window, then forgotten."""
        return self._take(lib.psm_tel_comms, COMM)

    def losses(self) -> Rows:
        """What could not be reported since the start: (1,) of LOSSES."""
        rows = np.zeros(1, LOSSES)
        lib.psm_tel_losses(self._open(), ffi.cast("struct psm_tel_losses *", ffi.from_buffer(rows)))
        return rows

    def take_ops(self) -> Rows:
        """Collectives, p2p and copy-engine collectives by key: (n,) of OP."""
        return self._take(lib.psm_tel_take_ops, OP)

    def take_links(self) -> Rows:
        """Transfers between two ranks, per channel and (channel -1) over all channels: (n,) of LINK."""
        return self._take(lib.psm_tel_take_links, LINK)

    def take_times(self) -> Rows:
        """Proxy thread, kernel channels, network events, API calls: (n,) of TIME."""
        return self._take(lib.psm_tel_take_times, TIME)

    def take_spans(self) -> Rows:
        """Operations that were kept whole: (n,) of ROW, grouped by operation, parents before children."""
        return self._take(lib.psm_tel_take_spans, ROW)

    def take_rows(self) -> tuple[Rows, int]:
        """Rows as the plugin wrote them, (n,) of ROW, and how many exceeded the limit ``rows`` of :meth:`set`."""
        dropped = ffi.new("uint64_t *")
        rows = self._take(lib.psm_tel_take_rows, ROW, dropped)
        return rows, int(dropped[0])

    def open_now(self) -> Rows:
        """The events that are open now, oldest first: (n,) of ROW."""
        return self._take(lib.psm_tel_open_now, ROW)

    def set_mask(self, comm: int, mask: int) -> None:
        """Ask the plugin for another event mask (NCCL's activation mask). comm: ``id`` of :meth:`comms`."""
        if lib.psm_tel_set_mask(self._open(), comm, mask) != 0:
            raise PsmkitError(
                f"cannot set the event mask of communicator {comm}: it is gone, or its file cannot be written"
            )


def set_times(rows: Rows) -> None:
    """Fill in ``begin_ns``, ``end_ns`` and ``by`` of rows (of ROW) by what the rows themselves say, without the GPU's timer."""
    lib.psm_tel_row_times(ffi.from_buffer(_POINTERS[ROW], rows, require_writable=True), len(rows))


#: Why a line is withheld, by ``enum psm_tel_fit_why``: fewer than two sizes; larger transfers take no longer; more than any link has (4 TB/s);
#: below 0; r2 below 0.5.
WITHHELD = ("", "one_size", "falling", "rate", "latency", "scatter")
if len(WITHHELD) != lib.PSM_TEL_FIT_WHYS:
    raise ImportError("enum psm_tel_fit_why has other reasons: build psmkit again")


class Fit:
    """A line fitted through transfers: ``latency`` ns (of a transfer of no bytes), ``rate`` bytes per ns, ``r2`` in 0..1. ``withheld`` says
    why the line is implausible and not to be shown (of :data:`WITHHELD`), ``""``: it is good."""

    __slots__ = ("latency", "r2", "rate", "withheld")

    def __init__(self, latency: float, rate: float, r2: float, withheld: str = "") -> None:
        self.latency, self.rate, self.r2, self.withheld = latency, rate, r2, withheld


def fit(n: float, sx: float, sy: float, sxx: float, sxy: float, syy: float) -> Fit:
    """Fit a line through n points with these sums (x bytes, y ns).

    A row of links has the sums of mode AVG (count, sx, sy, ...) and of mode MIN (mcount, mx, my, ...); those of several rows add up.
    """
    found = ffi.new("struct psm_tel_fit *")
    lib.psm_tel_fit(n, sx, sy, sxx, sxy, syy, found)
    return Fit(found.latency, found.rate, found.r2, WITHHELD[found.why])
