"""Create findings with the defaults of their codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.aborts import aborted_before
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import at_address
from psmkit.analysis.inference import amd
from psmkit.analysis.inference.chains import is_step
from psmkit.catalogue import Phrase
from psmkit.logparse.types import Ref
from psmkit.model import CODES, Code, Evidence, Finding, Named, Severity
from psmkit.model.arrays import np
from psmkit.model.wording import uncoloured, without_bars

__all__ = ["new_finding", "with_evidence"]

_NO_LINES_BEFORE = "The log begins with the proof line. Fix the error that it names; if it does not say why, look for the lines before it in the full output of this process."
_NO_WARNING_BEFORE = "The log has no other warning of this process before the proof line. Fix the error that the line names; if it does not say why, look for an earlier warning in the full output of this process."

_NO_REASON = "The proof line carries a code and no reason: give the lines above it from the full output of this process, with the first NCCL WARN line."


def new_finding(
    job: Job,
    code: str,
    *,
    run: int | None,
    title: str | None = None,
    severity: Severity | None = None,
    confidence: float = 0.9,
    explanation: str | None = None,
    next_step: str | None = None,
    refs: Iterable[Ref | None] = (),
    comm: str | None = None,
    ranks: Iterable[int] = (),
    procs: Iterable[int] = (),
    culprits: Iterable[int] = (),
    stage: str | None = None,
    known_issue: str | None = None,
    named: Iterable[Named] = (),
    suspects: Iterable[int] = (),
) -> Finding:
    """Create a finding with the defaults of its code. ``procs`` are process indices; ``ranks`` default to theirs.

    Raises:
        ValueError: an error of a code that neither fails nor hangs a run: no verdict follows from it.
    """
    info = CODES[code]
    severity = severity or info.severity
    refs, procs = list(refs), list(procs)
    if severity is Severity.ERROR and _aftermath(job, info, refs, procs):
        severity, culprits, named = Severity.INFO, (), ()
        explanation = f"{explanation or info.meaning} The process had been aborted before, so this is a consequence."
    if severity is Severity.ERROR and not info.breaks:
        raise ValueError(
            f"{code}: bad severity error, expected warning or info: its effect on the verdict is {info.effect}"
        )
    places = list(dict.fromkeys(p for p in procs if 0 <= p < len(job.scan.processes)))
    evidence = job.quotes.cite(*refs)
    by_text = info.by_text and severity is not Severity.INFO and next_step in (None, info.next_step)
    if by_text and (said := _advice(job, title, evidence)) is not None:
        next_step = _at_node(job, said.next_step)
        explanation = f"{explanation or ''} {said.meaning}".strip()
    numbers = list(dict.fromkeys(ranks)) or sorted({r for p in places if (r := job.rank_of(p)) is not None})
    return Finding(
        code=code,
        title=amd.headed(job, without_bars(uncoloured(lines.without_escapes(title or info.title)))),
        severity=severity,
        confidence=confidence,
        explanation=amd.for_its_gpus(job, _sentences(explanation or info.meaning)),
        next_step=amd.for_its_gpus(job, _step(job, info, next_step or info.next_step, refs, evidence)),
        evidence=evidence,
        run=run,
        comm=comm,
        ranks=tuple(numbers),
        processes=tuple(job.process(p).name for p in places),
        stage=stage,
        known_issue=known_issue,
        culprits=tuple(dict.fromkeys(culprits)),
        named=tuple(dict.fromkeys(_located(job, run, n) for n in named)),
        suspects=tuple(suspects),
    )


def _located(job: Job, run: int | None, at: Named) -> Named:
    """A process that a text names, with the rank that NCCL's lines give to its id, or to its address if no other process can have it."""
    if run is None or run >= len(job.runs) or at.rank is not None:
        return at
    proc = outside.proc_of_pid(job, run, at.pid, at.host) if at.pid is not None else None
    info = job.runs[run]
    if at.pid is None and at.host is not None and info.nranks is not None and len(info.procs) >= info.nranks:
        proc = next(iter(found)) if len(found := at_address(job, run, at.host)) == 1 else None
    if proc is None or job.rank_of(proc) is None:
        return at
    process = job.process(proc)
    return replace(at, rank=job.rank_of(proc), host=process.host, pid=process.pid, device=job.device_of(proc))


