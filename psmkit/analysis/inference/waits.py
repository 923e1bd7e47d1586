"""Who waits for whom: one list of all kinds of pending exchanges, for blame and verdict."""

from __future__ import annotations

import bisect
from collections import defaultdict

from psmkit.analysis.facts.connections import age_of, owes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import by_local_rank, rank_at
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.lost import lost
from psmkit.logparse.types import Call, FdExchange, Ref, SeqGroup, ServiceTally, Thread
from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = ["Wait", "call_waits", "fd_stage", "fd_wait", "unread", "waits", "waits_for", "waits_of"]


@row(frozen=True, slots=True)
class Wait:
    """One process waits for another.

    ``waiter`` and ``target`` are process indices. ``rank`` and ``target_rank`` are ranks of ``group`` if it is known, else
    global ranks (a target without a log has a rank and no process). ``kind`` is "proxy call", "connection",
    "fd", "collective" or "sendrecv"; ``stage`` is the awaited step ("Setup", "answered", "AllReduce", ...). ``proven`` is
    True if the log shows that the wait lasted, False if the log only ends there.
    """

    run: int | None
    kind: str
    stage: str
    waiter: int | None
    target: int | None
    rank: int | None
    target_rank: int | None
    group: int | None
    op: int | None
    refs: tuple[Ref, ...]
    age: int
    proven: bool


@dataclass(frozen=True, slots=True)
class _Index:
    """Look-up tables for open exchanges, built once because a damaged log has thousands of them."""

    ends: dict[int, int]  # stream -> its last line
    last_read: dict[int, Ref]  # process -> the last response that it read
    clients: dict[tuple[int, int | None], set[int]]  # service -> local ranks that it worked for
    orphans: bool  # some responses have no service


@once
def _index(job: Job) -> _Index:
    scan = job.scan
    index = _Index({}, {}, defaultdict(set), any(call.state == "received" for call in scan.calls))
    for process in scan.processes:
        # a process with lines in two files has one of them as its home, and its last line may be in the other
        stream = scan.files[process.last.file].stream
        index.ends[stream] = max(index.ends.get(stream, 0), process.last.seq)
    for count in scan.counts.of("proxy.call.matched", "proxy.call.dequeued"):
        known = index.last_read.get(count.proc)
        if known is None or known.seq < count.last.seq:
            index.last_read[count.proc] = count.last
    for tally in scan.services:
        index.clients[_service(job, tally.proc, tally.thread)].update(rank for _, _, rank in tally.opened)
    return index


@once
def _ended_at(job: Job) -> dict[tuple[int, int, int], Thread]:
    """The thread whose last line is the one of a process at a place (file, line)."""
    return {(thread.proc, thread.last.file, thread.last.line): thread for thread in job.scan.threads}


def _service(job: Job, proc: int, which: int | None) -> tuple[int, int | None]:
    """A proxy service: a process with several ranks has one for each, which its thread or its rank tells from the others."""
    return (proc, None if job.rank_of(proc) is not None else which)


def _run(job: Job, *procs: int | None) -> int | None:
    return next((job.run_of(p) for p in procs if p is not None), None)


def _rank(job: Job, proc: int | None) -> int | None:
    return None if proc is None else job.rank_of(proc)


@once
def call_waits(job: Job) -> list[tuple[Call, Wait]]:
    """The calls behind which a process waits, each with its wait: its waiter, or the target that does not read an answer, is the caller."""
    found = ((call, _call_wait(job, call)) for call in job.scan.calls if call.state in ("begun", "served"))
    return [(call, wait) for call, wait in found if wait is not None]


