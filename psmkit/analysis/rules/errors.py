"""The origin of the errors of a run, across all ranks: neither the first printed line nor the most frequent one.

A failing rank makes its peers fail, and only theirs may have a time stamp or come first in the file. A line about a peer (closed,
refused, remote error) is never an origin while some rank reports a failure of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from psmkit.analysis.facts import damage, lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import differing, joined, name_of, name_of_thread, names_of, ranks_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.progress import progress_of
from psmkit.analysis.inference import blame, faults, network_causes, reports
from psmkit.analysis.inference.causes import failed_before
from psmkit.analysis.inference.connection_ends import ends_of, peer_in_text
from psmkit.analysis.inference.faults import Cascade
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.guilt import disagreement, guilty, is_elsewhere, of_kernel, one_link, set_apart, to_blame
from psmkit.analysis.inference.known import closer, issue_of
from psmkit.analysis.inference.network_causes import NetworkCause
from psmkit.analysis.inference.reported_peers import named_by_libpsm, silent_in_turn
from psmkit.analysis.inference.suspects import suspect
from psmkit.analysis.registry import rule
from psmkit.catalogue import Message, Phrase
from psmkit.logparse.types import Ref
from psmkit.model import CODES, Finding, Named, Severity
from psmkit.model.results import WORDS
from psmkit.model.wording import plural

__all__ = ["find", "origins"]

_WHOLE = 4096
#: So many lines of a group are compared.
_COMPARED = 64
_CUDA_OOM = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
#: The first lines about clients that are no rank.
_CLIENTS = frozenset({"socket.magic.wrong", "libpsm.stranger"})
_RESULTS = {**WORDS, 6: "remote error"}
#: How sure it is that a chain of returns ended its process, where the log ends before the application has it.
_CUT = 0.6
#: What to do about an error of a destroy or an abort: peers and shared buffers worked before it.
_AT_THE_END = "Look for an earlier error of this process. Without one, only the end of the communicator failed: try a newer release of NCCL, or NCCL_CUMEM_ENABLE=0."
_AT_ITS_END = "; the log of the process ends there"
_BEFORE_THE_END = "; the log ends before the application reports it"


def origins(job: Job, run: int) -> tuple[list[Cascade], list[Cascade]]:
    """The origins of the errors of a run, most probable first, and the fatal errors that follow from them."""
    fatal = [c for c in faults.of_run(job, run) if c.fatal and not _foreign(c)]
    given_up = _given_up(fatal)
    begins: dict[int, int] = {}
    for c in fatal:
        begins[c.proc] = min(c.begin, begins.get(c.proc, c.begin))
    own = [c for c in fatal if c.own is True and c.first.ref.seq <= given_up.get(c.proc, c.first.ref.seq)]
    # a line about an earlier failure is no origin where its process printed that failure
    own = [c for c in own if not c.first.kind.relays or begins[c.proc] == c.begin]
    vague = [c for c in fatal if c.own is None and not _follows(job, c)]
    if not own and suspect(job, run) is not None:
        # a lost process is known, so lines about a peer follow from it
        vague = [c for c in vague if not blame.lost(c)]
    if not own:
        # the same if another rank failed outside NCCL
        vague = [c for c in vague if failed_before(job, run, c) is None]
    vague = [c for c in vague if not _explained(c, fatal)]
    # who prints a reason comes before who only returns an error
    chosen = own or [c for c in vague if not c.first.chain] or vague
    # only the first error of a process can be an origin, and its reason stands before what passes on a result
    first: dict[int, Cascade] = {}
    for cascade in sorted(chosen, key=lambda c: c.first.passed_on):
        first.setdefault(cascade.proc, cascade)
    clocked = all(c.first.event.time for c in chosen)
    causes = sorted(first.values(), key=lambda c: _order(job, run, c, clocked))
    known = {id(c) for c in causes}
    return causes, [c for c in fatal if id(c) not in known]


def _explained(cascade: Cascade, fatal: Iterable[Cascade]) -> bool:
    """Whether an error only passes on a result, and its thread prints the reason of such an error elsewhere."""
    return cascade.first.passed_on and any(
        c.proc == cascade.proc and not c.first.passed_on and not c.threads.isdisjoint(cascade.threads) for c in fatal
    )


def _given_up(fatal: Iterable[Cascade]) -> dict[int, int]:
    """Where each process returned an error to its application. Later failures there are cleanup of partial initialisation."""
    told: dict[int, int] = {}
    for cascade in fatal:
        if cascade.reached_api:
            end = cascade.end
            told[cascade.proc] = min(told.get(cascade.proc, end), end)
    return told


def _foreign(cascade: Cascade) -> bool:
    """Whether a client other than NCCL is the origin; such clients have a rule of their own."""
    return cascade.first.event.name in _CLIENTS


def _follows(job: Job, cascade: Cascade) -> bool:
    """Whether the text of an unknown line says that something else came first."""
    return (
        not cascade.first.chain
        and (cascade.first.known is None or faults.unknown(cascade.first.event))
        and faults.follows(job, cascade.first.event)
    )


def _order(job: Job, run: int, cascade: Cascade, clocked: bool) -> tuple[object, ...]:
    """Order: blamed by more peers, then earlier by the clock if all have one, then less advanced."""
    against = blame.graph(job, run).against(blame.Target(cascade.proc, job.rank_of(cascade.proc)))
    blamers = {b.by for b in against}
    # a warning above its chain says more than a bare return code
    bare = cascade.first.chain
    stamp = (cascade.first.event.time or "") if clocked else ""
    # a rank whose own error is not the last link of another rank's chain
    return (bare, -len(blamers), stamp, progress_of(job, cascade.proc), job.rank_of(cascade.proc) or 0, cascade.proc)


def _code(job: Job, cascade: Cascade) -> str:
    event, known = cascade.first.event, cascade.first.known
    if cascade.first.chain:
        return "PSM401"
    if (behind := closer(cascade)) is not None and behind.finding is not None:
        return behind.finding
    if (reason := _reason(job, cascade)) is not None and reason.finding is not None:
        return reason.finding
    named = known.finding if known is not None else None
    text = faults.body(job, event, most=_WHOLE)  # the reason stands at the end of the line
    memory = faults.phrase(job, "out of memory", text)
    if memory is not None or (named == "PSM405" and _cuda_number(cascade) == _CUDA_OOM):
        return "PSM509"
    if named in (None, "PSM405"):
        imported = faults.phrase(job, "import of a buffer", text)
        if imported is not None and imported.finding is not None:
            return imported.finding
    if named == "PSM401":
        used_up = faults.phrase(job, "used up", text)
        if used_up is not None and used_up.finding is not None:
            return used_up.finding
    return named if named is not None and CODES[named].names_origin else "PSM401"


def _unanswered(job: Job, cascade: Cascade) -> Phrase | None:
    """The call that libpsm says nobody answered in time."""
    report = cascade.first.report
    return reports.unanswered(job, report.cause, report.reason) if report is not None else None


def _reason(job: Job, cascade: Cascade) -> Phrase | None:
    """What the catalogue knows about the reason that libpsm gives: it decides the code, the meaning and what to do."""
    report = cascade.first.report
    if report is None:
        return None
    return _unanswered(job, cascade) or faults.phrase(job, "a handle is invalid", report.reason)


def _self_test(job: Job, cascade: Cascade) -> Phrase | None:
    """What the catalogue knows about a device that failed while NCCL connected it to itself. No chain of a connection to a peer has this way."""
    known = cascade.first.known
    if known is None or known.finding != "PSM406" or known.blames != "unknown":
        return None
    files = [place.rpartition(":")[0] for f in cascade.chain if (place := faults.place(f.event)) is not None]
    return faults.phrase(job, "a device tests itself", " -> ".join(name for name, _ in itertools.groupby(files)))


def _cuda_number(cascade: Cascade) -> int | None:
    fields = cascade.first.event.fields
    return next((n for key in ("code", "err", "error", "res") if (n := number(fields, key)) is not None), None)


def _evidence(causes: Sequence[Cascade], after: Sequence[Cascade], most: int = 8) -> list[Ref]:
    out: list[Ref] = []
    lead = causes[0]
    out.append(lead.first.ref)
    steps = [f.ref for f in lead.chain if f is not lead.first]
    out += steps[:1] + steps[-1:] if len(steps) > 1 else steps
    out += [c.first.ref for c in causes[1:4]]
    # one line of each rank that failed as a consequence
    failed = {c.proc for c in causes}
    out += [cascade.first.ref for cascade in after if cascade.proc not in failed]
    return list(dict.fromkeys(out))[:most]


def _route(job: Job, cascade: Cascade) -> str:
    """The path of an error through the library, as text."""
    found = [(p, f.code) for f in cascade.chain if (p := faults.place(f.event)) is not None]
    if not found:
        return ""
    code = cascade.code
    name = f"{code} ({_RESULTS[code]})" if code in _RESULTS else str(code)
    changes = len({code for _, code in found}) > 1
    steps = [f"{place} ({result})" if changes else place for place, result in found]
    way = " -> ".join(steps if len(steps) <= 4 else [*steps[:2], "...", steps[-1]])
    end = "was returned to the application" if _left(job, cascade) else "goes no further in this log"
    if cascade.stored:
        end = "became the asynchronous error of the communicator"
    elif cascade.kept:
        end = "ended the thread of one-sided operations, where ncclCommGetAsyncError does not look: the application is not told"
    elif end.startswith("goes") and damage.steps_lost(job):
        end = "may have gone further: the log has steps that psmkit cannot read"
    elif cascade.cut:
        end = "goes no further in this log, which has no more lines of this process; NCCL passes on the errors of the last of these functions"
    error = f"The error came back through {way} as {name}" if changes else f"The error {name} came back through {way}"
    return f" {error} and {end}."


def _left(job: Job, cascade: Cascade) -> bool:
    """Whether the last step of an error is in a function that the user calls, by its name or in the main thread.

    A library thread runs functions of the same files, and where the log is cut the error may have gone through more of them.
    """
    last = cascade.chain[-1]
    source = job.scan.files[last.ref.file]
    if not last.kind.api or (not source.complete_end and last.ref.line >= source.lines - 1):
        return False
    thread = last.event.thread
    main = thread >= 0 and job.scan.threads[thread].tid == job.process(cascade.proc).pid
    function = str(last.event.fields.get("func", ""))
    return main or (
        function.startswith("nccl") and not function.endswith(("Func", "Main"))
    )  # those run in a thread of the library


def _finding(
    job: Job, run: int, group: Sequence[Cascade], after: Sequence[Cascade], lead: bool, rivals: int
) -> Finding:
    cascade = group[0]
    event, known = cascade.first.event, cascade.first.known
    code = _code(job, cascade)
    procs = [c.proc for c in group]
    victims = sorted({c.proc for c in after} - {*procs})
    named = [r for c in group if (r := job.rank_of_thread(c.first.event)) is not None]
    whose = name_of_thread(job, event) if len(group) == 1 else names_of(job, procs)
    disagree = disagreement(job, run, group)
    # messages of the wrong size come from ranks with another configuration than their peers
    odd = set_apart(job, run, cascade, code)
    blamed = odd or guilty(job, group, named)
    if not blamed and known is not None and known.name == "bootstrap.truncated" and len(set(named)) == 1:
        # a rank that expects less than its peer sends makes fewer connections: it lacks a send or recv
        blamed = list(named)
    behind = network_causes.cause_of(job, group, code)
    # the line is usually harmless, but not here
    sure = known is not None and known.severity not in ("harmless", "info") and not faults.unknown(event)
    says = (
        _reason(job, cascade)
        or closer(cascade)
        or one_link(job, cascade)
        or _self_test(job, cascade)
        or (known if sure else None)
    )
    confidence = 0.95 if cascade.own is True else 0.7
    if cascade.first.chain:
        confidence = 0.75
    if not lead:
        confidence = max(0.5, confidence - 0.25)
    elif rivals:
        confidence -= 0.1
    cut = all(c.cut for c in group)
    # a warning behind which the log shows neither a return nor another line
    ends = all(c.ends_log and c.last_words and not (c.returned or c.bare or c.first.chain) for c in group)
    if cut or ends:
        confidence = min(confidence, _CUT)
    # the proof is a line of a rank that is named, where one is
    shown = sorted(group, key=lambda c: job.rank_of(c.proc) is None)
    others = [c.proc for c in group if not job.ranks_of(c.proc)] if blamed == sorted({*named}) else []
    return new_finding(
        job,
        code,
        run=run,
        title=disagree
        or f"{f'{behind.said}; ' if behind is not None else ''}{whose} {_failure(job, group)}{_devices(cascade, after)}{_BEFORE_THE_END if cut else _AT_ITS_END if ends else ''}",
        severity=Severity.ERROR,
        confidence=round(confidence, 2),
        explanation=_explanation(job, group, after, whose, says, behind),
        next_step=_AT_THE_END if cascade.ending else _on_this_host(job, cascade) or _advice(job, says, cascade),
        refs=[*(behind.refs if behind is not None else ()), *_evidence(shown, after)],
        ranks=sorted({*named, *blamed, *(r for p in victims for r in _ranks(job, p))}),
        # without ranks, only the processes identify the culprit
        procs=[*procs, *victims] if named else to_blame(job, group, procs),
        culprits=blamed,
        named=[
            Named(host=job.process(p).host or None, pid=job.process(p).pid, device=job.device_of(p))
            for p in others[:_COMPARED]
        ]
        if blamed
        else [Named(host=behind.host)]
        if behind is not None and behind.host is not None
        else ends_of(job, group, code, one_link(job, group[0]) is not None),
        stage="error",
        known_issue=issue_of(job, event, faults.brief(job, event)),
    )


def _failure(job: Job, group: Sequence[Cascade]) -> str:
    """What happened to the ranks of a group, for the title."""
    first = group[0].first
    where, said = faults.place(first.event), faults.brief(job, first.event)
    if first.chain:
        lacks = "; its warning is not in this log" if group[0].torn else " without a warning"
        if lines.bare_warnings(job, first.ref):
            lacks = "; lines above it have no prefix and may say why"
        return f"returned {_RESULTS.get(first.code or 0, 'an error')}{lacks}, first at {where or said}"
    if first.report is not None and _unanswered(job, group[0]) is not None:
        return f"got no answer from {plural(len(group), 'its own proxy', 'their own proxies')}: {reports.statement(first.report.reason)}"
    then = " while ending a communicator" if group[0].ending else ""
    what = f"failed{then} at {where}: {said}" if where and where not in said else f"failed{then}: {said}"
    return what + differing(faults.body(job, c.first.event) for c in group[:_COMPARED])


def _explanation(
    job: Job,
    group: Sequence[Cascade],
    after: Sequence[Cascade],
    whose: str,
    says: Message | Phrase | None,
    behind: NetworkCause | None,
) -> str:
    """What the error means, what it follows from, and which errors of other processes follow from it."""
    cascade = group[0]
    victims = sorted({c.proc for c in after} - {c.proc for c in group})
    # a chain whose warning is lost names nobody: it can be the cause of the others or follow from them
    torn = {c.proc for c in after if c.unexplained}
    explanation = f"The error of {whose}{_FIRST}" if behind is None else behind.why
    if torn.intersection(victims):
        explanation = (
            f"{whose} {plural(len(group), 'prints', 'print')} the reason of {plural(len(group), 'its', 'their')} error."
        )
    if says is not None and says.meaning:
        explanation += f" {says.meaning}"
    explanation += _route(job, cascade)
    # a chain whose warning is missing names nobody, and what stands below it cannot be its cause for sure
    above = {c.proc for c in after if c.first.chain and _above(c.first.ref, cascade.first.ref, job)} - torn
    if later := [p for p in victims if p not in above | torn]:
        explanation += f" The errors of {names_of(job, later)} follow from it."
    if earlier := [p for p in victims if p in above]:
        explanation += f" The errors of {names_of(job, earlier)} stand above it, without a warning; whether they follow from it is not clear."
    if lacking := [p for p in victims if p in torn]:
        explanation += f" {names_of(job, lacking)} {plural(len(lacking), 'returns an error, too; its warning is', 'return errors, too; their warnings are')} not in this log."
    return explanation


def _above(one: Ref, other: Ref, job: Job) -> bool:
    """Whether a line stands above another in the same stream."""
    return one.seq < other.seq and job.scan.files[one.file].stream == job.scan.files[other.file].stream


def _ranks(job: Job, proc: int) -> list[int]:
    rank = job.rank_of(proc)
    return [] if rank is None else [rank]


def _grouped(job: Job, causes: Iterable[Cascade]) -> list[list[Cascade]]:
    groups: dict[tuple[object, ...], list[Cascade]] = {}
    for cascade in causes:
        groups.setdefault(faults.signature(job, cascade), []).append(cascade)
    return list(groups.values())


@rule(order=10)
def find(job: Job) -> list[Finding]:
    """One finding for each origin of each run."""
    out: list[Finding] = []
    for info in job.runs:
        causes, after = origins(job, info.index)
        if cut := _cut_above(job, info.index, causes):
            out.append(_nobody_first(job, info.index, causes[0], cut))
            continue
        apart = _apart(causes, after) if causes else []
        after = [c for c in after if c not in apart]
        groups = _grouped(job, causes)
        for at, group in enumerate(groups):
            rest = after if at == 0 else []
            out.append(_finding(job, info.index, group, rest, at == 0, len(groups) - 1))
        if not groups and after:
            out.append(_consequences(job, info.index, after))
        out += [_second(_finding(job, info.index, group, (), False, 0)) for group in _grouped(job, apart)]
    return out


def _cut_above(job: Job, run: int, causes: Sequence[Cascade]) -> list[Cascade]:
    """The chains of the processes that came back with one code, if the log begins within the chains of all candidates, at different places.

    Neither the order of such lines nor where each chain is cut says which process failed first; only a clock does.
    """
    if len(_grouped(job, causes)) < 2 or not all(c.torn for c in causes):
        return []
    code = causes[0].first.code
    found = {c.proc: c for c in reversed(faults.of_run(job, run)) if c.torn and c.first.code == code and not c.settled}
    equal = [c for c in found.values() if c.own is not False]
    clocked = len({c.first.event.time or "" for c in equal}) > 1
    return sorted(found.values(), key=lambda c: c.first.ref) if len(equal) > 1 and not clocked else []


def _nobody_first(job: Job, run: int, lead: Cascade, alike: Sequence[Cascade]) -> Finding:
    """The errors of processes whose warnings all stand above the beginning of the log."""
    word = _RESULTS.get(lead.first.code or 0, "an error")
    return new_finding(
        job,
        "PSM401",
        run=run,
        title=f"{len(alike)} of {len(job.runs[run].procs)} processes returned {word}; their warnings are not in this log",
        severity=Severity.ERROR,
        confidence=0.6,
        explanation=f"The log begins below the warnings of these processes, so it does not show which of them failed first, or why.{_route(job, lead)}",
        next_step="Give the lines above this excerpt: the first NCCL WARN line of any of these processes says what failed.",
        refs=_evidence([lead], [c for c in alike if c.proc != lead.proc]),
        ranks=sorted({r for c in alike for r in _ranks(job, c.proc)}),
        stage="error",
    )


def _second(finding: Finding) -> Finding:
    """An error below the origin that has a cause of its own, or follows from it in a way that no line shows."""
    _, _, meaning = finding.explanation.partition(_FIRST)
    return replace(finding, confidence=min(finding.confidence, 0.5), explanation=_SECOND + meaning)


_FIRST = " follows from no other error in the log."
_SECOND = "The log does not show whether this error follows from the first one."


def _apart(causes: Sequence[Cascade], after: Iterable[Cascade]) -> list[Cascade]:
    """The first error of a kernel of each process, where no origin is one: it follows from no error of a network or a peer."""
    if any(of_kernel(c) for c in causes):
        return []
    found: dict[int, Cascade] = {}
    for cascade in after:
        if of_kernel(cascade):
            found.setdefault(cascade.proc, cascade)
    return list(found.values())


def _consequences(job: Job, run: int, after: Sequence[Cascade]) -> Finding:
    """Only victims have logs: the error is real, but no log shows its cause."""
    at = suspect(job, run)
    told, behind, cut_off = named_by_libpsm(job, after, at)
    lead = behind or max(after, key=lambda c: (not c.first.chain, len(c.kinds), -c.proc))
    procs = sorted({c.proc for c in after})
    known = lead.first.known
    named = [at.rank] if at is not None and at.rank is not None else silent_in_turn(after)
    whom = f"; it points at {ranks_text(named)}" if named else ""
    code = "PSM401"
    if (
        known is not None
        and known.finding is not None
        and CODES[known.finding].names_origin
        and CODES[known.finding].loses_peer
    ):
        code = known.finding
    before = failed_before(job, run, lead)
    # the blame leads nowhere, so the reporting rank's own link may be the broken one
    unclear = before is None and not named and known is not None and known.blames == "unknown" and lead.own is not False
    # a call of the process itself that failed has no peer; the return code above it is of a part that was lost
    local = known is not None and known.blames == "self" and not faults.unknown(lead.first.event)
    alone = not local and _alone(job, run)
    within = alone or (at is None and not local and _within(job, run, after))
    peer = not lead.first.chain and (known is None or faults.unknown(lead.first.event) or is_elsewhere(known))
    peer = peer and not within
    says = _unanswered(job, lead) or (known if not faults.unknown(lead.first.event) else None)
    if isinstance(says, Phrase) and says.finding is not None:
        code = says.finding
        report = lead.first.report
        if named and report is not None and not told:
            told = f"{ranks_text(named)} did not answer each other: {reports.statement(report.reason)}"
    return new_finding(
        job,
        code,
        run=run,
        title=told
        or f"{name_of(job, lead.proc)} {'failed because of a peer' if peer else 'failed'}: {faults.brief(job, lead.first.event)}{_devices(lead, after)}{whom}{_BEFORE_THE_END if lead.cut else ''}",
        severity=Severity.ERROR,
        # what the process itself passed on has a cause in another line, if that is in the log
        confidence=_CUT if lead.cut else 0.8 if told else 0.65 if peer or lead.first.chain else 0.6,
        explanation=(_ALONE if alone else _WITHIN if within else "")
        + (
            f"{names_of(job, procs)} {plural(len(procs), 'prints', 'print')} this error below an error code of a call that failed before; the log does not show why that one failed."
            if local
            else f"{names_of(job, procs)} {plural(len(procs), 'reports', 'report')} errors, and rank {before[0]} failed before: {before[1].text}. The errors probably follow from that.{_route(job, lead)}"
            if before is not None
            else f"{names_of(job, procs)} {plural(len(procs), 'reports', 'report')} errors that {'another process caused' if peer else 'have another cause'}, and no log shows that cause."
            f"{_route(job, lead)}" + (f" {says.meaning}" if says is not None and says.meaning else "")
        ),
        next_step=_BOTH_HERE
        if alone and known is not None and is_elsewhere(known)
        else _on_this_host(job, lead) or _advice(job, says, lead),
        refs=_evidence([lead], after),
        ranks=sorted({r for p in procs for r in _ranks(job, p)} | set(named)),
        # without ranks, only processes identify the culprit, and here it is none of them
        procs=procs if not peer or unclear or any(_ranks(job, p) for p in procs) else [],
        # a connection that broke between two living processes does not say which end closed it
        culprits=[] if cut_off else named or (_ranks(job, lead.proc) if unclear or alone else []),
        named=peer_in_text(job, lead) if peer and not named and not unclear else [],
        stage="error",
        known_issue=issue_of(job, lead.first.event, faults.body(job, lead.first.event)),
    )


def _devices(lead: Cascade, others: Iterable[Cascade]) -> str:
    """The devices of a process that print the same kind of error, if there are several."""
    first = lead.first.event
    alike = (c.first.event for c in others if c.proc == lead.proc)
    found = {e.device for e in (first, *alike) if e.name == first.name and e.device is not None and e.device >= 0}
    return f" (devices {joined(map(str, sorted(found)))})" if first.device in found and len(found) > 1 else ""


#: What to do about a connection within a host: no router and no firewall between hosts takes part in it.
_HERE = "The peer has an address of the same host: find the process there that failed or ended first (its last lines, the launcher's output, dmesg)."


def _on_this_host(job: Job, cascade: Cascade) -> str | None:
    known = cascade.first.known
    return _HERE if known is not None and is_elsewhere(known) and blame.same_host(job, cascade.first.event) else None


def _advice(job: Job, says: Message | Phrase | None, cascade: Cascade) -> str | None:
    """What to do about the first line of an error: by the reason that it gives, or with the fields that it has."""
    if (reason := faults.phrase(job, "reason of a call", faults.body(job, cascade.first.event, _WHOLE))) is not None:
        return reason.next_step
    if isinstance(says, Message):
        return says.advice(cascade.first.event.fields)
    return says.next_step if says is not None else None


#: Where the peer is that the threads of one process blame.
_WITHIN = "The process drives several devices, and the log shows no other process: the peer is probably one of its own threads. "


#: What to do about a connection of a process to itself.
_BOTH_HERE = "NCCL has both ends of this connection in this process. Check the network interface that NCCL chose (NCCL_SOCKET_IFNAME), and what can close connections on it: a firewall, a proxy."
_ALONE = "The job has one process, so both ends of its connections are in it. "


def _alone(job: Job, run: int) -> bool:
    """Whether all ranks of a run are in one process: as many as its devices, or all that nccl-tests lists."""
    procs = job.runs[run].procs - job.phantoms
    if len(procs) != 1:
        return False
    (proc,) = procs
    listed = [job.named_by(e) for e in job.events("nccltests.rank", run=run)]
    nranks, devices = job.runs[run].nranks, job.numbering.devices.get(proc, frozenset())
    return all(at == proc for at in listed) if listed else nranks is not None and nranks <= max(len(devices), 1)


def _within(job: Job, run: int, after: Sequence[Cascade]) -> bool:
    """Whether only one process is in view, which drives several devices and blames no process outside."""
    procs = job.runs[run].procs
    if len(procs) != 1:
        return False
    (proc,) = procs
    devices, nranks = job.numbering.devices.get(proc, frozenset()), job.runs[run].nranks
    if len(devices) < 2 or (nranks is not None and nranks > len(devices)):
        return False
    return not blame.addressed(c.first.event for c in after) and all(c.first.report is None for c in after)
