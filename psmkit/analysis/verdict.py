"""Derive a verdict for each run from the findings.

The order is part of the design: ``failed`` if the origin is an error or a death, else ``hung`` if something provably
waits, then ``leaking``, ``inconclusive`` if the evidence is not sufficient, and ``healthy`` only on positive evidence.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from textwrap import shorten

from psmkit.analysis.facts import lines, outside, program, recorded
from psmkit.analysis.facts.error_words import first_error
from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.naming import comm_name, names_of, spans_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import absent, behind_rank, unnamed
from psmkit.analysis.facts.scheduler_end import scheduler_end
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.facts.start import initialising
from psmkit.analysis.inference import faults, frontier, open_waits, own_words, standing
from psmkit.analysis.inference.lived_on import lived_on
from psmkit.analysis.inference.processes import device_of_rank, global_rank
from psmkit.analysis.inference.together import together
from psmkit.analysis.run_end import NO_COMM, NO_START, RunEnd, all_torn_down, end_of, instances_of
from psmkit.logparse.types import Event
from psmkit.model import CODES, Culprit, Effect, Family, Finding, Named, Run, Severity, Suspect, Verdict
from psmkit.model.wording import ENDED_BY_LAUNCHER, RAISED, counted, plural, uncoloured

__all__ = ["judge", "overall"]

#: Kinds of exchanges, for one and for several.
_EXCHANGES = {
    "proxy call": "proxy calls",
    "fd exchange": "fd exchanges",
    "unpaired send or recv": "unpaired sends and recvs",
}
# The most characters of a line that no entry knows.
_TOLD = 100
# The most processes without a rank that wait and may be to blame; more of them are victims.
_MOST_UNNAMED = 2
# How much more certain a vaguer finding must be to come first.
_MARGIN = 0.15
# How sure it is that a launcher ended a job which had not hung before.
_ENDED_EARLY = 0.6
#: Stage of the findings that a trace of plans proves.
_RULES = "plan rules"


def _outlasts(finding: Finding) -> bool:
    return finding.stage == _RULES or CODES[finding.code].outlasts_end


def _failing(finding: Finding) -> bool:
    code = CODES[finding.code]
    if code.effect is Effect.HANGS and finding.stage == RAISED:
        return True  # the ranks did not wait: a check raised before they ran the collective
    return code.effect is Effect.FAILS or (code.effect is Effect.AS_IT_ENDED and not code.hangs(finding.stage))


def _ranked(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (-f.severity.weight, -f.confidence, CODES[f.code].general))


def _explains(why: Finding, hanging: Iterable[Finding]) -> bool:
    """Whether a finding that explains an open exchange also explains the others: it does not, if another rank is late."""
    ends = {r for f in hanging if CODES[f.code].family is Family.CONTROL for r in f.culprits}
    return all(set(f.culprits) <= {*why.culprits, *ends} for f in hanging)


def _pick(findings: Sequence[Finding]) -> tuple[Verdict | None, Finding | None]:
    """The verdict that error findings force, with the finding behind it."""
    errors = _ranked(f for f in findings if f.severity is Severity.ERROR)
    failing = [f for f in errors if _failing(f)]
    hanging = [f for f in errors if not _failing(f)]
    if hanging and failing and any(CODES[f.code].reported_by_watchdog for f in hanging):
        # A watchdog ends a hung job by killing it, so those deaths follow from the hang.
        failing = [f for f in failing if not CODES[f.code].caused_by_watchdog or f.stage == "killed"]
    if (stopped := [f for f in hanging if f.stage == "stopped"]) and not any(CODES[f.code].dies for f in failing):
        # What other ranks print about a rank that was stopped from outside is a consequence.
        return Verdict.HUNG, stopped[0]
    if failing:
        # Who cannot reach a peer and blames nobody names no cause; another error of about the same confidence does.
        sure = (f for f in failing if f.confidence >= failing[0].confidence - _MARGIN)
        vague = CODES[failing[0].code].symptom and not failing[0].culprits
        return Verdict.FAILED, next((f for f in sure if not (vague and CODES[f.code].symptom)), failing[0])
    if (why := next((f for f in hanging if CODES[f.code].explains), None)) is not None and _explains(why, hanging):
        return Verdict.HUNG, why
    if hanging:
        # A watchdog only reports that something hung; any other finding says what.
        named = [f for f in hanging if f.culprits and not CODES[f.code].reported_by_watchdog] or hanging
        near = [f for f in named if f.confidence >= named[0].confidence - _MARGIN]
        return Verdict.HUNG, max(near, key=lambda f: CODES[f.code].precedence)
    return None, None


def _pending(job: Job, run: RunInfo) -> list[str]:
    """The exchanges that are still open in this run, as phrases."""
    open_ = _open(job)[run.index]
    return [counted(open_[one], one, many) for one, many in _EXCHANGES.items() if open_[one]]


@once
def _open(job: Job) -> dict[int | None, Counter[str]]:
    """How many exchanges of each kind are open in each run."""
    out: dict[int | None, Counter[str]] = defaultdict(Counter)
    for call in job.scan.calls:
        if call.state not in ("received", "matched"):
            _note(job, out, "proxy call", call.service, call.caller)
    for fd in job.scan.fds:
        if fd.done is None:
            _note(job, out, "fd exchange", fd.client, fd.server)
    runs = {group: run.index for run in job.runs for group in run.groups}
    for pair in job.scan.pairs:
        out[runs.get(pair.group)]["unpaired send or recv"] += pair.pending_sends + pair.pending_recvs
    return out


def _note(job: Job, out: dict[int | None, Counter[str]], what: str, *procs: int | None) -> None:
    for run in {job.run_of(p) for p in procs if p is not None}:
        out[run][what] += 1


def _culprits(job: Job, run: RunInfo, findings: Sequence[Finding], alike: Sequence[Finding]) -> tuple[Culprit, ...]:
    """The culprits of the finding behind the verdict, then those of findings that report the same failure of others, each once."""
    out: dict[tuple[object, ...], Culprit] = {}
    for finding in alike:
        for c in _blamed(job, run, findings if finding is alike[0] else (), finding):
            out.setdefault((c.rank, c.comm, c.host, c.pid, c.device, c.gpu), c)
    return tuple(out.values())


def _blamed(job: Job, run: RunInfo, findings: Sequence[Finding], chosen: Finding) -> tuple[Culprit, ...]:
    """The culprits of a finding; if it has none, those of another one that decides alike."""
    out: dict[tuple[int | None, str | None], Culprit] = {}
    sources = [chosen]
    if not chosen.culprits:
        sources += [
            f
            for f in _ranked(findings)
            if f.severity is Severity.ERROR and f.culprits and _failing(f) == _failing(chosen)
        ][:1]
    for finding in sources:
        for rank in finding.culprits:
            proc = behind_rank(job, run.index, rank, finding.comm)
            # a launcher's line can name the process of a rank that printed nothing
            named = _named(finding, rank) if proc is None else None
            info = job.scan.processes[proc] if proc is not None else named
            claim = job.numbering.known.get(proc) if proc is not None else None
            key = (rank, finding.comm)
            out.setdefault(
                key,
                Culprit(
                    run=run.index,
                    why=finding.title,
                    comm=finding.comm,
                    rank=rank,
                    global_rank=global_rank(job, proc, rank, finding.comm),
                    host=info.host if info else None,
                    pid=info.pid if info else outside.pid_of_placed(job, rank),
                    device=named.device if named is not None else device_of_rank(job, proc, rank, finding.comm),
                    stage=finding.stage or (stage_of(job, proc) if proc is not None else None),
                    rank_basis=claim.basis if claim is not None else None,
                ),
            )
    if out and len(sources) == 1:
        # processes of unknown rank with the same error
        nameless = [n for n in chosen.named if n.rank is None and n.pid is not None]
        return (*out.values(), *(_of_named(run, chosen, n) for n in nameless))
    if not out and chosen.named:
        return tuple(_of_named(run, chosen, n) for n in chosen.named)
    if not out and not chosen.ranks:
        # A log with warnings only does not show the rank, but it shows the process.
        most = None if _failing(chosen) else _MOST_UNNAMED
        return tuple(_of_process(job, run, chosen, name) for name in chosen.processes[:most])
    return tuple(out.values())


def _of_named(run: RunInfo, chosen: Finding, n: Named) -> Culprit:
    """The culprit that a text names."""
    return Culprit(
        run=run.index,
        why=chosen.title,
        comm=n.comm,
        rank=n.rank,
        host=n.host,
        pid=n.pid,
        stage=chosen.stage,
        device=n.device,
        rank_basis=n.basis,
        either=n.either,
        peer_unnamed=n.peer_unnamed,
        gpu=n.gpu,
    )


def _named(finding: Finding, rank: int) -> Named | None:
    """The process of a rank, as a text names it."""
    return next((n for n in finding.named if n.rank == rank), None)


def _of_process(job: Job, run: RunInfo, finding: Finding, name: str) -> Culprit:
    proc = next((p for p in run.procs if job.process(p).name == name), None)
    info = job.process(proc) if proc is not None else None
    claim = job.numbering.assumed.get(proc) if proc is not None else None
    return Culprit(
        run=run.index,
        why=finding.title,
        rank=claim.rank if claim is not None else None,
        host=info.host if info else None,
        pid=info.pid if info else None,
        device=job.device_of(proc) if proc is not None else None,
        stage=finding.stage,
        rank_basis=claim.basis if claim is not None else None,
    )


def judge(job: Job, findings: Sequence[Finding]) -> list[Run]:
    """One :class:`Run` for each run of ``job``; ``findings`` are the findings of all rules."""
    ours: dict[int | None, list[tuple[int, Finding]]] = defaultdict(list)
    for place, finding in enumerate(findings):
        ours[finding.run].append((place, finding))
    # findings of no run count in every run
    both = (sorted([*ours[None], *ours[run.index]], key=lambda item: item[0]) for run in job.runs)
    return [_judge(job, run, [f for _, f in mine]) for run, mine in zip(job.runs, both, strict=True)]


def _judge(job: Job, run: RunInfo, findings: Sequence[Finding]) -> Run:
    end = end_of(job, run)
    refuted = all_torn_down(job, run)
    deciding = [f for f in findings if not refuted or _failing(f) or _outlasts(f)]
    verdict, chosen = _pick(deciding)
    alike = together(job, deciding, chosen) if verdict is Verdict.FAILED and chosen is not None else []
    chosen = alike[0] if alike else chosen
    if end.done and verdict is Verdict.HUNG and chosen is not None and _outlasts(chosen):
        verdict = Verdict.FAILED  # nobody waits any more, but the error remains
    pending = _pending(job, run)
    confidence = 0.5
    if verdict is not None and chosen is not None:
        reason, confidence = chosen.title, chosen.confidence
    elif end.done:
        leak = next(
            (f for f in findings if CODES[f.code].effect is Effect.LEAKS and f.severity is not Severity.INFO), None
        )
        if leak is not None:
            verdict, reason, confidence, chosen = Verdict.LEAKING, leak.title, leak.confidence, leak
        else:
            # after a teardown nothing can wait: an exchange that looks open has lost a line
            verdict, confidence = Verdict.HEALTHY, 0.95 if not pending else 0.8
            reason = end.why + ("" if not pending else f" (the log lacks lines of {' and '.join(pending)})")
    elif not pending and not _doubts(findings) and (words_ := own_words.ended_well(job, run)) is not None:
        verdict, reason, confidence = Verdict.HEALTHY, *_by_own_words(job, run, words_)
    elif not pending and (ended := _ended_early(job, run, findings)) is not None:
        verdict, chosen, reason, confidence = Verdict.FAILED, ended, ended.title, _ENDED_EARLY
    else:
        verdict, reason = Verdict.INCONCLUSIVE, _why_open(job, run, end, pending)
        if headline := [f for f in findings if CODES[f.code].headline]:
            reason, confidence = headline[-1].title, headline[-1].confidence
        suspect = next((f for f in _ranked(findings) if f.severity is Severity.WARNING and CODES[f.code].suspect), None)
        if suspect is not None and not headline:
            # a process that probably failed says more than a log that is missing
            failed = suspect.stage == "error"
            look = suspect.title if failed else f"look first at this: {suspect.title}"
            parts = [reason] if reason not in (NO_COMM, NO_START) else []
            reason = "; ".join([look, *parts] if failed else [*parts, look])
        elif not headline and (ended_by := _by_scheduler(job, run, findings)) is not None:
            reason = ended_by
        elif not (headline or run.procs or job.run_by_stream) and (stood := standing.told(job)) is not None:
            reason = stood
        elif (
            not headline
            and not instances_of(job, run)
            and (said := _first_warning(job, run.index, findings)) is not None
        ):
            reason = f"{said}; {reason}" if reason not in (NO_COMM, NO_START) else said
        # an open verdict names nobody, unless its reason is a peer that closed a connection
        chosen = next((f for f in findings if f.stage == "lost" and f.named and reason.startswith(f.title)), None)
        reason = _as_recorded(job, run, reason)
    if chosen is not None and chosen not in alike:
        alike = [chosen]
    seen = sorted({r for p in run.procs for r in job.ranks_of(p)})
    return Run(
        index=run.index,
        verdict=verdict,
        reason=reason,
        confidence=round(confidence, 2),
        nranks=run.nranks,
        ranks_seen=tuple(seen),
        hosts=tuple(sorted({job.scan.processes[p].host for p in run.procs})),
        culprits=_culprits(job, run, findings, alike),
        suspects=_suspects(job, run, findings) if verdict is Verdict.INCONCLUSIVE else _silent(job, run, chosen),
        files=_files(job).get(run.index, ()),
    )


@once
def _files(job: Job) -> dict[int, tuple[str, ...]]:
    """The files of each run, where the input holds those of several jobs."""
    if not job.run_by_stream:
        return {}
    runs = {process.stream: run for process in job.scan.processes if (run := job.run_of(process.index)) is not None}
    runs |= job.run_by_stream
    out: dict[int, list[str]] = defaultdict(list)
    for file in job.scan.files:
        if file.stream in runs:
            out[runs[file.stream]].append(file.path)
    return {run: tuple(paths) for run, paths in out.items()}


def _by_scheduler(job: Job, run: RunInfo, findings: Sequence[Finding]) -> str | None:
    """The reason for an open verdict on a job that its scheduler ended, with how far its program came."""
    end = scheduler_end(job, run.index)
    told = next((f for f in findings if CODES[f.code].from_outside and end is not None and _shows(job, f, end)), None)
    if told is None:
        return None
    printed = program.told(job, run.index)
    return told.title + (f"; {printed}" if printed is not None else "")


def _shows(job: Job, finding: Finding, event: Event) -> bool:
    """Whether a line is the first evidence of a finding."""
    proof = finding.evidence[0] if finding.evidence else None
    return proof is not None and (proof.file, proof.line) == (job.scan.files[event.ref.file].path, event.ref.line)


def _as_recorded(job: Job, run: RunInfo, reason: str) -> str:
    """The reason for an open verdict, after what `psmkit record` knows of the end: who ended the job, or that nothing of NCCL was printed."""
    outside, silent = recorded.outside_end(job, run.index), recorded.silent(job, run.index)
    if silent is not None and reason in (NO_COMM, NO_START, standing.told(job)) and not standing.in_nccl(job):
        reason = silent if outside is None else "it printed nothing of NCCL"
    return reason if outside is None else f"{outside}; {reason}"


def _doubts(findings: Sequence[Finding]) -> bool:
    """Whether a finding speaks against the program's own words."""
    return any(
        f.severity is Severity.WARNING and (CODES[f.code].suspect or CODES[f.code].effect is Effect.LEAKS)
        for f in findings
    )


