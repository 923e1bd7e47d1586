"""What is known of a finding code, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from psmkit.model.findings import Severity

__all__ = ["Code", "Effect", "Family"]


class Effect(StrEnum):
    """What an error of a code does to the verdict of its run. ``LEAKS`` takes a warning, where the run came to its end."""

    FAILS = "fails"
    HANGS = "hangs"
    AS_IT_ENDED = "as it ended"  # a death fails the run, a silence hangs it
    LEAKS = "leaks"
    NONE = "none"


class Family(Enum):
    """The first digit of a code, and its heading."""

    CONTROL = ("1", "Control plane: proxy calls, descriptors, connections")
    START = ("2", "Start-up")
    DATA = ("3", "Collectives, sends and recvs, progress")
    ERRORS = ("4", "Errors and deaths")
    MEMORY = ("5", "Memory and handles")
    SETTINGS = ("6", "Settings and environment")
    EVIDENCE = ("7", "Limits of the evidence")
    HARMLESS = ("8", "Harmless")
    PLUGINS = ("9", "Plugins")

    @property
    def digit(self) -> str:
        """The digit after ``PSM``."""
        return str(self.value[0])

    @property
    def title(self) -> str:
        """What a page calls it."""
        return str(self.value[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A kind of finding: its title, usual severity, what it means and what to do next; and how the analysis treats it.

    Attributes:
        effect: what an error of this code does to the verdict.
        precedence: of hangs that are about equally sure the verdict rests on the one of highest precedence: the code that names
            the exchange says more than the one that names only the rank.
        look_first: whether an inconclusive verdict names a warning of this code; None: where an error would fail or hang the run.
        reported_by_watchdog: a watchdog reports it: that something hangs, and not what.
        caused_by_watchdog: a watchdog or a launcher may bring this death about, so it can follow from a hang.
        names_origin: the first line of a chain of errors gives the whole chain this code. Lines of the other codes have
            rules of their own; a chain that begins with one is PSM401.
        words, refines: a regular expression in any case of letters. A line that it matches has this code where its message
            names a code in ``refines`` (None: no code, or the line has no message); where ``refines`` is None, whatever it names.
        loses_peer: a process could not reach a peer, or lost it.
        survived: whether an error line of this code is worth a finding where the job survived it.
    """

    code: str
    title: str
    family: Family
    severity: Severity
    effect: Effect = Effect.NONE
    precedence: int = 0
    look_first: bool | None = None
    reported_by_watchdog: bool = False
    caused_by_watchdog: bool = False
    names_origin: bool = False
    words: str | None = None
    refines: tuple[str | None, ...] | None = ()
    loses_peer: bool = False
    survived: bool = True
    meaning: str
    next_step: str

    @property
    def suspect(self) -> bool:
        """Whether an inconclusive verdict names a warning of this code."""
        if self.look_first is not None:
            return self.look_first
        return self.effect in (Effect.FAILS, Effect.HANGS, Effect.AS_IT_ENDED)
