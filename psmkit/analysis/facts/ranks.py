"""The rank of each process, with the evidence for it.

A line about the communicator decides. Without one, a process has the rank that its own lines, its launcher's tag and its launcher's
reports agree on; where they disagree it has none. What remains are assumptions, such as "ranks follow devices": they are kept apart,
because a reader must see that they are no facts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

from psmkit.analysis.facts.tags import is_default_group, local_rank_of_tag, pid_of_tag, rank_of_tag, slot_of_tag
from psmkit.catalogue import load
from psmkit.logparse.tables import Events, ScanData
from psmkit.logparse.types import Event, Process, Ref, Value
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = ["ASSUMED", "MOST_DEVICES", "Claim", "Evidence", "Numbering", "evidence", "number"]

#: The beginning of the basis of a rank that is assumed.
ASSUMED = "assumed: "
#: Subsystems of threads that select no device: their lines show device 0, whatever the rank's is.
_NO_DEVICE = frozenset({"ras", "bootstrap", "socket", "uds", "ib", "net", "param", "plugins"})
_NO_RANK = 1 << 31  # no job has this rank
_FEW = 64
#: A host has at most this many GPUs, so a larger job has more hosts.
MOST_DEVICES = 16


@row(frozen=True, slots=True)
class Claim:
    """One piece of evidence for a rank. ``basis`` is the catalogue name of the line, or a kind of evidence in words."""

    rank: int
    basis: str
    ref: Ref | None = None

    @property
    def assumed(self) -> bool:
        """Whether this is an assumption."""
        return self.basis.startswith(ASSUMED)


@dataclass(slots=True)
class Evidence:
    """What a scan says about ranks, by process; ``by_device`` keeps the threads of a process with several GPUs apart."""

    claims: dict[int, dict[int, Claim]] = field(default_factory=lambda: defaultdict(dict))  # the first of each rank
    by_device: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    devices: dict[int, frozenset[int]] = field(default_factory=dict)
    listed: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # devices by a program's own table
    local: dict[int, int] = field(default_factory=dict)
    helpers: frozenset[str] = frozenset()
    spread: set[int] = field(default_factory=set)  # processes of a communicator on several hosts

    def device(self, proc: int) -> int | None:
        """The device of a process, None if it has several or prints none."""
        found = self.devices.get(proc, frozenset())
        return next(iter(found)) if len(found) == 1 else None


@dataclass(slots=True)
class Numbering:
    """The ranks of a job's processes. ``disputed`` has the contradicting claims, each with the process that makes it."""

    known: dict[int, Claim] = field(default_factory=dict)
    assumed: dict[int, Claim] = field(default_factory=dict)
    disputed: dict[int, tuple[tuple[int, Claim], ...]] = field(default_factory=dict)
    by_device: dict[tuple[int, int], int] = field(default_factory=dict)
    devices: dict[int, frozenset[int]] = field(default_factory=dict)
    helpers: frozenset[str] = frozenset()  # messages of threads that select no device

    def device(self, event: Event) -> int | None:
        """The device of the thread that printed a line, None if it may not have selected one."""
        return _selected(event, self.helpers)

    def of_threads(self, events: Events, procs: Collection[int]) -> dict[int, int]:
        """The device of each thread of these processes whose lines show only one."""
        if not procs:
            return {}
        helpers = [at for at, kind in enumerate(events.kinds) if kind in self.helpers]
        # a line with device 0 may come from a thread that selected none
        chose = (events.device > 0) | ((events.device == 0) & ~events.placed & ~np.isin(events.message, helpers))
        rows = np.flatnonzero(np.isin(events.proc, list(procs)) & (events.thread >= 0) & chose)
        seen: dict[int, set[int]] = defaultdict(set)
        for pair in np.unique(events.thread[rows].astype(np.int64) << 32 | events.device[rows]).tolist():
            seen[pair >> 32].add(pair & 0xFFFFFFFF)
        return {thread: next(iter(found)) for thread, found in seen.items() if len(found) == 1}


