"""A small run, as :mod:`psmkit.plan.what_if` takes it: what its ranks called, their plans, their connections, what they took."""

from __future__ import annotations

from dataclasses import dataclass, field

from psmkit.model.errors import PsmkitError
from psmkit.plan.scaling import Counts
from psmkit.plan.types import Config, Task

__all__ = ["Cycle", "Ends", "Setup", "SmallRun", "WhatIfError"]


class WhatIfError(PsmkitError):
    """The small run does not show what the larger one would do."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Peers, and ends of connections to them: within a node, and on other nodes."""

    peers: float
    ends: float
    far_peers: float
    far_ends: float

    def __add__(self, other: Ends) -> Ends:
        return Ends(
            self.peers + other.peers,
            self.ends + other.ends,
            self.far_peers + other.far_peers,
            self.far_ends + other.far_ends,
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """The set-up of one rank in one case.

    Attributes:
        case: the case of its run.
        mine: its peers and the ends of its connections.
        all: those of all ranks, which share the processors of one machine; and the number of ranks.
        seconds: from the start of its proxy to the last Connect.
        held: sockets and memfds of libpsm that it took.
    """

    case: int
    mine: Ends
    all: Ends
    ranks: int
    seconds: float
    held: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """A group of a recorded rank: its tasks, seconds of the main thread from prepare to finish, seconds until its last plan was reclaimed."""

    rank: int
    tasks: int
    main: float
    life: float | None = None


@dataclass(slots=True)
class SmallRun:
    """What a small run left.

    Attributes:
        ranks, nodes: of the run.
        processors: of a node.
        config: of the communicator whose plans were recorded; None: no plans.
        config_known: it was recorded, too; else it is made of defaults.
        groups: tasks of each rank, group by group.
        plans: by rank, what was recorded of each plan: group, channel mask, collectives, sends and recvs.
        cycles: times of groups.
        links: connections from rank to rank, of all transports; None: no line shows them.
        fifo, control: bytes of each FIFO and control segment.
        setups: set-up times.
        sources: what was read from where, a sentence each.
        notes: what lacks or was guessed, a sentence each.
    """

    ranks: int = 0
    nodes: int = 1
    processors: int | None = None
    config: Config | None = None
    config_known: bool = False
    groups: tuple[tuple[tuple[Task, ...], ...], ...] = ()
    plans: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    cycles: list[Cycle] = field(default_factory=list)
    links: Counts | None = None
    fifo: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    setups: list[Setup] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
