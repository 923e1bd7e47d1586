"""The verdict on a running job: stuck steps, late ranks, slow links and loss, from the profiler's windows.

The verdict covers one host: ranks of a communicator on other hosts are named as not visible here. Arrays are those of
:mod:`psmkit.telemetry.reader`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psmkit.logparse.records import text_of
from psmkit.model import CODES, Finding
from psmkit.model.wording import counted, plural
from psmkit.telemetry.layout import CE, COLL, FUNCTIONS, P2P, PROXY_OP, PROXY_STEP, user_tag

__all__ = ["Limits", "Watch", "wait_of"]

# enum psm_prof_type and psm_prof_flag of csrc/telemetry/window.h.
_COLL, _P2P, _PROXY_OP, _PROXY_STEP, _CE_COLL = 1, 2, 3, 4, 12
_STOPPED, _SENDS, _COMPLETE = 1, 4, 16
_NO_PEER = -1
# NCCL's states in which an event can be left (psm_abi/profiler.h): what it waits for, and whether the peer has to act.
_STATES: Mapping[int, tuple[str, str, bool]] = {
    8: ("SendGPUWait", "its GPU to fill the buffer", False),
    20: ("SendPeerWait", "rank {peer} to offer a buffer", True),
    9: ("SendWait", "the network to send it to rank {peer}", True),
    10: ("RecvWait", "data of rank {peer}", True),
    11: ("RecvFlushWait", "the flush of what came", False),
    12: ("RecvGPUWait", "its GPU to take what came", False),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds for findings.

    Args:
        stall: seconds that an event may be open.
        periods: number of updates that are judged together.
        late: fraction of the others' duration below which a rank counts as late.
        slow: factor of the others' time from which a link counts as slow.
        least: minimum number of operations or transfers.
        least_us: minimum difference in microseconds.
    """

    stall: float = 10.0
    periods: int = 6
    late: float = 0.3
    slow: float = 3.0
    least: int = 32
    least_us: float = 50.0


@dataclass(slots=True)
class _Wait:
    """The oldest open event of a rank, and the rank that it waits for."""

    rank: int
    since: int
    stage: str
    text: str
    peer: int | None


@dataclass(slots=True)
class _Period:
    """The content of one update, by communicator."""

    # (comm hash, kind of operation) -> rank -> (count, ns)
    ops: dict[tuple[int, tuple[int, ...]], dict[int, tuple[int, float]]] = field(default_factory=dict)
    # (comm hash, sender, receiver) -> n, sx, sy, sxx, sxy, bytes, ns
    links: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)


def wait_of(flags: int, state: int, peer: int) -> tuple[str, str, int | None]:
    """The stage of an open proxy step, what it waits for, and the rank that it waits for (None: no other rank)."""
    sends = bool(flags & _SENDS)
    known = _STATES.get(state)
    if known is None:
        name = "send step" if sends else "receive step"
        who = f"rank {peer}" if peer >= 0 else "its peer"
        return name, f"its first state, with {who}", peer if peer >= 0 and not sends else None
    stage, text, others = known
    return stage, text.format(peer=peer if peer >= 0 else "?"), peer if others and peer >= 0 else None