def evidence(scan: ScanData) -> Evidence:
    """Collect what lines, tags and launchers say about ranks."""
    out = Evidence()
    catalogue = (getattr(scan, "catalogue", None) or load()).by_name
    out.helpers = frozenset(
        name
        for name, message in catalogue.items()
        if message.early or message.subsystem in _NO_DEVICE or message.role == "proc.birth"
    )
    named = {name: message.own_rank for name, message in catalogue.items() if message.own_rank is not None}
    pids: dict[int, list[Process]] = defaultdict(list)
    for process in scan.processes:
        pids[process.pid].append(process)
    _stated(scan, named, out, pids)
    for at, nodes in scan.events.fields(scan.events.names, "nodes"):
        if isinstance(nodes, int) and nodes > 1 and (proc := int(scan.events.proc[at])) >= 0:
            out.spread.add(proc)
    for fd in scan.fds:
        if fd.client is not None and fd.rank is not None and (fd.done is None or fd.server is not None):
            out.claims[fd.client].setdefault(fd.rank, Claim(fd.rank, "proxy.fd.asked", fd.asked))
    out.devices = _devices(scan, out.helpers)
    for proc, listed in out.listed.items():
        if len(listed) > 1 or proc not in out.devices:  # what its lines show may be only the first of them
            out.devices[proc] = out.devices.get(proc, frozenset()) | listed
    _outside(scan, out, pids)
    _tags(scan, out)
    _own_proxies(scan, out)
    return out


def _stated(scan: ScanData, named: Mapping[str, str], out: Evidence, pids: Mapping[int, list[Process]]) -> None:
    """The ranks that lines state, in the order of the scan. There are several for each rank, so few become objects."""
    events = scan.events
    told: list[tuple[int, int, str]] = []
    for name in events.names:
        if name in named:
            rows = events.rows([name])
            values = zip(events.values(name, named[name], rows), events.values(name, "group", rows), strict=True)
            told += [
                (at, rank, name)
                for at, (rank, group) in zip(rows.tolist(), values, strict=True)
                if isinstance(rank, int) and rank >= 0 and (group is None or is_default_group({"group": group}))
            ]
    told.sort(key=itemgetter(0))
    rows = np.array([at for at, _, _ in told], dtype=np.intp)
    zero = (events.device[rows] == 0) & events.placed[rows]  # its place decides
    whole = rows[(events.proc[rows] < 0) | zero]
    made = dict(zip(whole.tolist(), events.pick(whole), strict=True))
    first: list[tuple[int, int, int, str]] = []
    known: set[tuple[int, int]] = set()
    for (at, rank, name), proc, device in zip(
        told, events.proc[rows].tolist(), events.device[rows].tolist(), strict=True
    ):
        event = made.get(at)
        who = _named(event, pids) if event is not None and event.proc < 0 else proc
        if who is None:
            continue
        if (who, rank) not in known:
            known.add((who, rank))
            first.append((at, who, rank, name))
        chosen = device if event is None and (device > 0 or (device == 0 and name not in out.helpers)) else None
        chosen = _selected(event, out.helpers) if event is not None else chosen
        if event is not None and event.proc < 0 and isinstance(device := event.fields.get("device"), int):
            chosen = device  # a table of ranks names the process and the device of each
            out.listed[who].add(device)
        if chosen is not None:
            out.by_device[who, chosen].add(rank)
    refs = events.refs(np.array([at for at, *_ in first], dtype=np.intp))
    for (_, who, rank, name), ref in zip(first, refs, strict=True):
        out.claims[who][rank] = Claim(rank, name, ref)


def _named(event: Event, pids: Mapping[int, list[Process]], host: Value | None = None) -> int | None:
    """The process that a line outside NCCL's is about: by its pid, or by the pid in its tag."""
    pid = event.fields["pid"] if "pid" in event.fields else pid_of_tag(event.tag)
    host = event.fields.get("host", host)
    found: Sequence[Process] = pids.get(pid, ()) if isinstance(pid, int) else ()
    if host is not None:
        found = [p for p in found if _short(p.host) == _short(str(host))]
    return found[0].index if len(found) == 1 else None


