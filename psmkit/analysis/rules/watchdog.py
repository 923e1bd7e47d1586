"""Framework watchdogs: which collective did not finish, and which rank never joined it.

The ranks that report a timeout are the waiting ones. The culprit is another rank: its last enqueued work is smaller than the
one that timed out, it runs another operation under the same number, or it reports nothing at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from psmkit.analysis.facts import calls, clock, damage, outside, program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.naming import joined, ranks_text, spans_of, spans_text
from psmkit.analysis.inference import afterwards, desync
from psmkit.analysis.inference.absent import Absent, absentees, called, stopped_before
from psmkit.analysis.inference.causes import causes
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.process_groups import (
    LISTED_SILENT,
    OF_GROUP,
    Group,
    Member,
    cut_ranks,
    cut_short,
    groups_of,
    job_ranks,
    level_calls,
    others_text,
    reporter,
    silent_ranks,
    size_of,
    size_text,
)
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model import Finding, Named
from psmkit.model.wording import plural

__all__ = ["find"]

_STATUS = ("torch.watchdog.status", "torch.dump.timeout_signal")
_HEARTBEAT = ("torch.heartbeat.stuck", "torch.heartbeat.timeout", "torch.heartbeat.hang")
# Their numbers are separate from those of collectives, or stand for several operations.
_UNORDERED = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN", "RECVANYSOURCE"})

_MOST_SPANS = 16
_FEW = 4

_CHECK_LINKS = "Check the link counters and Xid messages of all hosts."
_DONE = " These ranks have completed all work that they enqueued in this group, so the collective probably belongs to another process group."
_MORE_OUTPUT = "Run psmkit again with the logs of all ranks."


@rule(order=60)
def find(job: Job) -> list[Finding]:
    """Watchdog and heartbeat timeouts, ranks that are behind, collectives that differ."""
    out: list[Finding] = []
    names = ("torch.watchdog.timeout", *_STATUS)
    for run, told in outside.runs_of(job, *names).items():
        # a watchdog may only report, and leave the job at work
        events = [e for e in told if not program.came_after(job, e)]
        for group in groups_of(job, events):
            found = _judge(job, run, group)
            out.extend(_inside(group, f) for f in found) if group.within else out.extend(found)
    out.extend(_heartbeats(job, timed_out={f.run for f in out}))
    return out


def _inside(group: Group, finding: Finding) -> Finding:
    """A finding whose numbers count within a process group: they are no ranks of the job."""
    comm = f"process group {group.name}" + (f" ({group.label})" if group.label else "")
    ends = finding.named or tuple(Named(rank) for rank in finding.culprits)
    named = tuple(replace(n, basis="torch.watchdog.status", comm=comm) for n in ends)
    text = f"{finding.explanation} {OF_GROUP}"
    return replace(finding, ranks=(), culprits=(), suspects=(), processes=(), named=named, explanation=text)


def _judge(job: Job, run: int | None, group: Group) -> list[Finding]:
    reporters = group.reporters
    if not reporters:
        return _signalled(job, run, group)
    numbered = [m for m in reporters if m.seq is not None]
    # Most ranks wait in the work that hangs; a few that gave up on an earlier one are behind it. On a tie the earlier one counts,
    # but of two ranks the one that waits in it lags.
    at = Counter(m.seq for m in numbered if m.seq is not None)
    most = [seq for seq in at if at[seq] == max(at.values())]
    ordered = all(m.op is not None and m.op not in _UNORDERED for m in numbered)
    work = (max if len(numbered) == 2 and ordered else min)(most, default=None)
    waiting = [m for m in numbered if m.seq == work] if work is not None else reporters
    first = next((m for m in waiting if m.timeout is group.first), waiting[0])
    op = first.op or "collective"
    what = f"{op} {work}" if work is not None else op
    label = f" ({group.label})" if group.label else ""
    name = "" if group.default else f" of process group {group.name}{label}"
    out: list[Finding] = []

    differing = _differing(job, run, group, waiting, what + name)
    out.extend(differing)
    behind = _behind(group, work)
    absent = absentees(job, run, group, op) if not behind and not differing else Absent()
    idle: list[Member] = []
    if behind and not differing and (stopped := stopped_before(job, run, group, behind)).ranks:
        absent, idle, behind = stopped, behind, []
    lagging = {m.rank for m in behind} | absent.ranks
    blamed = lagging or {r for f in differing for r in f.culprits}
    seconds = first.timeout.fields.get("timeout") if first.timeout is not None else None
    limit = f" in {seconds // 1000} s" if isinstance(seconds, int) else ""
    # a rank that gave up on another work is listed separately: it does not wait in this one
    stuck = [m for m in waiting if m.rank not in lagging]
    refs = [first.timeout.ref if first.timeout else None, first.status.ref if first.status else None]
    refs += [m.status.ref for m in behind[:3] if m.status]
    why = _reason(job, run, group, waiting, behind, absent, bool(differing))
    silent = MissingRanks(0, ()) if blamed else silent_ranks(job, run, group)
    suspects = [] if blamed else _suspects(job, run, group, silent) or [m.rank for m in _earlier(group, waiting, work)]
    out.insert(
        0,
        new_finding(
            job,
            "PSM305",
            run=run,
            title=f"watchdog timeout: {what}{name} did not finish{limit} on {group.ranks(_short(stuck or waiting))}; {why}",
            confidence=0.95 if behind or differing else 0.9,
            explanation=_waits(job, run, group, silent),
            next_step=_next_step(job, run, group, waiting, first, blamed, suspects, silent),
            refs=refs,
            ranks=sorted({m.rank for m in reporters} | blamed),
            procs=job.procs_of(run, (m.rank for m in reporters)),
            culprits=sorted(blamed),
            suspects=suspects,
        ),
    )
    if all(m.completed == -1 for m in waiting):
        out[0] = replace(out[0], explanation=f"{out[0].explanation} The group never completed an operation.")
    if lagging:
        place = f"{what}{name}" if name else f"{op} #{work}" if work is not None else op
        why += _idle_text(idle)
        refs = [*refs[:2], *(m.status.ref for m in idle[:1] if m.status)]
        out.append(_never_entered(job, run, group, place, stuck or waiting, behind, absent, why, refs))
    return out


def _idle_text(idle: Sequence[Member]) -> str:
    """What the ranks did that have done all their work, and may wait for one that failed."""
    if not idle:
        return ""
    works = joined(str(n) for n in sorted({m.enqueued for m in idle if m.enqueued is not None}))
    last = f"{plural(len(idle), 'its', 'their')} last enqueued work, {works}, is complete"
    return f". {ranks_text(m.rank for m in idle)} did not join it either: {last}".replace(". r", ". R")


def _next_step(
    job: Job,
    run: int | None,
    group: Group,
    waiting: Sequence[Member],
    first: Member,
    blamed: Collection[int],
    suspects: Collection[int],
    silent: MissingRanks,
) -> str:
    if len(blamed) == 1 and group.default and (cause := causes(job, run).get(next(iter(blamed)))) is not None:
        at = f" ({_at(job, cause.refs[0])})" if cause.refs else ""
        return f"Fix what stopped {ranks_text(blamed)}: {cause.text}{at}. A longer NCCL timeout does not help."
    if blamed:
        what = f"Find out what {group.ranks(ranks_text(blamed))} did instead."
        return afterwards.step(job, run, what, first.timeout, several=len(blamed) > 1)
    if suspects:
        return afterwards.step(
            job,
            run,
            f"Look first at the output of {group.ranks(ranks_text(suspects))}{_ends_at(job, run, group, suspects)}.",
            first.timeout,
            several=len(suspects) > 1,
        )
    streams = {m.timeout.stream for m in waiting if m.timeout is not None}
    if len(silent) == 1 < len(waiting) and len(streams) == 1 and not group.default and not cut_short(job, run):
        who = _who(job, run, group, silent)
        return afterwards.step(job, run, f"Look first at the output of {who}.", first.timeout)
    more = "" if _in_view(job, run, group, waiting) else _MORE_OUTPUT
    if more and group.default and _have_logs(job, run, group, silent):
        more = f"Add what {ranks_text(silent)} printed, if these files lack it."
    return afterwards.step(job, run, more, first.timeout, every=True) + f" {_CHECK_LINKS}"


def _have_logs(job: Job, run: int | None, group: Group, silent: MissingRanks) -> bool:
    """Whether the logs of all ranks of the job are in view, also of the few that do not report."""
    procs = [job.proc_of(run, rank) for rank in silent] if run is not None and len(silent) <= LISTED_SILENT else []
    return bool(procs) and None not in procs


def _at(job: Job, ref: Ref) -> str:
    return f"{Path(job.scan.files[ref.file].path).name}:{ref.line}"


def _ends_at(job: Job, run: int | None, group: Group, ranks: Collection[int]) -> str:
    """Where the lines of the only suspect end, if any line is known to be its."""
    ref = afterwards.last_line(job, run, next(iter(ranks))) if len(ranks) == 1 and group.default else None
    return f", whose last known line is {_at(job, ref)}" if ref is not None else ""


def _short(members: Sequence[Member]) -> str:
    """Ranks for a title: many of them as ranges."""
    spans = spans_of(m.rank for m in members)
    ranges = len(spans) <= _FEW < len(members)
    return spans_text(spans) if ranges else ranks_text(m.rank for m in members)


def _never_entered(
    job: Job,
    run: int | None,
    group: Group,
    what: str,
    waiting: Sequence[Member],
    behind: Sequence[Member],
    absent: Absent,
    why: str,
    refs: Sequence[Ref | None],
) -> Finding:
    """The ranks that did not come to a collective in which the others wait: NCCL does what it has to."""
    ranks = sorted({m.rank for m in behind} | absent.ranks)
    known = absent.causes or {r: c for r, c in causes(job, run).items() if r in ranks}
    told = next(iter(known.values()), None)
    late = clock.behind(job, ranks, [m.timeout for m in waiting if m.timeout is not None])
    when = f" (last activity {late} before the others)" if late else ""
    # only a count shows what a rank enqueued: it may do so before it ends
    proven = bool(behind) and all(m.status is not None for m in behind)
    # a rank whose own last work is not complete may hang in that one
    stuck = [m for m in behind if m.timeout is not None or not m.idle]
    entered = f"{group.ranks(ranks_text(ranks))} {'never' if proven else 'most likely never'} entered {what}{when}"
    rest = [
        f"{group.ranks(ranks_text(m.rank for m in waiting))} wait{'s' if len(waiting) == 1 else ''} for {'it' if len(ranks) == 1 else 'them'}"
    ]
    if told is not None and absent.unsure and told.text.startswith("it "):
        rest.insert(0, f"a process whose rank is unknown {told.text.removeprefix('it ')}")
    elif told is not None:
        rest.insert(0, told.text if len(ranks) == 1 else f"rank {next(iter(known))}: {told.text}")
    elif stuck:
        where = f"{stuck[0].op or 'collective'} #{stuck[0].enqueued}"
        rest.insert(0, f"{'it' if len(ranks) == 1 else f'rank {stuck[0].rank}'} is still in {where}")
    sure = proven or bool(known and not absent.unsure)
    correct = proven and not stuck
    if correct:
        rest.append("NCCL waited correctly")
    return new_finding(
        job,
        "PSM302",
        run=run,
        title=f"{entered}; {'; '.join(rest)}",
        confidence=0.93 if sure else 0.85 if behind else 0.75 if known or absent.seen else 0.6,
        explanation=f"{why[:1].upper()}{why[1:]}."
        + " The other ranks enqueued that work and wait."
        + ("" if not correct else " A collective needs all its ranks, so the cause is not in NCCL."),
        next_step="Read the traceback or the last lines of this rank, and fix that error. A longer NCCL timeout does not help."
        if told is not None
        else afterwards.what_it_did(job, run, several=len(ranks) > 1),
        refs=[
            *(r for c in list(known.values())[:3] for r in c.refs),
            *(e.ref for m in behind[:4] if (e := m.status or m.timeout)),
            *refs,
        ],
        ranks=ranks,
        procs=job.procs_of(run, ranks),
        culprits=ranks,
    )


def _behind(group: Group, work: int | None) -> list[Member]:
    """The ranks that enqueued less than the work that timed out."""
    if work is None:
        return []
    for member in group.members.values():
        member.enqueued = member.seq if member.enqueued is None and member.timeout is not None else member.enqueued
    behind = [m for m in group.members.values() if m.enqueued is not None and m.enqueued < work]
    ahead = any(m.enqueued is not None and m.enqueued >= work for m in group.members.values())
    # else the numbers count something other than the work that timed out
    return behind if ahead or len(behind) < len(group.members) else []


def _earlier(group: Group, waiting: Sequence[Member], work: int | None) -> list[Member]:
    """The few ranks that gave up on an earlier work than the others, who completed that one: its part there did not end."""
    done = min((-1 if m.completed is None else m.completed for m in waiting), default=-1)
    found = [m for m in group.reporters if m.seq is not None and work is not None and m.seq < work]
    clear = all(m.op not in _UNORDERED and m.seq is not None and m.seq <= done for m in found)
    few = len(found) <= LISTED_SILENT and 2 * len(found) < len(group.reporters)
    return found if clear and few and not group.doubled else []


def _reason(
    job: Job,
    run: int | None,
    group: Group,
    waiting: Sequence[Member],
    behind: Sequence[Member],
    absent: Absent,
    differing: bool,
) -> str:
    """Why the work did not finish, as far as the watchdogs show it."""
    if behind:
        earlier = sorted({f"{m.op or 'collective'} {m.seq}" for m in behind if m.seq is not None})
        late = group.ranks(ranks_text(m.rank for m in behind))
        if any(m.status is None for m in behind):
            return f"{late} gave up on {joined(earlier)}"  # what they enqueued after it is not in their reports
        why = (
            f"{late} never joined it: {'its' if len(behind) == 1 else 'their'} last enqueued work is "
            f"{joined(str(n) for n in sorted({m.enqueued for m in behind if m.enqueued is not None}))}"
        )
        if earlier:
            why += f", and {'it waits' if len(behind) == 1 else 'they wait'} in {joined(earlier)}"
        return why
    if absent.causes:
        rank, cause = next(iter(absent.causes.items()))
        return f"rank {rank} most likely never joined it: {cause.text}"
    if absent.ranks:
        return f"{ranks_text(absent.ranks)} {'reports' if len(absent.ranks) == 1 else 'report'} nothing and most likely never joined it"
    if differing:
        return "the ranks called different operations with this number"
    if _diverge(job, run):
        return "all ranks that report joined it, but their NCCL lines show different calls"
    seen = {m.rank for m in waiting}
    if elsewhere := [m for m in group.reporters if m.rank not in seen and m.seq is not None]:
        works = joined(sorted({f"{m.op or 'collective'} {m.seq}" for m in elsewhere})[:_FEW])
        done = elsewhere == _earlier(group, waiting, waiting[0].seq)
        return f"{group.ranks(_short(elsewhere))} gave up on {works}" + (", which the others completed" if done else "")
    if (level := desync.level(job, run)) is not None and level.seq == waiting[0].seq:
        return level.told
    if _in_view(job, run, group, waiting):
        return "no rank lags behind"
    if group.folded:
        return "Ray folds the reports of several processes into one line (RAY_DEDUP_LOGS=0 shows them all)"
    total = size_of(job, run, group)
    silent = silent_ranks(job, run, group)
    cut = cut_ranks(job, run) - seen if group.default else set()
    if total is None and seen == set(range(len(seen))) and not cut:
        return others_text(job, run, len(seen))
    of = size_text(job, run, group)
    who = _who(job, run, group, silent) if 0 < len(silent) <= LISTED_SILENT else ""
    if not (silent or cut):
        return f"only {group.ranks(ranks_text(seen))} of {of} {'reports' if len(seen) == 1 else 'report'} the timeout"
    if 0 < len(silent) < len(seen) and len(silent) <= LISTED_SILENT and cut_short(job, run):
        return f"the log ends within these reports, and shows none of {who}"
    if 0 < len(silent) < len(seen) and len(silent) <= LISTED_SILENT:
        return f"{who} {'does' if len(silent) == 1 else 'do'} not report it"
    reports = "watchdog report" if len(seen) == 1 else "watchdog reports"
    same = {
        m.rank for m in group.members.values() if m.status is not None and m.status.fields.get("work") == waiting[0].seq
    }
    torn = f" and a line of {ranks_text(cut - same)} that is cut" if cut - same else ""
    stated = ""
    if more := same - seen:
        stated = f" and {plural(len(more), 'a line', 'lines')} of {group.ranks(ranks_text(more))} that {plural(len(more), 'gives', 'give')} up on the same work"
    return f"the log holds only the {reports} of {group.ranks(_short(waiting))}{stated}{torn}, of {of} ranks"


def _in_view(job: Job, run: int | None, group: Group, waiting: Sequence[Member]) -> bool:
    """Whether the log shows that every rank is at this work: all report it, or all made the same number of calls."""
    total = size_of(job, run, group)
    whole = total is not None and len({m.rank for m in waiting}) >= total
    return whole or (group.name in (None, "0") and run is not None and level_calls(job, run))


def _who(job: Job, run: int | None, group: Group, silent: MissingRanks) -> str:
    """The silent ranks of a process group: the global ones where the lines show them, else with the group that they count in."""
    if group.default:
        return f"{ranks_text(silent)} of {size_text(job, run, group)}"
    known = job_ranks(job, run, group, silent)
    if known is not None:
        return ranks_text(known)
    return f"{ranks_text(silent)} of group {group.label or group.name} ({size_text(job, run, group)} ranks)"


def _waits(job: Job, run: int | None, group: Group, silent: MissingRanks) -> str:
    """What the reports say about who waits, and which ranks do not report."""
    text = "The ranks that report a timeout waited in this collective until their time was over."
    if group.folded:
        return text
    spans = list(islice(silent.spans(), _MOST_SPANS + 1))
    if group.default and 0 < len(spans) <= _MOST_SPANS:
        text += f" The log shows no report of {spans_text(spans)}."
    elif 0 < len(silent) <= LISTED_SILENT:
        text += f" The log shows no report of {_who(job, run, group, silent)}."
    return text


def _suspects(job: Job, run: int | None, group: Group, silent: MissingRanks) -> list[int]:
    """The silent ranks, if they are the few of a group whose ranks are those of the job, in one output.

    With one file a rank, only the file of a silent rank shows that it does not report. Ray folds equal lines of several processes into one.
    """
    reports = [m.timeout for m in group.reporters if m.timeout is not None]
    if cut_short(job, run):
        return []
    few = len(silent) <= LISTED_SILENT and 2 * len(silent) < len(group.members) + len(silent)
    ranks = job_ranks(job, run, group, silent) if few and not group.doubled and not group.folded else None
    if not ranks or (not group.default and len(ranks) > 1):
        return []
    if len({t.stream for t in reports}) > 1 and not (len(ranks) == 1 and _given(job, group, ranks[0])):
        return []
    # a rank whose own calls are in the log as often as those of the others joined in silence
    joined_in = called(job, run, group)
    return [rank for rank in ranks if rank not in joined_in or not group.default]


def _given(job: Job, group: Group, rank: int) -> bool:
    """Whether the input has the output of a rank that does not report: lines with its tag, or a file named as those of the others are."""
    if rank in outside.printing_ranks(job):
        return True
    files = [(m.rank, job.scan.files[m.timeout.ref.file].path) for m in group.reporters if m.timeout is not None]
    around = {path.rpartition(str(reporter))[::2] for reporter, path in files}
    head, tail = around.pop()
    whole = not around and not head[-1:].isdigit() and not tail[:1].isdigit()
    return whole and f"{head}{rank}{tail}" in {file.path for file in job.scan.files}


def _diverge(job: Job, run: int | None) -> bool:
    """Whether the NCCL lines of the run show a mismatch, which another rule reports."""
    groups = job.runs[run].groups if run is not None and run < len(job.runs) else frozenset()
    return any(
        g.divergence is not None and not calls.retyped(g.divergence) and not damage.explains(job, g)
        for g in job.scan.groups
        if g.group in groups
    )


def _whole(op: str) -> bool:
    """Whether the name of an operation has no damaged letter."""
    return op.isascii() and op.isupper()


def _differing(job: Job, run: int | None, group: Group, waiting: list[Member], what: str) -> list[Finding]:
    """Ranks that run another operation, or another size, under the same number."""
    kinds: dict[tuple[str | None, int | None], list[Member]] = {}
    for member in waiting:
        op, size = member.op, member.size
        if member.seq is not None and op is not None and _whole(op) and (op not in _UNORDERED or size is not None):
            kinds.setdefault((op, size), []).append(member)
    if len({op for op, _ in kinds}) > 1:
        kinds = {key: members for key, members in kinds.items() if key[0] not in _UNORDERED}
    if len(kinds) < 2:
        return []
    # Operations that allow different sizes, and unknown ones, cannot be compared by size.
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    odd = [m for _, members in ordered[1:] for m in members]
    culprits = [m.rank for m in odd] if len(ordered[0][1]) > len(odd) else []
    pair = waiting if len(waiting) == 2 else []  # nothing shows which of the two is right
    parts = [
        f"{group.ranks(ranks_text(m.rank for m in members))} called {op}"
        + (f" of {size} elements" if size is not None else "")
        for (op, size), members in ordered
    ]
    return [
        new_finding(
            job,
            "PSM301",
            run=run,
            title=f"collective mismatch at {what}: {joined(parts)}",
            confidence=0.93,
            explanation="The watchdogs of these ranks report the same number and different operations or sizes."
            + (" Two calls do not show which of the ranks is right." if pair else ""),
            refs=[m[0].timeout.ref for _, m in (*ordered[1:4], ordered[0]) if m[0].timeout is not None],
            ranks=[m.rank for m in waiting],
            procs=job.procs_of(run, (m.rank for m in waiting)),
            culprits=culprits,
            named=[Named(m.rank, either=True) for m in pair],
        )
    ]


def _signalled(job: Job, run: int | None, group: Group) -> list[Finding]:
    """Only requests to dump are present: they name the rank that timed out, and each rank's last works."""
    if not group.signalled:
        return []
    states = {m.rank: m for m in group.members.values() if m.enqueued is not None}
    most = max((m.enqueued or -1 for m in states.values()), default=-1)
    least = [m for m in states.values() if m.enqueued is not None and m.enqueued < most]
    clear = least if 2 * len(least) < len(states) else []
    idle = group.signalled <= states.keys() and all(m.idle and m.completed is not None for m in states.values())
    who = ranks_text(group.signalled)
    return [
        new_finding(
            job,
            "PSM305",
            run=run,
            title=f"watchdog timeout: {who} gave up on a collective"
            + (f"; {ranks_text(m.rank for m in clear)} enqueued less work than the others" if clear else ""),
            confidence=0.85,
            explanation=f"torch asked {ranks_text(states) if states else 'a rank'} for a dump because a collective timed out on {who}. The log does not show the line of the timeout."
            + (_DONE if idle else ""),
            next_step=None if clear else _timeout_line(group, states),
            refs=[m.status.ref for m in [*clear[:3], *list(states.values())[:2]] if m.status is not None],
            ranks=sorted({*states, *group.signalled}),
            procs=job.procs_of(run, states),
            culprits=sorted(m.rank for m in clear),
        )
    ]