class Watch:
    """Judges each update of the windows. Not thread-safe."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._periods: deque[_Period] = deque(maxlen=self.limits.periods)
        self._seen: dict[tuple[str, int, int], Mapping[str, int]] = {}

    def update(self, comms: Any, ops: Any, links: Any, open_rows: Any, now_ns: int) -> list[Finding]:
        """Process an update; returns the current findings, errors first.

        Args:
            comms: array (communicators of this host,) of ``COMM``.
            ops: array of ``OP``, sums since the last update.
            links: array of ``LINK``, likewise.
            open_rows: array of ``ROW``, the events that are open now.
            now_ns: CLOCK_MONOTONIC.
        """
        by_id = {int(comm["id"]): comm for comm in comms}
        self._periods.append(_period(by_id, ops, links))
        found = [*self._stuck(by_id, open_rows, now_ns), *self._late(by_id), *self._slow(by_id), *self._loss(comms)]
        return sorted(found, key=lambda finding: -finding.severity.weight)

    # ---- stuck ranks ----

    def _stuck(self, by_id: Mapping[int, Any], rows: Any, now_ns: int) -> Iterable[Finding]:
        waits: dict[int, dict[int, _Wait]] = defaultdict(dict)  # comm hash -> rank -> its oldest
        dead: dict[int, list[Any]] = defaultdict(list)
        for row in rows:
            comm = by_id.get(int(row["comm"]))
            if comm is None:
                continue
            if int(comm["owner"]) == 1:
                dead[int(comm["id"])].append(row)
                continue
            wait = _waiting(row, comm)
            if wait is None or now_ns - wait.since < self.limits.stall * 1e9:
                continue
            old = waits[int(comm["comm_hash"])].get(wait.rank)
            if old is None or (_depth(wait), -wait.since) > (_depth(old), -old.since):
                waits[int(comm["comm_hash"])][wait.rank] = wait
        for number, lost in dead.items():
            yield _ended(by_id[number], lost)
        gone = {(int(by_id[n]["comm_hash"]), int(by_id[n]["rank"])) for n in dead}
        busy: dict[str, list[tuple[int, _Wait]]] = defaultdict(list)  # process -> its waits
        processes = {(int(c["comm_hash"]), int(c["rank"])): _process(c) for c in by_id.values()}
        for comm_hash, of_rank in waits.items():
            for rank, wait in of_rank.items():
                busy[processes[comm_hash, rank]].append((comm_hash, wait))
        for comm_hash, of_rank in waits.items():
            elsewhere = {
                rank: f"its process waits in communicator {busy[process][0][0]:#x} for {busy[process][0][1].text}"
                for (number, rank), process in processes.items()
                if number == comm_hash and rank not in of_rank and busy[process]
            }
            yield self._stuck_comm(by_id, comm_hash, of_rank, gone, elsewhere, now_ns)

    def _stuck_comm(
        self,
        by_id: Mapping[int, Any],
        comm_hash: int,
        of_rank: dict[int, _Wait],
        gone: set[tuple[int, int]],
        elsewhere: Mapping[int, str],
        now_ns: int,
    ) -> Finding:
        here = {int(comm["rank"]) for comm in by_id.values() if int(comm["comm_hash"]) == comm_hash}
        # Follow the waits until a rank waits for nobody or does not wait, or until the path closes to a circle.
        ends: dict[int, int] = {}
        circle: list[int] = []
        for rank in of_rank:
            path = [rank]
            while (wait := of_rank.get(path[-1])) and wait.peer is not None:
                if wait.peer in path:
                    circle = sorted(path[path.index(wait.peer) :])
                    break
                path.append(wait.peer)
            ends[rank] = path[-1]
        roots = circle or sorted(set(ends.values()))
        oldest = min(of_rank.values(), key=lambda wait: wait.since)
        seconds = (now_ns - oldest.since) / 1e9
        said = [
            f"rank {wait.rank} for {(now_ns - wait.since) / 1e9:.0f} s in {wait.stage}: waits for {wait.text}"
            for wait in sorted(of_rank.values(), key=lambda wait: wait.rank)
        ]
        if circle:
            why = f"ranks {_list(circle)} wait for each other"
        else:
            why = "; ".join(
                _root(root, of_rank, here, (comm_hash, root) in gone, elsewhere.get(root)) for root in roots
            )
        more = f" and {len(said) - 8} more" if len(said) > 8 else ""
        code = CODES["PSM931"]
        return Finding(
            code.code,
            f"communicator {comm_hash:#x} has made no progress for {seconds:.0f} s: {why}",
            code.severity,
            0.9 if not circle else 0.6,
            f"{'; '.join(said[:8])}{more}.",
            code.next_step,
            comm=f"{comm_hash:#x}",
            ranks=tuple(sorted(of_rank.keys() | set(roots))),
            processes=tuple(
                _process(c) for c in by_id.values() if int(c["comm_hash"]) == comm_hash and int(c["rank"]) in roots
            ),
            stage=of_rank[roots[0]].stage if roots and roots[0] in of_rank else oldest.stage,
            culprits=tuple(roots) if not circle else (),
        )

    # ---- late ranks ----

    def _late(self, by_id: Mapping[int, Any]) -> Iterable[Finding]:
        sums: dict[tuple[int, tuple[int, ...]], dict[int, list[float]]] = defaultdict(dict)
        for period in self._periods:
            for key, durations in period.ops.items():
                for rank, (count, ns) in durations.items():
                    both = sums[key].setdefault(rank, [0.0, 0.0])
                    both[0] += count
                    both[1] += ns
        told: set[tuple[int, int]] = set()
        for (comm_hash, kind), of_rank in sums.items():
            means = {rank: ns / count for rank, (count, ns) in of_rank.items() if count >= self.limits.least}
            if len(means) < 3:
                continue
            rank = min(means, key=lambda r: means[r])
            others = [mean for other, mean in means.items() if other != rank]
            typical = statistics.median(others)
            gap = typical - means[rank]
            # The others must be alike; otherwise nobody waits for the rank, and operations simply differ in duration.
            alike = max(others) - min(others) < gap
            if (
                gap < self.limits.late * typical
                or gap < self.limits.least_us * 1e3
                or not alike
                or (comm_hash, rank) in told
            ):
                continue
            told.add((comm_hash, rank))
            code = CODES["PSM932"]
            yield Finding(
                code.code,
                f"rank {rank} begins {_func(kind[1])} of communicator {comm_hash:#x} about {gap / 1e3:.0f} us after the others",
                code.severity,
                0.7,
                f"{int(of_rank[rank][0])} operations of {means[rank] / 1e3:.0f} us on rank {rank}, of {typical / 1e3:.0f} us on the other "
                f"{counted(len(others), 'rank')} of this host, {plural(len(others), 'which waits', 'which wait')} for it.",
                code.next_step,
                comm=f"{comm_hash:#x}",
                ranks=tuple(sorted(means)),
                processes=tuple(
                    _process(c) for c in by_id.values() if (int(c["comm_hash"]), int(c["rank"])) == (comm_hash, rank)
                ),
                culprits=(rank,),
            )

    # ---- slow links ----

    def _slow(self, by_id: Mapping[int, Any]) -> Iterable[Finding]:
        sums: dict[tuple[int, int, int], list[float]] = {}
        for period in self._periods:
            for ends, values in period.links.items():
                total = sums.setdefault(ends, [0.0] * len(values))
                for i, value in enumerate(values):
                    total[i] += value
        of_comm: dict[int, dict[tuple[int, int], list[float]]] = defaultdict(dict)
        for (comm_hash, sender, receiver), total in sums.items():
            if total[0] >= self.limits.least and total[1] > 0:
                of_comm[comm_hash][sender, receiver] = total
        for comm_hash, links in of_comm.items():
            if len(links) < 3:
                continue
            size = statistics.median(total[1] / total[0] for total in links.values())
            times = {link: time for link, total in links.items() if (time := _time_of(total, size)) is not None}
            slow = {}
            for link, time in times.items():
                typical = statistics.median([other for name, other in times.items() if name != link] or [time])
                if time > self.limits.slow * typical and time - typical > self.limits.least_us * 1e3:
                    slow[link] = (time, typical)
            receivers = defaultdict(set)
            for sender, receiver in slow:
                receivers[receiver].add(sender)
            for receiver, senders in receivers.items():
                all_of = {s for s, r in times if r == receiver}
                whole = len(senders) > 1 and senders == all_of
                for sender in sorted(senders)[: 1 if whole else None]:
                    yield _slow_link(by_id, comm_hash, sender, receiver, *slow[sender, receiver], size, whole)

    # ---- loss ----

    def _loss(self, comms: Any) -> Iterable[Finding]:
        for comm in comms:
            name = (text_of(comm["host"]), int(comm["pid"]), int(comm["comm_hash"]))
            now = {field: int(comm[field]) for field in _LOSS + _BREACHES}
            before = self._seen.get(name, {})
            self._seen[name] = now
            lost = {field: now[field] - before.get(field, 0) for field in _LOSS if now[field] > before.get(field, 0)}
            wrong = {field: now[field] for field in _BREACHES if now[field] > before.get(field, 0)}
            who = f"rank {int(comm['rank'])} of communicator {int(comm['comm_hash']):#x}"
            if lost:
                words = ", ".join(f"{count} {_WORDS[field]}" for field, count in lost.items())
                yield _of_comm(
                    "PSM934",
                    f"{who} lost {sum(lost.values())} events",
                    f"{words}, of {int(comm['begun'])} begun.",
                    comm,
                )
            if wrong:
                words = ", ".join(f"{count} {_WORDS[field]}" for field, count in wrong.items())
                yield _of_comm("PSM935", f"{who}: {words}", "Counted by the plugin since init.", comm)


_LOSS = ("dropped_full", "dropped_memory", "overwritten")
_BREACHES = ("bad_handle", "stale_handle", "stopped_twice", "state_after_stop")
_WORDS = {
    "dropped_full": "found no window with room",
    "dropped_memory": "found no memory",
    "overwritten": "were overwritten before anybody took them",
    "bad_handle": "handles that are none of a living communicator",
    "stale_handle": "handles of slots that were given again",
    "stopped_twice": "events stopped twice",
    "state_after_stop": "states after the stop",
}


def _of_comm(name: str, title: str, explanation: str, comm: Any) -> Finding:
    code = CODES[name]
    return Finding(
        code.code,
        title,
        code.severity,
        1.0,
        explanation,
        code.next_step,
        comm=f"{int(comm['comm_hash']):#x}",
        ranks=(int(comm["rank"]),) if int(comm["rank"]) >= 0 else (),
        processes=(_process(comm),),
    )


def _period(by_id: Mapping[int, Any], ops: Any, links: Any) -> _Period:
    period = _Period()
    for op in ops:
        comm = by_id.get(int(op["comm"]))
        known = int(op["by_proxy"]) + int(op["by_kernel"]) + int(op["by_ce"])
        if comm is None or int(op["other"]) or int(op["type"]) == _P2P or known == 0 or int(op["by_enqueue"]):
            continue  # its duration is unknown
        source = 0 if int(op["by_proxy"]) else 1 if int(op["by_kernel"]) else 2
        kind = (int(op["type"]), int(op["func"]), int(op["algo"]), int(op["proto"]), int(op["datatype"]), source)
        of_rank = period.ops.setdefault((int(comm["comm_hash"]), kind), {})
        count, ns = of_rank.get(int(comm["rank"]), (0, 0.0))
        stat = op["duration"]
        of_rank[int(comm["rank"])] = (count + int(stat["count"]), ns + float(stat["sum"]))
    for link in links:
        comm = by_id.get(int(link["comm"]))
        if (
            comm is None
            or int(link["channel"]) != -1
            or int(link["other"])
            or int(link["peer"]) < 0
            or not int(link["sends"])
        ):
            continue
        key = (int(comm["comm_hash"]), int(link["rank"]), int(link["peer"]))
        values = [float(link["count"]), *(float(link[name]) for name in ("sx", "sy", "sxx", "sxy"))]
        old = period.links.get(key)
        period.links[key] = values if old is None else [a + b for a, b in zip(old, values, strict=True)]
    return period


def _waiting(row: Any, comm: Any) -> _Wait | None:
    event = row["event"]
    kind, flags, state = int(event["type"]), int(event["flags"]), int(event["state"])
    rank, since = int(comm["rank"]), int(row["start_ns"])
    if kind == _PROXY_STEP:
        step = _union(event, PROXY_STEP)
        stage, text, peer = wait_of(flags, state, int(step["peer"]))
        entered = max(int(step[name]) for name in ("gpu_ns", "peer_ns", "net_ns", "flush_ns"))
        return _Wait(
            rank, max(since, entered), stage, f"{text} (channel {int(step['channel'])}, step {int(step['step'])})", peer
        )
    if kind == _PROXY_OP:
        op = _union(event, PROXY_OP)
        peer = int(op["peer"])
        side = "send" if flags & _SENDS else "receive"
        text = f"its {side} with rank {peer} to begin (channel {int(op['channel'])}, {int(op['steps'])} steps)"
        return _Wait(rank, since, f"proxy op, {side}", text, None)
    if kind in (_COLL, _P2P, _CE_COLL) and not flags & _COMPLETE:
        u = _union(event, {_COLL: COLL, _P2P: P2P}.get(kind, CE))
        peer = int(u["peer"]) if kind == _P2P else _NO_PEER
        what = _func(int(u["func"]))
        text = f"the end of its {what}" + (
            f" with rank {peer}" if peer >= 0 else f" {int(u['seq'])}" if kind == _COLL else ""
        )
        if tag := user_tag(event)[0]:
            text += f" (the application's tag {tag})"
        return _Wait(rank, since, "enqueued", text, None)
    return None


def _union(event: Any, kind: Any) -> Any:
    return event["u"].view(kind)[0]


def _depth(wait: _Wait) -> int:
    """A deeper event says more: a step more than its proxy op, that more than the collective."""
    return 0 if wait.stage == "enqueued" else 1 if wait.stage.startswith("proxy op") else 2


def _root(root: int, of_rank: Mapping[int, _Wait], here: set[int], dead: bool, elsewhere: str | None) -> str:
    if dead:
        return f"rank {root} is dead"
    if elsewhere is not None:
        return f"rank {root} has nothing open here: {elsewhere}"
    wait = of_rank.get(root)
    if wait is not None:
        return f"rank {root} waits for {wait.text}"
    if root in here:
        return f"rank {root} has nothing open: it has not come to this operation, or believes that it is done"
    return f"rank {root} is not on this host: look there"


def _ended(comm: Any, rows: Sequence[Any]) -> Finding:
    code = CODES["PSM936"]
    last = max(rows, key=lambda row: int(row["start_ns"]))
    wait = _waiting(last, comm)
    doing = f"; the last: {wait.stage}, waiting for {wait.text}" if wait else ""
    return Finding(
        code.code,
        f"the process of rank {int(comm['rank'])}, communicator {int(comm['comm_hash']):#x}, ended with {counted(len(rows), 'open event')}",
        code.severity,
        0.9,
        f"{_process(comm)} is gone without an end of its record{doing}.",
        code.next_step,
        comm=f"{int(comm['comm_hash']):#x}",
        ranks=(int(comm["rank"]),),
        processes=(_process(comm),),
        stage=wait.stage if wait else None,
        culprits=(int(comm["rank"]),),
    )


def _time_of(total: Sequence[float], size: float) -> float | None:
    """ns for a transfer of ``size`` bytes: by the fit if there are several sizes, else the mean if the size is near."""
    n, sx, sy, sxx, sxy = total
    mean_x, mean_y = sx / n, sy / n
    spread = sxx - n * mean_x * mean_x
    if spread > 1e-6 * sxx:
        slope = (sxy - n * mean_x * mean_y) / spread
        time = mean_y + slope * (size - mean_x)
        if slope > 0 and time > 0:
            return time
    return mean_y if mean_x / 2 <= size <= mean_x * 2 else None


def _slow_link(
    by_id: Mapping[int, Any],
    comm_hash: int,
    sender: int,
    receiver: int,
    time: float,
    typical: float,
    size: float,
    whole: bool,
) -> Finding:
    code = CODES["PSM932" if whole else "PSM933"]
    if whole:
        title = f"all links to rank {receiver} of communicator {comm_hash:#x} are slow: the rank takes its data late"
    else:
        title = f"the link from rank {sender} to rank {receiver} of communicator {comm_hash:#x} is {time / typical:.1f} times slower than the others"
    return Finding(
        code.code,
        title,
        code.severity,
        0.7,
        f"A transfer of {size:.0f} bytes takes {time / 1e3:.0f} us from rank {sender} to rank {receiver}, {typical / 1e3:.0f} us on the median of "
        "the other links.",
        code.next_step,
        comm=f"{comm_hash:#x}",
        ranks=(receiver,) if whole else (sender, receiver),
        processes=tuple(
            _process(c)
            for c in by_id.values()
            if int(c["comm_hash"]) == comm_hash and int(c["rank"]) in (sender, receiver)
        ),
        culprits=(receiver,) if whole else (),
    )


def _func(code: int) -> str:
    return FUNCTIONS[code] if code < len(FUNCTIONS) else "operation"


def _process(comm: Any) -> str:
    return f"{text_of(comm['host'])}:{int(comm['pid'])}"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