def _step(job: Job, info: Code, step: str, refs: Sequence[Ref | None], evidence: Sequence[Evidence]) -> str:
    """The next step, without advice to read lines above the proof where there are none."""
    if not evidence:
        return step
    at_top = evidence[0].line == 1
    if info.general and step == info.next_step and at_top:
        step = _instead(job, refs[0], at_top)
    if not _leads_nowhere(job, step, next(ref for ref in refs if ref is not None)):
        return step
    return _without_above(job, step) or _instead(job, refs[0], at_top)


def _instead(job: Job, proof: Ref | None, at_top: bool) -> str:
    """What to do where no line above the proof says more."""
    if proof is not None and (bare := lines.bare_warnings(job, proof)):
        return f"Read the lines above the proof line from line {bare[0][0].line} on: they have no prefix, and say what failed."
    return _NO_REASON if _only_code(job, proof) else _NO_LINES_BEFORE if at_top else _NO_WARNING_BEFORE


def _advice(job: Job, title: str | None, evidence: Sequence[Evidence]) -> Phrase | None:
    """What the words of a finding and of its first line of evidence say about the next step."""
    return lines.catalogue(job).phrase("advice", " ".join([title or "", *(e.text for e in evidence[:1])]))


def _at_node(job: Job, step: str | None) -> str | None:
    """A next step with the node that the log names: the host name of a pod is not that of its node."""
    nodes = {str(e.fields["node"]) for e in job.events("launch.node")}
    return step.replace("on that host", f"on the node {nodes.pop()}") if step and len(nodes) == 1 else step


def _leads_nowhere(job: Job, step: str, proof: Ref) -> bool:
    """Whether a next step sends the reader to lines above a line of NCCL, and its process printed no warning there."""
    if lines.catalogue(job).phrase("look above", step) is None:
        return False
    events = job.scan.events
    at = np.flatnonzero((events.first == proof.seq) & (events.stream == job.scan.files[proof.file].stream))
    procs = [proc for proc in events.proc[at].tolist() if proc >= 0]
    return bool(procs) and all(_first_alarms(job).get(proc, proof.seq) >= proof.seq for proc in procs)


def _only_code(job: Job, proof: Ref | None) -> bool:
    """Whether a line of NCCL is a step of a chain, ``file:line -> code``, which names no error."""
    if proof is None:
        return False
    events = job.scan.events
    at = np.flatnonzero((events.first == proof.seq) & (events.stream == job.scan.files[proof.file].stream))
    return len(at) > 0 and all(is_step(event.name) for event in events.make(at))


def _without_above(job: Job, step: str) -> str:
    """The sentences of a next step that send the reader to no lines above."""
    parts = [part.removesuffix(".") for sentence in step.split(". ") for part in sentence.split("; ")]
    kept = [part for part in parts if lines.catalogue(job).phrase("look above", part) is None]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in kept)


@once
def _first_alarms(job: Job) -> dict[int, int]:
    """The place of the first warning of each process."""
    events = job.scan.events
    rows = np.flatnonzero(events.of_level("WARN", "ABORT") & (events.proc >= 0))
    rows = rows[np.lexsort((events.first[rows], events.proc[rows]))]
    procs, begin = np.unique(events.proc[rows], return_index=True)
    return dict(zip(procs.tolist(), events.first[rows[begin]].tolist(), strict=True))


def _sentences(text: str) -> str:
    """Text whose sentences begin with a capital, also where the name of a rank begins them."""
    return ("R" + text[1:] if text.startswith(("rank ", "ranks ")) else text).replace(". rank", ". Rank")


def _aftermath(job: Job, info: Code, refs: Sequence[Ref | None], procs: Sequence[int]) -> bool:
    """Whether all evidence of a finding comes after the abort of its only process, and is not about that abort."""
    if info.caused_by_watchdog or info.reported_by_watchdog:
        return False
    places = {p for p in procs if p >= 0}
    known = [ref for ref in refs if ref is not None]
    if len(places) != 1 or not known:
        return False
    (proc,) = places
    return all(aborted_before(job, proc, ref) is not None for ref in known)


def with_evidence(finding: Finding, evidence: Iterable[Evidence]) -> Finding:
    """The finding with more evidence, from inputs that have no lines to refer to."""
    return replace(finding, evidence=(*finding.evidence, *evidence))