def _call_wait(job: Job, call: Call) -> Wait | None:
    """The wait behind an incomplete call; None if the log shows that it completed and lost a line."""
    caller = _caller_of(job, call)
    run = _run(job, caller, call.service)
    refs = tuple(r for r in (call.begun, call.served, call.received) if r is not None)
    if run is None or not refs or proof.of(job, run).done:
        return None
    if call.state == "begun" and call.op == 0 and not _may_be_open(job, call):
        return None
    if caller is not None and (
        torn_down(job, caller) or _thread_went_on(job, call, refs[-1]) or _worked_since(job, caller, refs[-1])
    ):
        return None
    waiter, target, stage = caller, call.service, call.stage or "a proxy call"
    if call.state == "served":
        # the response is there but the caller does not read it: only processes that wait for the caller wait
        waiter, target = None, caller
    ours = proof.of(job, run)
    age = call_age(job, call, caller)
    # a caller that does not read its response is stuck; lines from outside identify it
    idle = call.state != "served" or not ours.suspects or caller in ours.suspects
    proven = idle and (proof.aged(age, job.scan.totals.max_call_age) or (bool(ours.lasting) and not ours.failed))
    if call.state == "served" and not (
        caller is not None and (_beside(job, caller, refs[-1]) or (ours.lasting and idle))
    ):
        proven = False  # the missing line belongs in another file, which may have been cut earlier
    if caller is not None and _read(job, call, caller):
        proven = False
    # without an id, a repeated line looks like another call
    proven = proven and not (call.again and call.op == 0) and not _cut(job, caller, call.service)
    return Wait(
        run,
        "proxy call",
        stage,
        waiter,
        target,
        job.rank_on(waiter, call.caller_thread),
        job.rank_on(target, call.service_thread if call.state == "begun" else call.caller_thread),
        None,
        call.op,
        refs,
        age,
        proven,
    )


#: Stages that a handler may leave in progress. Init and SharedInit complete at once.
_IN_PROGRESS = frozenset({"Setup", "Connect", "Register", "Deregister"})


def _may_be_open(job: Job, call: Call) -> bool:
    """Whether a call with only its begin line can be in progress; without an id, a lost end line looks the same.

    A lost line leaves a second trace: a response that no service sends.
    """
    if call.stage not in _IN_PROGRESS:
        return False
    return not _index(job).orphans


def _caller_of(job: Job, call: Call) -> int | None:
    """The caller of a call. If no line names it, it is the only rank that the service ever worked for, if there is just one."""
    if call.caller is not None or call.service is None:
        return call.caller
    local = call.peer_local_rank
    if local is None:
        clients = _index(job).clients.get(_service(job, call.service, call.service_thread), ())
        if len(clients) != 1:
            return None
        (local,) = clients
    proc = by_local_rank(job, call.service, local)
    if proc is not None:
        return proc
    run, rank = job.run_of(call.service), rank_at(job, call.service, local)
    return job.proc_of(run, rank) if run is not None and rank is not None else None


def call_age(job: Job, call: Call, caller: int | None) -> int:
    """Lines of the stream since the newest line of a call, or since its caller last read another response.

    A process whose calls keep completing has other threads than the waiting one, if one waits at all.
    """
    if caller is None or call.caller_thread is not None:
        return call.age
    age = call.age
    read, newest = _index(job).last_read.get(caller), call.served or call.begun
    if read is not None and newest is not None and _same_stream(job, read, newest):
        age = min(age, max(_index(job).ends.get(job.scan.files[read.file].stream, read.seq) - read.seq, 0))
    return age


def _worked_since(job: Job, proc: int, newest: Ref) -> bool:
    """Whether a process continued with work, or finished an init, after a line: then its wait ended and a line is lost."""
    return any(
        later is not None and _same_stream(job, later, newest) and later.seq > newest.seq
        for i in job.instances_of.get(proc, [])
        for later in (i.complete, i.last_op)
    )


@once
def unread(job: Job) -> bool:
    """Whether lines about answers are lost: they look unread, and the callers work like their peers."""
    served = ((call, _caller_of(job, call)) for call in job.scan.calls if call.state == "served")
    return any(caller is not None and _read(job, call, caller) for call, caller in served)


def _read(job: Job, call: Call, proc: int) -> bool:
    """Whether the line of an answer is lost in another file than the call's: its reader completed its inits, and called as many
    collectives as any peer, more than the one that may wait for a connection."""
    if call.state != "served" or call.served is None or _beside(job, proc, call.served):
        return False
    ours = job.instances_of.get(proc, ())
    if not ours or any(i.complete is None for i in ours):
        return False
    most = _most(job)
    return all(i.ops >= most.get(i.group, 0) for i in ours) and any(i.ops > 1 for i in ours)


@once
def _most(job: Job) -> dict[int, int]:
    """How many collectives the foremost member of each communicator called."""
    return {group.group: max((r.ops for r in group.ranks), default=0) for group in job.scan.groups}


def _thread_went_on(job: Job, call: Call, newest: Ref) -> bool:
    """Whether the thread that waits for a response printed something after it: calls block, so the response's line is lost."""
    if call.caller_thread is None:
        return False
    last = job.scan.threads[call.caller_thread].last
    return call.state == "served" and last.seq > newest.seq and _same_stream(job, last, newest)