def _outside(scan: ScanData, out: Evidence, pids: Mapping[int, list[Process]]) -> None:
    """The ranks that lines outside NCCL's give to a process id: torchrun's reports of failed workers, and tags such as vLLM's."""
    hosts: dict[int, Event] = {}  # of torchrun's report, by stream
    ranks: dict[int, Event] = {}
    events = scan.events
    launchers = np.array([kind.startswith("launch.") for kind in events.kinds], dtype=np.bool_)
    wanted = (events.proc < 0) & (events.tagged | launchers[events.message])
    for event in events.of(*(events.kinds[at] for at in np.unique(events.message[wanted]).tolist())):
        if event.proc >= 0:
            continue
        match event.name:
            case "launch.elastic.host":
                hosts[event.stream] = event
            case "launch.elastic.rank":
                ranks[event.stream] = event
            case "launch.elastic.exitcode" if (told := ranks.pop(event.stream, None)) is not None:
                host = hosts[event.stream].fields.get("host") if event.stream in hosts else None
                _claim(out, _named(event, pids, host), told.fields.get("rank"), Claim(0, told.name, told.ref))
            case _:
                rank = rank_of_tag(event.tag) if pid_of_tag(event.tag) is not None else None
                local = event.fields.get("local_rank") if event.name.startswith("launch.") else None
                proc = _named(event, pids) if rank is not None or local is not None else None
                if rank is not None:
                    _claim(out, proc, rank, Claim(0, "launcher tag", event.ref))
                if proc is not None and isinstance(local, int):
                    out.local.setdefault(proc, local)


def _claim(out: Evidence, proc: int | None, rank: Value | None, claim: Claim) -> None:
    if proc is not None and isinstance(rank, int) and rank >= 0 and len(out.devices.get(proc, ())) < 2:
        out.claims[proc].setdefault(rank, Claim(rank, claim.basis, claim.ref))


def _short(host: str) -> str:
    return host.split(".", 1)[0]


def _selected(event: Event, helpers: frozenset[str]) -> int | None:
    if event.device is None or event.device < 0:
        return None
    helper = event.name in helpers or (event.where or "").startswith(("ras/", "bootstrap", "misc/"))
    return None if helper and event.device == 0 else event.device


def _devices(scan: ScanData, helpers: frozenset[str]) -> dict[int, frozenset[int]]:
    """The devices of each process: those of its communicators, else those that its lines print."""
    seen: dict[int, set[int]] = defaultdict(set)
    out: dict[int, set[int]] = defaultdict(set)
    events = scan.events
    helping = np.array([kind in helpers for kind in events.kinds], dtype=np.bool_)[events.message]
    known = (events.proc >= 0) & (events.device >= 0)
    plain = known & ((events.device > 0) | ~(events.placed | helping))
    for proc, device in _pairs(events.proc[plain], events.device[plain]):
        seen[proc].add(device)
    for event in events.make(np.flatnonzero(known & ~plain & ~helping)):  # its place decides
        if _selected(event, helpers) is not None:
            seen[event.proc].add(0)
    working: dict[int, set[int]] = defaultdict(
        set
    )  # by the prefixes of operations, whose caller may have selected another
    for instance in scan.instances:
        if instance.dev is not None:
            made = instance.rank >= 0 or instance.start is not None
            (out if made else working)[instance.proc].add(instance.dev)
    for proc, devices in [*seen.items(), *working.items()]:
        out.setdefault(proc, devices)
    for proc in _on_first(scan, out, known):
        out[proc] = {0}
    same: dict[frozenset[int], frozenset[int]] = {}  # thousands of processes have one of a few devices
    return {proc: same.setdefault(found := frozenset(devices), found) for proc, devices in out.items()}


