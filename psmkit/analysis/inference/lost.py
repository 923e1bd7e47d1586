"""Lost logs: ranks whose log ends before a step that a line of a peer proves.

These lines are impossible without a step of another rank:

- the fd service of a peer reads a request: the rank asked;
- a peer gets a descriptor from a rank: its fd service read the request and answered;
- a peer completes the init of a communicator: all ranks met in the bootstrap, and those of its host came to the barrier at the end
  (every release since 2.10 has it);
- a peer destroys a communicator in order: NCCL first waits for its kernels. A collective whose result needs the data of a rank, and a
  receive from it, end only after that rank called them. A send and the root of a broadcast end without anybody else: the data stays in
  a buffer;
- all peers with the same connections go on to work: connections need both ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from psmkit.analysis.facts.aborts import abort_ends
from psmkit.analysis.facts.calls import needs_all, needs_root
from psmkit.analysis.facts.handshake import handshakes
from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import counts, printed
from psmkit.analysis.facts.progress import collectives, torn_down
from psmkit.analysis.facts.start import MET
from psmkit.logparse.types import CommInstance, FdExchange, Ref, Value
from psmkit.model.late import dataclass

__all__ = ["MILESTONES", "Lost", "lost", "milestone", "settled"]

#: What a rank prints after the connections of its init, in order, and the step that each line shows.
MILESTONES = (
    ("init.connected_rings", "the connections of its rings"),
    ("init.connected_trees", "the connections of its trees"),
    ("init.thread_thresholds", "the end of its connections"),
    ("init.channels", "the count of its channels"),
)


@dataclass(frozen=True, slots=True)
class Lost:
    """The log of ``proc`` ends at ``last``; at ``ref`` the process ``by`` did what it cannot do without a later step: ``what``."""

    proc: int
    last: Ref
    by: int
    ref: Ref
    what: str


@once
def lost(job: Job) -> dict[int, Lost]:
    """The lost logs of a job by process, each with its first proof."""
    out: dict[int, Lost] = {}
    for found in (
        *_by_fds(job),
        *_by_descriptors(job),
        *_by_inits(job),
        *_by_ends(job),
        *_by_pairs(job),
        *_by_connections(job),
    ):
        out.setdefault(found.proc, found)
    return out


def _make(job: Job, proc: int, by: int, ref: Ref, what: str) -> Lost | None:
    process = job.process(proc)
    files = job.scan.files
    if torn_down(job, proc):
        return None
    if files[process.last.file].stream == files[ref.file].stream and process.last.seq > ref.seq:
        return None  # a line in the middle is missing, and the log goes on
    return Lost(proc, process.last, by, ref, what)


def _by_fds(job: Job) -> Iterator[Lost]:
    for fd in job.scan.fds:
        client = _client(job, fd)
        ref = fd.received or fd.answered
        if client is None or ref is None or fd.server is None:
            continue
        found = _make(job, client, fd.server, ref, "received its GetFd")
        if found is not None:
            yield found


def _client(job: Job, fd: FdExchange) -> int | None:
    """The process behind a request that only its server shows. The server may print the rank or the local rank."""
    if fd.asked is not None or fd.done is not None or fd.server is None or fd.rank is None:
        return None
    run = job.run_of(fd.server)
    proc = job.proc_of(run, fd.rank) if run is not None else None
    if proc is None or run is None or proc == fd.server:
        return None
    return proc if _on_one_host(job).get(run) else None


def _by_descriptors(job: Job) -> Iterator[Lost]:
    for fd in job.scan.fds:
        if fd.asked is None or fd.done is None or fd.client is None or fd.server is not None:
            continue
        server = _server(job, fd.client, fd.peer)
        # the service and the calls of a proxy print under one setting
        if server is None or not printed(job, server, "proxy.call.done"):
            continue
        found = _make(job, server, fd.client, fd.done, "received a descriptor from it")
        if found is not None:
            yield found


def _server(job: Job, client: int, peer: int | None) -> int | None:
    """The process that a request went to. It shows a rank, of which communicator it does not say."""
    run = job.run_of(client)
    if run is None or peer is None:
        return None
    groups = {i.group for i in job.instances_of.get(client, ())}
    found = {job.proc_in(group, peer) for group in groups} if groups else {job.proc_of(run, peer)}
    return next(iter(found - {client})) if len(found - {client}) == 1 else None


@once
def _on_one_host(job: Job) -> dict[int, bool]:
    return {run.index: len({job.process(p).host for p in run.procs}) == 1 for run in job.runs}


def milestone(job: Job, proc: int) -> int:
    """How many of :data:`MILESTONES` a process came to."""
    ours: Mapping[str, int] = counts(job).of(proc)
    return max((at + 1 for at, (name, _) in enumerate(MILESTONES) if name in ours), default=0)


def _by_inits(job: Job) -> Iterator[Lost]:
    for group, members in job.members.items():
        first: dict[str, CommInstance] = {}  # by host: the first rank that is complete
        for instance in members:
            if instance.complete is not None:
                first.setdefault(job.process(instance.proc).host, instance)
        if not first:
            continue
        for instance in members:
            if instance.complete is not None or instance.start is None or instance.end is not None:
                continue
            peer = first.get(job.process(instance.proc).host)
            if peer is None:
                peer = next(iter(first.values()))
                short = not printed(job, instance.proc, *MET)
            else:
                # a rank prints these lines before the barrier; it may still be in the barrier when a peer leaves it
                short = milestone(job, instance.proc) < milestone(job, peer.proc)
            # milestones do not name their communicator
            alone = len(job.instances_of.get(instance.proc, ())) == 1
            if short and alone and peer.complete is not None:
                what = f"completed the init of {comm_name(job, group)}, which needs all of its ranks,"
                found = _make(job, instance.proc, peer.proc, peer.complete, what)
                if found is not None:
                    yield found


def _by_ends(job: Job) -> Iterator[Lost]:
    aborted = abort_ends(job)
    for group, members in job.members.items():
        if all(instance.end is not None for instance in members):
            continue
        calls = _last_calls(job, group)
        # a rank calls the collectives of a communicator in order, so the last one stands for all before it
        ended = [i for i in members if i.end is not None and i.end not in aborted and i.index in calls]
        proves_all = [i for i in ended if needs_all(calls[i.index], i.rank)]
        proves_root = [i for i in ended if needs_root(calls[i.index])]
        for instance in members:
            if instance.end is not None:
                continue
            rooted = [i for i in proves_root[:1] if calls[i.index].get("root") == instance.rank]
            for peer in (*proves_all[:1], *rooted):
                number = collectives(peer)
                if peer.end is not None and (collectives(instance) < number or _open(instance)):
                    what = f"destroyed {comm_name(job, group)} after collective {number}, which needs its data,"
                    found = _make(job, instance.proc, peer.proc, peer.end, what)
                    if found is not None:
                        yield found


def _open(instance: CommInstance) -> bool:
    return instance.start is not None and instance.complete is None


def _last_calls(job: Job, group: int) -> dict[int, Mapping[str, Value]]:
    """The last collective of each member, by instance."""
    found = job.groups.get(group)
    return {r.instance: r.last_op for r in found.ranks if r.last_op is not None} if found is not None else {}


def _by_pairs(job: Job) -> Iterator[Lost]:
    aborted = abort_ends(job)
    members = {(i.group, i.rank): i for i in job.scan.instances}
    for pair in job.scan.pairs:
        receiver, sender = members.get((pair.group, pair.dst)), members.get((pair.group, pair.src))
        if not pair.pending_recvs or receiver is None or sender is None:
            continue
        if receiver.end is not None and receiver.end not in aborted and sender.end is None:
            what = f"destroyed {comm_name(job, pair.group)} after it received from it"
            found = _make(job, sender.proc, receiver.proc, receiver.end, what)
            if found is not None:
                yield found


def settled(job: Job, proc: int) -> Ref | None:
    """The first known line of work of a process after its newest connection; None if there is none."""
    return _settled(job).get(proc)


@once
def _settled(job: Job) -> dict[int, Ref]:
    out: dict[int, Ref] = {}
    for proc, shake in handshakes(job).items():
        newest = shake.newest
        if newest is None:
            continue
        steps = (step for i in job.instances_of.get(proc, ()) for step in (i.complete, i.last_op, i.end))
        for later in steps:
            if later is not None and later.file == newest.file and later.seq > newest.seq:
                out[proc] = later
                break
    return out


def _by_connections(job: Job) -> Iterator[Lost]:
    for run in job.runs:
        yield from _unfinished(job, run)


def _unfinished(job: Job, run: RunInfo) -> Iterator[Lost]:
    shakes = handshakes(job)
    ours = [p for p in sorted(run.procs) if p in shakes and shakes[p].opened]
    open_ = [p for p in ours if settled(job, p) is None and not torn_down(job, p)]
    if len(open_) != 1 or len(ours) < 3:
        return
    behind = open_[0]
    others = [p for p in ours if p != behind]
    opened = shakes[others[0]].opened
    if any(shakes[p].opened != opened for p in others) or any(n > opened[k] for k, n in shakes[behind].opened.items()):
        return
    ref = settled(job, others[0])
    short = shakes[behind].opened != opened or shakes[behind].setup[1] < shakes[behind].setup[0]
    if ref is not None and short:
        found = _make(job, behind, others[0], ref, "finished the same connections and went on")
        if found is not None:
            yield found