def _ended_early(job: Job, run: RunInfo, findings: Sequence[Finding]) -> Finding | None:
    """The launcher's end of a job of which nothing shows that it stood still.

    Where NCCL prints, an open wait may be what someone ended the job for: that log does not decide.
    """
    if instances_of(job, run) or any(
        f.severity is not Severity.INFO and CODES[f.code].effect is not Effect.FAILS for f in findings
    ):
        return None
    return next((f for f in findings if f.stage == ENDED_BY_LAUNCHER and f.severity is not Severity.INFO), None)


def _by_own_words(job: Job, run: RunInfo, said: own_words.OwnWords) -> tuple[str, float]:
    """The reason for a healthy run that rests on what its program says, and how sure it is."""
    reason = f"by the program's own words: {said.said}"
    if not said.ended:
        return f"{reason}, and its processes closed their connections after that; {NO_COMM}", 0.6
    their = plural(len(said.ended), "its communicator", "their communicators")
    reason += f", and {names_of(job, said.ended)} ended {their} after that"
    if lacking := absent(job, run.index):
        logs, are = plural(len(lacking), "log", "logs"), plural(len(lacking), "is", "are")
        return f"{reason}; the {logs} of {spans_text(lacking.spans())} {are} missing", 0.6
    return reason, 0.75 if not unnamed(job, run.index) else 0.6


