"""What a run of a deliberately wrong variant must show: declared where the variant is, compared with what an analysis finds."""

from __future__ import annotations

import enum

from psmkit.model.late import dataclass
from psmkit.model.report import Verdict

__all__ = ["Leaves", "Shows", "Symptoms"]


class Shows(enum.IntFlag):
    """When a mistake shows; several are all needed. 0: in each run. As ``enum psm_shows``."""

    BY_LUCK = 1  #: depends on timing
    SYNC_STREAM = 2  #: the application's stream is the legacy stream or a blocking one
    ZERO_COPY = 4  #: buffers are registered, and used a second time
    REUSE = 8  #: a slot is used a second time


class Leaves(enum.IntFlag):
    """What is left to the end of the process, also where nothing else shows. As ``enum psm_leaves``."""

    STREAM = 1
    EVENTS = 2
    MEMORY = 4


_ALWAYS, _NOTHING = Shows(0), Leaves(0)
#: By the numbers of ``enum psm_verdict``.
_VERDICTS = (None, Verdict.HEALTHY, Verdict.LEAKING, Verdict.HUNG, Verdict.FAILED)
_CONDITIONS = {
    Shows.SYNC_STREAM: "with a legacy or blocking stream",
    Shows.ZERO_COPY: "with zero-copy",
    Shows.REUSE: "when a slot is used again",
    Shows.BY_LUCK: "by luck",
}


@dataclass(frozen=True, slots=True)
class Symptoms:
    """What a variant declares.

    Args:
        verdict: of a run in which the mistake shows; None: not declared.
        codes: findings, of which an analysis names at least one; empty: any.
        status: of the rank that fails first, such as ``PSM_ERR_CUDA``; empty: no rank fails, or any.
        shows: when the mistake shows.
        leaves: what is left.
    """

    verdict: Verdict | None = None
    codes: tuple[str, ...] = ()
    status: str = ""
    shows: Shows = _ALWAYS
    leaves: Leaves = _NOTHING

    @classmethod
    def of_c(cls, verdict: int, codes: str, status: str, shows: int, leaves: int) -> Symptoms:
        """Of the members of ``struct psmDeclared``; a verdict of a later release is not declared."""
        named = _VERDICTS[verdict] if verdict < len(_VERDICTS) else None
        return cls(named, tuple(codes.split()), status.replace("PSM_OK", ""), Shows(shows), Leaves(leaves))

    @classmethod
    def of_sentence(cls, outcome: str) -> Symptoms:
        """Of a variant that declares a sentence alone: the finding that it begins with, as in ``PSM505: nothing is released``."""
        code, colon, _ = outcome.partition(":")
        known = colon and code.startswith("PSM") and code[3:].isdecimal() and len(code) == 6
        return cls(codes=(code,)) if known else cls()

    @property
    def verdict_number(self) -> int:
        """The verdict as ``enum psm_verdict``."""
        return _VERDICTS.index(self.verdict)

    @property
    def condition(self) -> str:
        """When the mistake shows, in words; empty: in each run."""
        return ", ".join(words for flag, words in _CONDITIONS.items() if flag in self.shows)

    @property
    def left(self) -> str:
        """What is left, in words; empty: nothing."""
        return ", ".join(str(flag.name).lower() for flag in Leaves if flag in self.leaves)
