"""Placement of processes: hosts, local ranks, the socket addresses of the RAS network, and ranks without a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from psmkit.analysis.facts.damage import lost_lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.outside import failed_beside
from psmkit.analysis.facts.ranks import MOST_DEVICES
from psmkit.logparse.types import Event, Value

#: A damaged line can name any rank; a greater one than this is not looked at.
_MOST_CALLED = 1 << 12
#: The call with which one process makes all ranks of a communicator.
_ALL = "ncclCommInitAll"

__all__ = [
    "absent",
    "absent_rank",
    "at_address",
    "behind_rank",
    "by_local_rank",
    "by_socket",
    "elsewhere_than",
    "hosts_of",
    "may_drive_others",
    "missing_at",
    "no_log",
    "procs_on",
    "rank_at",
    "single_node",
    "unnamed",
]


def hosts_of(job: Job, run: int) -> tuple[str, ...]:
    """The host names of a run."""
    return _hosts(job)[run]


@once
def _hosts(job: Job) -> list[tuple[str, ...]]:
    return [tuple(sorted({job.process(p).host for p in run.procs})) for run in job.runs]


def at_address(job: Job, run: int, addr: str) -> Collection[int]:
    """The processes of a run that take this address for themselves."""
    return _by_address(job).get((run, addr), ())


@once
def _by_address(job: Job) -> dict[tuple[int | None, str], set[int]]:
    out: dict[tuple[int | None, str], set[int]] = defaultdict(set)
    for proc, run, addr in job.values("addr", "bootstrap.using"):
        out[run, str(addr or "").split("<", 1)[0]].add(proc)
    return dict(out)


def procs_on(job: Job, run: int, host: str) -> list[int]:
    """The processes of a run on a host."""
    return _procs_on(job).get((run, host), [])


@once
def _procs_on(job: Job) -> dict[tuple[int, str], list[int]]:
    out: dict[tuple[int, str], list[int]] = defaultdict(list)
    for run in job.runs:
        for proc in run.procs:
            out[run.index, job.process(proc).host].append(proc)
    return dict(out)


def unnamed(job: Job, run: int) -> list[int]:
    """The processes of a run whose rank the log does not show: each of them may be any rank without a process."""
    return _unnamed(job)[run]


@once
def _unnamed(job: Job) -> list[list[int]]:
    known = {*job.rank_by_proc, *(proc for (_, rank), proc in job.proc_by_rank.items() if rank >= 0)}
    # a process that drives several devices may be another rank as well
    more = {(i.proc, i.nranks) for i in job.scan.instances if i.rank < 0}
    several = _several(job)
    return [
        sorted(
            p
            for p in info.procs - job.phantoms
            if p not in known or (p, info.nranks) in more or p in several[info.index]
        )
        for info in job.runs
    ]


def elsewhere_than(job: Job, run: int) -> frozenset[int]:
    """The processes of a run on hosts where the communicator of its ranks has none: NCCL prints on how many nodes it is, and its ranks in view
    are on as many hosts."""
    return _elsewhere(job)[run]


@once
def _elsewhere(job: Job) -> list[frozenset[int]]:
    nodes: dict[int, set[object]] = defaultdict(set)
    for proc, number, nranks in job.scan.events.told("nodes", "nranks"):
        run = job.run_of(proc)
        if run is not None and nranks == job.runs[run].nranks:
            nodes[run].add(number)
    out: list[frozenset[int]] = []
    for info in job.runs:
        members = job.members.get(info.world, ()) if info.world is not None else ()
        hosts = {job.process(i.proc).host for i in members if i.rank >= 0}
        known = nodes[info.index] == {len(hosts)}
        out.append(frozenset(p for p in info.procs if known and job.process(p).host not in hosts))
    return out


def may_drive_others(job: Job, run: int) -> bool:
    """Whether a process in view may drive ranks of the run that no line names."""
    return bool(_several(job)[run])


@once
def _several(job: Job) -> list[set[int]]:
    """By run, if ranks are absent: the processes that called ncclCommInitAll(), and, where a process drives several ranks, those whose start
    the input does not show: each of them may drive more devices than its lines show."""
    told = job.values("kind", "comm.start", "comm.complete", "init.timings")
    all_ = {(proc, run) for proc, run, kind in told if str(kind).startswith(_ALL)}
    out: list[set[int]] = []
    for info in job.runs:
        absent_ = info.nranks is not None and bool(job.missing_ranks(info.index))
        members = [i for g in info.groups for i in job.members.get(g, ()) if i.rank >= 0] if absent_ else []
        ranks: dict[int, set[int]] = defaultdict(set)
        for i in members:
            ranks[i.proc].add(i.rank)
        started = {i.proc for i in members if i.start is not None}
        cut = ranks.keys() - started if any(len(r) > 1 for r in ranks.values()) else set()
        out.append(cut | {p for p, run in all_ if run == info.index and p in ranks})
    return out


def absent(job: Job, run: int) -> MissingRanks:
    """The ranks of a run that have no line in the input; empty if the rank of some process is unknown, because it may be one of them."""
    return _absent(job)[run]


@once
def _absent(job: Job) -> list[MissingRanks]:
    # without a commId, the communicators of one process with several devices are not known to be one
    named: dict[tuple[int | None, int], list[int]] = defaultdict(list)
    tagged = [named.rank for named, _ in failed_beside(job)]
    # processes that the scan did not follow, or of which only a tag is known: each may be one of them
    beyond = job.scan.totals.homeless > 0 or None in tagged
    for i in job.scan.instances:
        if i.guessed:
            named[job.run_of(i.proc), i.nranks].append(i.rank)
    return [
        MissingRanks(0, ())
        if beyond or unnamed(job, info.index)
        else job.missing_ranks(info.index).without(
            [*named.get((info.index, info.nranks or 0), ()), *(rank for rank in tagged if rank is not None)]
        )
        if info.nranks is not None
        else _called(job).get(info.index, MissingRanks(0, ()))
        for info in job.runs
    ]


@once
def _called(job: Job) -> dict[int, MissingRanks]:
    """By run: the ranks without a process that exchanged a descriptor with one that the input shows, if no line names the number of ranks."""
    called: dict[int, set[int]] = defaultdict(set)
    for fd in job.scan.fds:
        here = fd.client if fd.client is not None else fd.server
        there = fd.peer if fd.client is not None else fd.rank
        run = job.run_of(here) if here is not None else None
        met = fd.received if fd.client is None else fd.done if fd.server is None else None
        if run is None or there is None or met is None or here in job.instances_of or there >= _MOST_CALLED:
            continue
        if job.proc_of(run, there) is None and not lost_lines(job, [here]):
            called[run].add(there)
    return {
        run: MissingRanks(max(ranks) + 1, (r for r in range(max(ranks)) if r not in ranks))
        for run, ranks in called.items()
    }


def no_log(job: Job, run: int) -> str:
    """What the input shows about a rank without a process, as the end of a sentence."""
    return "no line says which process it is" if unnamed(job, run) else "its log was not given"


def by_local_rank(job: Job, proc: int, local_rank: int) -> int | None:
    """The process with this local rank on the host of ``proc``, in the same run."""
    run = job.run_of(proc)
    if run is None or local_rank < 0:
        return None
    host = job.process(proc).host
    named = _by_local_rank(job).get((run, host, local_rank))
    if named is not None:
        return named
    here = _ranked_on(job).get((run, host), [])
    if single_node(job, run):
        found = job.proc_of(run, local_rank)
        return (
            found if found is not None and job.process(found).host == host and job.rank_of(found) is not None else None
        )
    # local ranks follow global ranks on a host, so all of them must be visible to assign them
    if job.runs[run].nranks is not None and not job.missing_ranks(run) and local_rank < len(here):
        return here[local_rank]
    return None


def rank_at(job: Job, proc: int, local_rank: int) -> int | None:
    """The global rank with this local rank on the host of ``proc``, in the same run. Its process may drive several ranks."""
    run = job.run_of(proc)
    if run is None or local_rank < 0:
        return None
    host = job.process(proc).host
    if single_node(job, run):
        found = job.proc_of(run, local_rank)
        return local_rank if found is not None and job.process(found).host == host else None
    here = _ranks_on(job).get((run, host), [])
    whole = job.runs[run].nranks is not None and not job.missing_ranks(run)
    return here[local_rank] if whole and local_rank < len(here) else None


@once
def _ranks_on(job: Job) -> dict[tuple[int, str], list[int]]:
    """The ranks on each host of each run."""
    out: dict[tuple[int, str], list[int]] = defaultdict(list)
    for (run, rank), proc in job.proc_by_rank.items():
        if rank >= 0:
            out[run, job.process(proc).host].append(rank)
    for ranks in out.values():
        ranks.sort()
    return dict(out)


def absent_rank(job: Job, proc: int, local_rank: int) -> int | None:
    """The global rank behind a local rank on the host of ``proc``, if no process of it is in view; None if the logs do not show it.

    On the first host of a job it is the local rank. On another host the ranks in view show the distance between the two.
    """
    run = job.run_of(proc)
    if run is None:
        return None
    nranks = job.runs[run].nranks
    distances = _distances(job).get((run, job.process(proc).host), [])
    if single_node(job, run):
        rank = local_rank
    elif len(distances) > 1 and len(set(distances)) == 1:
        rank = local_rank + distances[0]
    elif any(distances) or len(hosts_of(job, run)) > 1 or (nranks or 0) > MOST_DEVICES:
        return None
    else:
        rank = local_rank
    return rank if (nranks is None or 0 <= rank < nranks) and job.proc_of(run, rank) is None else None


@once
def _distances(job: Job) -> dict[tuple[int, str], list[int]]:
    """The global rank minus the local rank, or minus the device, of each process of a host."""
    out: dict[tuple[int, str], list[int]] = defaultdict(list)
    local = _local_ranks(job)
    for proc, claim in job.numbering.known.items():
        run = job.run_of(proc)
        at = local.get(proc, job.device_of(proc))
        if run is not None and at is not None and not claim.assumed:
            out[run, job.process(proc).host].append(claim.rank - at)
    return dict(out)


@once
def _ranked_on(job: Job) -> dict[tuple[int, str], list[int]]:
    """The processes with a rank on each host of each run, by rank."""
    out = {key: [p for p in procs if job.rank_of(p) is not None] for key, procs in _procs_on(job).items()}
    for procs in out.values():
        procs.sort(key=lambda p: job.rank_of(p) or 0)
    return out


@once
def _by_local_rank(job: Job) -> dict[tuple[int, str, int], int]:
    """The process that prints each local rank of a host."""
    out: dict[tuple[int, str, int], int] = {}
    local = _local_ranks(job)
    for (run, host), procs in _procs_on(job).items():
        for proc in procs:
            if proc in local and job.rank_of(proc) is not None:
                out.setdefault((run, host, local[proc]), proc)
    return out


@once
def _local_ranks(job: Job) -> dict[int, int]:
    out: dict[int, int] = {}
    for proc, local, nranks in job.scan.events.told("local_rank", "nranks"):
        if proc < 0 or not isinstance(local, int) or not isinstance(nranks, int):
            continue
        run = job.run_of(proc)
        if run is not None and nranks == job.runs[run].nranks:
            out[proc] = local
    return out


def single_node(job: Job, run: int) -> bool:
    """Whether the whole run is known to be on one host."""
    if run in _single_nodes(job):
        return _single_nodes(job)[run]
    return not job.missing_ranks(run) and len(hosts_of(job, run)) == 1


@once
def _single_nodes(job: Job) -> dict[int, bool]:
    out: dict[int, bool] = {}
    for proc, nodes, nranks in job.scan.events.told("nodes", "nranks"):
        run = job.run_of(proc)
        if run is not None and isinstance(nodes, int) and nranks == job.runs[run].nranks:
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
    line = _peers(job).get((run, addr))
    if line is None:
        return None
    if len(missing) == 1:
        return missing[0]
    dev = line.get("dev")
    if not isinstance(dev, int) or not single_node(job, run) or not _plain(job)[run]:
        return None
    return dev if dev in missing else None


@once
def _peers(job: Job) -> dict[tuple[int | None, str], Mapping[str, Value]]:
    """The fields of the first line of RAS about each address."""
    out: dict[tuple[int | None, str], Mapping[str, Value]] = {}
    for event in job.events("ras.peer"):
        addr = event.fields.get("addr")
        if isinstance(addr, str):
            out.setdefault((job.run_of_event(event), addr), event.fields)
    return out


@once
def _plain(job: Job) -> list[bool]:
    """Whether each member of a run's world uses the device with the number of its rank."""
    return [
        all(i.dev == i.rank for i in (job.members.get(run.world, ()) if run.world is not None else ()))
        for run in job.runs
    ]


