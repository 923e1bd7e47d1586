"""Who blames whom: follow the lines that point at a peer to the rank that points at nobody.

A rank that dies says nothing. What is left of it is what its peers say: connections that closed or are refused, answers that
never came, silence on the RAS network. The rank at the end of the blame is the one to look at, even if it has no log at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from psmkit.analysis.facts.job import Job, number, words
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["Blame", "Graph", "died", "find", "graph", "leaving", "lost", "suspect", "target"]

#: The peer of these lines is a local rank: its number on the host of the process that prints.
_LOCAL = frozenset({"proxy.closed_by_peer", "proxy.recv_type_failed", "proxy.unknown_command"})
_PEERS = ("peer", "peer_rank", "remote_rank", "tp_rank", "dead_rank")
_ADDRS = ("addr", "peer_addr", "remote", "peer")
#: Lines that a process prints when the other end of a socket goes away; alone they are what the end of any job looks like.
_CLOSURES = frozenset({"proxy.closed_by_peer", "ras.closed_on_receive", "ras.closed_on_send"})
#: Lines of the RAS network by which a process misses the one whose address they name; others name innocent ones too.
_MISSED = (
    "ras.keepalive.",
    "ras.connect.",
    "ras.send.stuck",
    "ras.reconnect",
    "ras.peer.declared_dead",
    "ras.peer.dead",
    "ras.peer.dead_notice",
)
#: A process without a rank and with fewer lines is the damaged prefix of another one's lines.
_LEAST = 10
#: Errors by which a process could not reach a peer, for whatever reason.
_UNREACHED = frozenset({"PSM108", "PSM203", "PSM406"})


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a line points at; a rank without a log has no process."""

    proc: int | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class Blame:
    """One line by which a process points at another. ``weight``: 3 an error, 2 a lasting silence, 1 a closed connection."""

    by: int
    at: Target
    event: Event
    weight: int


@dataclass(slots=True)
class Graph:
    """The blame of one run."""

    run: int
    blames: list[Blame] = field(default_factory=list)
    victims: set[int] = field(default_factory=set)  # processes that failed and say that a peer was the reason
    unsure: set[int] = field(
        default_factory=set
    )  # those among them whose lines may also mean a network that does not carry

    def by(self, proc: int | None) -> list[Blame]:
        """What a process says about others."""
        return [b for b in self.blames if b.by == proc]

    def against(self, at: Target) -> list[Blame]:
        """What others say about a process."""
        return [b for b in self.blames if b.at == at and b.by != at.proc]

    def targets(self) -> list[Target]:
        """All that are blamed, most blamed first."""
        score: dict[Target, tuple[int, int]] = {}
        for at in dict.fromkeys(b.at for b in self.blames):
            ours = self.against(at)
            best: dict[int, int] = {}
            for blame in ours:
                best[blame.by] = max(best.get(blame.by, 0), blame.weight)
            score[at] = (sum(best.values()), len(best))
        return sorted((at for at in score if score[at][1]), key=lambda at: (*(-s for s in score[at]), at.rank or 0))

    def ends(self) -> list[Target]:
        """The blamed that blame nobody by something stronger than a closed connection, and that no peer brought down."""
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
        return found


_GRAPHS: WeakKeyDictionary[Job, dict[int, Graph]] = WeakKeyDictionary()


def target(job: Job, event: Event) -> Target | None:
    """Whom a line of a process points at, None where it does not say or nothing joins it with a rank."""
    run = job.run_of(event.proc)
    if run is None:
        return None
    peer = number(event.fields, "local_rank")
    if peer is None and event.name in _LOCAL:
        peer = number(event.fields, "peer")
    if peer is not None:
        proc = job.by_local_rank(event.proc, peer)
        if proc is not None:
            return Target(proc, job.rank_of(proc))
        return Target(None, peer) if job.single_node(run) or len(job.hosts(run)) == 1 else None
    for name in _PEERS:
        rank = number(event.fields, name)
        nranks = job.runs[run].nranks
        if rank is not None and rank >= 0 and (nranks is None or rank < nranks):
            return Target(job.proc_of(run, rank), rank)
    op = number(event.fields, "op")
    if op is not None:
        for call in job.scan.calls:
            if call.op == op and call.caller == event.proc and call.service is not None and call.service != event.proc:
                return Target(call.service, job.rank_of(call.service))
    for name in _ADDRS:
        addr = event.fields.get(name)
        if isinstance(addr, str):
            proc = job.by_socket(addr, run)
            if proc is None:
                proc = _by_ip(job, addr, run)
            if proc is not None:
                return Target(proc, job.rank_of(proc))
            rank = job.missing_at(addr, run)
            if rank is not None:
                return Target(None, rank)
    return None


