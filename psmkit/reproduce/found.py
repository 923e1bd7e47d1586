"""What evidence gives in which calls are not lines: operations, communicators, and what had to be guessed."""

from __future__ import annotations

from dataclasses import dataclass, field

from psmkit.plan.types import DataType
from psmkit.reproduce.builder import Builder
from psmkit.reproduce.operations import Comm

__all__ = ["SIZE", "TYPE", "Found"]

#: Elements of an operation whose size nothing shows: more than the buffers of a connection hold.
SIZE = 8 << 20
#: Their type.
TYPE = DataType.FLOAT32


@dataclass(slots=True)
class Found:
    """What inputs gave.

    Attributes:
        what: of what kind they are: ``answer of RAS``.
        builder: the operations.
        comms: the communicators.
        files: the inputs, by name.
        guesses: what they do not show.
        ranks: ranks of the job, as far as they show them.
        seen: ranks of which they show something.
    """

    what: str
    builder: Builder = field(default_factory=Builder)
    comms: list[Comm] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    ranks: int = 0
    seen: set[int] = field(default_factory=set)
