"""Follow the lines that blame a peer to the rank that blames nobody.

A dead rank prints nothing. Only its peers do: closed or refused connections, missing responses, silence on the RAS network.
The rank at the end of the chain is the one to look at, even if it has no log at all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from functools import cached_property

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import absent_rank, at_address, by_local_rank, by_socket, missing_at, rank_at
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.progress import progress_of, torn_down
from psmkit.analysis.inference import faults, reports
from psmkit.analysis.inference.chains import UNKNOWN
from psmkit.catalogue import Message
from psmkit.catalogue.reasons import OTHER
from psmkit.logparse.types import Event
from psmkit.model import CODES, Named
from psmkit.model.arrays import np
from psmkit.model.late import dataclass, regex
from psmkit.model.rows import row

__all__ = [
    "Blame",
    "Graph",
    "Target",
    "addressed",
    "death",
    "died",
    "graph",
    "leaving",
    "loopback",
    "lost",
    "same_host",
    "target",
]

#: The peer in these lines is a local rank, on the host of the printing process.
_LOCAL = frozenset({"proxy.closed_by_peer", "proxy.recv_type_failed", "proxy.unknown_command"})
_PEERS = ("peer", "peer_rank", "remote_rank", "tp_rank", "dead_rank")
_ADDRS = ("addr", "peer_addr", "remote", "peer")
#: The address of a peer in a line that no entry knows.
_PEER = regex(r"\b(?:connect to|recv from|send to|closed by(?: remote)? peer) ([\w.:-]+)<\d+>", re.IGNORECASE)
#: Addresses that mean the own host.
_SELF = ("127.", "localhost", "::1", "[::1]")
#: Lines that a process prints when the other end of a socket closes. Alone they look like the normal end of any job.
_CLOSURES = frozenset({"proxy.closed_by_peer", "ras.closed_on_receive", "ras.closed_on_send"})
#: Lines of the RAS network about a missing process with this address; others name innocent processes too.
_MISSED = (
    "ras.keepalive.",
    "ras.connect.",
    "ras.send.stuck",
    "ras.reconnect",
    "ras.peer.declared_dead",
    "ras.peer.dead",
    "ras.peer.dead_notice",
)
#: How far a failure that ranks pass on in a circle is followed.
_MOST_LINKS = 64
#: A process without a rank and with fewer lines is a damaged prefix of another process's lines.
_LEAST = 10


@row(frozen=True, slots=True)
class Target:
    """The target of a blaming line; a rank without a log has no process."""

    proc: int | None
    rank: int | None


@row(frozen=True, slots=True)
class Blame:
    """One line by which a process points at another. ``weight``: 3 an error, 2 a lasting silence, 1 a closed connection."""

    by: int
    at: Target
    event: Event
    weight: int
    lost: bool = True  # the line says that the connection to the target is lost, not only that a call failed
    cause: str | None = None  # as libpsm reports it
    heard: bool = False  # the process repeats what it heard: that the target ended the operation


@dataclass
class Graph:
    """The blame of one run."""

    run: int
    procs: frozenset[int] = frozenset()  # of the run
    blames: list[Blame] = field(default_factory=list)  # complete before the first question
    victims: set[int] = field(default_factory=set)  # processes that failed and blame a peer for it
    unsure: set[int] = field(default_factory=set)  # those of them whose lines may also mean a network failure

    def by(self, proc: int | None) -> list[Blame]:
        """The blame that a process expresses."""
        return self._by.get(proc, [])

    def against(self, at: Target) -> list[Blame]:
        """The blame against a process."""
        return self._against.get(at, [])

    def targets(self) -> list[Target]:
        """All blamed targets, most blamed first."""
        return self._targets

    @cached_property
    def unblamed(self) -> frozenset[int]:
        """The processes of the run that nobody blames."""
        return self.procs - {at.proc for at in self._targets}

    @cached_property
    def _by(self) -> dict[int | None, list[Blame]]:
        out: dict[int | None, list[Blame]] = defaultdict(list)
        for blame in self.blames:
            out[blame.by].append(blame)
        return dict(out)

    @cached_property
    def _against(self) -> dict[Target, list[Blame]]:
        out: dict[Target, list[Blame]] = defaultdict(list)
        for blame in self.blames:
            if blame.by != blame.at.proc:
                out[blame.at].append(blame)
        return dict(out)

    @cached_property
    def _targets(self) -> list[Target]:
        score: dict[Target, tuple[int, int]] = {}
        for at, ours in self._against.items():
            best: dict[int, int] = {}
            for blame in ours:
                best[blame.by] = max(best.get(blame.by, 0), blame.weight)
            score[at] = (sum(best.values()), len(best))
        return sorted(score, key=lambda at: (*(-s for s in score[at]), at.rank or 0))

    def ends(self) -> list[Target]:
        """Blamed targets that blame nobody by more than a closed connection and did not fail because of a peer."""
        found = []
        for at in self.targets():
            if at.proc in self.victims:
                continue
            weight = max(b.weight for b in self.against(at))
            if (
                not any(b.weight >= min(weight, 2) and b.at.proc != at.proc for b in self.by(at.proc))
                or at.proc is None
            ):
                found.append(at)
        # ranks that blame each other: the one that only heard of a failure did not see it first
        return found or [at for at in self.targets() if self._only_heard(at)]

    def _only_heard(self, at: Target) -> bool:
        ours = self.by(at.proc)
        told = all(b.heard or b.weight == 1 for b in ours)
        saw = {b.by for b in self.against(at) if not b.heard and b.weight > 1}
        return bool(ours) and told and bool(saw) and self._leads_to(at.proc, saw)

    def _leads_to(self, proc: int | None, saw: Container[int | None]) -> bool:
        """Whether what a process passes on leads back to one of those that saw it fail, and to no failure that another one saw before."""
        for _ in range(_MOST_LINKS):
            link = max(self.by(proc), key=lambda b: b.weight, default=None)
            if link is None or not (link.heard or link.weight == 1):
                return False
            proc = link.at.proc
            if proc in saw:
                return True
        return False


def target(job: Job, event: Event) -> Target | None:
    """The target that a process's line blames; None if the line names none or it matches no rank."""
    run = job.run_of(event.proc)
    if run is None:
        return None
    report = reports.of(job, event)
    if report is not None and report.cause != OTHER:
        return (
            Target(job.proc_of(run, report.named), report.named) if report.points and report.named is not None else None
        )
    peer = number(event.fields, "local_rank")
    if peer is None and event.name in _LOCAL:
        peer = number(event.fields, "peer")
    if peer is not None:
        proc = by_local_rank(job, event.proc, peer)
        if proc is not None:
            return Target(proc, job.rank_of(proc))
        rank = rank_at(job, event.proc, peer)
        if rank is not None:
            return Target(job.proc_of(run, rank), rank)
        absent = absent_rank(job, event.proc, peer)
        return Target(None, absent) if absent is not None else None
    for name in _PEERS:
        rank = number(event.fields, name)
        nranks = job.runs[run].nranks
        if rank is not None and rank >= 0 and (nranks is None or rank < nranks):
            return Target(job.proc_of(run, rank), rank)
    op = number(event.fields, "op")
    service = _services(job).get((event.proc, op)) if op is not None else None
    if service is not None:
        return Target(service, job.rank_of(service))
    for name in _ADDRS:
        addr = event.fields.get(name)
        if isinstance(addr, str):
            proc = by_socket(job, addr, run)
            if proc is None:
                proc = _by_ip(job, addr, run)
            if proc is not None:
                return Target(proc, job.rank_of(proc))
            rank = missing_at(job, addr, run)
            if rank is not None:
                return Target(None, rank)
    return None


