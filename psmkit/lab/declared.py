"""What a fault or a variant of the transport must show, declared before the run, and whether an analysis has found it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psmkit.lab.matrix import Strike
from psmkit.lab.runner import Outcome
from psmkit.lab.transfer import Case, LabRun
from psmkit.lab.variants import Variant, variant_of, variants
from psmkit.model import CODES, Effect, Family, Verdict
from psmkit.model.symptoms import Shows

__all__ = ["Declared", "Found", "first_failure", "found", "of_run", "of_strike", "of_variant"]

#: The verdicts that say that something broke or stands still.
_TROUBLE = frozenset({Verdict.FAILED, Verdict.HUNG})
_HEALTHY = frozenset({Verdict.HEALTHY})
#: What an analysis finds where bytes are wrong and no call failed: of a variant that declares an error it proves nothing.
_OF_DATA = frozenset({"PSM401"})
#: What a fault or a variant breaks. The settings and plugins of a run of the lab are right, and its ranks start.
_BROKEN = frozenset({Family.CONTROL, Family.DATA, Family.ERRORS, Family.MEMORY})


def _codes(*effects: Effect) -> frozenset[str]:
    return frozenset(c.code for c in CODES.values() if c.effect in effects and c.family in _BROKEN)


_FAILS = _codes(Effect.FAILS, Effect.AS_IT_ENDED)
_STOPS = _codes(Effect.HANGS, Effect.FAILS, Effect.AS_IT_ENDED)
_LEAKS = frozenset(code for code in _codes(Effect.LEAKS) if CODES[code].family is Family.MEMORY)


@dataclass(frozen=True, slots=True)
class Found:
    """What an analysis found: verdict, codes of warnings and errors, ranks that it blames."""

    verdict: str
    codes: frozenset[str]
    culprits: frozenset[int]


@dataclass(frozen=True, slots=True)
class Declared:
    """What an analysis must find.

    Args:
        verdicts: one of these; empty: healthy where the ranks ended well, else failed or hung.
        codes: at least one of these; empty: any.
        culprits: no other rank is blamed, where the verdict is failed or hung; empty: any may be.
        status: of the rank that fails first; empty: any.
    """

    verdicts: frozenset[Verdict] = frozenset()
    codes: frozenset[str] = frozenset()
    culprits: frozenset[int] = frozenset()
    status: str = ""

    def text(self) -> str:
        """For a table."""
        who = f"rank {', '.join(map(str, sorted(self.culprits)))}" if self.culprits else ""
        codes = "/".join(sorted(self.codes)) if len(self.codes) <= 3 else "an error"
        return " ".join(part for part in ("/".join(sorted(self.verdicts)) or "as the ranks end", codes, who) if part)

    def missing(self, found: Found, outcome: Outcome, struck: bool = True) -> str:
        """What was not found as declared; empty: all was. A fault that did not strike declares a healthy run."""
        wanted = self.verdicts or (_HEALTHY if outcome.good else _TROUBLE)
        if not struck:
            wanted = _HEALTHY
        if found.verdict not in wanted:
            return f"verdict {found.verdict}, expected {'/'.join(sorted(wanted))}"
        if not struck:
            return ""
        if self.codes and not self.codes & found.codes:
            return f"none of {' '.join(sorted(self.codes))}"
        status, by = first_failure(outcome)
        if by == "data" and self.codes and self.codes & found.codes <= _OF_DATA and self.status != status:
            return f"wrong bytes without an error, expected {self.text()}"
        if self.status and status and status != self.status:
            return f"the first rank that failed says {status}, expected {self.status}"
        if self.culprits and found.verdict in _TROUBLE and not found.culprits <= self.culprits:
            return f"rank {', '.join(map(str, sorted(found.culprits - self.culprits)))} is blamed"
        return ""


def of_strike(strike: Strike) -> Declared:
    """Of one fault in one rank."""
    here = frozenset({strike.rank})
    action, _, value = strike.action.partition("=")
    if action in ("slow", "late"):
        return Declared(_HEALTHY)
    if action == "kill" and value == "SIGSTOP":
        return Declared(frozenset({Verdict.HUNG}), frozenset({"PSM304"}), here)
    if action == "kill":
        return Declared(frozenset({Verdict.FAILED}), frozenset({"PSM402"}), here)
    if action == "hang":
        # In the control plane the peer's wait has a deadline, and fails.
        return Declared(_TROUBLE, _STOPS)
    if action == "error":
        return Declared(frozenset({Verdict.FAILED}), _FAILS)
    return Declared()


def of_variant(variant: Variant, case: Case, good: bool) -> Declared:
    """Of a run of a variant. ``good``: its ranks ended well, which counts where timing decides whether the mistake shows."""
    declared = variant.symptoms
    if declared.verdict is None:  # it has a sentence alone
        return _of_sentence(declared.codes) if declared.codes else Declared(_HEALTHY if good else _TROUBLE)
    if _shows(declared.shows, case, good):
        return Declared(frozenset({declared.verdict}), frozenset(declared.codes), status=declared.status)
    if declared.leaves:
        return Declared(frozenset({Verdict.LEAKING}), _LEAKS)
    return Declared(_HEALTHY)


def _of_sentence(codes: tuple[str, ...]) -> Declared:
    """Of a wrong variant that declares no verdict: the mistake shows in each run, by its code."""
    effects = {CODES[code].effect for code in codes if code in CODES}
    if effects <= {Effect.LEAKS} and effects:
        return Declared(frozenset({Verdict.LEAKING}), frozenset(codes))
    return Declared(_TROUBLE, frozenset(codes))


def first_failure(outcome: Outcome) -> tuple[str, str]:
    """Status of the rank that failed first, and who said so (libpsm, cuda, data, left, ...); empty: none failed by itself."""
    found = [
        (rank.trouble_at if rank.trouble_at is not None else rank.ended, str(said.get("status", "")), str(said["by"]))
        for rank in outcome.ranks
        for said in [rank.failure or next((r for r in rank.reports if r.get("status", "PSM_OK") != "PSM_OK"), None)]
        if said and said.get("by") not in (None, "", "lab") and said.get("status") != "PSM_ERR_ABORTED"
    ]
    return min(found)[1:] if found else ("", "")


def of_run(run: LabRun) -> tuple[str, Declared] | None:
    """The wrong variant of a run and what its cases declare, all the same; None: no such variant, or the run has other faults or differences."""
    cases = [Case.of_line(line) for line in run.cases] if run.settings.get("kind") != "nccl" else []
    names = {case.variant for case in cases}
    if len(names) != 1 or names <= {"split", "net/split"} or run.settings.get("differs"):
        return None
    name = names.pop()
    stranger = run.settings.get("stranger")
    variant = variant_of(stranger["declares"]) if stranger else variants().get(name)
    if variant is None or not variant.wrong or run.settings.get("faults", "") != variant.faults:
        return None
    first, *others = (of_variant(variant, case, run.outcome.good) for case in cases)
    return (variant.name, first) if all(other == first for other in others) else None


def _shows(when: Shows, case: Case, good: bool) -> bool:
    if Shows.SYNC_STREAM in when and case.app_stream == "nonblocking":
        return False
    if Shows.ZERO_COPY in when and (case.zero_copy in (None, "never") or case.iters < 2):
        return False
    # The settings of the ranks may have as many slots as the case has steps.
    reused = case.buffer_size is not None and case.size * case.iters > case.buffer_size
    return not good or not (Shows.BY_LUCK in when or (Shows.REUSE in when and not reused))


def found(verdict: str, codes: Iterable[str], culprits: Collection[int | None]) -> Found:
    """A :class:`Found` of a report's parts."""
    return Found(verdict, frozenset(codes), frozenset(c for c in culprits if c is not None))
