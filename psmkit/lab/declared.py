"""What must be seen of a fault or of a variant of the transport, said before it is run, and whether an analysis has seen it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psmkit.lab.matrix import Strike
from psmkit.lab.runner import Outcome
from psmkit.lab.transfer import Case, Variant

__all__ = ["Declared", "Found", "of_strike", "of_variant"]

#: Verdicts that say that something broke or stood still.
_TROUBLE = frozenset({"failed", "hung"})
_HEALTHY = frozenset({"healthy"})
_LEAKING = frozenset({"leaking"})
_ANY_ERROR = frozenset("PSM101 PSM102 PSM107 PSM401 PSM402 PSM403 PSM501 PSM503 PSM504 PSM507 PSM508 PSM509".split())
_STILL = frozenset({"PSM304", "PSM307"})


@dataclass(frozen=True, slots=True)
class Found:
    """What an analysis found: verdict, codes of warnings and errors, ranks that it blames."""

    verdict: str
    codes: frozenset[str]
    culprits: frozenset[int]


@dataclass(frozen=True, slots=True)
class Declared:
    """What must be found.

    Args:
        verdicts: one of these; empty: the one that the ranks' states ask for (``good``: healthy; else: trouble).
        codes: at least one of these, where the ranks did not all end well; empty: any.
        culprits: at least one of these ranks, and no other, where somebody is blamed and the verdict is one of trouble.
    """

    verdicts: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    culprits: frozenset[int] = frozenset()

    def text(self) -> str:
        """For a table."""
        who = f"rank {', '.join(map(str, sorted(self.culprits)))}" if self.culprits else ""
        codes = "/".join(sorted(self.codes)) if len(self.codes) <= 3 else "an error"
        return " ".join(part for part in ("/".join(sorted(self.verdicts)) or "as the ranks end", codes, who) if part)

    def missing(self, found: Found, outcome: Outcome, struck: bool = True) -> str:
        """What was not found as declared; empty: all was."""
        good = outcome.good
        wanted = self.verdicts or (_HEALTHY if good else _TROUBLE)
        if not struck:
            wanted = _HEALTHY
        if found.verdict not in wanted:
            return f"verdict {found.verdict}, {'/'.join(sorted(wanted))} is meant"
        if not struck or found.verdict not in _TROUBLE:
            return ""
        if self.codes and not self.codes & found.codes:
            return f"none of {' '.join(sorted(self.codes))}"
        if self.culprits and not found.culprits <= self.culprits:
            return f"rank {', '.join(map(str, sorted(found.culprits - self.culprits)))} is blamed"
        return ""


def of_strike(strike: Strike) -> Declared:
    """Of one fault in one rank."""
    here = frozenset({strike.rank})
    action, _, value = strike.action.partition("=")
    if action in ("slow", "late"):
        return Declared(_HEALTHY)
    if action == "kill" and value == "SIGSTOP":
        return Declared(frozenset({"hung"}), frozenset({"PSM304"}), here)
    if action == "kill":
        return Declared(frozenset({"failed"}), frozenset({"PSM402"}), here)
    if action == "hang":
        # In the control plane the peer's wait has a deadline, and fails.
        return Declared(_TROUBLE, _STILL | _ANY_ERROR)
    if action == "error":
        return Declared(frozenset({"failed"}), _ANY_ERROR)
    return Declared()


def of_variant(variant: Variant, case: Case, good: bool) -> Declared:
    """Of a run of a variant; ``good``: its ranks ended well, which several do with luck, or by the application's stream."""
    codes = frozenset(re.findall(r"\bPSM\d{3}\b", variant.outcome))
    if not variant.wrong:
        return Declared(_HEALTHY)
    leaves = "leaves" in variant.outcome or "are left to" in variant.outcome
    if good or codes == {"PSM505"}:
        # What is left is left in each run, whatever else is seen of it.
        return Declared(_LEAKING if leaves else _HEALTHY, codes)
    if codes == {"PSM307"}:
        return Declared(frozenset({"hung"}), codes)
    return Declared(frozenset({"failed"}), codes)


def found(verdict: str, codes: Iterable[str], culprits: Collection[int | None]) -> Found:
    """A :class:`Found` of a report's parts."""
    return Found(verdict, frozenset(codes), frozenset(c for c in culprits if c is not None))
