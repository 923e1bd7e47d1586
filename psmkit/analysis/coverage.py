"""The tables of a report: matched exchanges, communicators, and what was read or is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from psmkit.analysis.facts import endings, foreign, lines, program, recorded, shown_end
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name, spans_of, spans_text
from psmkit.analysis.facts.places import absent
from psmkit.analysis.facts.printed import counts
from psmkit.analysis.facts.progress import STAGES, furthest_stage, torn_down
from psmkit.analysis.facts.scheduler_end import scheduler_end
from psmkit.analysis.facts.start import begins, past_bootstrap
from psmkit.analysis.inference import earlier, standing
from psmkit.analysis.inference.exceptions import headless, unfinished, untold
from psmkit.catalogue import Message, load
from psmkit.logparse.types import CommInstance, Value
from psmkit.model import (
    CODES,
    Communicator,
    Coverage,
    Finding,
    MatchCount,
    Matching,
    Run,
    Severity,
    Shape,
    Verdict,
)
from psmkit.model.settings import WANTED, logs_of_a_run
from psmkit.model.wording import LACKS, counted, plural

__all__ = ["communicators", "coverage", "matching", "versions"]

_MOST_SHAPES = 50
#: The name of an exception begins within so much of its line.
_EXCEPTION = 160
#: The lines of benchmarks, which need no line of NCCL to show their end.
_BENCHMARKS = ("nccltests.", "program.result")
#: The lines that NCCL prints while it makes a communicator.
_INIT = ("bootstrap.", "comm.shape", "comm.start", "graph.", "topo.", "tuning.")
#: The stages before a communicator is ready.
_EARLY = frozenset(STAGES[: STAGES.index("ready")])
#: Parts of the catalogue whose lines come from what runs beside NCCL.
_BESIDE = frozenset(
    {"beside", "kernel", "launcher", "nccltests", "program", "pytorch", "scheduler", "serving", "system"}
)


def matching(job: Job) -> Matching:
    """Count exchanges with both ends, with only the first, and with only the second."""
    totals = job.scan.totals
    calls = job.scan.calls
    late = sum(1 for c in calls if c.state == "received")
    open_calls = sum(1 for c in calls if c.state in ("begun", "served"))
    stray = sum(1 for x in job.scan.fds if x.asked is None)
    open_fds = sum(1 for x in job.scan.fds if x.asked is not None and x.done is None)
    return Matching(
        proxy_calls=MatchCount(totals.calls_matched, open_calls, late),
        fd_exchanges=MatchCount(totals.fds_matched, open_fds, stray),
        connections=_connections(job),
        shm_segments=_ledger(job, ("shm",)),
        ipc_buffers=_ledger(job, ("ipc", "cumem")),
        collectives=_collectives(job),
        sendrecv=MatchCount(
            totals.pairs_matched,
            sum(p.pending_sends for p in job.scan.pairs),
            sum(p.pending_recvs for p in job.scan.pairs),
        ),
    )


def _connections(job: Job) -> MatchCount:
    """Compare the connections that services opened with those that clients report as connected."""
    opened: dict[int | None, int] = {}
    connected: dict[int | None, int] = {}
    by_name = _messages(job)
    counts = job.scan.counts
    for name in counts.names:
        role = by_name[name].role if name in by_name else None
        table = opened if role == "rpc.new_conn" else connected if role == "rpc.connected" else None
        if table is not None:
            rows = counts.rows([name])
            for proc, count in zip(counts.proc[rows].tolist(), counts.times[rows].tolist(), strict=True):
                run = job.run_of(proc)
                table[run] = table.get(run, 0) + count
    matched = sum(min(n, connected.get(run, 0)) for run, n in opened.items())
    return MatchCount(matched, sum(opened.values()) - matched, sum(connected.values()) - matched)


def _ledger(job: Job, names: Iterable[str]) -> MatchCount:
    opens = closes = 0
    for name in names:
        o, c, _ = job.scan.totals.ledgers.get(name, (0, 0, 0))
        opens, closes = opens + o, closes + c
    matched = min(opens, closes)
    return MatchCount(matched, opens - matched, closes - matched)


def _collectives(job: Job) -> MatchCount:
    matched = sum(g.matched for g in job.scan.groups)
    return MatchCount(matched, sum(max((r.ops for r in g.ranks), default=0) - g.matched for g in job.scan.groups), 0)


def communicators(job: Job) -> tuple[Communicator, ...]:
    """The communicators of all runs; the largest of each run comes first."""
    out = []
    for run in job.runs:
        groups = sorted(run.groups, key=lambda g: (g != run.world, -_size(job.members.get(g, [])), g))
        for group in groups:
            members = job.members.get(group, [])
            out.append(
                Communicator(
                    run=run.index,
                    name=comm_name(job, group),
                    nranks=_size(members) or None,
                    ranks_seen=tuple(sorted({m.rank for m in members if m.rank >= 0})),
                    init_started=sum(1 for m in members if m.start is not None),
                    init_complete=sum(1 for m in members if m.complete is not None),
                    destroyed=sum(1 for m in members if m.end is not None),
                )
            )
    return tuple(out)


def _size(members: Sequence[CommInstance]) -> int:
    return max((m.nranks for m in members), default=0)


def coverage(job: Job, runs: Sequence[Run], findings: Sequence[Finding] = ()) -> Coverage:
    """What was read, what no entry matches, and the environment that would show what is missing."""
    totals = job.scan.totals
    files = job.scan.files
    unseen = [absent(job, run.index) for run in runs]
    missing = sorted({rank for ranks in unseen for rank in ranks.listed})
    healthy = all(r.verdict is Verdict.HEALTHY for r in runs) and bool(runs)
    cut, unsure = _cut(job)
    notes = [
        f"the last line of {files[i].path} is not complete: it was cut, or its process still writes it" for i in cut
    ]
    notes += [f"the last line of {files[i].path} has no line end, and its message may be cut" for i in unsure]
    notes += [
        f"{files[i].path} ends inside a Python traceback, before the line that names the exception"
        for i in _cut_stacks(job, findings)
    ]
    notes += list(getattr(job.scan, "notes", ()))
    if job.run_by_stream:
        notes.append(
            f"these files belong to {len(runs)} jobs: one rank or task is a different process in some of them, or Slurm's job numbers differ. Each job is judged separately, as a run"
        )
    notes += earlier.note(job, runs)
    documents = foreign.inputs(job)
    notes += [item.note for item in documents if item.note]
    instead = _instead(job, runs, findings)
    # where no line is NCCL's or a signal from outside ended the job, more of NCCL's lines show no more
    told = instead is not None and instead != _BEFORE_THE_END
    outside = _no_nccl(job) or (told and any(CODES[f.code].from_outside for f in findings))
    if (lacks := instead or (_rest(job, runs) if not _told(runs, findings) else None)) is not None:
        notes.append(f"{LACKS}{lacks}")
    if more := sum(len(ranks) - len(ranks.listed) for ranks in unseen):
        notes.append(f"{counted(more, 'more rank')} without a log {plural(more, 'is', 'are')} not listed")
    if totals.torn:
        notes.append(
            f"{counted(totals.torn, 'torn line')}: {plural(totals.torn, 'its text ends', 'their texts end')} inside a message, or where a number may go on"
        )
    beside = _beside(job)
    ours = totals.matched - beside
    beside = _as_lines(job, beside, ours)
    return Coverage(
        files=len(files) + len(documents),
        bytes=totals.bytes + sum(item.nbytes for item in documents),
        lines=totals.lines,
        matched=ours + beside,
        unmatched=totals.unmatched,
        torn=totals.torn,
        other=totals.other,
        shapes=tuple(
            Shape(s.shape, s.count, files[s.first.file].path, s.first.line) for s in job.scan.shapes[:_MOST_SHAPES]
        ),
        missing_ranks=tuple(missing),
        missing_subsystems=() if outside else _missing_subsystems(job),
        rerun_with={} if healthy or (instead is not None and not _unshown(job)) else logs_of_a_run(),
        notes=tuple(notes),
        beside=beside,
    )


def _beside(job: Job) -> int:
    """How many of the matched lines another program than NCCL printed."""
    by_name, printed, own = _messages(job), counts(job), load().by_name
    others = [
        name
        for name in printed.names
        if (entry := by_name.get(name)) is not None
        and (
            entry.subsystem in _BESIDE
            or (entry.level == "NONE" and (entry.subsystem == "misc" or (entry.where == "line" and name not in own)))
        )
    ]
    # one line can count for several where a launcher folds equal lines, or where it holds two records
    totals = job.scan.totals
    return min(sum(printed.sums(*others).values()), totals.matched, totals.lines) if others else 0


def _as_lines(job: Job, beside: int, ours: int) -> int:
    """How many lines hold the matched records of other programs: a line can hold several."""
    totals = job.scan.totals
    room = totals.lines - totals.blank - totals.other - totals.unmatched - totals.torn - ours
    if not beside or room <= 0:  # a launcher folds equal lines, so that the records of NCCL are more than the lines
        return beside
    return room if not ours else min(beside, room)


def _cut(job: Job) -> tuple[list[int], list[int]]:
    """The files whose last line stops in the middle of a message, and those where it may: no entry knows it, or its last field is empty.

    A known line that lacks only its end of line is in neither.
    """
    files, known = job.scan.files, lines.catalogue(job)
    ends = {
        process.last.file: process.last
        for process in job.scan.processes
        if process.last.line == files[process.last.file].lines and not files[process.last.file].complete_end
    }
    texts = {file: lines.message_at(job, ref).strip() for file, ref in ends.items()}
    heads, unsure = _cut_heads(job)
    cut = sorted({*heads, *(file for file, text in texts.items() if known.cut(text) or _open_quote(text))})
    lacking = (file for file, text in texts.items() if file not in cut and _lacks_its_end(known.match(text)))
    return cut, sorted({*unsure, *lacking} - {*cut})


def _cut_heads(job: Job) -> tuple[list[int], list[int]]:
    """The files whose last line stops within `host:pid:tid` of the process that printed the line above, and those where it may: it has a part of the host."""
    files = job.scan.files
    cut: list[int] = []
    unsure: list[int] = []
    for process in job.scan.processes:
        file = process.last.file
        if files[file].complete_end or process.last.line != files[file].lines - 1 or not process.host:
            continue
        below = lines.below(job, process.last)
        text = "".join(e.text for e in job.quotes.of(below)).strip() if below is not None else ""
        head = f"{process.host}:{process.pid}:"
        if text and (head.startswith(text) or text.startswith(head)):
            (cut if len(text) > len(process.host) else unsure).append(file)
    return cut, unsure


def _lacks_its_end(found: tuple[Message, Mapping[str, Value]] | None) -> bool:
    return found is None or list(found[1].values())[-1:] == [""]


def _cut_stacks(job: Job, findings: Sequence[Finding]) -> list[int]:
    """The files that end inside a Python traceback, whichever finding it belongs to."""
    named: dict[str, int] = {}
    for item in (item for finding in findings for item in finding.evidence if _names_exception(item.text)):
        named[item.file] = max(item.line, named.get(item.file, 0))
    found = (e for run in endings.runs(job) for part in (unfinished, headless, untold) for e in part(job, run))
    return sorted(
        {
            e.ref.file
            for e in found
            if not endings.done(job, job.run_of_event(e))
            and e.ref.line >= named.get(job.scan.files[e.ref.file].path, 0)
        }
    )


def _names_exception(text: str) -> bool:
    """Whether a line is the last one of a traceback: it begins, behind the tag of a launcher, with the name of an exception."""
    return any(word.endswith(("Error:", "Exception:")) for word in text[:_EXCEPTION].split())


def _open_quote(text: str) -> bool:
    """Whether a message ends within the text that it quotes: ``Cuda failure 999 'unknown err``."""
    before, quote, quoted = text.rpartition("'")
    return bool(quote) and text.count("'") % 2 == 1 and before.endswith((" ", "(", "=")) and bool(quoted.strip())