@once
def _sockets(job: Job) -> dict[tuple[int, str], int]:
    out: dict[tuple[int, str], int] = {}
    told = job.events("ras.")
    for event in told:
        if "listen" in event.name and "client" not in event.name:
            run, addrs = job.run_of(event.proc), _addresses(event)
            if run is not None and len(addrs) == 1:
                out[(run, addrs[0])] = event.proc
    for event in told:
        run, pid = job.run_of(event.proc), event.fields.get("pid")
        if run is None or not isinstance(pid, int):
            continue
        addrs, found = _addresses(event), _only_with_pid(job).get((run, pid))
        if len(addrs) == 1 and found is not None:
            out.setdefault((run, addrs[0]), found)
    return out


def _addresses(event: Event) -> list[str]:
    """The socket addresses in a line."""
    return [v for v in event.fields.values() if isinstance(v, str) and v.endswith(">") and "<" in v]


@once
def _only_with_pid(job: Job) -> dict[tuple[int, int], int | None]:
    """The process with each pid of a run, None if there are several."""
    out: dict[tuple[int, int], int | None] = {}
    for run in job.runs:
        for proc in run.procs:
            key = (run.index, job.process(proc).pid)
            out[key] = None if key in out else proc
    return out


def behind_rank(job: Job, run: int, rank: int, comm: str | None) -> int | None:
    """The process behind a rank of a communicator, or behind a global rank if the finding names no communicator."""
    if comm is not None:
        for group in _groups_named(job).get((run, comm), ()):
            if (proc := job.proc_in(group, rank)) is not None:
                return proc
    return job.proc_of(run, rank)


@once
def _groups_named(job: Job) -> dict[tuple[int, str], list[int]]:
    out: dict[tuple[int, str], list[int]] = defaultdict(list)
    for run in job.runs:
        for group in run.groups:
            out[run.index, comm_name(job, group)].append(group)
    return dict(out)
