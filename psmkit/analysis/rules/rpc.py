"""Proxy calls: unanswered calls, unread responses, failing handlers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from psmkit.analysis.facts.handshake import handshakes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, name_of_rank, names_of, ranks_text, words
from psmkit.analysis.facts.places import by_local_rank
from psmkit.analysis.facts.releases import release_of
from psmkit.analysis.inference import faults, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.reported_lines import Reported
from psmkit.analysis.inference.sightings import by_run, sightings, told_by_errors, untold
from psmkit.analysis.inference.waits import Wait, call_waits
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Call, Event, Ref, ServiceTally, Value
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted

__all__ = ["find"]


@rule(order=220)
def find(job: Job) -> list[Finding]:
    """PSM101, PSM104, PSM107, and PSM105 as a note; PSM701 for calls that are open at the end of the log."""
    return [*_pending(job), *_orphans(job), *_failed(job), *_odd_sizes(job)]


def _pending(job: Job) -> list[Finding]:
    proven: dict[tuple[int | None, str, int | None], list[tuple[Call, Wait]]] = defaultdict(list)
    open_: dict[int | None, list[Call]] = defaultdict(list)
    for call, wait in call_waits(job):
        if wait.proven:
            proven[(wait.run, call.state, wait.target)].append((call, wait))
        else:
            open_[wait.run].append(call)
    out = []
    for (run, state, _), items in proven.items():
        items.sort(key=lambda item: -item[1].age)
        out.append(_unanswered(job, run, items) if state == "begun" else _unread(job, run, items))
    for run, calls in open_.items():
        stages = words(sorted({call.stage or "unknown" for call in calls}))
        out.append(
            new_finding(
                job,
                "PSM701",
                run=run,
                title=f"the log ends with {counted(len(calls), 'open proxy call')} ({stages})",
                confidence=0.9,
                explanation="A log that was cut ends like this, too. No line shows how long the ranks waited.",
                refs=[r for call in calls[:4] for r in (call.begun, call.served)],
                procs=[p for call in calls for p in (call.caller, call.service) if p is not None],
                stage="proxy call",
            )
        )
    return out


def _unanswered(job: Job, run: int | None, items: list[tuple[Call, Wait]]) -> Finding:
    """The service began a call and its handler never finished."""
    call, wait = items[0]
    service = (
        name_of_rank(job, call.service, wait.target_rank)
        if call.service is not None
        else "a proxy service that no line names"
    )
    asking = wait.waiter
    caller = name_of_rank(job, asking, wait.rank) if asking is not None else _local(job, call)
    op = f"opId 0x{call.op:x}" if call.op else "opId unknown"
    more = f" (and {counted(len(items) - 1, 'more proxy call')})" if len(items) > 1 else ""
    own = asking is not None and asking == call.service and wait.rank == wait.target_rank
    culprits = [r for r in (wait.target_rank,) if r is not None]
    return new_finding(
        job,
        "PSM101",
        run=run,
        title=f"{caller} waits for {'its own proxy' if own else service}: {wait.stage} ({op}) began and has no answer{more}",
        confidence=_confidence(job, wait),
        explanation=(
            f"{service[:1].upper()}{service[1:]} began {wait.stage} for {'one of its own threads' if own else caller}, and no line shows that its handler finished. The log goes on for "
            f"{counted(wait.age, 'line')} after that; no other call took more than {counted(job.scan.totals.max_call_age, 'line')}."
        ),
        next_step=f"Attach gdb to the proxy service thread of {service} to see what its {wait.stage} handler waits for.",
        refs=[r for c, _ in items[:4] for r in (c.begun, c.served)] + _proof(job, run),
        procs=[p for c, _ in items for p in (c.service, c.caller) if p is not None],
        ranks=sorted({r for _, w in items for r in (w.rank, w.target_rank) if r is not None}),
        culprits=culprits,
        stage=wait.stage,
    )


def _unread(job: Job, run: int | None, items: list[tuple[Call, Wait]]) -> Finding:
    """The service responded and the caller never read the response: the caller is stuck."""
    call, wait = items[0]
    asking = wait.target
    caller = name_of_rank(job, asking, wait.target_rank) if asking is not None else "the caller"
    more = f" (and to {counted(len(items) - 1, 'more proxy call')})" if len(items) > 1 else ""
    return new_finding(
        job,
        "PSM101",
        run=run,
        title=f"{caller} has not received the answer to {wait.stage} (opId 0x{call.op:x}){more}: its proxy served the call",
        confidence=round(_confidence(job, wait) - 0.1, 2),
        explanation=(
            f"{name_of(job, call.service) if call.service is not None else 'The proxy service'} served the call, and no line shows "
            f"that {caller} received the answer: its thread is stopped or dead, or the answer was lost."
        ),
        next_step=f"Check whether the process of {caller} runs, and take the stack of its thread in ncclPollProxyResponse (gdb).",
        refs=[r for c, _ in items[:4] for r in (c.begun, c.served)] + _proof(job, run),
        procs=[p for c, w in items for p in (w.target, c.service) if p is not None],
        culprits=[r for r in (wait.target_rank,) if r is not None],
        stage=wait.stage,
    )


def _local(job: Job, call: Call) -> str:
    if call.peer_local_rank is None:
        return "a rank that the log does not name"
    proc = by_local_rank(job, call.service, call.peer_local_rank) if call.service is not None else None
    return name_of(job, proc) if proc is not None else f"local rank {call.peer_local_rank}"


def _proof(job: Job, run: int | None) -> list[Ref | None]:
    return list(proof.of(job, run).refs[:2]) if run is not None else []


def _confidence(job: Job, wait: Wait) -> float:
    aged = proof.aged(wait.age, job.scan.totals.max_call_age)
    outside = wait.run is not None and bool(proof.of(job, wait.run).lasting)
    return 0.95 if aged and outside else 0.85 if aged else 0.75


def _orphans(job: Job) -> list[Finding]:
    """Only NCCL's own complaint is proof: if the line of a served call is lost, its response looks unsolicited too."""
    out = []
    for run, events in by_run(job, sightings(job, "PSM104")).items():
        procs = sorted({e.proc for e in events if e.proc >= 0})
        entries = [faults.message(job, e.name) for e in events]
        refused = all(entry is not None and entry.severity == "warning" for entry in entries)
        senders = sorted({int(str(e.fields["peer"])) for e in events if "peer" in e.fields})
        out.append(
            new_finding(
                job,
                "PSM104",
                run=run,
                title=f"{names_of(job, procs)} received a proxy response that answers no pending request"
                + (f", from {ranks_text(senders)}, and dropped it" if refused and senders else ""),
                severity=Severity.WARNING if refused else None,
                confidence=0.95,
                refs=[e.ref for e in events[:6]],
                procs=procs,
                culprits=[],
                stage="proxy call",
            )
        )
    return out


