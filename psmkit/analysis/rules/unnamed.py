"""Errors in lines of unknown processes: excerpts without host names and pids, prefixes of other dialects.

Such a line belongs to no process, so no chain can be followed, but it still shows an error. A launcher's tag may name its rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.labels import rank_by_tag
from psmkit.analysis.facts.naming import joined, ranks_text
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.inference import blame, chains, faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.registry import rule
from psmkit.catalogue import Message
from psmkit.logparse.types import Event
from psmkit.model import CODES, Finding, Named, Severity
from psmkit.model.wording import plural

__all__ = ["find"]

_ENDS = ("comm.end.", "nccltests.ok")
#: A failure on more devices than this is no failure of one of them.
_MOST_DEVICES = 2
#: What is known of ``[2]`` without a host and a pid before it: NCCL prints its device so, and Intel MPI's -prepend-rank a rank.
_BARE = f"{ASSUMED}number in brackets"


@rule(order=20)
def find(job: Job) -> list[Finding]:
    """One finding for each kind of warning without a process; the first one is the most probable cause."""
    kinds, entries = _kinds(job)
    ends = max(job.scan.events.first[job.rows(*_ENDS)].tolist(), default=-1)
    told = any(c.fatal for c in faults.cascades(job))
    out: list[Finding] = []
    merged = _merged(kinds, entries)
    reasons = _reasons(merged, entries)
    for name, events in merged.items():
        if name in reasons.values():
            continue  # the line that it repeats says more
        known, first = entries[name], events[0]
        repeated = merged.get(reasons.get(name, ""), [])
        error = known.severity == "error" or bool(repeated) or _returned(job, first)
        fails = error and not told and (*repeated, first)[0].ref.seq > ends
        # a consequence of another line is not a second cause
        cause = fails and not any(f.severity is Severity.ERROR for f in out)
        said, where = faults.body(job, first), faults.place(first)
        # a bare number may be that of the line, and a line without a tag may be of any rank
        tagged = [rank for e in events if (rank := rank_by_tag(job, e)) is not None and not str(e.tag).isdigit()]
        ranks = sorted(set(tagged)) if len(tagged) == len(events) else []
        stated = [] if ranks else _stated(job, events)
        devices = [] if ranks else _devices(events)
        ranks = ranks or stated
        source = "Only the launcher's tag names its rank." if ranks else "so the rank is unknown."
        if stated:
            source = "One of these lines states the rank."
        host = _host(job, events) if devices else _launched(job, events)
        bare = bool(devices) and all(_bare(job, e) for e in events)
        who = ranks_text(ranks) if ranks else _who(events, devices, host, bare)
        if bare and not ranks:
            source += " NCCL prints its device in this form; a launcher that numbers lines (Intel MPI's -prepend-rank) prints a rank."
        # a connection can break at both ends; an address without a route says nothing about its process
        broke = known.blames == "peer" and faults.phrase(job, "a connection broke", said) is not None
        then = f", and then: {faults.brief(job, repeated[0])}" if repeated and cause else ""
        # an entry can be an error although its finding is none that breaks a run
        code = known.finding if known.finding in CODES and CODES[known.finding].breaks else "PSM401"
        out.append(
            new_finding(
                job,
                str(code) if cause else "PSM401",
                run=job.run_of_event(first),
                title=f"{who} {'failed' if cause else 'warned'}{f' at {where}' if where else ''}: {faults.brief(job, first)}{then}",
                severity=Severity.ERROR if cause else Severity.WARNING,
                confidence=0.7 if cause else 0.5,
                explanation=f"{known.meaning} The line carries no {'' if host else 'host and '}process in a form that psmkit knows{'. ' if ranks else ', '}{source}",
                next_step=known.advice(first.fields),
                refs=[e.ref for e in (*events[:3], *repeated[:1], *events[3:4])],
                ranks=ranks,
                culprits=ranks if cause and known.blames != "peer" and not stated else [],
                named=_named(events, stated, devices, host, bare, known, broke) if cause else [],
                stage="error",
                known_issue=issue_of(job, first, said),
            )
        )
    return out


def _returned(job: Job, warning: Event) -> bool:
    """Whether steps below a warning without a process pass an error on to the application: a chain without a process, too."""
    return any(
        step.proc < 0
        and step.stream == warning.stream
        and step.ref.seq > warning.ref.seq
        and chains.api_file(str(step.fields.get("file", "")))
        for step in job.events("debug.chain", "debug.chain.")
    )


def _reasons(merged: Mapping[str, list[Event]], entries: Mapping[str, Message]) -> dict[str, str]:
    """For the last warning of a library before a line that only repeats its result: the name of that line."""
    out: dict[str, str] = {}
    for name, events in merged.items():
        if not entries[name].relays:
            continue
        before = [
            other
            for other, warned in merged.items()
            if not entries[other].relays
            and entries[other].subsystem == entries[name].subsystem
            and warned[0].stream == events[0].stream
            and warned[0].ref.seq < events[0].ref.seq
        ]
        if before:
            out[max(before, key=lambda other: merged[other][0].ref.seq)] = name
    return out


def _launched(job: Job, events: Sequence[Event]) -> str | None:
    """The host that pdsh puts before all these lines: ``10.0.0.7: the line``."""
    found = {outside.pdsh_host(job, e.ref) for e in events}
    host = found.pop() if len(found) == 1 else None
    if events and host is not None and outside.launched_host(job, events[0].ref) == host:
        return host
    # "rank1: ", "WARN: " and "test.cc: " stand before lines, too
    named = host is not None and ("." in host or "-" in host or host.startswith(("node", "host")))
    return host if named and any(map(str.isdigit, host or "")) else None


def _kinds(job: Job) -> tuple[dict[str, list[Event]], dict[str, Message]]:
    """The warnings without a process, by message, and the entries of these messages."""
    kinds: dict[str, list[Event]] = {}
    entries: dict[str, Message] = {}
    table = job.scan.events
    for event in table.make(((table.proc < 0) & table.of_level("WARN", "ABORT")).nonzero()[0]):
        if (event.where or "").startswith("ras/"):
            continue
        known = faults.message(job, event.name)
        if known is not None and not faults.unknown(event) and known.severity in ("error", "warning"):
            kinds.setdefault(event.name, []).append(event)
            entries[event.name] = known
    return kinds, entries


def _merged(kinds: dict[str, list[Event]], entries: dict[str, Message]) -> dict[str, list[Event]]:
    """The kinds of lines, those of one failure together: they prove one code, which says what failed, about the same places."""
    heads: dict[tuple[object, ...], str] = {}
    out: dict[str, list[Event]] = {}
    for name, events in sorted(kinds.items(), key=lambda item: item[1][0].ref.seq):
        code = entries[name].finding
        says = code is not None and CODES[code].breaks and not CODES[code].general and entries[name].blames == "self"
        key = (code, frozenset((e.stream, e.tag, e.device) for e in events)) if says else (name,)
        out.setdefault(heads.setdefault(key, name), []).extend(events)
    return out


def _stated(job: Job, events: Sequence[Event]) -> list[int]:
    """The rank that lines of one device state themselves, if they agree."""
    fields = ((known.own_rank, e.fields) for e in events if (known := faults.message(job, e.name)) is not None)
    found = {rank for name, values in fields if name and isinstance(rank := values.get(name), int)}
    return sorted(found) if len(found) == 1 and len({e.device for e in events}) == 1 else []


def _devices(events: Sequence[Event]) -> list[int]:
    """The devices in the prefixes of lines whose host and pid are lost, none if a line lacks one or there are many."""
    found = {e.device for e in events}
    devices = sorted(d for d in found if d is not None and d >= 0)
    return devices if len(devices) == len(found) <= _MOST_DEVICES else []


def _many(events: Sequence[Event]) -> str | None:
    """The devices in the prefixes of these lines where there are many; None if a line lacks one."""
    found = {-1 if e.device is None else e.device for e in events}
    many = len(found) > _MOST_DEVICES and min(found) >= 0
    return f"each of the devices {joined(map(str, sorted(found)))}" if many else None


def _who(events: Sequence[Event], devices: Sequence[int], host: str | None, bare: bool) -> str:
    """Whose lines these are where their rank is unknown, for the title."""
    if bare:
        return f"the process with {joined(f'[{d}]' for d in devices)} before its line"
    if devices:
        of_host = f" of {host}" if host else ""
        return f"the rank on {plural(len(devices), 'device')} {joined(map(str, devices))}{of_host}"
    return f"a process on {host}" if host else _many(events) or "a rank that its line does not name"


def _bare(job: Job, event: Event) -> bool:
    """Whether the number in brackets stands first in its line: no host, and no other tag of a launcher, shows that it is NCCL's."""
    text = "".join(quote.text for quote in job.quotes.of(event.ref))
    return event.tag is None and text.lstrip().startswith(f"[{event.device}]")


