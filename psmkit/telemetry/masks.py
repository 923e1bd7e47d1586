"""Words for NCCL's activation mask."""

from __future__ import annotations

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import EVENT_TYPES

__all__ = ["mask_of"]

_ALL = (1 << len(EVENT_TYPES)) - 1


def mask_of(text: str) -> int:
    """The mask that a list of event names, ``all``, ``none`` or a number stands for."""
    wanted = 0
    for part in text.split(","):
        name = part.strip().lower().replace("-", "_").replace(" ", "_")
        if name in ("all", "none"):
            wanted |= _ALL if name == "all" else 0
        elif name in EVENT_TYPES:
            wanted |= 1 << EVENT_TYPES.index(name)
        else:
            try:
                number = int(name, 0)
            except ValueError:
                known = ", ".join(EVENT_TYPES)
                raise TelemetryError(f"event {part.strip()!r}: {known}, all, none, or a number are meant") from None
            if not 0 <= number <= _ALL:
                raise TelemetryError(f"mask {name}: bits 0 to {len(EVENT_TYPES) - 1} are events, {_ALL:#x} all of them")
            wanted |= number
    return wanted
