"""Network problems that are not yet errors: links that go down, repeated connect attempts, exhausted descriptors.

Network errors that ended the job are origins in :mod:`psmkit.analysis.rules.errors`; this rule reads the lines beside them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import blame, faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.inference.moved import of_a_move
from psmkit.analysis.inference.reported_lines import reported
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

#: The codes that this rule reports.
_CODES = ("PSM203", "PSM406", "PSM504")
#: This many connect attempts, of one rank or of all together, take longer than any healthy start.
_ATTEMPTS = 10
#: A rank may make fewer attempts than this while the others start.
_FEW = 3


@rule(order=70)
def find(job: Job) -> list[Finding]:
    """PSM203, PSM406 and PSM504 from lines outside any error chain."""
    out: list[Finding] = []
    for info in job.runs:
        out.extend(_retries(job, info.index))
        out.extend(_signs(job, info.index))
    return out


def _retries(job: Job, run: int) -> list[Finding]:
    """Ranks that repeatedly fail to reach an address at start-up."""
    tries: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in job.events("socket.connect.retry", run=run):
        tries[(event.proc, str(event.fields.get("addr", "")))].append(event)
    by_addr: dict[str, list[Event]] = defaultdict(list)
    for (proc, addr), events in tries.items():
        last = max(events, key=lambda e: e.ref.seq)
        if _tries(events) >= _FEW and not _moved(job, proc, last) and not _failed(job, proc):
            by_addr[addr].append(last)
    out = []
    for addr, events in sorted(by_addr.items()):
        long = [e for e in events if _tries([e]) >= _ATTEMPTS]
        if not long:
            lasting = [e for e in events if job.process(e.proc).last.seq <= (e.last or e.ref).seq]
            out += [_few(job, run, addr, lasting)] if sum(map(_each, lasting)) >= _ATTEMPTS else []
            continue
        events = long
        procs = sorted({e.proc for e in events})
        at = blame.target(job, events[0])
        whom = f"the process at {addr}" if addr else "a peer"
        if at is not None and at.rank is not None:
            whom = name_of(job, at.proc) if at.proc is not None else f"rank {at.rank}"
        why = str(events[-1].fields.get("err", "")) or "an error"
        # an address that the line does not print is that of the process that is gone, which PSM403 names
        unnamed = at is None and not addr and bool(blame.graph(job, run).ends())
        out.append(
            new_finding(
                job,
                "PSM203",
                run=run,
                title=f"{names_of(job, procs)} cannot reach {whom}: {why} ({_attempt(events)})",
                confidence=0.6 if unnamed else 0.75,
                explanation=f"The log shows {_attempt(events)}, and no later line of the thread that tries.",
                refs=[e.ref for e in events[:4]],
                procs=procs,
                culprits=[at.rank] if at is not None and at.rank is not None else (),
                named=_ends(job, events, why) if at is None else (),
            )
        )
    return out


def _ends(job: Job, events: list[Event], why: str) -> list[Named]:
    """The address that cannot be reached; both ends, if a single process fails to reach it and its host does not refuse."""
    peers = blame.addressed(events)
    if not peers or len({e.proc for e in events}) > 1 or faults.phrase(job, "a connection broke", why) is not None:
        return peers
    process = job.process(events[0].proc)
    own = Named(job.rank_of_thread(events[0]), process.host, process.pid, device=job.device_at(events[0]))
    return [replace(end, either=True) for end in (own, *peers)]


def _few(job: Job, run: int, addr: str, events: list[Event]) -> Finding:
    """Attempts that may still be those of a start; they are all that the log shows of these threads at its end."""
    procs = sorted({e.proc for e in events})
    why = ", ".join(sorted({str(e.fields.get("err", "an error")) for e in events}))
    numbered = any(number(e.fields, "retries") is not None for e in events)
    times = _attempt(events) if numbered else counted(sum(e.count for e in events), "attempt")
    where = addr if addr else "an address that the lines do not print"
    listens = (
        f"the process that listens at {addr}"
        if addr
        else "the process to which they connect (with the bootstrap, rank 0)"
    )
    return new_finding(
        job,
        "PSM203",
        run=run,
        title=f"{names_of(job, procs)} {plural(len(procs), 'retries', 'retry')} to connect to {where}: {why} ({times})",
        severity=Severity.WARNING,
        confidence=0.5,
        explanation="A few such attempts are normal while ranks start. No later line of the threads that try is in this log.",
        next_step=f"Give the end of this log and the log of {listens}: it has not started, it has ended, or the address is a wrong one.",
        refs=[e.ref for e in events[:4]],
        procs=procs,
    )


def _attempt(events: list[Event]) -> str:
    """Which attempt is the last one in the log, or how many there are if their lines have no number."""
    last = max(events, key=lambda e: number(e.fields, "retries") or 0)
    tried, most = number(last.fields, "retries"), number(last.fields, "max")
    if tried is None:
        return counted(_tries(events), "attempt")
    return f"attempt {tried}" + (f" of {most}" if most is not None else "")


def _each(event: Event) -> int:
    return _tries([event])


def _tries(events: list[Event]) -> int:
    """The number of the last attempt: printed by some releases, counted for others."""
    return max(max(number(e.fields, "retries") or 0, e.count) for e in events)


def _failed(job: Job, proc: int) -> bool:
    return proc in faults.failed(job)


def _moved(job: Job, proc: int, last: Event) -> bool:
    """Whether a process did something else after its last attempt to connect."""
    newest = last.last.seq if last.last is not None else last.ref.seq
    for instance in job.instances_of.get(proc, ()):
        if any(ref is not None and ref.seq > newest for ref in (instance.complete, instance.last_op, instance.end)):
            return True
    if not 0 <= last.thread < len(job.scan.threads):
        return True
    later = job.scan.threads[last.thread].last
    if later.seq <= newest:
        return False
    text = lines.message_at(job, later).strip()  # the line of another attempt may be cut
    return not (lines.catalogue(job).cut(text) or lines.message_at(job, last.ref).startswith(text))


@once
def _bad_signs(job: Job) -> dict[int | None, list[tuple[Event, str]]]:
    """The events outside cascades that the catalogue marks as bad signs, with their codes, by run."""
    inside = reported(job)
    wanted: dict[str, str] = {}
    out: dict[int | None, list[tuple[Event, str]]] = defaultdict(list)
    for name in job.names:
        known = faults.message(job, name)
        if known is not None and known.severity in ("warning", "error") and known.finding in _CODES:
            wanted[name] = known.finding
    for event in job.scan.events.of(*wanted):
        if event.proc >= 0 and event not in inside and not of_a_move(job, event):
            out[job.run_of(event.proc)].append((event, wanted[event.name]))
    return dict(out)


def _signs(job: Job, run: int) -> list[Finding]:
    """INFO lines that the catalogue marks as bad signs."""
    groups: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event, code in _bad_signs(job).get(run, ()):
        groups[(event.name, code)].append(event)
    out = []
    for (name, code), events in groups.items():
        known = faults.message(job, name)
        procs = sorted({e.proc for e in events})
        times = sum(e.count for e in events)
        out.append(
            new_finding(
                job,
                code,
                run=run,
                title=f"{names_of(job, procs)} saw network trouble {counted(times, 'time')}: {faults.body(job, events[0])}",
                severity=Severity.WARNING,
                confidence=0.6,
                explanation=(known.meaning if known is not None and known.meaning else "") or None,
                next_step=(known.next_step if known is not None and known.next_step else "") or None,
                refs=[e.ref for e in events[:4]],
                procs=procs,
                known_issue=issue_of(job, events[0]),
            )
        )
    return out
