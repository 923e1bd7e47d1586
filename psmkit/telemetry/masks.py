"""Names of the events in NCCL's activation mask."""

from __future__ import annotations

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.kinds import DEFAULT, EVENT_TYPES

__all__ = ["NAMES", "mask_of"]

# As PSM_PROFILER_EVENTS and docs/profiler.md have them.
NAMES = tuple(name.replace("_", "") for name in EVENT_TYPES)
_ALL = (1 << len(NAMES)) - 1
_KERNEL, _PHASE = 1 << 6, 1 << 15
_WORDS = {
    "all": _ALL,
    "none": 0,
    "default": DEFAULT,
}


def mask_of(text: str) -> int:
    """Parse a mask in the grammar of PSM_PROFILER_EVENTS: event names separated by commas, with ``-`` before events to
    exclude, ``default``, ``all``, ``none``, or a number. Underscores in names do not matter."""
    wanted: int | None = None
    for part in text.split(","):
        name = part.strip().lower()
        out, name = name.startswith("-"), name.removeprefix("-").replace("_", "")
        bits = _WORDS.get(name)
        if bits is None and name in NAMES:
            bits = 1 << NAMES.index(name)
        if bits is None:
            bits = _number(part.strip(), name)
        if out and bits == _KERNEL:
            bits |= _PHASE  # its phases would bring it back
        # A text that starts with an exclusion excludes from the default.
        before = (_WORDS["default"] if out else 0) if wanted is None else wanted
        wanted = before & ~bits if out else before | bits
    return wanted or 0


def _number(part: str, name: str) -> int:
    try:
        number = int(name, 0)
    except ValueError:
        known = ", ".join(NAMES)
        raise TelemetryError(f"bad event {part!r}, expected {known}, default, all, none, or a number") from None
    if not 0 <= number <= _ALL:
        raise TelemetryError(f"bad mask {part}, expected only bits 0 to {len(NAMES) - 1} ({_ALL:#x})")
    return number