def _missing_subsystems(job: Job) -> tuple[str, ...]:
    by_name = _messages(job)
    seen = {by_name[name].subsystem for name in (*job.scan.counts.names, *job.scan.events.names) if name in by_name}
    if job.scan.totals.calls_matched or job.scan.calls:
        seen.add("proxy")
    return tuple(name for name, part in WANTED.items() if part not in seen)


def _messages(job: Job) -> Mapping[str, Message]:
    """The messages of the scan's catalogue, including the user's own."""
    return (getattr(job.scan, "catalogue", None) or load()).by_name


def _no_nccl(job: Job) -> bool:
    """Whether no line is NCCL's."""
    return job.scan.totals.matched <= _beside(job) and not job.scan.totals.unmatched


def _instead(job: Job, runs: Sequence[Run], findings: Sequence[Finding]) -> str | None:
    """What an undecided input lacks where more lines of NCCL would not decide; None where they may."""
    if not runs or any(r.verdict is not Verdict.INCONCLUSIVE or r.suspects for r in runs):
        return None
    by_name = _messages(job)
    names = [name for name in (*job.scan.counts.names, *job.scan.events.names) if name in by_name]
    if _no_nccl(job):
        if all(scheduler_end(job, run.index) is not None for run in runs):
            return None
        if any(CODES[f.code].from_outside for f in findings):
            return "what sent the signal: the lines before it, and the logs of the scheduler and of the other nodes"
        if any(name.startswith(_BENCHMARKS) for name in names):
            return "the end of the log, where the benchmark prints its summary or its error"
        if not job.scan.files and standing.stands(job):
            return "the stacks of all ranks once more, at least a minute later; give both"
        return None
    informed = any(by_name[name].level == "INFO" for name in names)
    if not informed or not any(name.startswith(_INIT) for name in names):
        return None
    if any(furthest_stage(job, p) not in _EARLY for run in job.runs for p in run.procs):
        return None
    if any(f.severity is Severity.ERROR for f in findings):
        return None
    return _rest(job, runs, ", which stops before init is complete")