def _on_first(scan: ScanData, out: Collection[int], known: npt.NDArray[np.bool_]) -> list[int]:
    """The processes that print device 0 in lines that other processes of their host print on other devices: these threads selected theirs."""
    events = scan.events
    rows = np.flatnonzero(known)
    hosts: dict[str, int] = {}
    places = np.array([hosts.setdefault(p.host, len(hosts)) for p in scan.processes], dtype=np.int64)
    kinds = np.zeros(len(events.kinds), dtype=np.int64)  # the messages that occur, numbered from 0
    kinds[events.message] = 1
    kinds = np.cumsum(kinds) - 1
    key = places[events.proc[rows]] * (int(kinds.max(initial=0)) + 1) + kinds[events.message[rows]]
    others = np.zeros(int(key.max(initial=-1)) + 1, dtype=np.bool_)  # whether other devices print it
    others[key[events.device[rows] > 0]] = True
    chosen = rows[(events.device[rows] == 0) & others[key]]
    return [proc for proc in np.flatnonzero(np.bincount(events.proc[chosen])).tolist() if proc not in out]


def _pairs(procs: npt.NDArray[Any], devices: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Each process with each device that its lines print; both are 0 or more."""
    few = int(devices.max(initial=-1)) + 1
    if few > _FEW:
        pairs = np.unique(procs.astype(np.int64) << 32 | devices).tolist()
        return [(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs]
    printed = np.zeros((int(procs.max(initial=-1)) + 1) * few, dtype=np.bool_)
    printed[procs.astype(np.int64) * few + devices] = True
    return [divmod(place, few) for place in np.flatnonzero(printed).tolist()]


def _tags(scan: ScanData, out: Evidence) -> None:
    # a task may start a process for each GPU of its host, or drive several; its number is then not a rank
    sharing: dict[tuple[int, str | None, int], int] = defaultdict(int)
    for process in scan.processes:
        sharing[process.stream, process.tag, process.incarnation] += 1
    for process in scan.processes:
        if process.tag is None:
            continue
        if sharing[process.stream, process.tag, process.incarnation] > 1 or len(out.devices.get(process.index, ())) > 1:
            continue
        local = local_rank_of_tag(process.tag)
        slot = slot_of_tag(process.tag)
        if local is not None:
            out.local[process.index] = local
        elif slot is not None:
            out.claims[process.index].setdefault(slot, Claim(slot, "launcher tag", process.first))


def _own_proxies(scan: ScanData, out: Evidence) -> None:
    """The local rank of each process, from the connections to its own proxy."""
    tallies: dict[int, list[Mapping[tuple[str, int, int], int]]] = defaultdict(list)
    for tally in scan.services:
        tallies[tally.proc].append(tally.opened)
    known: dict[
        tuple[int, ...], int | None
    ] = {}  # thousands of ranks open the same connections and share their mappings
    for proc, ours in tallies.items():
        key = tuple(map(id, ours))
        if key not in known:
            known[key] = _most_opened(ours)
        local = known[key]
        if local is not None:
            out.local.setdefault(proc, local)


def _most_opened(opened: Iterable[Mapping[tuple[str, int, int], int]]) -> int | None:
    """The local rank that opened most of these connections: peers connect to a proxy too, but less often than its own rank."""
    clients: Counter[int] = Counter()
    for tally in opened:
        for (_, _, local_rank), times in tally.items():
            if 0 <= local_rank < _NO_RANK:
                clients[local_rank] += times
    ranked = clients.most_common(2)
    return ranked[0][0] if len(ranked) == 1 or (ranked and ranked[0][1] > ranked[1][1]) else None


def number(
    scan: ScanData,
    found: Evidence,
    into: Numbering,
    procs: frozenset[int],
    stated: Mapping[int, int | None],
    nranks: int | None,
    phantoms: frozenset[int],
) -> None:
    """Number the processes of one run.

    ``stated`` are those that lines of the run's largest communicator name, None for a process with several ranks.
    """
    here = {p: Claim(rank, "communicator") for p, rank in stated.items() if rank is not None}
    loose = sorted(p for p in procs if p not in stated and p not in phantoms)
    wanted: dict[int, Claim] = {}
    for p in loose:
        claims, devices = found.claims.get(p, {}), found.devices.get(p, frozenset())
        if len(devices) > 1:
            # its threads are ranks of their own; a device with two ranks has none
            ranks = {d: found.by_device.get((p, d), set()) for d in devices}
            into.by_device.update({(p, d): next(iter(these)) for d, these in ranks.items() if len(these) == 1})
        elif len(claims) == 1:
            wanted[p] = next(iter(claims.values()))
        elif len(claims) > 1:
            into.disputed[p] = tuple((p, claim) for claim in claims.values())
    here.update(_agreed(scan, here, wanted, nranks, into))
    here.update(_by_local_rank(scan, found, procs, here, stated, nranks, into))
    into.known.update(here)
    rest = [p for p in loose if p not in here and p not in into.disputed and found.device(p) is not None]
    into.assumed.update(_by_device(scan, found, procs, rest, here, nranks))


def _agreed(
    scan: ScanData, here: Mapping[int, Claim], wanted: Mapping[int, Claim], nranks: int | None, into: Numbering
) -> dict[int, Claim]:
    """The claims that no other process contradicts: a rank is one process."""
    holders: dict[int, list[tuple[int, Claim]]] = defaultdict(list)
    for p, claim in [*here.items(), *wanted.items()]:
        holders[claim.rank].append((p, claim))
    out: dict[int, Claim] = {}
    for p, claim in wanted.items():
        others = holders[claim.rank]
        names = {(scan.processes[q].host, scan.processes[q].pid) for q, _ in others}
        if nranks is not None and claim.rank >= nranks:
            continue
        if len(others) == 1 or (len(names) == 1 and others[0][0] == p):
            out[p] = claim
        elif len(names) > 1:
            into.disputed[p] = ((p, claim), *((q, c) for q, c in others[:2] if q != p))
    return out


def _by_local_rank(
    scan: ScanData,
    found: Evidence,
    procs: frozenset[int],
    here: Mapping[int, Claim],
    stated: Mapping[int, int | None],
    nranks: int | None,
    into: Numbering,
) -> dict[int, Claim]:
    """In a job on one host the local rank is the rank. One host in view may be one of many, so this is an assumption."""
    local = {p: found.local[p] for p in procs if p in found.local}
    hosts = {scan.processes[p].host for p in procs}
    if len(hosts) != 1 or len(set(local.values())) != len(local) or not found.spread.isdisjoint(procs):
        return {}
    if any(here[p].rank != rank for p, rank in local.items() if p in here):
        return {}
    taken = {claim.rank for claim in here.values()}
    return {
        p: Claim(rank, f"{ASSUMED}local rank", scan.processes[p].first)
        for p, rank in local.items()
        if p not in here and p not in stated and p not in into.disputed and rank not in taken
        if nranks is None or (rank < nranks <= MOST_DEVICES)
    }


def _by_device(
    scan: ScanData,
    found: Evidence,
    procs: frozenset[int],
    rest: Iterable[int],
    here: Mapping[int, Claim],
    nranks: int | None,
) -> dict[int, Claim]:
    """Ranks by device: with the offset of the ranks of the same host, or, on the only host, without any."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for p in procs:
        dev = found.device(p)
        if p in here and dev is not None:
            offsets[scan.processes[p].host].append(here[p].rank - dev)
    alone = len({scan.processes[p].host for p in procs}) == 1 and found.spread.isdisjoint(procs)
    alone = alone and (nranks is None or nranks <= MOST_DEVICES)
    # a tag names a task or a pod, so there may be others; and where each process sees one GPU only, all print device 0
    alone = (
        alone
        and all(scan.processes[p].tag is None for p in procs)
        and {found.device(p) for p in procs} - {0, None} != set()
    )
    guesses: dict[int, list[tuple[int, Claim]]] = defaultdict(list)
    for p in rest:
        dev, host = found.device(p), scan.processes[p].host
        if dev is None or len(set(offsets[host])) > 1:
            continue
        if len(offsets[host]) > 1:
            claim = Claim(dev + offsets[host][0], f"{ASSUMED}host offset", scan.processes[p].first)
        elif alone and (not offsets[host] or offsets[host][0] == 0):
            claim = Claim(dev, f"{ASSUMED}device", scan.processes[p].first)
        else:
            continue
        guesses[claim.rank].append((p, claim))
    taken = {claim.rank for claim in here.values()}
    return {
        these[0][0]: these[0][1]
        for rank, these in guesses.items()
        if len(these) == 1 and rank not in taken and rank >= 0 and (nranks is None or rank < nranks)
    }
