"""The table of ranks: a row for each rank of a process, with the state that the log shows, and one for each rank without a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from psmkit.analysis.facts import deaths, outside
from psmkit.analysis.facts.gpus import devices_of
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import absent, at_address, behind_rank
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.scheduler_end import ended_with_job
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.inference import blame, faults
from psmkit.analysis.inference.waiting import Place, waiting
from psmkit.logparse.types import CommInstance, Ref
from psmkit.model import CODES, Culprit, Evidence, Finding, RankRow, Run, Severity, Verdict
from psmkit.model.late import dataclass

__all__ = ["rank_rows"]

_IN_PROGRESS = 7  # ncclInProgress


@dataclass(slots=True)
class _Ends:
    """What the findings of a run say about its processes, and the processes and ranks that wait."""

    run: Run
    blamed: set[object] = field(default_factory=set)
    dead: set[object] = field(default_factory=set)
    lost: set[object] = field(default_factory=set)
    affected: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    waits: set[Place] = field(default_factory=set)
    lead: Evidence | None = None  # the first line about the culprits


def rank_rows(job: Job, runs: Sequence[Run], findings: Sequence[Finding]) -> tuple[RankRow, ...]:
    """One row for each rank: how far it came, and its final state. A process with several devices has a row for each of its ranks."""
    rows: list[RankRow] = []
    for run in runs:
        info = job.runs[run.index]
        ends = _ends(job, run, findings)
        for proc in sorted(info.procs, key=lambda p: (next(iter(job.ranks_of(p)), 1 << 31), p)):
            rows += _rows(job, ends, proc)
        rows += _beside(job, run, {row.rank for row in rows})
        for rank in absent(job, info.index).listed:
            state = "silent" if rank in ends.blamed else "missing"
            rows.append(RankRow(run.index, rank, None, None, None, "not seen", state, 0, None))
    return tuple(rows)


def _beside(job: Job, run: Run, known: set[int | None]) -> Iterator[RankRow]:
    """The workers that failed and of which the input has no line of NCCL's, in the table of the run that lacks ranks."""
    if not job.missing_ranks(run.index):
        return
    for named, event in outside.failed_beside(job):
        there = at_address(job, run.index, named.host) if named.host is not None else ()
        hosts = {job.process(p).host for p in there}
        if named.rank is None or named.rank not in known:
            last = f"{job.scan.files[event.ref.file].path}:{event.ref.line}"
            host = hosts.pop() if len(hosts) == 1 else named.host
            state = "failed" if run.verdict is Verdict.FAILED else "open"
            yield RankRow(run.index, named.rank, host, named.pid, None, "no NCCL line", state, 0, last)


def _rows(job: Job, ends: _Ends, proc: int) -> Iterator[RankRow]:
    process, all_ = job.process(proc), job.instances_of.get(proc, ())
    threads = _ranks(job, proc)
    alone = len(threads) == 1
    claim = job.numbering.known.get(proc)
    printed = {} if alone else _printed(job)
    for rank, device in threads:
        # a rank without lines of its own is shown with those that name no other rank of its process
        shared = printed.get((proc, None), (process.lines, process.last))
        lines, last = printed.get((proc, device), shared if rank is not None or alone else (0, process.last))
        ours = all_ if alone else [i for i in all_ if i.dev == device]
        yield RankRow(
            run=ends.run.index,
            rank=rank,
            host=process.host or None,
            pid=process.pid,
            device=device,
            stage=stage_of(job, proc) if alone else _stage(ours) or stage_of(job, proc),
            state=_state(job, ends, proc, rank, ours, alone=alone),
            lines=lines,
            last=f"{job.scan.files[last.file].path}:{last.line}",
            communicators=tuple(dict.fromkeys([comm_name(job, i.group) for i in ours])),
            rank_basis=claim.basis if claim is not None else None,
            rank_dispute=_dispute(job, proc) if proc in job.numbering.disputed else None,
            devices=(device,) if device is not None else _devices(job, proc) if alone else (),
        )


def _ranks(job: Job, proc: int) -> list[tuple[int | None, int | None]]:
    """The ranks of a process, each with its device."""
    rank = job.rank_of(proc)
    if rank is not None or not job.ranks_of(proc):
        return [(rank, job.device_of(proc))]
    devices = devices_of(job, proc)
    threads: list[tuple[int | None, int | None]] = [(rank, devices.get(rank)) for rank in job.ranks_of(proc)]
    # a rank of each device, as far as the lines show it
    return threads + [(None, device) for device in _devices(job, proc) if device not in devices.values()]