#: Of a program that says that its work is finished.
_ENDED = "whether the processes have ended: if so, the job is done. If they still run, take the stacks of their threads (gdb; py-spy dump for Python)"
#: What a log lacks that goes on to the end of a job which something ended.
_BEFORE_THE_END = "the stacks of all processes in another run, before something ends it"


def _rest(job: Job, runs: Sequence[Run], where: str = "") -> str | None:
    """What every undecided input lacks: what follows its last line, and the logs of ranks that have none. ``where`` says how far it came."""
    worst = max(runs, key=lambda r: (r.verdict.badness, r.confidence), default=None)
    if worst is None or worst.verdict is not Verdict.INCONCLUSIVE:
        return None
    files = job.scan.files
    if job.scan.totals.homeless:
        return (
            "what the other processes did: give the logs of a part of the job, such as the nodes of one pipeline stage"
        )
    ends = f"the rest of the logs{where}"
    if len(files) == 1:
        last = f"line {files[0].lines} of {os.path.basename(files[0].path)}{', which is cut' if _torn_end(job) else ''}"
        ends = f"the end of the log{where}: what follows {last}"
        ends += ", and the lines before the first one of this excerpt" if _begins_late(job, worst) else ""
    unseen = sorted({rank for run in job.runs for rank in absent(job, run.index).listed})
    if unseen and all(torn_down(job, p) for run in job.runs for p in run.procs):
        return f"the {plural(len(unseen), 'log')} of {spans_text(spans_of(unseen))}"
    if not unseen and len(job.runs) == 1 and program.finished(job, worst.index):
        return _ENDED
    others = f", and the {plural(len(unseen), 'log')} of {spans_text(spans_of(unseen))}" if unseen else ""
    if scheduler_end(job, worst.index) is not None:  # nothing of the job follows
        return others.removeprefix(", and ") or None
    if recorded.over(job, worst.index):  # the archive holds all that there is
        return None
    if shown_end.shows_end(job, worst.index):
        if unseen:
            return others.removeprefix(", and ")
        return _BEFORE_THE_END if shown_end.ended_from_outside(job, worst.index) else None
    return f"{ends}{others}. If nothing follows and the processes still run, take the stacks of their threads (gdb; py-spy dump for Python)"