def _stuck_thread(job: Job, run: int | None, who: str, seconds: Value | None) -> str:
    limit = f"the {seconds} s" if seconds is not None else "the time (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC)"
    again = f"run again, and take the stacks of all its threads (gdb, py-spy dump) within {limit} before torch ends it."
    if not afterwards.ended(job, run):
        return f"If the process still runs, attach gdb at once, and take the stacks of its threads: torch ends such a process. If it is gone, {again}"
    return f"The process has ended: read the last lines that {who} printed before this one. R{again[1:]}"


def _timeout_line(group: Group, states: Mapping[int, Member]) -> str:
    """Where to find the line of a timeout that this log lacks: only the rank that timed out prints it."""
    who = ranks_text(group.signalled)
    if group.signalled <= states.keys():
        whose = "that rank" if len(group.signalled) == 1 else "each of them"
        return f"Look in the full output of {who} for `Watchdog caught collective operation timeout`: it names the collective. The part of {whose} in this log lacks that line."
    logs = "log" if len(group.signalled) == 1 else "logs"
    return f"Run psmkit again with the {logs} of {who}: the line of the timeout names the collective."


def _heartbeats(job: Job, timed_out: set[int | None]) -> list[Finding]:
    out = []
    for run, events in outside.runs_of(job, *_HEARTBEAT).items():
        ranks: dict[int, Event] = {}
        for event in events:
            rank = reporter(job, event)
            if rank is not None:
                ranks.setdefault(rank, event)
        first = events[0]
        stuck = {reporter(job, e): e.fields["seconds"] for e in events if "seconds" in e.fields}
        # a time is that of the rank whose line shows it
        seconds = next(iter(stuck.values())) if ranks.keys() <= stuck.keys() and len({*stuck.values()}) == 1 else None
        who = ranks_text(ranks) if ranks else "a rank"
        # A watchdog that times out too was not stuck from the start; its sibling threads got stuck as a consequence.
        culprits = sorted(ranks) if len(ranks) == 1 and run not in timed_out else []
        out.append(
            new_finding(
                job,
                "PSM305",
                run=run,
                title=f"torch's watchdog on {who} made no progress"
                + (f" for {seconds} s" if seconds is not None else ""),
                confidence=0.6 if run in timed_out else 0.8,
                explanation=(
                    "The heartbeat monitor saw no progress of the watchdog thread; it ends the process in such a case. Such a thread is stuck in an NCCL or CUDA call, "
                    "or waits for the GIL that another thread holds in such a call."
                ),
                next_step=_stuck_thread(job, run, who, seconds),
                refs=[first.ref, *(e.ref for e in list(ranks.values())[1:3])],
                ranks=sorted(ranks),
                procs=job.procs_of(run, ranks),
                culprits=culprits,
            )
        )
    return out