def _devices(job: Job, proc: int) -> tuple[int, ...]:
    return tuple(sorted(job.numbering.devices.get(proc, ())))


@once
def _printed(job: Job) -> dict[tuple[int, int | None], tuple[int, Ref]]:
    """The number of lines and the last line of each device of a process with several ranks, by the threads that print only for that device.

    Device None has those of all other threads.
    """
    out: dict[tuple[int, int | None], tuple[int, Ref]] = {}
    for at, thread in enumerate(job.scan.threads):
        device = job.device_on(at)
        lines, last = out.get((thread.proc, device), (0, thread.last))
        out[thread.proc, device] = lines + thread.lines, max(last, thread.last, key=lambda ref: ref.seq)
    return out


def _stage(ours: Sequence[CommInstance]) -> str | None:
    """The stage of one rank of a process with several, by its own lines; None if it has none."""
    if ours and all(i.end is not None for i in ours):
        return "done"
    if any(i.ops or i.sends or i.recvs for i in ours):
        return "working"
    return "ready" if any(i.complete is not None for i in ours) else "init" if ours else None


def _dispute(job: Job, proc: int) -> str | None:
    """The evidence for the rank of a process that contradicts itself, each with its line."""
    told = []
    for p, claim in job.numbering.disputed.get(proc, ()):
        who = "" if p == proc else f"{job.process(p).name} is "
        where = f" ({job.scan.files[claim.ref.file].path}:{claim.ref.line})" if claim.ref is not None else ""
        told.append(f"{who}rank {claim.rank} by {claim.basis}{where}")
    return ", but ".join(told) or None


def _ends(job: Job, run: Run, findings: Sequence[Finding]) -> _Ends:
    out = _Ends(run, blamed={_blamed(c) for c in run.culprits})
    names: set[str] = set()
    ended: set[str] = set()
    for finding in findings:
        if finding.run not in (None, run.index):
            continue
        error, code = finding.severity is Severity.ERROR, CODES[finding.code]
        if error and (code.dies or finding.stage in ("killed", "died", "crashed")):
            out.dead.update(_place(job, run, rank, finding.comm) for rank in finding.culprits)
        if error and finding.stage == "lost":
            out.lost.update(_place(job, run, rank, finding.comm) for rank in finding.culprits)
        if code.caused_by_watchdog:
            ended.update(finding.processes)
            out.ended.update(_procs(job, run, finding))
        if error and (run.verdict is not Verdict.HUNG or code.hangs(finding.stage)):
            names.update(finding.processes)
            out.affected.update(_procs(job, run, finding))
    for proc in job.runs[run.index].procs:
        if job.process(proc).name in names:
            out.affected.add(proc)
        if job.process(proc).name in ended:
            out.ended.add(proc)
    out.ended.update(_ended_by_launcher(job, run.index))
    out.blamed.update(_equals(job, run, findings))
    reasons = {c.why for c in run.culprits}
    out.lead = next((f.evidence[0] for f in findings if f.title in reasons and f.evidence), None)
    out.aborted.update(job.printers("comm.end.abort") & job.runs[run.index].procs)
    out.failed.update(_reported_failed(job, run.index))
    stuck = {_place(job, run, c.rank, c.comm) for c in run.culprits if c.rank is not None}
    out.waits = waiting(
        job, run.index, frozenset(p for _, p in stuck if p is not None), hung=run.verdict is Verdict.HUNG
    )
    return out


def _blamed(culprit: Culprit) -> object:
    """The rank of a culprit, or its process if no line names the rank."""
    if culprit.global_rank is not None:
        return culprit.global_rank
    if culprit.host is None and culprit.comm is not None:
        return culprit.comm, culprit.rank  # a rank of a process group of torch, which no row has
    return culprit.rank if culprit.host is None else (culprit.host, culprit.pid)


def _equals(job: Job, run: Run, findings: Sequence[Finding]) -> Iterator[object]:
    """All processes of a finding that blames processes: the culprits of a run are only the first of them."""
    reasons = {c.why for c in run.culprits}
    for finding in findings:
        if finding.title not in reasons or finding.run not in (None, run.index) or finding.culprits or finding.ranks:
            continue
        if finding.named:
            yield from ((n.host, n.pid) for n in finding.named if n.host is not None)
            continue
        names = set(finding.processes)
        for proc in job.runs[run.index].procs:
            if (info := job.process(proc)).name in names:
                yield info.host, info.pid