def _host(job: Job, events: Sequence[Event]) -> str | None:
    """The name before the device in the prefix of all these lines: that of a host whose pid and thread are lost."""
    found = set()
    for event in events:
        prefix, device, _ = "".join(quote.text for quote in job.quotes.of(event.ref)).partition(f" [{event.device}] ")
        name = prefix.rpartition(" ")[2] if device else ""
        plain = name.replace("-", "").replace(".", "").replace("_", "")
        found.add(name if plain.isascii() and plain.isalnum() and not plain.isdigit() else None)
    return found.pop() if len(found) == 1 else None


def _named(
    events: Sequence[Event],
    stated: Sequence[int],
    devices: Sequence[int],
    host: str | None,
    bare: bool,
    known: Message,
    broke: bool,
) -> list[Named]:
    """The devices that report a failure. Of a connection that broke the peer, and, if only an error of a call shows it, both ends."""
    rank = stated[0] if stated else None
    places: list[int | None] = [*devices] or [None] * len(stated)
    basis = _BARE if bare and rank is None else None
    ours = [Named(rank, host=host, device=device, basis=basis) for device in places]
    if not broke:
        return ours if known.blames != "peer" else []
    peers = blame.addressed(events)
    unsure = all("err" in event.fields for event in events)
    if not (host and peers and unsure):
        return peers
    return [replace(end, either=True) for end in (*peers, *ours)]
