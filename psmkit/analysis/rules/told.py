"""Lines that say by themselves who failed or who waits: those of other libraries and frameworks, exceptions, and the program's own words.

Their catalogue entries have a title. Those without an order name the process that failed, and count by themselves. The others say less: they count
only if no error of NCCL's and no watchdog explains the run. None counts if the work continued after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psmkit.analysis.facts import endings, launcher_ends, lines, outside
from psmkit.analysis.facts.deaths import collect
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import differing, named_text, ranks_text, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference import faults, open_waits, processes, said, store, unknown
from psmkit.analysis.inference.causes import ends, few_named, lost_with_daemon
from psmkit.analysis.inference.exceptions import (
    about_others,
    ended_by,
    fate,
    named_by_engine,
    of_cell,
    of_nobody,
    raised,
    thrower,
    throwers,
    thrown_below,
    uncaught,
    unfinished,
)
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.tracebacks import shown_below, where
from psmkit.analysis.registry import rule
from psmkit.catalogue import Message
from psmkit.logparse.types import Event
from psmkit.model import CODES, Finding, Named, Severity
from psmkit.model.late import regex
from psmkit.model.wording import ENDED_BY_LAUNCHER

__all__ = ["find"]

_SURE, _LATER, _AGREED = 0.9, 0.65, 0.96
_LONGEST = 80
_FOLDERS = regex(r"(?<![^\s'\"`(])/(?:[\w.+-]+/)+(?=[\w.+-]+:\d)")
#: What a worker of an engine prints above its traceback.
_WORKERS = ("framework.engine_failed", "framework.engine_core_failed")
_SHOWN, _NEAR = 4, 3
# An engine wraps the exceptions of its workers, which say more: entries with a higher order count only without one.
_EXCEPTIONS = 1000


@rule(order=29)
def find(job: Job) -> list[Finding]:
    """The findings of lines with a title, and PSM402 for ends that only exceptions and the program itself report."""
    known = lines.catalogue(job).by_name
    entries = {name: known[name] for name in job.names if name in known and known[name].title is not None}
    sure = {name: entry for name, entry in entries.items() if entry.order is None}
    weak = {name: entry for name, entry in entries.items() if entry.order is not None}
    out: list[Finding] = []
    for run in _runs(job, sure):
        out += [_sure(job, run, sure[n], e, lead=not at) for at, (n, e) in enumerate(_kinds(job, run, sure))]
    for run in dict.fromkeys([*endings.runs(job), *_runs(job, weak)]):
        if not endings.gave_up(job, run) and not any(c.fatal and not _passed_on(c) for c in faults.of_run(job, run)):
            out += _alone(job, run, weak)
        elif closed := store.never_opened(job, run):
            out.append(_weak(job, run, weak[closed[0].name], closed))
    return out


def _runs(job: Job, entries: Mapping[str, Message]) -> list[int | None]:
    return sorted(job.runs_of(*entries), key=lambda r: (r is None, r or 0)) if entries else []


def _kinds(job: Job, run: int | None, entries: Mapping[str, Message]) -> list[tuple[str, list[Event]]]:
    """The lines of each entry that may be a cause, the first line of a run first: those behind it may follow from it."""
    kinds: dict[str, list[Event]] = {}
    for event in job.events(*entries, run=run) if entries else []:
        follows = endings.stopped(job, event) or _never_started(job, event) or _of_signal(job, event)
        if not (follows or _continued(job, run, event)):
            kinds.setdefault(event.name, []).append(event)
    return sorted(kinds.items(), key=lambda item: (item[1][0].stream, item[1][0].ref.seq))


def _never_started(job: Job, event: Event) -> bool:
    """Whether mpirun lost a daemon that ssh had not reached: it did not start."""
    if not event.name.startswith("launch.mpi.daemon_"):
        return False
    return any(
        ssh.stream == event.stream
        and ssh.ref.seq < event.ref.seq
        and launcher_ends.bare_host(ssh.fields.get("host")) == event.fields.get("host")
        for ssh in job.events("launch.ssh.unreached")
    )


def _of_signal(job: Job, event: Event) -> bool:
    """Whether UCX prints the stack of a signal that it names just above: the end of that process has a finding of its own."""
    if event.name != "ucx.backtrace":
        return False
    return any((event.stream, event.ref.seq - n) in _signals(job) for n in range(1, _NEAR + 1))


@once
def _signals(job: Job) -> set[tuple[int, int]]:
    """Where UCX names a signal."""
    return {(e.stream, e.ref.seq) for e in job.events("sys.ucx.signal")}


def _continued(job: Job, run: int | None, event: Event) -> bool:
    """Whether the job worked or ended well after a line."""
    return endings.continued(job, run, event, outside.proc_of_event(job, event))


def _sure(job: Job, run: int | None, entry: Message, events: Sequence[Event], lead: bool) -> Finding:
    """The finding of lines that name who failed."""
    named = said.named_self(job, events) if entry.blames == "self" else _blamed(job, entry, events)
    ranks = sorted({n.rank for n in named if n.rank is not None and n.basis is None})
    culprits = [] if entry.blames == "unknown" or _everyone(job, run, ranks, said.came(job, events)) else ranks
    agreed = bool(culprits) and any(d.rank in culprits and d.root for d in collect(job, run))
    severity = Severity.ERROR if entry.severity == "error" else Severity.WARNING
    finding = _finding(
        job,
        run,
        entry,
        events,
        named,
        severity=severity,
        confidence=_AGREED if agreed else _SURE if lead else _LATER,
        ranks=ranks,
        procs=[p for r in ranks if run is not None and (p := job.proc_of(run, r)) is not None],
        culprits=culprits if severity is Severity.ERROR else [],
        blamed=named if entry.blames != "unknown" and (culprits or not ranks) else [],
    )
    gone = lost_with_daemon(job, run) if entry.name == "launch.mpi.daemon_lost" else []
    if gone:
        who = words([named_text(n) for d in gone for n in launcher_ends.as_named(d)], _SHOWN)
        text = f"{finding.explanation} The end of {who} there follows from it."
        finding = replace(
            finding,
            explanation=text,
            evidence=(*finding.evidence, *job.quotes.cite(*(d.events[0].ref for d in gone[:_SHOWN]))),
        )
    return finding


def _finding(
    job: Job,
    run: int | None,
    entry: Message,
    events: Sequence[Event],
    named: Sequence[Named],
    *,
    severity: Severity,
    confidence: float,
    ranks: Sequence[int],
    procs: Sequence[int],
    culprits: Sequence[int],
    blamed: Sequence[Named],
) -> Finding:
    assert entry.finding is not None  # as the catalogue checks
    return new_finding(
        job,
        entry.finding,
        run=run,
        title=said.headline(job, entry, events, named),
        severity=severity,
        confidence=confidence,
        explanation=entry.meaning,
        next_step=said.within_host(job, entry, events) or entry.next_step or CODES[entry.finding].next_step,
        refs=[e.ref for e in events[:_SHOWN]],
        ranks=ranks,
        procs=procs,
        culprits=culprits,
        named=blamed,
        stage="error",
    )


#: What to do about an exception that only says that a communicator was aborted.
_OF_ABORT = "Look above for what aborted the communicator: a timeout of torch's watchdog, an NCCL WARN, or a CUDA error. Give the output of all ranks."


def _everyone(job: Job, run: int | None, ranks: Sequence[int], came: tuple[int, int] | None) -> bool:
    """Whether all ranks fail alike, or all but rank 0, which the others compare themselves with: then none of them is the odd one.

    Where most ranks did not come to a barrier, those that came may be early.
    """
    if came is not None:
        return 2 * came[0] < came[1]
    if len(ranks) < 2:
        return False
    nranks = job.runs[run].nranks if run is not None and run < len(job.runs) else None
    size = nranks if nranks is not None else max(ranks) + 1
    return size - len(ranks) <= (1 if ranks[0] == 1 else 0)


def _blamed(job: Job, entry: Message, events: Sequence[Event]) -> list[Named]:
    """The processes that lines about others name."""
    out: dict[Named, None] = {}
    for event in events:
        at, missing = said.place(event), said.named_ranks(job, entry, [event])
        found = [Named(rank, at.host, at.pid, device=at.device) for rank in missing]
        out.update(dict.fromkeys(found or ([at] if at != Named() else [])))
    return [n for n in out if n.rank is not None] or list(out)


def _alone(job: Job, run: int | None, entries: Mapping[str, Message]) -> list[Finding]:
    """What the end of a run shows where neither NCCL nor a watchdog explains it, what is nearest to the cause first."""
    kinds = sorted(_kinds(job, run, entries), key=lambda item: entries[item[0]].order or 0)
    if ends(job, run):  # a launcher names who ended: that it ended the job says no more
        kinds = [item for item in kinds if not item[0].startswith("launch.")]
    near = [item for item in kinds if (entries[item[0]].order or 0) < _EXCEPTIONS][:1]
    if near and entries[near[0][0]].finding == "PSM305" and _threw_before(job, run, near[0][1][0]):
        return []  # it waits for a rank that has a finding of its own
    found = [_weak(job, run, entries[name], events) for name, events in near]
    thrown = _exceptions(job, run)
    # who waits reports; who threw for a reason of its own is the cause
    if not found or (found[0].code == "PSM305" and any(f.culprits or f.named for f in thrown)):
        found = thrown or found
    if not near and not any(f.culprits or f.named for f in found):
        wraps = [_weak(job, run, entries[name], events) for name, events in kinds]
        # the one that names a process, else the exception, else the first one
        found = (
            [f for f in (*wraps, *(_cut(job, run) if wraps else [])) if f.culprits or f.named][:1] or found or wraps[:1]
        )
    return found or _program(job, run) or _cut(job, run) or _agents(job, run) or open_waits.find(job, run)


def _threw_before(job: Job, run: int | None, wait: Event) -> bool:
    """Whether a rank threw for a reason of its own before another one reported that it waits in vain."""
    return any(
        rank is not None
        and (item.event.stream != wait.stream or item.event.ref.seq < wait.ref.seq)
        and not endings.went_on(job, item.event, outside.proc_of_event(job, item.event), run)
        for rank, item in raised(job, run).items()
    )


def _weak(job: Job, run: int | None, entry: Message, events: Sequence[Event]) -> Finding:
    """The finding of lines that name only who prints them, or for whom it waits."""
    events = sorted(events, key=lambda e: "missing" not in e.fields)  # the line that names a rank proves it
    own = entry.blames != "peer"
    if entry.name == "framework.engine_reports":
        named = named_by_engine(job, run)
    else:
        ranked = [Named(rank) for rank in said.named_ranks(job, entry, events)]
        named = said.absent(events) or ranked or said.places(events) or ([] if own else said.hosts(events))
        named = named or (outside.tagged_process(job, events) if own else [])
    if not named and entry.own_rank is not None:
        named = few_named(job, run, said.named_self(job, events))
    procs, ranks = said.printers(job, events) if own else ([], [])
    either = _either_end(job, entry, events)
    if not named and (entry.blames == "self" or either):
        alone = not (either or procs or ranks or entry.own_rank)
        named = outside.headed_process(job, events) or (said.hosts(events) if alone else [])
    if not (named or procs or ranks or either) and entry.blames == "self":
        named = unknown.launched(job, events)
    if entry.name == "nvshmem.unreachable":
        named = said.elements(events)
    elif either:
        peers = said.other_ends(job, events)
        own_ends = [Named(pid=job.process(p).pid, host=job.process(p).host) for p in procs[:1] if len(procs) == 1]
        if near := said.near_ends(job, events):
            own_ends, peers = near, named
        ends = dict.fromkeys([*(own_ends or named), *peers])
        named = [replace(n, either=True, peer_unnamed=not peers) for n in ends]
    if own and not either and len(ranks) == len(named) == 1 and named[0].rank is None and named[0].pid is not None:
        # one tag that shows the rank and the process: both are one culprit
        named = [replace(named[0], rank=ranks[0])] if len({e.tag for e in events}) == 1 else named
    first = min(events, key=lambda e: (e.stream, e.ref.seq))
    # its own traceback stands right below what a process says of itself
    below = [e for e in unfinished(job, run) if (e.stream, e.tag) == (first.stream, first.tag)]
    cut = [e for e in below if e.ref.seq == first.ref.seq + 1 and entry.name != "framework.engine_reports"]
    finding = _finding(
        job,
        run,
        entry,
        events,
        named,
        severity=Severity.ERROR,
        confidence=entry.confidence,
        ranks=ranks,
        procs=procs,
        culprits=ranks if len(ranks) == 1 and not either else [],
        blamed=named if either or not procs else [],
    )
    if (how := said.how_known(job, entry, events)) is not None:
        finding = replace(finding, explanation=f"{finding.explanation} {how}")
    if cut and own:
        return _with_cut(finding, shown_below(job, cut[0]))
    threw = thrown_below(job, run, first) if entry.name in _WORKERS else ""
    return replace(finding, title=f"{finding.title}: {said.short(threw)}") if threw else finding


def _either_end(job: Job, entry: Message, events: Sequence[Event]) -> bool:
    """Whether these lines are about a connection that failed, and show one end of it."""
    if entry.finding is None or not CODES[entry.finding].two_ends or entry.blames == "peer":
        return False
    text = lines.matched(job, events[0].ref)
    return entry.blames == "unknown" or faults.phrase(job, "the other end did it", text) is not None


def _with_cut(finding: Finding, shown: str | None) -> Finding:
    """The finding of a process whose traceback the log cuts before its exception."""
    return replace(
        finding,
        title=finding.title + (f", in or below {shown}" if shown is not None else ""),
        explanation=f"{finding.explanation} The log is cut inside its traceback, before the exception.",
        next_step="Give the rest of the log: the line below the stack names the exception. See whether another process failed before it.",
    )


def _passed_on(cascade: faults.Cascade) -> bool:
    """Whether the first line of an error only says that a library failed in its own process: the library's line says why."""
    known = cascade.first.known
    return cascade.own is False and known is not None and known.blames == "self" and known.origin is False


