"""Placement of processes: hosts, local ranks, the socket addresses of the RAS network, and ranks without a process."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once

__all__ = ["absent", "by_local_rank", "by_socket", "hosts_of", "missing_at", "no_log", "single_node", "unnamed"]


def hosts_of(job: Job, run: int) -> tuple[str, ...]:
    """The host names of a run."""
    return tuple(sorted({job.process(p).host for p in job.runs[run].procs}))


def unnamed(job: Job, run: int) -> list[int]:
    """The processes of a run whose rank the log does not show: each of them may be any rank without a process."""
    return _unnamed(job)[run]


@once
def _unnamed(job: Job) -> list[list[int]]:
    known = {*job.rank_by_proc, *(proc for (_, rank), proc in job.proc_by_rank.items() if rank >= 0)}
    # a process that drives several devices may be another rank as well
    more = {(i.proc, i.nranks) for i in job.scan.instances if i.rank < 0}
    return [
        sorted(p for p in info.procs - job.phantoms if p not in known or (p, info.nranks) in more) for info in job.runs
    ]


def absent(job: Job, run: int) -> tuple[int, ...]:
    """The ranks of a run that have no line in the input; empty if the rank of some process is unknown, because it may be one of them."""
    return _absent(job)[run]


@once
def _absent(job: Job) -> list[tuple[int, ...]]:
    # without a commId, the communicators of one process with several devices are not known to be one
    named = {(job.run_of(i.proc), i.nranks, i.rank) for i in job.scan.instances if i.guessed}
    return [
        ()
        if unnamed(job, info.index)
        else tuple(r for r in job.missing_ranks(info.index) if (info.index, info.nranks, r) not in named)
        for info in job.runs
    ]


def no_log(job: Job, run: int) -> str:
    """What the input shows about a rank without a process, as the end of a sentence."""
    return "no line says which process it is" if unnamed(job, run) else "its log was not given"


def by_local_rank(job: Job, proc: int, local_rank: int) -> int | None:
    """The process with this local rank on the host of ``proc``, in the same run."""
    run = job.run_of(proc)
    if run is None:
        return None
    host = job.process(proc).host
    here = [p for p in job.runs[run].procs if job.process(p).host == host and job.rank_of(p) is not None]
    for other in here:
        if _local_ranks(job).get(other) == local_rank:
            return other
    if single_node(job, run):
        found = job.proc_of(run, local_rank)
        return found if found in here else None
    # local ranks follow global ranks on a host, so all of them must be visible to assign them
    if job.runs[run].nranks is not None and not job.missing_ranks(run) and local_rank < len(here):
        return sorted(here, key=lambda p: job.rank_of(p) or 0)[local_rank]
    return None


@once
def _local_ranks(job: Job) -> dict[int, int]:
    out: dict[int, int] = {}
    for event in job.scan.events:
        local = event.fields.get("local_rank")
        nranks = event.fields.get("nranks")
        if event.proc < 0 or not isinstance(local, int) or not isinstance(nranks, int):
            continue
        run = job.run_of(event.proc)
        if run is not None and nranks == job.runs[run].nranks:
            out[event.proc] = local
    return out


def single_node(job: Job, run: int) -> bool:
    """Whether the whole run is known to be on one host."""
    if run in _single_nodes(job):
        return _single_nodes(job)[run]
    return not job.missing_ranks(run) and len(hosts_of(job, run)) == 1


@once
def _single_nodes(job: Job) -> dict[int, bool]:
    out: dict[int, bool] = {}
    for event in job.scan.events:
        nodes, run = event.fields.get("nodes"), job.run_of(event.proc)
        if run is not None and isinstance(nodes, int) and event.fields.get("nranks") == job.runs[run].nranks:
            out[run] = nodes == 1
    return out


def by_socket(job: Job, addr: str, run: int) -> int | None:
    """The process behind a socket address of the RAS network, None if no line connects the two."""
    return _sockets(job).get((run, addr))


def missing_at(job: Job, addr: str, run: int) -> int | None:
    """The rank without a log that has this address on the RAS network, if only one qualifies."""
    missing = absent(job, run)
    if not missing or by_socket(job, addr, run) is not None:
        return None
    lines = [e.fields for e in job.events("ras.peer", run=run) if e.fields.get("addr") == addr]
    if not lines:
        return None
    if len(missing) == 1:
        return missing[0]
    dev = lines[0].get("dev")
    plain = all(i.dev == i.rank for i in job.scan.instances if i.group == job.runs[run].world)
    return dev if plain and isinstance(dev, int) and dev in missing and single_node(job, run) else None


@once
def _sockets(job: Job) -> dict[tuple[int, str], int]:
    out: dict[tuple[int, str], int] = {}
    for event in job.events("ras."):
        run = job.run_of(event.proc)
        if run is None:
            continue
        addrs = [str(v) for v in event.fields.values() if isinstance(v, str) and v.endswith(">") and "<" in v]
        if "listen" in event.name and "client" not in event.name and len(addrs) == 1:
            out[(run, addrs[0])] = event.proc
    for event in job.events("ras."):
        run, pid = job.run_of(event.proc), event.fields.get("pid")
        if run is None or not isinstance(pid, int):
            continue
        addrs = [str(v) for v in event.fields.values() if isinstance(v, str) and v.endswith(">") and "<" in v]
        found = [p for p in job.runs[run].procs if job.process(p).pid == pid]
        if len(addrs) == 1 and len(found) == 1:
            out.setdefault((run, addrs[0]), found[0])
    return out
