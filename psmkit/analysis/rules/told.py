"""Lines that say by themselves who failed or who is late. Their catalogue entries have a title, and name the fields with the rank.

A line that blames the process which prints it names that process: by its own rank, the launcher's tag, its device, host or process id. A line
that blames a peer names it in the fields ``missing`` (ranks), ``host`` and ``pid``; who prints it only reports.
"""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import endings, lines, outside
from psmkit.analysis.facts.deaths import collect
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import ranks_in
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.catalogue import Message
from psmkit.logparse.types import Event
from psmkit.model import CODES, Finding, Named, Severity

__all__ = ["find"]

_SURE, _LATER, _AGREED = 0.9, 0.65, 0.96
_LONGEST = 80
_SHOWN = 4


@rule(order=29)
def find(job: Job) -> list[Finding]:
    """The finding of each entry with a title, the first line of a run first: those behind it may follow from it."""
    known = lines.catalogue(job).by_name
    entries = {name: known[name] for name in job.names if name in known and known[name].title is not None}
    if not entries:
        return []
    out: list[Finding] = []
    for run in sorted(job.runs_of(*entries), key=lambda r: (r is None, r or 0)):
        kinds: dict[str, list[Event]] = {}
        for event in job.events(*entries, run=run):
            if not _after(job, run, event):
                kinds.setdefault(event.name, []).append(event)
        ordered = sorted(kinds.items(), key=lambda item: (item[1][0].stream, item[1][0].ref.seq))
        out += [_finding(job, run, entries[name], events, lead=not at) for at, (name, events) in enumerate(ordered)]
    return out


def _after(job: Job, run: int | None, event: Event) -> bool:
    """Whether a line stands behind the end of other ranks, or the work went on after it."""
    proc = event.proc if event.proc >= 0 else _owner(job, run, event)
    return endings.stopped(job, event) or endings.continued(job, run, event, proc)


def _owner(job: Job, run: int | None, event: Event) -> int | None:
    """The process that prints a line. A report about a peer is not followed by the work of that peer."""
    rank = outside.global_rank(job, event)
    return job.proc_of(run, rank) if run is not None and rank is not None else None


def _finding(job: Job, run: int | None, entry: Message, events: Sequence[Event], lead: bool) -> Finding:
    assert entry.finding is not None and entry.title is not None  # as the catalogue checks
    named = _named(job, entry, events)
    ranks = sorted({n.rank for n in named if n.rank is not None and n.basis is None})
    culprits = [] if entry.blames == "unknown" or _everyone(job, run, ranks) else ranks
    agreed = bool(culprits) and any(d.rank in culprits and d.root for d in collect(job, run))
    fields = {key: _short(value) for key, value in events[0].fields.items()}
    severity = Severity.ERROR if entry.severity == "error" else Severity.WARNING
    return new_finding(
        job,
        entry.finding,
        run=run,
        title=entry.title.format_map({**fields, "who": _who(named)}),
        severity=severity,
        confidence=_AGREED if agreed else _SURE if lead else _LATER,
        explanation=entry.meaning,
        next_step=entry.next_step or CODES[entry.finding].next_step,
        refs=[e.ref for e in events[:_SHOWN]],
        ranks=ranks,
        procs=[p for r in ranks if run is not None and (p := job.proc_of(run, r)) is not None],
        culprits=culprits if severity is Severity.ERROR else [],
        named=named if entry.blames != "unknown" and (culprits or not ranks) else [],
        stage="error",
    )


def _everyone(job: Job, run: int | None, ranks: Sequence[int]) -> bool:
    """Whether all ranks fail alike, or all but rank 0, which the others compare themselves with: then none of them is the odd one."""
    if len(ranks) < 2:
        return False
    nranks = job.runs[run].nranks if run is not None and run < len(job.runs) else None
    size = nranks if nranks is not None else max(ranks) + 1
    return size - len(ranks) <= (1 if ranks[0] == 1 else 0)


def _named(job: Job, entry: Message, events: Sequence[Event]) -> list[Named]:
    """The processes that the lines name, each once. A rank says more than a device, a host or a process id."""
    out: dict[Named, None] = {}
    for event in events:
        fields = event.fields
        host, pid, device = fields.get("host"), fields.get("pid"), fields.get("device")
        place = Named(
            host=str(host) if host is not None else None,
            pid=pid if isinstance(pid, int) and pid > 0 else None,
            device=device if isinstance(device, int) else None,
        )
        if entry.blames != "self":
            missing = [*ranks_in(fields.get("missing")), *ranks_in(fields.get("missing_2"))]
            found = [Named(rank, place.host, place.pid, device=place.device) for rank in missing]
            out.update(dict.fromkeys(found or ([place] if place != Named() else [])))
            continue
        rank, local = outside.global_rank(job, event), fields.get("local_rank")
        if rank is not None:
            out[Named(rank, place.host, place.pid, device=place.device)] = None
        elif isinstance(local, int):
            out[Named(local, place.host, place.pid, f"{ASSUMED}local rank", place.device)] = None
        elif place != Named():
            out[place] = None
    if not out and entry.blames == "self":
        out.update(dict.fromkeys(outside.tagged_process(job, events)))
    ranked = [n for n in out if n.rank is not None]
    return ranked or list(out)


def _who(named: Sequence[Named]) -> str:
    ranks = sorted({n.rank for n in named if n.rank is not None})
    if ranks:
        local = any(n.basis is not None for n in named)
        return ranks_text(ranks).replace("rank", "local rank") if local else ranks_text(ranks)
    if len(named) != 1:
        return f"{len(named)} processes" if named else "a process"
    (only,) = named
    if only.pid is not None:
        return f"process {only.pid}" if only.host is None else f"{only.host}:{only.pid}"
    where = [f"device {only.device}"] if only.device is not None else []
    where += [f"host {only.host}"] if only.host is not None else []
    return "a process on " + " of ".join(where)


def _short(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