def addressed(events: Iterable[Event]) -> list[Named]:
    """The peer that all of these lines name by the same address, for lines that no process of the scan can be found for."""
    found = {peer for e in events if (peer := _address(e)) is not None}
    return [Named(host=next(iter(found)))] if len(found) == 1 else []


def _address(event: Event) -> str | None:
    texts = (value for name in _ADDRS if isinstance(value := event.fields.get(name), str))
    hosts = [text.rpartition("<")[0] for text in texts if text.endswith(">")]
    if event.name in UNKNOWN:
        hosts = _PEER.findall(str(event.fields.get("text", "")))
    return next((host for host in hosts if host and not host.startswith(_SELF)), None)


def same_host(job: Job, event: Event) -> bool:
    """Whether the peer that a line names has an address of the host that prints the line."""
    texts = (value for name in _ADDRS if isinstance(value := event.fields.get(name), str))
    found = [text.rpartition("<")[0] for text in texts if text.endswith(">")]
    host = job.process(event.proc).host
    return any(
        at.startswith(_SELF) or at.partition(".")[0] == host or at in _of_host(job).get(host, ()) for at in found if at
    )


def host_at(job: Job, address: str | None) -> str | None:
    """The only host whose processes take this address for themselves."""
    found = [host for host, ours in _of_host(job).items() if address in ours]
    return found[0] if len(found) == 1 and found[0] else None


def addresses_of(job: Job, host: str) -> set[str]:
    """The addresses that the processes of a host take for themselves."""
    return _of_host(job).get(host, set())


def loopback(addr: str) -> bool:
    """Whether an address is one that every host has for itself."""
    return addr.startswith(_SELF)