def _first_warning(job: Job, run: int, findings: Sequence[Finding]) -> str | None:
    """The headline of a run without a communicator: a warning of NCCL's, else the first line that is known to be one."""
    told = next((f.title for f in findings if f.evidence and CODES[f.code].breaks), None)
    if told is not None:
        return told
    known = lines.catalogue(job).by_name
    bad = [name for name in job.names if name in known and known[name].severity in ("error", "warning")]
    bad = [
        name for name in bad if name != "sys.python.traceback" and not name.startswith("other.")
    ]  # the line below it says what happened
    # what NCCL prints at INFO, such as a closed connection, is part of a normal end, too
    told_ = (
        e
        for e in job.events(*bad, run=run)
        if e.level != "INFO" and not program.came_after(job, e) and not program.done_after(job, run, e)
    )
    told_ = (e for e in told_ if not (e.name in open_waits.WAITS and open_waits.ended(job, run, e)))
    first = next((e for e in told_ if not (e.name.startswith("sys.python.") and lived_on(job, e))), None)
    return uncoloured(lines.without_escapes(faults.body(job, first))) if first is not None else None


def _silent(job: Job, run: RunInfo, chosen: Finding | None) -> tuple[Suspect, ...]:
    """The ranks that do not report what their peers report, or report an earlier work, if nobody is to blame."""
    ranks = chosen.suspects if chosen is not None and not chosen.culprits else ()
    waiting = chosen.ranks if chosen is not None else ()
    procs = [job.proc_of(run.index, rank) for rank in ranks]
    seen = [job.process(proc) if proc is not None else None for proc in procs]
    return tuple(
        Suspect(
            run=run.index,
            owes="the work that the others completed" if rank in waiting else "a report of the timeout",
            last=f"{job.scan.files[p.last.file].path}:{p.last.line}" if p is not None else "",
            setting="",
            rank=rank,
            host=(p.host or None) if p is not None else None,
            pid=p.pid if p is not None else None,
        )
        for rank, p in zip(ranks, seen, strict=True)
    )


