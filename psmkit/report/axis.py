"""What the axis of a timeline means, in sentences."""

from __future__ import annotations

from psmkit.model.timeline import Clock, Timeline

__all__ = ["sentences"]


def sentences(timeline: Timeline) -> list[str]:
    """What places mean, how each clock was corrected, and what is not drawn."""
    out = [timeline.axis.about]
    out += [f"{clock.host}: {_offset(clock)}, {_error(clock)}." for clock in timeline.axis.clocks[1:]]
    if timeline.dropped:
        out.append(f"{timeline.dropped:,} lines beyond the first {len(timeline.marks):,} are not drawn.")
    return out


def _offset(clock: Clock) -> str:
    if not clock.offset:
        return "its times are as printed"
    return f"{abs(clock.offset):.3g} s {'added to' if clock.offset > 0 else 'taken from'} its times"


def _error(clock: Clock) -> str:
    if not clock.consistent:
        return "no single correction fits all exchanges"
    if clock.error is None:
        return "the exchanges bound its error on one side only"
    return f"right to within {clock.error:.3g} s"
