"""The tables of a report: matched exchanges, communicators, ranks, and what was read or is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.places import absent, behind_rank
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.waits import waits_of
from psmkit.catalogue import Message, load
from psmkit.logparse.types import CommInstance
from psmkit.model import (
    CODES,
    Communicator,
    Coverage,
    Culprit,
    Finding,
    MatchCount,
    Matching,
    RankRow,
    Run,
    Severity,
    Shape,
    Verdict,
)

__all__ = ["communicators", "coverage", "matching", "rank_rows", "versions"]

# The subsystems whose lines an analysis of a hang needs, and the part of the catalogue that shows that they were enabled.
_WANTED = {"INIT": "init", "PROXY": "proxy", "COLL": "coll", "P2P": "transport", "ENV": "param"}
_MOST_SHAPES = 50


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
    for count in job.scan.counts:
        role = by_name[count.name].role if count.name in by_name else None
        table = opened if role == "rpc.new_conn" else connected if role == "rpc.connected" else None
        if table is not None:
            run = job.run_of(count.proc)
            table[run] = table.get(run, 0) + count.count
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


def rank_rows(job: Job, runs: Sequence[Run], findings: Sequence[Finding]) -> tuple[RankRow, ...]:
    """One row for each rank: how far it came, and its final state."""
    rows = []
    for run, info in zip(runs, job.runs, strict=True):
        blamed = {_blamed(c) for c in run.culprits}
        dead = {
            rank
            for f in findings
            if f.run in (None, run.index) and f.severity is Severity.ERROR
            if f.code == "PSM402" or f.stage in ("killed", "died", "crashed")
            for rank in f.culprits
        }
        waiting = {w.waiter for w in waits_of(job, run.index) if w.proven}
        affected = _affected(job, info.index, findings)
        for proc in sorted(info.procs, key=lambda p: (_or(job.rank_of(p)), p)):
            process = job.process(proc)
            rank = job.rank_of(proc)
            rows.append(
                RankRow(
                    run=run.index,
                    rank=rank,
                    host=process.host or None,
                    pid=process.pid,
                    device=job.device_of(proc),
                    stage=stage_of(job, proc),
                    state=_state(job, run, proc, blamed, dead, waiting, affected),
                    lines=process.lines,
                    last=f"{job.scan.files[process.last.file].path}:{process.last.line}",
                    communicators=tuple(dict.fromkeys(comm_name(job, i.group) for i in job.instances_of.get(proc, ()))),
                    rank_basis=_basis(job, proc),
                    rank_dispute=_dispute(job, proc),
                )
            )
        for rank in absent(job, info.index).listed:
            state = "silent" if rank in blamed else "missing"
            rows.append(RankRow(run.index, rank, None, None, None, "not seen", state, 0, None))
    return tuple(rows)


def _basis(job: Job, proc: int) -> str | None:
    claim = job.numbering.known.get(proc)
    return claim.basis if claim is not None else None


def _dispute(job: Job, proc: int) -> str | None:
    """The evidence for the rank of a process that contradicts itself, each with its line."""
    told = []
    for p, claim in job.numbering.disputed.get(proc, ()):
        who = "" if p == proc else f"{job.process(p).name} is "
        where = f" ({job.scan.files[claim.ref.file].path}:{claim.ref.line})" if claim.ref is not None else ""
        told.append(f"{who}rank {claim.rank} by {claim.basis}{where}")
    return ", but ".join(told) or None


def _or(rank: int | None) -> int:
    return rank if rank is not None else 1 << 31


def _blamed(culprit: Culprit) -> object:
    """The rank of a culprit, or its process if no line names the rank."""
    if culprit.global_rank is not None:
        return culprit.global_rank
    return culprit.rank if culprit.host is None else (culprit.host, culprit.pid)


def _affected(job: Job, run: int, findings: Sequence[Finding]) -> set[int]:
    """The processes that a finding names as those that failed: the cause itself, or what follows from it."""
    errors = [
        f
        for f in findings
        if f.run in (None, run) and (f.severity is Severity.ERROR or CODES[f.code].caused_by_watchdog)
    ]
    names = {name for f in errors for name in f.processes}
    places = {(f.comm, rank) for f in errors for rank in f.ranks}
    found = {proc for comm, rank in places if (proc := behind_rank(job, run, rank, comm)) is not None}
    return found | {p for p in job.runs[run].procs if job.process(p).name in names}


def _state(
    job: Job,
    run: Run,
    proc: int,
    blamed: set[object],
    dead: set[int],
    waiting: set[int | None],
    affected: set[int],
) -> str:
    """The final state of a process; ``victim`` only with evidence that it failed, and ``open`` if nothing is known of it."""
    rank, process = job.rank_of(proc), job.process(proc)
    if torn_down(job, proc):
        return "done"
    if rank in dead:
        return "died"
    if not blamed.isdisjoint({rank, (process.host, process.pid)} - {None}):
        return "failed" if run.verdict is Verdict.FAILED else "stuck"
    if proc in waiting or run.verdict is Verdict.HUNG:
        return "waiting"
    if run.verdict is Verdict.FAILED and (proc in affected or any(c.fatal for c in faults.of_proc(job, proc))):
        return "victim"
    return "open"


def coverage(job: Job, runs: Sequence[Run]) -> Coverage:
    """What was read, what no entry matches, and the environment that would show what is missing."""
    totals = job.scan.totals
    files = job.scan.files
    unseen = [absent(job, run.index) for run in job.runs]
    missing = sorted({rank for ranks in unseen for rank in ranks.listed})
    lacking = _missing_subsystems(job)
    healthy = all(r.verdict is Verdict.HEALTHY for r in runs) and bool(runs)
    notes = [f"{files[i].path} does not end with a line end: it was cut or is still being written" for i in _cut(job)]
    notes += list(getattr(job.scan, "notes", ()))
    if more := sum(len(ranks) - len(ranks.listed) for ranks in unseen):
        notes.append(f"{more} more ranks have no log and are not listed")
    if totals.torn:
        notes.append(f"{totals.torn} torn {'line' if totals.torn == 1 else 'lines'}: the end of what they say is lost")
    return Coverage(
        files=len(files) + len(getattr(job.scan, "foreign", ())),
        bytes=totals.bytes,
        lines=totals.lines,
        matched=totals.matched,
        unmatched=totals.unmatched,
        torn=totals.torn,
        other=totals.other,
        shapes=tuple(
            Shape(s.shape, s.count, files[s.first.file].path, s.first.line) for s in job.scan.shapes[:_MOST_SHAPES]
        ),
        missing_ranks=tuple(missing),
        missing_subsystems=lacking,
        rerun_with={} if healthy else _rerun(),
        notes=tuple(notes),
    )


def _cut(job: Job) -> list[int]:
    return [i for i, f in enumerate(job.scan.files) if not f.complete_end]


def _missing_subsystems(job: Job) -> tuple[str, ...]:
    by_name = _messages(job)
    seen = {by_name[c.name].subsystem for c in job.scan.counts if c.name in by_name}
    seen |= {by_name[e.name].subsystem for e in job.scan.events if e.name in by_name}
    if job.scan.totals.calls_matched or job.scan.calls:
        seen.add("proxy")
    return tuple(name for name, part in _WANTED.items() if part not in seen)


def _messages(job: Job) -> Mapping[str, Message]:
    """The messages of the scan's catalogue, including the user's own."""
    return (getattr(job.scan, "catalogue", None) or load()).by_name


def _rerun() -> dict[str, str]:
    """The environment for a run that would show more: one file for each rank, and time stamps on every line.

    It enables all subsystems, whatever is missing: the full list costs little, and half a list risks a third run.
    """
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,BOOTSTRAP,PROXY,P2P,SHM,NET,COLL,REG,ALLOC,RAS,DESTROY",
        "NCCL_DEBUG_FILE": "nccl.%h.%p.log",
        "NCCL_DEBUG_TIMESTAMP_LEVELS": "INFO,WARN,TRACE",
    }


def versions(job: Job) -> tuple[str, ...]:
    """The library versions, as printed."""
    found: dict[str, None] = {}
    for event in job.scan.events:
        if "version" in event.fields and event.name.rsplit(".", 1)[-1] == "version":
            text = str(event.fields["version"])
            found[f"{event.fields['product']} {text}" if "product" in event.fields else text] = None
    return tuple(found)