def _exceptions(job: Job, run: int | None) -> list[Finding]:
    """Exceptions that name no cause, at the end of what their process prints."""
    items = [i for i in uncaught(job, run) if not _continued(job, run, i.event) and _last_words(job, i.event)]
    if not endings.gave_up(job, run):
        told = {d.where for d in ends(job, run) if d.reason is not None}  # the reason of an end with a finding
        items = [i for i in items if i.text not in told]
    if not items:
        return []
    # an exception about others only passes on what another process did
    items = [i for i in items if not about_others(job, i.text)] or items
    passed_on = about_others(job, items[0].text)
    ranks = sorted({i.rank for i in items if i.rank is not None})
    aborted = unknown.of_an_abort(items[0].text)
    own = len(ranks) == 1 and not passed_on and not aborted
    process = [] if ranks or passed_on else throwers(job, run, items)
    if not (ranks or passed_on or process):
        process = unknown.all_stated_below(job, [i.event for i in items if i.text == items[0].text])
    who = ranks_text(ranks) if ranks else words(map(named_text, process), _SHOWN) if process else "a process"
    if passed_on and (lost := store.lost_in(job, run, items[0].event, items[0].text)) is not None:
        return [store.finding(job, run, items, ranks, lost)]
    own, how = own or bool(process), ended_by(job, [i.event for i in items])
    named = process or ([] if own else unknown.in_exception(items[0].text))
    if len(ranks) == 1 and any(n.either for n in named):
        named = [Named(ranks[0], either=True), *(replace(n, peer_unnamed=False) for n in named)]
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"{who} {how}: {_short(items[0].text)}"
            + (differing(i.text for i in items) if len(ranks) > 1 else ""),
            confidence=0.55,
            explanation=fate(job, how, [i.event for i in items], "The exception ended the program.")
            + (" It follows from the abort of a communicator, which has a reason of its own." if aborted else "")
            + ("" if own or named else " The text does not show which rank is the cause."),
            next_step=_OF_ABORT if aborted else processes.read_traceback(job, run),
            refs=[e.ref for e in [items[0].event, *where(job, items[0].event), *(i.event for i in items[1:])][:4]],
            ranks=ranks,
            culprits=ranks if own else [],
            named=named,
            stage="error",
        )
    ]


