"""What NCCL's planner does in each range of releases: the table of libpsm, and the names of schedulers that it gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from psmkit._native.psm import ffi, lib
from psmkit.plan.types import Config, Scheduler
from psmkit.proxy.errors import text_of

__all__ = ["Release", "named", "number", "release_of", "releases", "scheduler_name", "version"]

_VERSION = re.compile(r"v?(\d{1,2})\.(\d{1,2})\.(\d{1,2})(?:[-+~].*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What the planner of a range of releases does with sends and recvs.

    Attributes:
        name: of the scheduler: ``planner-2.29.7``.
        since: version code of the first release.
        until: version code of the last one that was read.
        grouped_rounds: rounds go by groups of ranks; else by nodes, and on each by distances 0, 1, 3, 6, ...
        reversed_rounds: a round begins at the channel of its number with its bits reversed; else its parts are spread so.
        round_groups: the rounds of a batch are of one group of 8.
        epochs: a batch is of one pass over the rounds.
        carries: the plan after a cut goes on at the round of the cut; else at round 0.
        simple_parts: the channels of a message follow from the chunk of protocol Simple; else from that of its protocol.
        event_room: an event behind a group's last plan gives room in the work FIFO back; else the kernels do.
        abortable: the wait for room ends by an abort.
    """

    name: str
    since: int
    until: int
    grouped_rounds: bool
    reversed_rounds: bool
    round_groups: bool
    epochs: bool
    carries: bool
    simple_parts: bool
    event_room: bool
    abortable: bool


@cache
def releases() -> tuple[Release, ...]:
    """All ranges of releases, the oldest first."""
    table = ffi.new("const struct psmPlanRelease **")
    rows = (table[0][i] for i in range(int(lib.psmPlanReleases(table))))
    return tuple(
        Release(
            name=text_of(r.name),
            since=int(r.since),
            until=int(r.until),
            grouped_rounds=bool(r.groupedRounds),
            reversed_rounds=bool(r.reversedRounds),
            round_groups=bool(r.roundGroups),
            epochs=bool(r.epochs),
            carries=bool(r.carries),
            simple_parts=bool(r.simpleParts),
            event_room=bool(r.eventRoom),
            abortable=bool(r.abortable),
        )
        for r in rows
    )


def release_of(code: int) -> Release | None:
    """The row of a version code, 0 for the first; None: older than the planner."""
    rows = releases()
    return next((row for row in reversed(rows) if row.since <= code), rows[0] if code == 0 else None)


def number(text: str) -> int | None:
    """The version code of ``2.29.7`` or ``2.29.7+cuda12.9``: 22907; None if it is no version."""
    match = _VERSION.fullmatch(text)
    return None if match is None else int(match[1]) * 10_000 + int(match[2]) * 100 + int(match[3])


def version(code: int) -> str:
    """``2.29.7`` for 22907."""
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def named(name: str) -> tuple[Scheduler, int]:
    """The scheduler of a name, and the version code that it stands for; 0: its default.

    Raises:
        ValueError: there is none.
    """
    for row in releases()[1:]:
        if row.name == name:
            return Scheduler.PLANNER, row.since
    plain = {one.label: one for one in Scheduler}
    if name in plain:
        return plain[name], 0
    raise ValueError(f"{name!r}; expected one of {', '.join([*plain, *(row.name for row in releases()[1:])])}")


def scheduler_name(config: Config) -> str:
    """The name of a configuration's scheduler."""
    row = release_of(config.release) if config.scheduler is Scheduler.PLANNER else None
    return config.scheduler.label if row is None else row.name
