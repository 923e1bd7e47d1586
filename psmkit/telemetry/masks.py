"""Words for NCCL's activation mask."""

from __future__ import annotations

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import EVENT_TYPES

__all__ = ["mask_of"]

_NAMES = tuple(name.replace("_", "") for name in EVENT_TYPES)
_ALL = (1 << len(_NAMES)) - 1
_WORDS = {
    "all": _ALL,
    "none": 0,
    # What the plugin asks for on its own: neither proxy_ctrl, nor kernel_ch, nor net.
    "default": _ALL & ~(1 << 5 | 1 << 6 | 1 << 7),
}


def mask_of(text: str) -> int:
    """The mask that a text stands for, in the grammar of PSM_PROFILER_EVENTS: event names with commas between them, with a ``-`` before what is to
    be left out, ``default``, ``all``, ``none``, or a number. Underscores in names do not matter."""
    wanted: int | None = None
    for part in text.split(","):
        name = part.strip().lower()
        out, name = name.startswith("-"), name.removeprefix("-").replace("_", "")
        bits = _WORDS.get(name)
        if bits is None and name in _NAMES:
            bits = 1 << _NAMES.index(name)
        if bits is None:
            bits = _number(part.strip(), name)
        # What begins with an exception is an exception from the default.
        before = (_WORDS["default"] if out else 0) if wanted is None else wanted
        wanted = before & ~bits if out else before | bits
    return wanted or 0


def _number(part: str, name: str) -> int:
    try:
        number = int(name, 0)
    except ValueError:
        known = ", ".join(EVENT_TYPES)
        raise TelemetryError(f"event {part!r}: {known}, default, all, none, or a number are meant") from None
    if not 0 <= number <= _ALL:
        raise TelemetryError(f"mask {part}: bits 0 to {len(_NAMES) - 1} are events, {_ALL:#x} all of them")
    return number