def _short(text: str) -> str:
    """A text for a title: the paths of source files without their folders, cut at a word unless that leaves too little; whole where it would leave the half."""
    text = _FOLDERS.sub("", text)
    cut = text[:_LONGEST].rpartition(" ")[0]
    if len(text) <= _LONGEST or 2 * len(cut) <= _LONGEST:
        return text
    return f"{cut if 4 * len(cut) >= 3 * _LONGEST else text[:_LONGEST]}\N{HORIZONTAL ELLIPSIS}"


def _last_words(job: Job, event: Event) -> bool:
    """Whether no process of the stream prints much after it."""
    return not any(
        p.stream == event.stream and p.last.seq > event.ref.seq + endings.WENT_ON for p in job.scan.processes
    )


def _program(job: Job, run: int | None) -> list[Finding]:
    """The program's own statement that it failed."""
    events = [
        e
        for e in job.events("program.failed", run=run)
        if not _continued(job, run, e) and not endings.stopped(job, e) and _last_words(job, e)
    ]
    if not events:
        return []
    reason = said.short(events[0].fields.get("what")) or _below(job, events[0])
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"the program says that its training failed{f': {reason}' if reason else ''}",
            confidence=0.55,
            explanation="The program reports a failure. The log does not show which rank is the cause.",
            next_step="Read the lines of the same rank around this one, and give the output of all ranks.",
            refs=[e.ref for e in events[:4]],
            ranks=sorted({r for e in events if (r := outside.global_rank(job, e)) is not None}),
            stage="error",
        )
    ]