def _by_ip(job: Job, addr: str, run: int) -> int | None:
    """The process of a run on the host with this address, where it is the only one there."""
    ip = addr.split("<", 1)[0]
    found = {
        e.proc for e in job.events("bootstrap.using", run=run) if str(e.fields.get("addr", "")).split("<", 1)[0] == ip
    }
    return next(iter(found)) if len(found) == 1 else None


def _weight(job: Job, event: Event) -> int:
    known = faults.message(job, event.name)
    if event.name in _CLOSURES:
        return 1
    if event.name.startswith("ras."):
        return 2 if any(event.name == n or (n.endswith(".") and event.name.startswith(n)) for n in _MISSED) else 0
    if known is None or known.blames != "peer":
        return 0
    return 3 if known.severity == "error" else 1 if known.severity == "warning" else 0


def graph(job: Job, run: int) -> Graph:
    """The blame of a run. Lines of a process that was torn down in order, or about one, do not count."""
    if job not in _GRAPHS:
        graphs = {info.index: Graph(info.index) for info in job.runs}
        weights: dict[str, int] = {}
        # an orderly end: communicators destroyed, or the RAS thread told to stop
        ended = {e.proc for e in job.events("ras.terminate.local")}
        ended |= {p.index for p in job.scan.processes if job.torn_down(p.index)}
        gone = leaving(job)
        for event in job.scan.events:
            if event.proc < 0:
                continue
            if event.name not in weights:
                weights[event.name] = _weight(job, event)
            index = job.run_of(event.proc)
            if not weights[event.name] or index is None:
                continue
            at = target(job, event)
            if at is None or at.proc == event.proc or event.proc in ended or at.proc in ended:
                continue
            if event.name in _CLOSURES and (
                gone.get(event.proc, event.ref.seq) < event.ref.seq or _came_through(job, event)
            ):
                continue  # it is on its way out itself, as its peers are
            if job.process(event.proc).lines < _LEAST and job.rank_of(event.proc) is None:
                continue
            graphs[index].blames.append(Blame(event.proc, at, event, weights[event.name]))
        for cascade in faults.cascades(job):
            index = job.run_of(cascade.proc)
            if index is None or not cascade.fatal:
                continue
            if cascade.own is False:
                graphs[index].victims.add(cascade.proc)
            elif lost(cascade):
                graphs[index].victims.add(cascade.proc)
                graphs[index].unsure.add(cascade.proc)
        _GRAPHS[job] = graphs
    return _GRAPHS[job].get(run, Graph(run))


def leaving(job: Job) -> dict[int, int]:
    """Processes that began the teardown of their last communicator, with the place where they did."""
    exits: dict[int, list[int]] = defaultdict(list)
    for event in job.events("proxy.uds.exit"):
        exits[event.proc].extend([event.ref.seq] * max(event.count, 1))
    for tally in job.scan.services:
        if tally.begun_operation == "Stop" and tally.last_begun is not None:
            exits[tally.proc].append(tally.last_begun.seq)
    return {proc: min(seqs) for proc, seqs in exits.items() if len(job.instances_of.get(proc, ())) == 1}


def _came_through(job: Job, event: Event) -> bool:
    """Whether a process saw a connection close between the last work of a communicator and the end of its orderly teardown."""
    before = [i for i in job.instances_of.get(event.proc, ()) if i.start is not None and i.start.seq < event.ref.seq]
    newest = max(before, key=lambda i: i.start.seq if i.start is not None else 0, default=None)
    if newest is None or newest.end is None:
        return False
    return newest.last_op is None or newest.last_op.seq < event.ref.seq


def lost(cascade: faults.Cascade) -> bool:
    """Whether a process could not reach a peer, which is the peer's end or the network between them."""
    known = cascade.first.known
    return cascade.own is None and known is not None and known.blames == "peer" and known.finding in _UNREACHED


def _starting(job: Job, proc: int) -> bool:
    """Whether a process was still initialising a communicator when its log ends."""
    return any(i.start is not None and i.complete is None for i in job.instances_of.get(proc, ()))


def _name(job: Job, at: Target) -> str:
    return job.who(at.proc) if at.proc is not None else f"rank {at.rank}"