@once
def _of_host(job: Job) -> dict[str, set[str]]:
    """The addresses that the processes of each host take for themselves."""
    out: dict[str, set[str]] = defaultdict(set)
    for proc, _, addr in job.values("addr", "bootstrap.using"):
        if proc >= 0:
            out[job.process(proc).host].add(str(addr or "").split("<", 1)[0])
    return dict(out)


def _by_ip(job: Job, addr: str, run: int) -> int | None:
    """The process of a run on the host with this address, if there is exactly one."""
    found = at_address(job, run, addr.split("<", 1)[0])
    return next(iter(found)) if len(found) == 1 else None


@once
def _services(job: Job) -> dict[tuple[int | None, int], int]:
    """The process that serves each kept call of a caller to another process."""
    out: dict[tuple[int | None, int], int] = {}
    for call in job.scan.calls:
        if call.service is not None and call.service != call.caller:
            out.setdefault((call.caller, call.op), call.service)
    return out


def _weight(job: Job, name: str) -> int:
    known = faults.message(job, name)
    if name in _CLOSURES:
        return 1
    if name.startswith("ras."):
        return 2 if any(name == n or (n.endswith(".") and name.startswith(n)) for n in _MISSED) else 0
    if known is None or known.blames != "peer":
        return 0
    return 3 if known.severity == "error" else 1 if known.severity == "warning" else 0


def _lost(job: Job, event: Event) -> bool:
    """Whether a line says that the connection to its target is lost, rather than that a call of it failed."""
    report = reports.of(job, event)
    if report is not None and report.cause != OTHER:
        return report.cause == reports.DIED
    known = faults.message(job, event.name)
    return known is None or known.severity != "error" or event.name.startswith("ras.") or _loses_peer(known)


def graph(job: Job, run: int) -> Graph:
    """The blame of a run. Lines of a process with an orderly teardown, or about one, do not count."""
    return _graphs(job).get(run, Graph(run))


@once
def _graphs(job: Job) -> dict[int, Graph]:
    graphs = {info.index: Graph(info.index, info.procs) for info in job.runs}
    weights = {name: _weight(job, name) for name in job.names}
    pointing = [name for name, weight in weights.items() if weight or name.startswith("libpsm.")]
    # an orderly end: communicators destroyed, or the RAS thread told to stop
    ended = {e.proc for e in job.events("ras.terminate.local")}
    ended |= {p.index for p in job.scan.processes if torn_down(job, p.index)}
    runs = [None if p.index in ended else job.run_of(p.index) for p in job.scan.processes]
    # lines of no process have the index -1, the last one here
    counts = np.array([run is not None for run in runs] + [False])
    events = job.scan.events
    rows = events.rows(pointing)
    gone, began = leaving(job), reports.began(job)
    losing: dict[str, bool] = {}
    #: A flood repeats the same fields, which are one object: the target, or None where the line blames nobody.
    aims: dict[tuple[int, str, int], Target | None] = {}
    for event in events.pick(rows[counts[events.proc[rows]]]):
        proc, name = event.proc, event.name
        index = runs[proc]
        assert index is not None
        report = reports.of(job, event) if name.startswith("libpsm.") else None
        weight = 3 if report is not None and report.points else weights[name]
        if not weight:
            continue
        if weight == 3 and report is None and began.get(proc, -1) > event.ref.seq:
            continue  # libpsm found the reason in this process
        aim = proc, name, id(event.fields)
        if report is not None or aim not in aims:
            aims[aim] = _aim(job, event, ended)
        at = aims[aim]
        if at is None:
            continue
        if name in _CLOSURES and (gone.get(proc, event.ref.seq) < event.ref.seq or _came_through(job, event)):
            continue  # it is exiting itself, like its peers
        if report is None and name not in losing:
            losing[name] = _lost(job, event)
        breaks = losing[name] if report is None else _lost(job, event)
        cause = report.cause if report is not None and report.points else None
        heard = report is not None and report.heard
        graphs[index].blames.append(Blame(proc, at, event, weight, breaks, cause, heard))
    for cascade in faults.cascades(job):
        index = job.run_of(cascade.proc)
        if index is None or not cascade.fatal:
            continue
        if cascade.own is False:
            graphs[index].victims.add(cascade.proc)
        elif lost(cascade):
            graphs[index].victims.add(cascade.proc)
            graphs[index].unsure.add(cascade.proc)
    return graphs


def _aim(job: Job, event: Event, ended: AbstractSet[int]) -> Target | None:
    """The process that a line blames; None if it blames nobody, or one that ended in order."""
    at = target(job, event)
    if at is None or at.proc == event.proc or at.proc in ended:
        return None
    if job.process(event.proc).lines < _LEAST and job.rank_of(event.proc) is None:
        return None
    return at


