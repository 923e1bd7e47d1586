"""What a case has to show again: verdict, kind of finding and culprits, as the analysis says them."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.model import Report

__all__ = ["NO_SYMPTOM", "Symptom", "compare", "kind_of", "of_report"]

#: Of a healthy input.
NO_SYMPTOM = "the input is healthy, there is no symptom to reproduce"

#: Findings that follow from which operations ranks call, and the kind of each.
_KINDS = {
    "PSM301": "mismatch", "PSM302": "collective", "PSM303": "send/recv", "PSM314": "work FIFO", "PSM951": "send/recv", "PSM952": "send/recv",
}  # fmt: skip
#: Those that are about calls only in some stages, and these.
_BY_STAGE = {"PSM304": ("collective",), "PSM307": ("send/recv",), "PSM707": ("send/recv", "sendrecv")}
_P2P = ("send/recv", "sendrecv")


def kind_of(code: str, stage: str) -> str:
    """What a finding is about: ``mismatch``, ``collective``, ``send/recv`` or ``work FIFO``; empty: not about calls."""
    if stage in _BY_STAGE.get(code, ()):
        return "send/recv" if stage in _P2P else stage
    if stage in _P2P and code in ("PSM302", "PSM303"):
        return "send/recv"
    return _KINDS.get(code, "")


@dataclass(frozen=True, slots=True)
class Symptom:
    """What an analysis says of a job.

    Attributes:
        verdict: of the job.
        code: of the finding that explains it; empty: there is none.
        stage: of that finding.
        culprits: ranks that it blames, else those that it suspects.
        ranks: ranks that it is about.
        title: its sentence.
    """

    verdict: str
    code: str = ""
    stage: str = ""
    culprits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    title: str = ""

    @property
    def kind(self) -> str:
        """See :func:`kind_of`."""
        return kind_of(self.code, self.stage)

    @property
    def healthy(self) -> bool:
        """The analysis finds nothing, and the job is well."""
        return not self.code and self.verdict == "healthy"

    @property
    def unexplained(self) -> bool:
        """The job waits, or may do so, and no finding says that calls are the reason."""
        return not self.kind and self.verdict in ("hung", "inconclusive")


def of_report(report: Report) -> Symptom:
    """The symptom of a report: the first finding about calls that names a rank, else one that names none, else the reason of the report."""
    seen = _all(report)
    ours = [s for s in seen if s.kind]
    first = next((s for s in ours if s.culprits), None) or next(iter(ours), None)
    return (
        first
        or next((s for s in seen if s.title == report.reason), None)
        or next(iter(seen), Symptom(report.verdict.value))
    )


def _all(report: Report) -> list[Symptom]:
    """A symptom for each finding with weight."""
    return [
        Symptom(report.verdict.value, f.code, f.stage or "", f.culprits or f.suspects, f.ranks, f.title)
        for f in report.findings
        if f.severity.weight
    ]


def compare(wanted: Symptom, report: Report) -> tuple[bool, Symptom, str]:
    """Whether a report shows a symptom: the same verdict, a finding of the same kind, the same ranks to blame. With what it shows, and what differs.

    The run shows that ranks wait for ever, which the original's evidence may have left open: hung is as good as inconclusive.
    """
    same = [s for s in _all(report) if s.kind == wanted.kind and s.kind]
    best = next((s for s in same if s.culprits == wanted.culprits), same[0] if same else of_report(report))
    reasons = []
    if best.verdict != wanted.verdict and not (wanted.verdict == "inconclusive" and best.verdict == "hung"):
        reasons.append(f"verdict {best.verdict}, not {wanted.verdict}")
    if best.kind != wanted.kind:
        reasons.append(f"{best.code or 'no finding'}, not {wanted.code or 'none'}")
    elif wanted.culprits and best.culprits != wanted.culprits:
        reasons.append(f"culprits {_ranks(best.culprits)}, not {_ranks(wanted.culprits)}")
    return not reasons, best, "; ".join(reasons)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) or "none"