def _cut(job: Job, run: int | None) -> list[Finding]:
    """A warning about a traceback whose exception is not in the log."""
    heads = [e for e in unfinished(job, run) if not _continued(job, run, e)]
    if not heads:
        return []
    # a part of a program that reports its exception in this way ends with it, as SGLang's scheduler does
    last = [e for e in heads if "part" in e.fields or of_cell(job, e)] or [e for e in heads if of_nobody(job, e)]
    heads = last or heads
    ranks = sorted(
        {*said.printers(job, heads)[1], *(r for e in last if (r := outside.global_rank(job, e)) is not None)}
    )
    process = thrower(job, run, heads) if not ranks and len(heads) == 1 else []
    one = {outside.global_rank(job, e) for e in heads} - {None} if not ranks else {*ranks}
    who = ranks_text(r for r in one if r is not None) if one else named_text(process[0]) if process else "a process"
    shown = shown_below(job, heads[0])
    place = f" in or below {shown}" if shown is not None else ""
    through = f" that passes through {shown}" if shown is not None else ""
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"a notebook ended a cell by {cell}{place}; the line with its text is not in the log"
            if last and (cell := of_cell(job, last[0])) is not None
            else f"the {_part(str(last[0].fields['part']))} of {who} hit an exception{place}; the line that names the exception is not in the log"
            if last and "part" in last[0].fields
            else f"{who} printed a Python traceback{through}; the log ends before the line that names the exception",
            severity=Severity.ERROR if last else Severity.WARNING,
            confidence=0.5 if not last else 0.7 if "part" in last[0].fields else 0.6,
            explanation="This part of the program reports an exception in this way when it ends."
            if last and "part" in last[0].fields
            else "IPython prints an exception in this form when it ends a cell. The notebook itself goes on."
            if last and of_cell(job, last[0]) is not None
            else "An exception that nothing catches ends the process.",
            culprits=ranks if len(last) == 1 else [],
            named=process if len(last) == 1 else [],
            next_step="Give the rest of the log: the line below the stack names the exception.",
            refs=[e.ref for e in heads[:4]],
            ranks=ranks,
            stage="error",
        )
    ]


