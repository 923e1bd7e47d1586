"""Sends and recvs of each ordered pair of ranks: unpaired calls, and different byte counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts import calls, damage, lines
from psmkit.analysis.facts.aborts import abort_ends
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import blame, plans, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.frontier import outlives
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.registry import rule
from psmkit.logparse.types import CommInstance, PairQueue, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]


#: Lines of a connection setup. If they follow the calls of a group, the group was closed.
_CONNECTING = ("transport.channel", "proxy.connected", "psm.buffer")
#: The maximum number of findings per job; more would not help.
_MOST = 20


class _Queues:
    """The pairs of each rank of a communicator. All-to-all exchanges have very many pairs, so only what is asked about them is kept."""

    def __init__(self, pairs: Iterable[PairQueue]) -> None:
        #: How many pairs in each direction of a (communicator, rank) have the same number of matches and nothing else.
        self.even: dict[tuple[bool, int, int], Counter[int]] = defaultdict(Counter)
        self.total: Counter[tuple[bool, int, int]] = Counter()
        #: The ranks that wait for a (communicator, rank).
        self.waiters: dict[tuple[int, int], set[int]] = defaultdict(set)
        #: The ranks of a communicator that owe a call.
        self.owing: dict[int, set[int]] = defaultdict(set)
        for pair in pairs:
            for key in ((True, pair.group, pair.src), (False, pair.group, pair.dst)):
                self.total[key] += 1
                if not pair.pending_sends and not pair.pending_recvs:
                    self.even[key][pair.matched] += 1
            if pair.pending_sends:
                self.waiters[pair.group, pair.dst].add(pair.src)
            if pair.pending_recvs:
                self.waiters[pair.group, pair.src].add(pair.dst)
            if pair.pending_sends or pair.pending_recvs:
                self.owing[pair.group].add(_owing(pair))


@rule(order=260)
def find(job: Job) -> list[Finding]:
    """PSM303 for unpaired calls, PSM302 for a rank that left or is behind.

    Work before a teardown was complete, so a missing end there is a lost line. Byte counts that differ before an abort caused it, or are
    hidden by it.
    """
    out: list[Finding] = []
    queues = _Queues(job.scan.pairs)
    ended = {i.group for i in job.scan.instances if i.end is not None}
    aborts = abort_ends(job)
    destroyed = {i.group for i in job.scan.instances if i.end is not None and i.end not in aborts}
    left = _leavers(job, ended)
    applied = _circles(job, ended) + _wrong_peers(job, ended)
    out += applied
    told = {(f.comm, rank) for f in applied for rank in f.ranks}
    clashes: dict[int, list[PairQueue]] = defaultdict(list)
    for pair in job.scan.pairs:
        run = _run(job, pair)
        if run is None or pair.group in destroyed or (pair.group, _owing(pair)) in left:
            continue
        over = pair.group in ended or proof.of(job, run).done
        if over and (pair.mismatch is None or pair.pending_sends or pair.pending_recvs):
            continue
        if len(out) >= _MOST:
            break
        if {(comm_name(job, pair.group), pair.src), (comm_name(job, pair.group), pair.dst)} <= told:
            continue
        if pair.mismatch is not None:
            clashes[run].append(pair)
        elif pair.pending_sends or pair.pending_recvs:
            found = _unpaired(job, run, pair, queues)
            if found is not None:
                out.append(found)
    for run, pairs in clashes.items():
        common = _common(pairs)
        out.extend(_sizes(job, run, pair, common) for pair in pairs[: _MOST if common is None else 2])
    out.extend(_retyped(job))
    out.extend(_left(job, instance, pairs) for instance, pairs in left.values())
    out.extend(_behind_all(job, {f.run for f in out}))
    return out


def _circles(job: Job, ended: set[int]) -> list[Finding]:
    """Ranks whose last call is a send to the next one of a circle, none of which has called its recv.

    Calls of a group are printed before anything waits. So a rank that stands in a send has no group around it and its recv.
    """
    ahead: dict[int, dict[int, PairQueue]] = defaultdict(dict)
    for pair in job.scan.pairs:
        if pair.pending_sends == 1 and not pair.pending_recvs and pair.group not in ended:
            ahead[pair.group][pair.src] = pair
    out = []
    for group, sends in ahead.items():
        seen: set[int] = set()
        for first in sorted(sends):
            path: dict[int, PairQueue] = {}
            rank = first
            while rank not in path and rank not in seen and rank in sends:
                path[rank] = sends[rank]
                rank = sends[rank].dst
            seen.update(path)
            circle = list(path.values())[list(path).index(rank) :] if rank in path else []
            if circle and all(_stands_in(job, pair) for pair in circle):
                out.append(_circle(job, group, circle))
    return [f for f in out if f is not None]


def _stands_in(job: Job, pair: PairQueue) -> bool:
    """Whether the unpaired send is the last call of its rank."""
    proc = job.proc_in(pair.group, pair.src)
    ours = (
        next((i for i in job.instances_of.get(proc, ()) if i.group == pair.group), None) if proc is not None else None
    )
    return ours is not None and ours.last_op == pair.sends[-1] and _run(job, pair) is not None


def _circle(job: Job, group: int, sends: list[PairQueue]) -> Finding | None:
    run = _run(job, sends[0])
    if run is None or proof.of(job, run).failed or proof.of(job, run).done:
        return None
    ranks = [p.src for p in sends]
    outside = proof.of(job, run).lasting
    # lines of a connection after the call show that the rank waits in it
    proven = bool(outside) or all(_closed(job, run, p, p.src) for p in sends)
    way = " -> ".join(str(r) for r in [*ranks[:6], *(["..."] if len(ranks) > 6 else []), ranks[0]])
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"{ranks_text(sorted(ranks))} send in a circle ({way}) and none of them has called its recv, in communicator {comm_name(job, group)}",
        severity=None if proven else Severity.WARNING,
        confidence=0.9 if proven else 0.6,
        explanation="The last call of each of these ranks is a send to the next one. A send outside a group waits until its receiver calls recv, so each waits for the next."
        + ("" if proven else " A cut log can look the same."),
        next_step="Put the send and the recv of each rank between ncclGroupStart and ncclGroupEnd, or let every second rank receive first.",
        refs=[p.sends[-1] for p in sends[:6]],
        comm=comm_name(job, group),
        ranks=sorted(ranks),
        procs=_procs(job, sends[0], *ranks),
        stage="send/recv",
    )


def _wrong_peers(job: Job, ended: set[int]) -> list[Finding]:
    """A rank that sends to one rank while another expects that send, or that expects it from another rank than the one that sends."""
    sends: dict[tuple[int, int], list[PairQueue]] = defaultdict(list)
    recvs: dict[tuple[int, int], list[PairQueue]] = defaultdict(list)
    # the rank that may be wrong: the sender of both, or the receiver of both
    for pair in job.scan.pairs:
        if pair.group in ended or pair.mismatch is not None:
            continue
        if pair.pending_sends:
            sends[pair.group, pair.src].append(pair)
            recvs[pair.group, -1 - pair.dst].append(pair)
        elif pair.pending_recvs:
            recvs[pair.group, pair.src].append(pair)
            sends[pair.group, -1 - pair.dst].append(pair)
    open_: dict[int, int] = defaultdict(int)
    for pair in job.scan.pairs:
        open_[pair.group] += bool(pair.pending_sends or pair.pending_recvs)
    out = []
    for key, ours in sends.items():
        others = recvs.get(key, [])
        if len(ours) != 1 or len(others) != 1 or open_[key[0]] != 2:
            continue  # more is open, so this may be a round in progress
        one, other = (ours[0], others[0]) if ours[0].pending_sends else (others[0], ours[0])
        found = _wrong_peer(job, one, other, one.src if key[1] >= 0 else one.dst)
        if found is not None:
            out.append(found)
    return out


def _wrong_peer(job: Job, sent: PairQueue, expected: PairQueue, wrong: int) -> Finding | None:
    run = _run(job, sent)
    lack = sent.pending_sends
    if run is None or lack != expected.pending_recvs or damage.lossy(job):
        return None
    state = proof.of(job, run)
    if (
        state.failed
        or state.done
        or any(job.proc_in(sent.group, r) is None for r in (sent.src, sent.dst, expected.dst))
    ):
        return None
    name = comm_name(job, sent.group)
    # ranks with equally many calls are in the same round, which a rank that is behind would not be
    even = len({i.sends + i.recvs for i in job.members.get(sent.group, ())}) == 1
    proven = bool(state.lasting) or (even and _closed(job, run, sent, wrong))
    if wrong == sent.src:
        title = f"rank {wrong} sends to rank {sent.dst}, which expects nothing from it, and rank {expected.dst} expects that send"
    else:
        title = f"rank {wrong} expects a send of rank {expected.src}, which sends nothing to it, and rank {sent.src} sends to it"
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"{title}: a wrong peer, in communicator {name}",
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if proven else 0.6,
        explanation="All other sends and recvs of the communicator are paired."
        + ("" if proven else " A cut log can look the same."),
        next_step=f"Compare the peer of the call of rank {wrong} with that of its counterparts.",
        refs=[*sent.sends[:2], *expected.recvs[:2], *state.refs[:2]],
        comm=name,
        ranks=sorted({sent.src, sent.dst, expected.src, expected.dst}),
        procs=_procs(job, sent, wrong, *({sent.src, sent.dst, expected.src, expected.dst} - {wrong})),
        culprits=[wrong] if proven else [],
        stage="send/recv",
    )


def _retyped(job: Job) -> list[Finding]:
    """One note a communicator. A lost line shifts a queue, so a pair with another flaw shows nothing."""
    found: dict[int, list[PairQueue]] = defaultdict(list)
    for pair in job.scan.pairs:
        if pair.retyped is not None and pair.mismatch is None and not pair.pending_sends and not pair.pending_recvs:
            found[pair.group].append(pair)
    out = []
    for group, pairs in found.items():
        pair = pairs[0]
        assert pair.retyped is not None
        send, recv, sent, received = pair.retyped
        others = len(pairs) - 1
        more = (
            f", and {counted(others, 'more pair')} of ranks {plural(others, 'does', 'do')} the same" if others else ""
        )
        out.append(
            new_finding(
                job,
                "PSM303",
                run=_run(job, pair),
                title=(
                    f"rank {pair.src} sends {calls.type_name(sent)} to rank {pair.dst}, which receives {calls.type_name(received)} "
                    f"of the same size in bytes, in communicator {comm_name(job, group)}{more}"
                ),
                severity=Severity.INFO,
                confidence=0.8,
                explanation="Send and Recv move bytes, so the data is right if the receiver reads it with the sender's type.",
                next_step="Use the same type on both ranks, so that a real mismatch stands out.",
                refs=[send, recv],
                comm=comm_name(job, group),
                ranks=[pair.src, pair.dst],
                stage="send/recv",
            )
        )
    return out


def _owing(pair: PairQueue) -> int:
    return pair.dst if pair.pending_sends else pair.src


def _leavers(job: Job, ended: set[int]) -> dict[tuple[int, int], tuple[CommInstance, list[PairQueue]]]:
    """Ranks that began their teardown while a call of theirs is missing, by communicator and rank: they will never make it.

    Teardown lines do not name the communicator, so this holds only for a process with one communicator.
    """
    stops = blame.leaving(job)
    found: dict[tuple[int, int], tuple[CommInstance, list[PairQueue]]] = {}
    if not stops or damage.lossy(job):
        return found
    for pair in job.scan.pairs:
        owing = _owing(pair)
        if not (pair.pending_sends or pair.pending_recvs) or pair.mismatch is not None or pair.group in ended:
            continue
        proc = job.proc_in(pair.group, owing)
        run = job.run_of(proc) if proc is not None else None
        if proc is None or run is None or proc not in stops or proof.of(job, run).failed:
            continue
        if max(pair.pending_sends, pair.pending_recvs) <= damage.lost_lines(job, [proc]):
            continue
        ours = job.instances_of.get(proc, [])
        if len(ours) != 1 or ours[0].last_op is None or ours[0].last_op.seq > stops[proc]:
            continue
        found.setdefault((pair.group, owing), (ours[0], []))[1].append(pair)
    # the missing rank is not the one that left last
    waiting = {_waiting(p) for _, pairs in found.values() for p in pairs}
    return {key: item for key, item in found.items() if key[1] not in waiting}


def _waiting(pair: PairQueue) -> int:
    return pair.src if pair.pending_sends else pair.dst


def _left(job: Job, instance: CommInstance, pairs: list[PairQueue]) -> Finding:
    peers = sorted({p.src if p.pending_sends else p.dst for p in pairs} - {instance.rank})
    lack = max(max(p.pending_sends, p.pending_recvs) for p in pairs)
    name = comm_name(job, instance.group)
    refs = [r for p in pairs[:3] for r in (p.sends or p.recvs)[:1]]
    procs = [instance.proc, *(p for r in peers if (p := job.proc_in(instance.group, r)) is not None)]
    return new_finding(
        job,
        "PSM302",
        run=job.run_of(instance.proc),
        title=(
            f"rank {instance.rank} went to its teardown {counted(lack, 'round')} of sends and recvs before "
            f"{ranks_text(peers)}, {'which wait' if len(peers) > 1 else 'which waits'} for it in communicator {name}"
        ),
        confidence=0.85,
        explanation=(
            f"Rank {instance.rank} stopped its proxy after {instance.sends} sends and {instance.recvs} recvs. "
            f"What {ranks_text(peers)} called beyond that will never have a counterpart: rank {instance.rank} ran fewer iterations or left its loop early."
        ),
        refs=[instance.last_op, *refs],
        comm=name,
        ranks=[instance.rank, *peers],
        procs=procs,
        culprits=[instance.rank],
        stage="send/recv",
    )


def _behind_all(job: Job, told: set[int | None]) -> list[Finding]:
    """The only rank that is behind while all others made the same number of calls. A truncated log looks alike, so this is a hint."""
    out = []
    members: dict[int, list[CommInstance]] = defaultdict(list)
    for instance in job.scan.instances:
        members[instance.group].append(instance)
    for group, ours in members.items():
        run = job.run_of(ours[0].proc)
        if run is None or run in told or len(ours) < max(ours[0].nranks, 3) or any(i.end is not None for i in ours):
            continue
        state = proof.of(job, run)
        if state.failed or state.suspects or plans.of(job, run).odd_half() is not None:
            continue
        calls = sorted((i.sends + i.recvs, i.rank) for i in ours)
        (least, rank), most = calls[0], calls[-1][0]
        whole = all(job.scan.files[job.process(i.proc).last.file].complete_end for i in ours)
        rear = next(i for i in ours if i.rank == rank)
        if not least or least == most or calls[1][0] != most or not whole or rear.proc in lost(job):
            continue
        lines: list[Ref | None] = [rear.last_op, *(i.last_op for i in ours if i.rank != rank)]
        still = _standing_still(job)
        proven = rear.proc not in still and all(i.proc in still for i in ours if i is not rear)
        proven = proven and most - least > damage.lost_lines(job, [rear.proc])
        if proven:
            lines[1:1] = [still[i.proc] for i in ours if i is not rear][:2]
        out.append(
            new_finding(
                job,
                "PSM302",
                run=run,
                title=f"rank {rank} made {most - least} fewer {plural(most - least, 'send or recv', 'sends and recvs')} than every other rank of communicator {comm_name(job, group)}",
                severity=None if proven else Severity.WARNING,
                confidence=0.8 if proven else 0.5,
                explanation="The other ranks stopped at the same call, as waiting ranks do"
                + (", and their streams have not moved since." if proven else ". A cut log can look the same."),
                refs=lines[:5],
                comm=comm_name(job, group),
                ranks=[rank],
                procs=[rear.proc],
                culprits=[rank] if proven else (),
                stage="send/recv",
            )
        )
    return out


@once
def _standing_still(job: Job) -> dict[int, Ref]:
    """Processes with a stream that was reported as stalled and never as moving again, with the line."""
    found = {
        e.proc: e.ref for e in job.events("hostcuda.stall", "hostcuda.stall_host_function", "hostcuda.stall_thread")
    }
    for event in job.events("hostcuda.stall_over"):
        if event.proc in found and event.ref.seq > found[event.proc].seq:
            del found[event.proc]
    return found


def _run(job: Job, pair: PairQueue) -> int | None:
    procs = (job.proc_in(pair.group, pair.src), job.proc_in(pair.group, pair.dst))
    return next((job.run_of(p) for p in procs if p is not None), None)


def _procs(job: Job, pair: PairQueue, *ranks: int) -> list[int]:
    return [p for r in ranks if (p := job.proc_in(pair.group, r)) is not None]


def _common(pairs: list[PairQueue]) -> int | None:
    """The rank that is part of all pairs whose sizes differ, if there are several: its sizes are wrong."""
    shared = set.intersection(*({p.src, p.dst} for p in pairs)) if len(pairs) > 1 else set()
    return next(iter(shared)) if len(shared) == 1 else None


def _sizes(job: Job, run: int, pair: PairQueue, common: int | None) -> Finding:
    assert pair.mismatch is not None
    send, recv, sent, received = pair.mismatch
    # a lost line shifts the two queues against each other, and then one of them has a remainder
    odd, sure = _planned(job, run, pair)
    shifted = pair.pending_sends != pair.pending_recvs and not sure
    shifted = shifted or (not sure and damage.lost_lines(job, _procs(job, pair, pair.src, pair.dst)) > 0)
    name = comm_name(job, pair.group)
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"rank {pair.src} sends {sent} bytes to rank {pair.dst}, which expects {received}, in communicator {name}",
        severity=Severity.WARNING if shifted else None,
        confidence=0.5 if shifted else 0.9,
        explanation=(
            f"Of the sends from rank {pair.src} to rank {pair.dst}, {pair.matched} had a recv of their own size before this one."
            + (" One side has more calls than the other, so a lost line could be the reason." if shifted else "")
        ),
        refs=[send, recv],
        comm=name,
        ranks=[pair.src, pair.dst],
        procs=_procs(job, pair, pair.src, pair.dst),
        culprits=odd if common is None or shifted else [common],
        stage="send/recv",
    )


def _planned(job: Job, run: int, pair: PairQueue) -> tuple[list[int], bool]:
    """The rank whose size is not that of the job, and whether the plans of both ends show the same two sizes."""
    assert pair.mismatch is not None
    _, _, sent, received = pair.mismatch
    planned = plans.of(job, run)
    ours, theirs = planned.sends.get((pair.src, pair.dst)), planned.recvs.get((pair.src, pair.dst))
    if ours is None or theirs is None:
        return [], False
    sure = sent in ours.sizes and received in theirs.sizes and (sent not in theirs.sizes or received not in ours.sizes)
    # a Send or Recv whose line is lost is still in the plan
    sure = (
        sure and theirs.total == pair.matched + pair.pending_recvs and ours.total == pair.matched + pair.pending_sends
    )
    return planned.odd_of((pair.src, sent), (pair.dst, received)), sure


def _unpaired(job: Job, run: int, pair: PairQueue, queues: _Queues) -> Finding | None:
    sending = pair.pending_sends > 0
    lack = pair.pending_sends if sending else pair.pending_recvs
    waiter, owing = (pair.src, pair.dst) if sending else (pair.dst, pair.src)
    ours = proof.of(job, run)
    if ours.failed:
        return None
    hole = _hole(queues, pair, sending)
    owed_by = job.proc_in(pair.group, owing)
    if owed_by is None or owed_by in lost(job):
        return None  # its log is missing or was cut, so its calls are unknown
    # the end of a log is no proof that a rank stopped there
    outside = bool(ours.lasting) and outlives(job, owed_by)
    if not hole and not outside:
        return None  # one rank is ahead of the other, as at the end of any log
    if not hole and _behind(queues, pair, owing):
        return None  # it stopped before this point, which another rule reports
    proven = outside or lack > 1 or (hole and (_closed(job, run, pair, owing) or _whole_round(job, run, pair, owing)))
    # a wrong program is wrong on one rank or on all; lost lines hit some
    proven = proven and (outside or len(queues.owing[pair.group]) in (1, _size(job, pair)))
    # RAS shows that another rank stopped, so the call may be a lost line
    silent = proof.silent(job, run)
    proven = proven and (not silent or owed_by in silent)
    # damaged lines may be the calls that seem to lack
    proven = proven and lack > damage.lost_lines(job, [job.proc_in(pair.group, owing)])
    what, counter = ("send", "recv") if sending else ("recv", "send")
    name = comm_name(job, pair.group)
    refs = (pair.sends if sending else pair.recvs)[:3]
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"rank {owing} has no {counter} for {counted(lack, what)} of rank {waiter}, in communicator {name}",
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if proven and hole else 0.7 if proven else 0.5,
        explanation=(
            f"Rank {owing} called every {counter} that its other peers have for it, and {lack} too few for rank {waiter}."
            if hole
            else f"{pair.matched} of them paired before, and lines from outside show that the wait lasts."
        ),
        refs=[*refs, *ours.refs[:2]],
        comm=name,
        ranks=[waiter, owing],
        procs=_procs(job, pair, owing, waiter),
        culprits=[owing] if proven else [],
        stage="send/recv",
    )


def _size(job: Job, pair: PairQueue) -> int:
    return max((i.nranks for i in job.members.get(pair.group, ())), default=0)


def _behind(queues: _Queues, pair: PairQueue, owing: int) -> bool:
    """Whether the rank that owes a call owes calls to others too."""
    return len(queues.waiters[pair.group, owing]) > 1


def _closed(job: Job, run: int, pair: PairQueue, owing: int) -> bool:
    """Whether the group with the missing call was closed: connections are made for it, and no plan contradicts."""
    proc = job.proc_in(pair.group, owing)
    if proc is None or plans.of(job, run).planned.get(owing) or damage.lossy(job):
        return False
    last = next((i.last_op for i in job.instances_of.get(proc, []) if i.group == pair.group), None)
    return last is not None and _connected(job).get(proc, -1) > last.seq


@once
def _connected(job: Job) -> dict[int, int]:
    """Where each process last printed a line of a connection."""
    found: dict[int, int] = {}
    for event in job.events(*_CONNECTING):
        found[event.proc] = max(found.get(event.proc, -1), (event.last or event.ref).seq)
    return found


def _whole_round(job: Job, run: int, pair: PairQueue, owing: int) -> bool:
    """Whether the rank printed its complete round: its last call is the last one of all its peers too.

    A truncated log lacks the end of a round and nothing from the middle of it.
    """
    if plans.of(job, run).planned.get(owing) or damage.lossy(job):
        return False
    ends: dict[int, tuple[str, int]] = {}
    for instance in job.members.get(pair.group, []):
        call = lines.fields_at(job, instance.last_op)
        what, peer = str(call.get("coll", "")), number(call, "root")
        if (
            what not in ("Send", "Recv")
            or peer is None
            or not job.scan.files[job.process(instance.proc).last.file].complete_end
        ):
            return False
        ends[instance.rank] = (what, peer)
    size = len(ends)
    if (
        size < 3
        or owing not in ends
        or (ends[owing][0] == ("Recv" if pair.pending_sends else "Send") and ends[owing][1] == _waiting(pair))
    ):
        return False
    # peers are called in the order of their ranks, possibly starting with the next one
    return (
        len(set(ends.values())) == 1 or len({(what, (peer - rank) % size) for rank, (what, peer) in ends.items()}) == 1
    )


def _hole(queues: _Queues, pair: PairQueue, sending: bool) -> bool:
    """Whether the rank has called its counterparts for all other peers, as often as this peer needs them.

    Only an exchange in which all peers do the same shows it: in a pipeline one neighbour is always ahead of the other.
    """
    need = pair.matched + (pair.pending_sends if sending else pair.pending_recvs)
    key = (False, pair.group, pair.dst) if sending else (True, pair.group, pair.src)
    others = queues.total[key] - 1  # the pair itself is not even
    return others >= 2 and queues.even[key][need] == others