def _suspects(job: Job, run: RunInfo, findings: Sequence[Finding]) -> tuple[Suspect, ...]:
    """The process that owes a step, or whose log was cut; else those that stand elsewhere than their peers."""
    owes = frontier.suspect(job, run.index)
    if owes is None:
        return standing.suspects(job, run.index, findings)
    process = job.process(owes.proc)
    return (
        Suspect(
            run=run.index,
            owes=owes.step,
            last=f"{job.scan.files[owes.last.file].path}:{owes.last.line}",
            setting=frontier.deciding(job, owes),
            comm=comm_name(job, owes.group) if owes.group is not None else None,
            rank=job.rank_of(owes.proc),
            host=process.host or None,
            pid=process.pid,
            device=job.device_of(owes.proc),
            stage=owes.stage,
        ),
    )


def _why_open(job: Job, run: RunInfo, end: RunEnd, pending: Sequence[str]) -> str:
    if absent(job, run.index):
        return end.why  # what the logs of these ranks would complete is open, too
    if pending:
        return f"{end.why}; the log ends with {' and '.join(pending)} open, which also happens when a log is cut"
    totals = job.scan.totals
    if owing := frontier.owing(job, run.index):
        shakes, are = plural(len(owing), "handshake"), plural(len(owing), "is", "are")
        return f"{end.why}; the {shakes} of {names_of(job, owing)} {are} not complete in the log"
    if totals.calls_matched and len(job.runs) == 1 and not initialising(job, run) and not absent(job, run.index):
        clean = f"no proxy call is open ({counted(totals.calls_matched, 'proxy call')} answered"
        clean += f", {counted(totals.fds_matched, 'fd exchange')} done)" if totals.fds_matched else ")"
        if program.told(job, run.index) is not None:
            return f"{clean}; {end.why}"
        more = "" if not instances_of(job, run) else f"; {end.why}"
        return f"{clean}; the log does not show whether data moved{more}"
    return end.why