@once
def leaving(job: Job) -> dict[int, int]:
    """Processes that began the teardown of their last communicator, with the place of that line."""
    exits: dict[int, list[int]] = defaultdict(list)
    for event in job.events("proxy.uds.exit"):
        exits[event.proc].extend([event.ref.seq] * max(event.count, 1))
    for tally in job.scan.services:
        if tally.begun_operation == "Stop" and tally.last_begun is not None:
            exits[tally.proc].append(tally.last_begun.seq)
    return {proc: min(seqs) for proc, seqs in exits.items() if len(job.instances_of.get(proc, ())) == 1}


@once
def _stopped(job: Job) -> set[int]:
    """Processes whose proxy of their last communicator ended because they asked it to: a process that dies cannot.

    Either of the two threads of the proxy shows it, since a line may be lost.
    """
    exits = job.events("proxy.uds.exit")
    asked = {e.proc for e in exits if e.fields.get("stop") == 1}
    asked |= {t.proc for t in job.scan.services if t.begun_operation == "Stop"}
    aborted = {e.proc for e in exits if e.fields.get("abort")} | job.printers("comm.end.abort")
    return (asked - aborted) & leaving(job).keys()


def _came_through(job: Job, event: Event) -> bool:
    """Whether a process saw a connection close between the last work of a communicator and its orderly teardown."""
    before = [i for i in job.instances_of.get(event.proc, ()) if i.start is not None and i.start.seq < event.ref.seq]
    newest = max(before, key=lambda i: i.start.seq if i.start is not None else 0, default=None)
    if newest is None or newest.end is None:
        return False
    return newest.last_op is None or newest.last_op.seq < event.ref.seq


def lost(cascade: faults.Cascade) -> bool:
    """Whether a process could not reach a peer: either the peer ended or the network failed."""
    known = cascade.first.known
    return cascade.own is None and known is not None and known.blames == "peer" and _loses_peer(known)


def _loses_peer(known: Message) -> bool:
    return known.finding is not None and CODES[known.finding].loses_peer


def _starting(job: Job, proc: int) -> bool:
    """Whether a process is still initialising a communicator at the end of its log."""
    return any(i.start is not None and i.complete is None for i in job.instances_of.get(proc, ()))


def death(job: Job, run: int, graph_: Graph, at: Target) -> tuple[bool, float]:
    """Whether the blame shows that a process died early, and with what confidence."""
    against = graph_.against(at)
    causes = {b.cause for b in against} - {None}
    if causes and reports.DIED not in causes:
        return False, 0.0  # libpsm says that it failed, or did not answer
    blamers = {b.by for b in against}
    best = max(b.weight for b in against)
    if best == 3 and not blamers.isdisjoint(faults.failed(job)):
        return True, 0.85
    if graph_.victims and any(b.weight != 2 for b in against):
        return True, 0.75
    if not any(b.event.name in _CLOSURES for b in against):
        return False, 0.0
    if best == 1 and (at.proc in _stopped(job) or _prints_on(job, at, against)):
        return False, 0.0
    # a connection that closes while the other side still initialises always means a death
    closers = {b.by for b in against if b.event.name == "proxy.closed_by_peer"}
    if any(_starting(job, p) for p in closers):
        return True, 0.8
    behind = at.proc is not None and any(_more(progress_of(job, p), progress_of(job, at.proc)) for p in blamers)
    if behind and best == 1 and at.proc is not None:
        # each file may be cut at a place of its own, and one closed connection is also the start of an orderly end
        beside = any(job.process(p).stream == job.process(at.proc).stream for p in blamers)
        behind = beside or (len(blamers) > 1 and graph_.targets() == [at])
    silent = best >= 2 and any(b.weight == 2 for b in against)
    if behind:
        return True, 0.75
    # processes that exit one after the other without teardown look the same: all but the last are blamed
    everyone = len(graph_.procs) - len(blamers & graph_.procs) > 1 and graph_.unblamed <= blamers
    if silent and not everyone:
        return True, 0.7
    return False, 0.0


def _prints_on(job: Job, at: Target, against: Sequence[Blame]) -> bool:
    """Whether the process printed lines after all these connections to it had closed. One of its threads may have ended: the process did not."""
    process = job.process(at.proc) if at.proc is not None else None
    return process is not None and all(
        b.event.stream == process.stream and b.event.ref.seq < process.last.seq for b in against
    )


def died(job: Job, graph_: Graph, proc: int) -> bool:
    """Whether its peers saw the connections of a process close and consider it gone for that reason."""
    at = Target(proc, job.rank_of(proc))
    against = graph_.against(at)
    return any(b.event.name in _CLOSURES for b in against) and death(job, graph_.run, graph_, at)[0]


def _more(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one[1:3] > other[1:3]