def _beside(job: Job, proc: int, ref: Ref) -> bool:
    """Whether a process writes to the stream of a line."""
    return job.process(proc).stream == job.scan.files[ref.file].stream


def _same_stream(job: Job, one: Ref, other: Ref) -> bool:
    files = job.scan.files
    return files[one.file].stream == files[other.file].stream


def _cut(job: Job, *procs: int | None) -> bool:
    """Whether the log of one of these processes lost its end: then a line that is missing proves nothing."""
    return any(proc in lost(job) for proc in procs)


def fd_stage(fd: FdExchange) -> str:
    """The first stage of an exchange that was not reached: "received", "answered" or "done"."""
    if fd.answered is not None:
        return "done"
    return "answered" if fd.received is not None else "received"


def fd_wait(job: Job, fd: FdExchange) -> Wait | None:
    """The wait behind an incomplete fd exchange; None if the log shows that it completed and lost a line."""
    if fd.done is not None or fd.asked is None:
        return None
    run = _run(job, fd.client, fd.server)
    if run is None or proof.of(job, run).done:
        return None
    thread = asking_thread(job, fd)
    if thread is None:
        # the request blocks its thread, so whatever that thread printed later follows the response
        return None
    target = fd.server
    if target is None and fd.client is not None and fd.peer is not None:
        target = job.proc_of(run, fd.peer)
    refs = tuple(r for r in (fd.asked, fd.received, fd.answered) if r is not None)
    ours = proof.of(job, run)
    age = fd_age(job, fd)
    proven = (
        proof.aged(age, job.scan.totals.max_fd_age)
        or _overtaken(job, fd, target)
        or (bool(ours.lasting) and not ours.failed)
    ) and not _cut(job, fd.client, target)
    rank = fd.rank if fd.rank is not None else _rank(job, fd.client)
    peer = fd.peer if fd.peer is not None else _rank(job, target)
    return Wait(run, "fd", fd_stage(fd), fd.client, target, rank, peer, None, fd.op, refs, age, proven)


def fd_age(job: Job, fd: FdExchange) -> int:
    """Lines of the stream since the newest line of an exchange. With buffered writers the newest need not be the last stage.

    If the two sides write to different files, only the waiting side's file shows how long the wait lasts: the other may have
    been cut earlier, or belong to a process that printed more.
    """
    refs = [r for r in (fd.asked, fd.received, fd.answered) if r is not None]
    streams = {job.scan.files[r.file].stream for r in refs}
    if len(streams) != 1:
        if fd.asked is None:
            return fd.age
        refs, streams = [fd.asked], {job.scan.files[fd.asked.file].stream}
    end = _index(job).ends.get(streams.pop(), 0)
    return min(fd.age, max(end - max(r.seq for r in refs), 0)) if end else fd.age


def asking_thread(job: Job, fd: FdExchange) -> Thread | None:
    """The thread that sent the request, if the request is the last thing it printed."""
    if fd.asked is None or fd.client is None:
        return None
    return _ended_at(job).get((fd.client, fd.asked.file, fd.asked.line))


def _overtaken(job: Job, fd: FdExchange, target: int | None) -> bool:
    """Whether the service read later requests but not this one: a socket delivers its messages in order.

    Two lines of different processes may be swapped, so one later request is not enough.
    """
    if fd.received is not None or fd.asked is None or target is None:
        return False
    asked = _served(job).get((_service(job, target, fd.peer), job.scan.files[fd.asked.file].stream), [])
    return len(asked) - bisect.bisect_right(asked, fd.asked.seq + 20) >= 2


@once
def _served(job: Job) -> dict[tuple[tuple[int, int | None], int], list[int]]:
    """Where the requests that each service read were sent, by service and stream."""
    out: dict[tuple[tuple[int, int | None], int], list[int]] = defaultdict(list)
    for fd in job.scan.fds:
        if fd.server is not None and fd.asked is not None and fd.received is not None:
            out[_service(job, fd.server, fd.peer), job.scan.files[fd.asked.file].stream].append(fd.asked.seq)
    for seqs in out.values():
        seqs.sort()
    return dict(out)


def lagging(job: Job, group: SeqGroup) -> tuple[int, dict[int, int]]:
    """The greatest number of collectives that a member called, and the deficits of the ranks behind it."""
    seen = list(group.ranks)
    if len(seen) < 2:
        return 0, {}
    most = max(r.ops for r in seen)
    return most, {r.rank: most - r.ops for r in seen if r.ops < most}