def overall(job: Job, runs: Sequence[Run]) -> tuple[Verdict, str, float]:
    """The worst verdict, with its reason and confidence."""
    totals = job.scan.totals
    known = totals.matched or totals.unmatched or getattr(job.scan, "foreign", None)
    if not known and all(run.verdict is Verdict.INCONCLUSIVE for run in runs):
        lines_ = totals.other or totals.lines  # without the empty ones
        unknown = f"knows none of the {lines_} lines" if lines_ > 1 else "does not know the only line"
        told = first_error(job)
        which = (
            ""
            if told is None
            else f", and the first that tells of an error is '{shorten(told, _TOLD, placeholder='…')}'"
        )
        return (
            Verdict.INCONCLUSIVE,
            f"psmkit {unknown}{which}: give the whole output of the job, with NCCL_DEBUG=INFO",
            0.5,
        )
    if not runs:
        return Verdict.INCONCLUSIVE, NO_COMM, 0.5
    worst = max(runs, key=lambda r: (r.verdict.badness, r.confidence))
    of = f" ({os.path.basename(worst.files[0])})" if len(worst.files) == 1 else ""
    reason = worst.reason if len(runs) == 1 else f"run {worst.index + 1} of {len(runs)}{of}: {worst.reason}"
    return worst.verdict, reason, worst.confidence