def _told(runs: Sequence[Run], findings: Sequence[Finding]) -> bool:
    """Whether a verdict rests on a finding, which has a next step of its own."""
    told = [f.title.strip() for f in findings if f.severity is not Severity.INFO]
    return any(title in run.reason for title in told for run in runs)


def _begins_late(job: Job, run: Run) -> bool:
    """Whether the ranks of a run met, and no line shows the start of a communicator."""
    info = job.runs[run.index]
    met = past_bootstrap(job, info) and not begins(job, info)
    return met and not any(proc in job.instances_of for proc in info.procs)


def _torn_end(job: Job) -> bool:
    """Whether the last line of the only file stops inside a message, also where an end of line was added."""
    (source,), known = job.scan.files, lines.catalogue(job)
    last = next((p.last for p in job.scan.processes if p.last.line == source.lines), None)
    return last is not None and known.cut(lines.message_at(job, last).strip())


def _unshown(job: Job) -> bool:
    """Whether a rank connects and the log lacks the lines of the proxy, which show what it waits for."""
    connecting = any(furthest_stage(job, p) == "connect" for run in job.runs for p in run.procs)
    return connecting and "PROXY" in _missing_subsystems(job)


def versions(job: Job) -> tuple[str, ...]:
    """The library versions, as printed."""
    found: dict[str, None] = {}
    events = job.scan.events
    names = [name for name in events.names if name.rsplit(".", 1)[-1] == "version"]
    for _, text, product in events.fields(names, "version", "product"):
        if text is not None:
            found[f"{product} {text}" if product is not None else str(text)] = None
    return tuple(found)