def _spoke(job: Job, at: Target) -> bool:
    """Whether the blamed process printed an error of its own, which is then the finding."""
    return any(c.proc == at.proc and c.fatal and c.own is not False for c in faults.cascades(job))


def _death(job: Job, run: int, graph_: Graph, at: Target) -> tuple[bool, float]:
    """Whether the blame against a process shows that it died before its time, and how sure that is."""
    against = graph_.against(at)
    blamers = {b.by for b in against}
    best = max(b.weight for b in against)
    fatal = {c.proc for c in faults.cascades(job) if c.fatal and c.proc in blamers}
    if best == 3 and fatal:
        return True, 0.85
    if graph_.victims and any(b.weight != 2 for b in against):
        return True, 0.75
    if not any(b.event.name in _CLOSURES for b in against):
        return False, 0.0
    # a connection that closes while the other side still starts is a death whatever else is seen
    closers = {b.by for b in against if b.event.name == "proxy.closed_by_peer"}
    if any(_starting(job, p) for p in closers):
        return True, 0.8
    everyone = {p for p in job.runs[run].procs if p not in blamers}
    behind = at.proc is not None and any(_more(job.progress_of(p), job.progress_of(at.proc)) for p in blamers)
    silent = best >= 2 and any(b.weight == 2 for b in against)
    if behind:
        return True, 0.75
    # processes that end one after the other without a teardown look alike: then all but the last are blamed
    blamed = {t.proc for t in graph_.targets()}
    if silent and not (len(everyone) > 1 and everyone <= blamed):
        return True, 0.7
    return False, 0.0


def died(job: Job, graph_: Graph, proc: int) -> bool:
    """Whether the peers of a process saw its connections close, and it is told to be gone for that."""
    at = Target(proc, job.rank_of(proc))
    against = graph_.against(at)
    return any(b.event.name in _CLOSURES for b in against) and _death(job, graph_.run, graph_, at)[0]