def _odd_sizes(job: Job) -> list[Finding]:
    """Setup answers of a size that no other process with the same release and kinds of connections has, in any role.

    The role of an answer is that of the newest connection of its thread, which another rank may have opened in between.
    """
    if len({size for tally in job.scan.services for _, size in tally.setups}) < 2:
        return []
    sizes: dict[int, dict[int, Ref]] = defaultdict(dict)
    for tally in job.scan.services:
        for (_, size), ref in tally.setups.items():
            sizes[tally.proc].setdefault(size, ref)
    alike: dict[object, list[int]] = defaultdict(list)
    for proc in sizes:
        shake = handshakes(job).get(proc)
        if shake is not None and shake.opened:
            alike[job.run_of(proc), release_of(job, proc), frozenset(shake.opened)].append(proc)
    out = []
    for procs in alike.values():
        number = Counter(size for proc in procs for size in sizes[proc])
        odd = [(p, size) for p in procs for size in sizes[p] if number[size] == 1]
        common = [size for size in number if number[size] >= len(procs) - 1]
        if len(procs) < 3 or len(odd) != 1 or len(common) + 1 != len(number):
            continue
        proc, size = odd[0]
        peer = next(p for p in procs if p != proc)
        out.append(
            new_finding(
                job,
                "PSM105",
                run=job.run_of(proc),
                title=f"a Setup answer of {name_of(job, proc)} has {size} bytes; those of its {len(procs) - 1} peers have {words(map(str, sorted(common)))}",
                severity=Severity.INFO,
                confidence=0.5,
                explanation="All of them run the same release and open the same kinds of connections. Another build or another mode of the transport changes this size.",
                refs=[sizes[proc][size], *list(sizes[peer].values())[:2]],
                procs=[proc],
                stage="proxy Setup",
            )
        )
    return out