def _ended_by_launcher(job: Job, run: int) -> Iterator[int]:
    """The processes to which torchrun sent a signal, because another one had failed."""
    for event in job.events("launch.elastic.sigterm", run=run):
        pid = event.fields.get("pid")
        if isinstance(pid, int) and (proc := outside.proc_of_pid(job, run, pid)) is not None:
            yield proc


def _reported_failed(job: Job, run: int) -> Iterator[int]:
    """The processes that PyTorch takes down, and those whose launcher reports a signal or an exit code other than 0."""
    for event in job.events("torch.taking_down", run=run):
        if (proc := outside.proc_of_event(job, event)) is not None:
            yield proc
    for death in deaths.collect(job, run):
        if death.proc is not None and (death.code or death.signal) and not death.sent:
            yield death.proc


def _place(job: Job, run: Run, rank: int, comm: str | None) -> Place:
    """A rank of a communicator: its global rank, and its process if that is in view."""
    proc = behind_rank(job, run.index, rank, comm)
    if proc is None or len(job.ranks_of(proc)) > 1:
        return rank, proc
    return job.rank_of(proc), proc


def _procs(job: Job, run: Run, finding: Finding) -> set[int]:
    found = (behind_rank(job, run.index, rank, finding.comm) for rank in finding.ranks)
    return {proc for proc in found if proc is not None}


def _at_an_address(job: Job, error: faults.Cascade) -> bool:
    """Whether a process reports an error of its network, with an address at the other end that no process of the logs has."""
    known = error.first.known
    network = known is not None and known.finding is not None and CODES[known.finding].two_ends
    return network and bool(blame.addressed([error.first.event]))


def _unexplained(job: Job, ends: _Ends, errors: Sequence[faults.Cascade]) -> bool:
    """Whether nothing shows that the error of a process follows from another one.

    Its warning is lost, or stands above the line about the culprit, or it prints the reason itself and the culprit is an address that no process of
    the logs has.
    """
    first = next((c for c in errors if c.fatal), None)
    if first is None or first.own is False:
        return False
    at, lead = first.first.ref, ends.lead
    if lead is not None and job.scan.files[at.file].path == lead.file and at.line < lead.line:
        return True
    if any(c.either for c in ends.run.culprits) and _at_an_address(job, first):
        return True
    # a host of the job that is to blame is no address without a process
    return first.unexplained or all(
        c.rank is None and c.pid is None and c.host not in ends.run.hosts for c in ends.run.culprits
    )


def _state(job: Job, ends: _Ends, proc: int, rank: int | None, ours: Sequence[CommInstance], *, alone: bool) -> str:
    """The final state of a process, or of one of its ranks; ``open`` if the log does not show it, ``ended`` if its scheduler ended the job.

    ``waiting`` needs evidence that it waits, ``victim`` another process that is named as the cause, or a report that it was
    ended, ``failed`` a blame, an error that it returned, or the word of PyTorch or of its launcher.
    """
    process, failed = job.process(proc), ends.run.verdict is Verdict.FAILED
    ended = torn_down(job, proc) if alone else bool(ours) and all(i.end is not None for i in ours)
    if ended and proc not in ends.aborted and proc not in ends.failed:
        return "done"
    if (rank, proc) in ends.dead:
        return "died"
    if (rank, proc) in ends.lost:
        return "silent"
    if (rank is not None and rank in ends.blamed) or (process.host, process.pid) in ends.blamed:
        return "failed" if failed else "stuck"
    if not ended and ((rank, proc) in ends.waits or (ends.run.verdict is Verdict.HUNG and proc in ends.affected)):
        return "waiting"
    errors = faults.of_proc(job, proc)
    if failed and (proc in ends.ended or any(c.fatal for c in errors) or (errors and proc in ends.affected)):
        caused = ends.run.culprits and not _unexplained(job, ends, errors)
        # where nobody is to blame, a process that printed an error of its own ended for that
        own = not ends.run.culprits and any(c.fatal and c.own is not False for c in errors)
        return "victim" if caused or (proc in ends.ended and not own) else "failed"
    if proc in ends.failed or (not ended and any(_trail(c) for c in errors)):
        return "failed"
    if ended:
        return "aborted"
    return "ended" if ended_with_job(job, ends.run.index, proc) else "open"


def _trail(error: faults.Cascade) -> bool:
    """Whether the last lines of a thread return an error of its process: that process is not open."""
    return error.returned and error.last_words and error.code not in (0, _IN_PROGRESS) and not error.settled