def _more(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one[1:3] > other[1:3]


def _lines(items: Iterable[Blame], most: int = 5) -> list[Ref]:
    """The strongest line of each blamer, then others."""
    ranked = sorted(items, key=lambda b: -b.weight)
    first = list({b.by: b for b in reversed(ranked)}.values())
    rest = [b for b in ranked if b not in first]
    return [b.event.ref for b in sorted(first, key=lambda b: -b.weight) + rest][:most]


def suspect(job: Job, run: int) -> Target | None:
    """The one that blame leads to: blamed and blaming nobody, else the only one that does not complain."""
    ours = graph(job, run)
    ends = ours.ends()
    if ends:
        return ends[0]
    if not ours.victims:
        return next(iter(ours.targets()), None)
    info = job.runs[run]
    quiet = [Target(p, job.rank_of(p)) for p in sorted(info.procs) if p not in ours.victims and not job.torn_down(p)]
    if len(quiet) > 1:
        # one that is seen to wait for a rank which failed has a reason to be quiet
        excused = {w.waiter for w in job.waits() if w.target in ours.victims}
        quiet = [at for at in quiet if at.proc not in excused] or quiet
    quiet += [Target(None, rank) for rank in job.missing_ranks(run)]
    # of two ranks one complaint is enough; of more, several must leave the same one over
    enough = len(ours.victims) >= 2 or (info.nranks == 2 and not ours.unsure)
    return quiet[0] if len(quiet) == 1 and enough else None


def find(job: Job) -> list[Finding]:
    """PSM403 for a silent rank that its peers blame, PSM108 for connections that closed without more proof."""
    out: list[Finding] = []
    for info in job.runs:
        ours = graph(job, info.index)
        out.extend(_unfinished(job, info.index))
        if not ours.blames and not ours.victims:
            continue
        # where somebody says what broke, that is the origin: the blame only confirms it
        explained = any(c.fatal and c.own is True and job.run_of(c.proc) == info.index for c in faults.cascades(job))
        out.extend(_silent(job, info.index, ours) if not explained else [])
        named = {c for f in out if f.run == info.index for c in f.culprits}
        out.extend(_closed(job, info.index, ours, named, Severity.INFO if explained else Severity.WARNING))
    return out


def _unfinished(job: Job, run: int) -> list[Finding]:
    """A rank whose connections broke while all others came through their teardown: it ended before its own was complete."""
    ours = [i for i in job.scan.instances if i.proc in job.runs[run].procs and i.group == job.runs[run].world]
    open_ = [i for i in ours if i.end is None]
    if len(open_) != 1 or len(ours) < 2 or job.events("comm.end.abort", run=run):
        return []
    lone = open_[0]
    at = Target(lone.proc, job.rank_of(lone.proc))
    told = [e for e in job.events("proxy.closed_by_peer", run=run) if e.proc != lone.proc and target(job, e) == at]
    if not told:
        return []
    return [
        job.finding(
            "PSM403",
            run=run,
            title=f"{job.who(lone.proc)} went away before its teardown was complete, and that of all other ranks was",
            confidence=0.65,
            explanation=(
                "A rank that is destroyed takes leave of the proxies of its peers; this one's connections just closed. It was killed, "
                "crashed, or ended without destroying its communicator, which the others did."
            ),
            refs=[*(e.ref for e in told[:4]), job.process(lone.proc).last],
            ranks=[lone.rank],
            procs=[lone.proc],
            culprits=[r for r in (at.rank,) if r is not None],
            stage="died",
        )
    ]


def _silent(job: Job, run: int, ours: Graph) -> list[Finding]:
    found = []
    chosen = ours.ends()
    last_one = suspect(job, run)
    if not chosen and last_one is not None:
        chosen = [last_one]
    for at in chosen:
        if _spoke(job, at):
            continue
        against = ours.against(at)
        died, confidence = _death(job, run, ours, at) if against else (True, 0.65)
        if not died:
            continue
        blamers = sorted({b.by for b in against} or ours.victims)
        said = [faults.body(job, b.event, 90) for b in against] or [
            faults.body(job, c.first.event, 90) for c in faults.cascades(job) if c.proc in ours.victims and c.fatal
        ]
        quiet = "its log was not given" if at.proc is None else "its own log ends without a word about it"
        last = [job.process(at.proc).last] if at.proc is not None else []
        lines = _lines(against) or [c.first.ref for c in faults.cascades(job) if c.proc in ours.victims and c.fatal][:5]
        gone = "gone or cut off" if ours.victims and ours.victims <= ours.unsure else "gone"
        whom = "point at" if against else "fail because of a peer, which can only be"
        found.append(
            job.finding(
                "PSM403",
                run=run,
                title=f"{_name(job, at)} is {gone}: {job.whos(blamers)} lost the connection to it, and {quiet}",
                confidence=confidence,
                explanation=(
                    f"{job.whos(blamers)} {whom} {_name(job, at)} ({words(sorted(set(said)), 3)}), and {_name(job, at)} blames nobody. "
                    "A process that is killed, or whose host is lost, prints nothing itself."
                ),
                refs=[*lines, *last],
                ranks=[r for r in (at.rank,) if r is not None],
                procs=[p for p in (at.proc,) if p is not None],
                culprits=[r for r in (at.rank,) if r is not None],
                stage="died",
            )
        )
    if len(found) > 1:
        # the most blamed one comes first; whoever lost its peers by it may be blamed as well
        found = [found[0], *(replace(f, confidence=round(f.confidence - 0.2, 2)) for f in found[1:])]
    return found


def _idle(job: Job, proc: int) -> bool:
    """Whether a process that uses libpsm has ended all that it launched: its peers may go."""
    launched = job.count(proc, "libpsm.group.launched")
    return launched > 0 and launched == job.count(proc, "libpsm.group.ended")


def _closed(job: Job, run: int, ours: Graph, done: set[int], severity: Severity) -> list[Finding]:
    """Connections that closed: worth a line where the processes were still at work."""
    closers: dict[Target, list[Blame]] = defaultdict(list)
    for blame in ours.blames:
        if blame.weight != 2:
            closers[blame.at].append(blame)
    # one that says why it ended is no riddle
    spoke = {c.proc for c in faults.cascades(job) if c.fatal}
    out = []
    for at, blames in closers.items():
        if at.rank in done:
            continue
        blamers = sorted({b.by for b in blames})
        if all(_idle(job, by) for by in blamers):
            continue
        out.append(
            job.finding(
                "PSM108",
                run=run,
                title=f"{_name(job, at)} closed its connections to {job.whos(blamers)} before the communicators were torn down",
                severity=Severity.INFO if at.proc in spoke else severity,
                confidence=0.6,
                refs=_lines(blames),
                ranks=sorted({r for r in (at.rank, *(job.rank_of(p) for p in blamers)) if r is not None}),
                procs=[p for p in (at.proc, *blamers) if p is not None],
                culprits=(),
                known_issue=None,
            )
        )
    return out