def _part(name: str) -> str:
    """``scheduler`` for ``Scheduler``; the name of a class stays as it is."""
    return name.lower() if name[1:].islower() else name


def _agents(job: Job, run: int | None) -> list[Finding]:
    """An agent of torchrun that lost its rendezvous, and then ended its workers, of which none failed by itself."""
    stopped = job.events("launch.elastic.sigterm", run=run)
    lost = [
        e
        for e in job.events("launch.elastic.peer_lost", run=run)
        if any(s.stream == e.stream and s.ref.seq > e.ref.seq for s in stopped) and not _continued(job, run, e)
    ]
    entry = faults.message(job, "launch.elastic.peer_lost")
    if ends(job, run):
        return []
    if not lost or entry is None:
        return _stopping(job, run, stopped)
    after = next(s for s in stopped if s.stream == lost[0].stream and s.ref.seq > lost[0].ref.seq)
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"the agent {lost[0].fields.get('node')} of torchrun lost its rendezvous, and ended its workers",
            confidence=0.6,
            explanation=f"{entry.meaning} No line shows that a worker failed before.",
            next_step="Read the output of the agent that hosts the rendezvous (the host of --rdzv-endpoint): it ended first, or the network to it failed.",
            refs=[lost[0].ref, after.ref],
            stage="error",
        )
    ]


def _stopping(job: Job, run: int | None, stopped: Sequence[Event]) -> list[Finding]:
    """torchrun ends its workers, and no line shows why."""
    others = job.events("launch.elastic.", "launch.spawn.", run=run)
    if not stopped or any(e.name != stopped[0].name for e in others) or endings.gave_up(job, run):
        return []
    pids = sorted({pid for e in stopped if isinstance(pid := e.fields.get("pid"), int)})
    whom = f"process{'es' if len(pids) > 1 else ''} {words(map(str, pids), 4)}"
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"torchrun ends its workers ({whom}), and the log does not show why",
            severity=Severity.WARNING,
            confidence=0.6,
            explanation="torchrun does this after a worker failed, or when it is itself told to end.",
            next_step="Read what torchrun prints before and after the proof line: the first worker that failed, or the signal that it received.",
            refs=[e.ref for e in stopped[:4]],
            stage=ENDED_BY_LAUNCHER,
        )
    ]


def _below(job: Job, event: Event) -> str:
    ref = lines.below(job, event.ref)
    text = " ".join("".join(e.text for e in job.quotes.of(ref)).split()) if ref is not None else ""
    return text[:_LONGEST]
