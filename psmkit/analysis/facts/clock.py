"""Times of lines: how long before others a rank printed its last line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event
from psmkit.model.arrays import np

__all__ = ["behind", "seconds"]

_DAY = 86400.0
_EPOCH = datetime(1970, 1, 1)
# What a watchdog prints is no activity of the rank's program.
_NO_ACTIVITY = ("torch.watchdog.", "torch.dump.", "torch.heartbeat.", "torch.failed", "torch.taking", "launch.", "ras.")


def seconds(text: str | None) -> tuple[float, bool] | None:
    """The seconds of a time stamp since 1970, and whether it has a date (else they count from midnight); None if it is none.

    Its time zone does not count.
    """
    parts = (text or "").strip("[]() ,").replace(",", ".").replace("/", "-").split()
    try:
        if len(parts) == 2 or (parts and "-" in parts[0]):
            stamp = datetime.fromisoformat(" ".join(parts))
            return (stamp.replace(tzinfo=None) - _EPOCH).total_seconds(), True
        if parts:
            found = datetime.combine(date(2000, 1, 1), time.fromisoformat(parts[0].rstrip(":")))
            return (found - datetime(2000, 1, 1)).total_seconds(), False
    except ValueError:
        pass
    return None


@once
def _last(job: Job) -> dict[int, tuple[float, bool]]:
    """The time of the last line of each rank's program."""
    out: dict[int, tuple[float, bool]] = {}
    events = job.scan.events
    idle = [at for at, kind in enumerate(events.kinds) if kind.startswith(_NO_ACTIVITY)]
    for event in events.make((events.timed & ~np.isin(events.message, idle)).nonzero()[0]):
        rank, at = outside.global_rank(job, event), seconds(event.time)
        if rank is not None and at is not None:
            out[rank] = max(out.get(rank, at), at)
    return out


def behind(job: Job, ranks: Iterable[int], waiting: Sequence[Event]) -> str | None:
    """How long the last activity of the first of ``ranks`` lies before these lines, as text; None if unknown or short."""
    lasts = [at for rank in ranks if (at := _last(job).get(rank)) is not None]
    ends = [at for text in {e.time for e in waiting} if (at := seconds(text)) is not None] if lasts else []
    if not ends or not lasts:
        return None
    (end, dated), (last, also) = max(ends), max(lasts)
    gap = end - last
    if dated != also:
        return None
    if not dated and gap < 0:
        gap += _DAY  # past midnight
    if not dated and gap > _DAY / 2:
        return None
    if gap < 60:
        return f"{gap:.0f} s" if gap >= 5 else None
    return f"{gap / 60:.0f} min" if gap < 7200 else f"{gap / 3600:.1f} h"