def _failed(job: Job) -> list[Finding]:
    """Handlers that returned an error; the rule of errors reports those that ended the job."""
    out = []
    events, told = untold(job, "PSM107")
    asked = [e for e in events if _of_caller(job, e)]
    events = [e for e in events if not _of_caller(job, e)]
    failed = [t for t in job.scan.services if t.begun_res not in (None, 0, 7)]
    # libpsm prints why: the rule of errors reports that, or the blame leads to the rank that the reason names
    told |= {e.proc for e in job.events("libpsm.proxy.failed") if told_by_errors(job, e)}
    printed: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        printed[event.proc].append(event)
    broken: dict[int, list[ServiceTally]] = defaultdict(list)
    for tally in failed:
        broken[tally.proc].append(tally)
    for proc in sorted(printed.keys() | broken.keys() - told):
        ours, tallies = printed.get(proc, []), broken.get(proc, [])
        names = [str(e.fields["operation"]) for e in ours if "operation" in e.fields] + [
            t.begun_operation for t in tallies if t.begun_operation is not None
        ]
        ended = bool(tallies) or _ended(job, proc, ours)
        out.append(
            new_finding(
                job,
                "PSM107",
                run=job.run_of(proc),
                title=f"the proxy service of {name_of(job, proc)} failed to handle {names[0] if names else 'a request'}",
                severity=None if ended else Severity.WARNING,
                confidence=0.8,
                refs=[*(e.ref for e in ours[:4]), *(t.last_begun for t in tallies)],
                procs=[proc],
                culprits=_served_by(job, proc, ours, tallies) if ended else [],
                stage=names[0] if names else None,
            )
        )
    return [*out, *_refused(job, asked)]


def _of_caller(job: Job, event: Event) -> bool:
    """Whether a line is about the proxy service of a peer. It does not show whether that failed, ended or was slow."""
    known = faults.message(job, event.name)
    return known is not None and known.blames == "peer"


def _refused(job: Job, events: Sequence[Event]) -> list[Finding]:
    """Calls that failed at their caller, one finding for each service."""
    calls: dict[tuple[int | None, Value | None], list[Event]] = defaultdict(list)
    for event in events:
        calls[job.run_of(event.proc), event.fields.get("peer")].append(event)
    out = []
    for (run, peer), ours in calls.items():
        procs = sorted({e.proc for e in ours})
        what = words(sorted({str(e.fields["operation"]) for e in ours if "operation" in e.fields}), 3)
        known = faults.message(job, ours[0].name)
        out.append(
            new_finding(
                job,
                "PSM107",
                run=run,
                title=f"{what or 'a call'} of {names_of(job, procs)} to the proxy of rank {peer} failed",
                severity=Severity.WARNING,
                confidence=0.7,
                explanation=known.meaning if known is not None else None,
                next_step=known.next_step if known is not None else None,
                refs=[e.ref for e in ours[:4]],
                procs=procs,
                stage=what or None,
            )
        )
    return out


def _served_by(job: Job, proc: int, events: Sequence[Event], tallies: Sequence[ServiceTally]) -> list[int]:
    """The ranks of the services that failed: a process with several ranks has one for each."""
    told = [job.rank_of_thread(e) for e in events] + [job.rank_on(proc, t.thread) for t in tallies]
    return sorted({rank for rank in told if rank is not None})


def _ended(job: Job, proc: int, events: Sequence[Event]) -> bool:
    """Whether an error came back to the service through its functions before it printed these lines, and nothing went on after it."""
    return any(
        cascade.returned
        and not cascade.settled
        and not cascade.aftermath
        and any(e.fields.get("code") == cascade.code and e in lines for lines in [Reported([cascade])] for e in events)
        for cascade in faults.of_proc(job, proc)
    )