@once
def waits(job: Job) -> list[Wait]:
    """All waits of a job, proven ones first, oldest first."""
    out = [wait for _, wait in call_waits(job)]
    for fd in job.scan.fds:
        wait = fd_wait(job, fd)
        if wait is not None:
            out.append(wait)
    for tally in job.scan.services:
        wait = _connection(job, tally)
        if wait is not None:
            out.append(wait)
    for group in job.scan.groups:
        out.extend(_collectives(job, group))
    out.extend(_pairs(job))
    return sorted(out, key=lambda w: (not w.proven, -w.age))


@once
def _by_target(job: Job) -> dict[int | None, list[Wait]]:
    out: dict[int | None, list[Wait]] = defaultdict(list)
    for wait in waits(job):
        out[wait.target].append(wait)
    return dict(out)


def waits_for(job: Job, proc: int | None) -> list[Wait]:
    """The waits for a process, in the order of :func:`waits`."""
    return _by_target(job).get(proc, [])


@once
def _by_run(job: Job) -> dict[int | None, list[Wait]]:
    out: dict[int | None, list[Wait]] = defaultdict(list)
    for wait in waits(job):
        out[wait.run].append(wait)
    return dict(out)


def waits_of(job: Job, run: int) -> list[Wait]:
    """The waits of a run, in the order of :func:`waits`."""
    return _by_run(job).get(run, [])


def _connection(job: Job, tally: ServiceTally) -> Wait | None:
    """A connection that owes its next message. The client is the rank that opened it, and waits in the same process."""
    message, run = owes(job, tally), job.run_of(tally.proc)
    if message is None or run is None or tally.opened_as is None or proof.of(job, run).done:
        return None
    ours, age = proof.of(job, run), age_of(job, tally)
    client = by_local_rank(job, tally.proc, tally.opened_as[2])
    refs = tuple(r for r in (tally.last_opened, tally.last_served) if r is not None)
    proven = (tally.proc in ours.suspects or proof.aged(age, job.scan.totals.max_call_age)) and not ours.failed
    proven = proven and not _cut(job, tally.proc)
    ranks = (_rank(job, client), job.rank_on(tally.proc, tally.thread))
    return Wait(run, "connection", message, client, tally.proc, *ranks, None, None, refs, age, proven)


def _collectives(job: Job, group: SeqGroup) -> list[Wait]:
    most, behind = lagging(job, group)
    members = {i.rank: i for i in job.members.get(group.group, [])}
    if not behind or any(i.end is not None for i in members.values()):
        return []
    ahead = [r for r in group.ranks if r.ops == most]
    first = ahead[0]
    run = _run(job, *(i.proc for i in members.values()))
    if run is None:
        return []
    ours = proof.of(job, run)
    name = str(first.last_op.get("coll", "a collective")) if first.last_op is not None else "a collective"
    waiter = job.proc_in(group.group, first.rank)
    lasts: dict[int, Ref | None] = {}
    for member in group.ranks:
        lasts.setdefault(member.rank, member.last)
    out = []
    for rank, lack in sorted(behind.items()):
        target = job.proc_in(group.group, rank)
        quiet = target is not None and proof.silence(job, target) > 0
        proven = (quiet or (bool(ours.lasting) and not ours.failed)) and not _cut(job, target)
        refs = tuple(r for r in (first.last, lasts[rank]) if r is not None)
        out.append(
            Wait(run, "collective", name, waiter, target, first.rank, rank, group.group, most - 1, refs, lack, proven)
        )
    return out


def _pairs(job: Job) -> list[Wait]:
    out = []
    ended = {i.group for i in job.scan.instances if i.end is not None}
    for pair in job.scan.pairs:
        if not pair.pending_sends and not pair.pending_recvs:
            continue
        src, dst = job.proc_in(pair.group, pair.src), job.proc_in(pair.group, pair.dst)
        run = _run(job, src, dst)
        if run is None or pair.group in ended:
            continue
        ours = proof.of(job, run)
        sending = pair.pending_sends > 0
        waiter, target = (src, dst) if sending else (dst, src)
        ranks = (pair.src, pair.dst) if sending else (pair.dst, pair.src)
        out.append(
            Wait(
                run,
                "sendrecv",
                "Recv" if sending else "Send",
                waiter,
                target,
                *ranks,
                pair.group,
                None,
                (pair.sends if sending else pair.recvs)[:3],
                pair.pending_sends or pair.pending_recvs,
                bool(ours.lasting) and not ours.failed and not _cut(job, src, dst),
            )
        )
    return out
