"""The properties of finding codes."""

from __future__ import annotations

from enum import Enum, StrEnum

from psmkit.model.findings import Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import ENDED

__all__ = ["Code", "Effect", "Family"]


class Effect(StrEnum):
    """How an error of a code affects the verdict of its run. For ``LEAKS`` a warning is enough, if the run ended."""

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
        """The title of the family."""
        return str(self.value[1])


_FAMILIES = {family.digit: family for family in Family}


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A kind of finding: title, usual severity, meaning and next step, and its treatment by the analysis.

    Attributes:
        effect: how an error of this code affects the verdict.
        precedence: among hangs of about equal confidence, the verdict rests on the one with the highest precedence: a code that names
            the exchange says more than one that names only the rank.
        explains: an error of this code is why an exchange is open: a hang rests on it, and what waits follows from it.
        look_first: whether an inconclusive verdict names a warning of this code; None: if an error would fail or hang the run.
        reported_by_watchdog: a watchdog reports it: it shows that something hangs, but not what.
        caused_by_watchdog: a watchdog or a launcher can cause this death, so it can follow from a hang.
        names_origin: the first line of a chain of errors gives the whole chain this code. Other codes have
            rules of their own; a chain that starts with one of those is PSM401.
        loses_peer: a process could not reach a peer, or lost it.
        two_ends: either end of a connection can be at fault, where no other line decides it.
        outlasts_end: an orderly end of the run does not refute it: the run ended, but its data is wrong.
        aside: shown only with -v: it does not help to find the trouble.
        symptom: it shows where processes wait, not why; it follows from a failure or death of the ranks that it blames.
        survived: whether an error line of this code is worth a finding if the job survived it.
        general: it says that something failed, not what: of two equal findings the one with another code comes first.
        headline: an inconclusive verdict is stated with the title of such a finding.
        dies: the ranks that it blames are dead.
        from_outside: something outside the job ended it: more lines of NCCL's do not show what.
        by_text: the text of the error decides what to do, where a phrase of the catalogue knows it.
        while_open: a finding of this code is dropped when the verdict of its run is not inconclusive.
    """

    code: str
    title: str
    severity: Severity = Severity.ERROR
    effect: Effect = Effect.NONE
    precedence: int = 0
    explains: bool = False
    look_first: bool | None = None
    reported_by_watchdog: bool = False
    caused_by_watchdog: bool = False
    names_origin: bool = False
    loses_peer: bool = False
    two_ends: bool = False
    outlasts_end: bool = False
    aside: bool = False
    symptom: bool = False
    survived: bool = True
    general: bool = False
    headline: bool = False
    while_open: bool = False
    dies: bool = False
    from_outside: bool = False
    by_text: bool = False
    meaning: str
    next_step: str

    @property
    def family(self) -> Family:
        """What it is about."""
        return _FAMILIES[self.code[3]]

    @property
    def breaks(self) -> bool:
        """Whether an error of this code fails or hangs its run. Other codes have no errors."""
        return self.effect in (Effect.FAILS, Effect.HANGS, Effect.AS_IT_ENDED)

    def hangs(self, stage: str | None) -> bool:
        """Whether an error of this code is about something that waits. ``stage`` is that of the finding."""
        return self.effect is Effect.HANGS or (self.effect is Effect.AS_IT_ENDED and stage not in ENDED)

    @property
    def suspect(self) -> bool:
        """Whether an inconclusive verdict names a warning of this code."""
        if self.look_first is not None:
            return self.look_first
        return self.breaks
