"""Takes as the consumer gives them, made up: ranks of a communicator that run collectives, with both ends of each transfer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from psmkit.telemetry.layout import (
    API,
    BUCKETS,
    CE,
    COLL,
    COMM,
    EVENT,
    KERNEL,
    LINK,
    OP,
    P2P,
    PROXY_OP,
    PROXY_STEP,
    ROW,
    STAT,
    TIME,
)
from psmkit.telemetry.reader import set_times
from psmkit.telemetry.take import OFFSET, STEP, Take

HASH = 0x9F3C11D2A0B47E65
WALL, CLOCK = 1_795_000_000_000_000_000, 500_000_000_000
STOPPED, FOREIGN, SENDS = 1, 2, 4


def stat(values: Iterable[int]) -> np.void:
    """What the C code makes of some values."""
    found = list(values)
    out = np.zeros((), STAT)
    out["count"], out["sum"] = len(found), float(sum(found))
    out["squares"] = float(sum(v * v for v in found))
    out["least"], out["most"] = (min(found), max(found)) if found else (0, 0)
    for value in found:
        out["bucket"][min(BUCKETS - 1, max(0, value.bit_length() - 1))] += 1
    return out[()]


def fields(kind: np.dtype[Any], **values: Any) -> np.ndarray[Any, Any]:
    out = np.zeros(1, kind)
    for name, value in values.items():
        out[name] = value
    return out


def comm(rank: int, **more: Any) -> np.ndarray[Any, Any]:
    return fields(
        COMM,
        **{
            "id": rank, "comm_hash": HASH, "rank": rank, "nranks": 2, "nnodes": 1, "pid": 4000 + rank, "abi": 5, "mask": 0x5F,
            "begin_ns": CLOCK - 10**9, "events": 100, "begun": 103, "dropped_full": 2, "overwritten": 1, "windows": 3, "forced": 1,
            "stale_handle": 4, "last_ns": CLOCK - 5 * 10**8, "name": b"tp group", "host": b"node1",
        }
        | more,
    )  # fmt: skip


def op(rank: int, durations: Iterable[int], sizes: Iterable[int], **more: Any) -> np.ndarray[Any, Any]:
    times, bytes_ = stat(durations), stat(sizes)
    return fields(
        OP,
        **{
            "comm": rank, "type": 1, "func": 4, "algo": 1, "proto": 2, "datatype": 7, "peer": -1, "by_proxy": int(times["count"]),
            "channels": 2, "duration": times, "bytes": bytes_, "transfers": stat([4] * int(times["count"])),
            "transfer_bytes": stat([65536, 65536]), "transfer_time": stat([20_000, 30_000]),
        }
        | more,
    )  # fmt: skip


def link(
    rank: int, peer: int, points: Iterable[tuple[int, int]], *, channel: int = -1, sends: int = 1, **more: Any
) -> Any:
    xy = [(float(x), float(y)) for x, y in points]
    sums = {
        "sx": sum(x for x, _ in xy), "sy": sum(y for _, y in xy), "sxx": sum(x * x for x, _ in xy), "sxy": sum(x * y for x, y in xy),
        "syy": sum(y * y for _, y in xy),
    }  # fmt: skip
    least = {x: min(y for a, y in xy if a == x) for x, _ in xy}.items()
    fewest = {
        "mx": sum(x for x, _ in least), "my": sum(y for _, y in least), "mxx": sum(x * x for x, _ in least),
        "mxy": sum(x * y for x, y in least), "myy": sum(y * y for _, y in least), "mcount": len(least),
    }  # fmt: skip
    return fields(
        LINK,
        **{
            "comm": rank, "rank": rank, "peer": peer, "channel": channel, "sends": sends, "count": len(xy), "bytes": int(sums["sx"]),
            "time": int(sums["sy"]), "wait": (1_000_000, 2_000_000, 3_000_000, 0), "latency": stat(int(y) for _, y in xy),
        }
        | sums
        | fewest
        | more,
    )  # fmt: skip


def row(
    comm: int, root: int, handle: int, parent: int, kind: int, start: int, stop: int, member: np.dtype[Any], *, flags: int = STOPPED,
    why: int = 1, **values: Any,
) -> np.ndarray[Any, Any]:  # fmt: skip
    event = fields(EVENT, parent=parent, stop_ns=stop, type=kind, abi=5, flags=flags, state=255)
    event["u"] = fields(member, **values).view("u1").reshape(1, 80)
    out = np.zeros(1, ROW)
    out["handle"], out["start_ns"], out["comm"], out["root"], out["tid"], out["why"] = (
        handle,
        start,
        comm,
        root,
        99,
        why,
    )
    out["event"] = event
    set_times(out)
    return out


def collective(rank: int, seq: int, *, first: int = 0, start: int = CLOCK - 10**6, done: bool = True) -> list[Any]:
    """The rows of an AllReduce of two ranks over one channel: group, collective, a send and a receive with one step each, a kernel channel.
    ``first`` is the index of its first row."""
    base = 0x5E << 56 | rank << 44 | (seq * 16 + first) << 24 | 1
    end = start + 900_000
    peer = 1 - rank
    return [
        row(rank, first, base, 0, 8, start, start + 60_000, API, func=4, mark1_ns=start + 10_000, mark2_ns=start + 50_000),
        row(rank, first, base + 1, base, 1, start + 20_000, start + 40_000, COLL, seq=seq, count=1024, func=4, datatype=7, algo=1,
            proto=2, channels=1, done_ns=end if done else 0, ops_begun=2, ops_ended=2 if done else 1, why=1 if done else 4),
        row(rank, first, base + 2, base + 1, 3, start + 100_000, end, PROXY_OP, flags=STOPPED | SENDS, pid=4000 + rank, peer=peer,
            steps=1, steps_ended=1, channel=3, bytes=4096, progress_ns=start + 110_000, wait_ns=(1, 2, 300_000, 0)),
        row(rank, first, base + 3, base + 2, 4, start + 120_000, end, PROXY_STEP, flags=STOPPED | SENDS, step=0, peer=peer,
            bytes=4096, gpu_ns=start + 120_000, peer_ns=start + 200_000, net_ns=start + 300_000, channel=3),
        row(rank, first, base + 4, base + 1, 3, start + 100_000, end if done else 0, PROXY_OP, flags=STOPPED if done else 0,
            pid=4000 + rank, peer=peer, steps=1, channel=3, bytes=4096),
        row(rank, first, base + 5, base + 1, 6, start + 90_000, end, KERNEL, channel=3, gpu_begin_ns=5000, gpu_end_ns=605_000),
    ]  # fmt: skip


def copies(rank: int, seq: int, *, start: int = CLOCK - 10**6, reported: int = 0) -> list[Any]:
    """The rows of an AllGather of two ranks by copy engine: its call, the collective, its two waits for flags and its copies. NCCL reports an
    end of the copies only if ``reported``."""
    base = 0x5E << 56 | rank << 44 | (8192 + seq * 16) << 24 | 1
    first = 8192 + seq * 16
    return [
        row(rank, first, base, 0, 9, start, start + 60_000, API, func=2, count=64),
        row(rank, first, base + 1, base, 12, start + 10_000, start + 50_000, CE, seq=seq, count=64, func=2, datatype=0, end_ns=reported),
        row(rank, first, base + 2, base + 1, 13, start + 12_000, start + 20_000, CE, ops=2, complete=0, func=255, datatype=255),
        row(rank, first, base + 3, base + 1, 14, start + 21_000, start + 30_000, CE, ops=2, bytes=128, func=255, datatype=255),
        row(rank, first, base + 4, base + 1, 13, start + 31_000, start + 40_000, CE, ops=2, complete=1, func=255, datatype=255),
    ]  # fmt: skip


def message(rank: int, *, sends: bool, number: int, first: int, start: int) -> list[Any]:
    """The rows of a send or a receive with one proxy operation."""
    base = 0x5E << 56 | rank << 44 | (4096 + number) << 24 | 1
    end = start + 500_000
    side = SENDS if sends else 0
    return [
        row(rank, first, base, 0, 2, start, start + 5_000, P2P, count=512, func=6 if sends else 7, datatype=1, peer=1 - rank,
            channels=1, done_ns=end, ops_begun=1, ops_ended=1),
        row(rank, first, base + 1, base, 3, start + 10_000, end, PROXY_OP, flags=STOPPED | side, pid=4000 + rank, peer=1 - rank,
            steps=1, channel=0, bytes=512),
    ]  # fmt: skip


def joined(parts: Iterable[Any], kind: np.dtype[Any]) -> Any:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, kind)


def made(number: int = 0, *, spans: Iterable[Any] | None = None, rows: bool = True) -> Take:
    """What two ranks did in an interval; of the first or a later one."""
    later = number * 5 * 10**9
    at = CLOCK + later
    both = (0, 1)
    if spans is None:
        trees: list[Any] = []
        for rank in both:
            trees += collective(rank, 7 + number, first=len(trees), start=at - 10**6)
        spans = trees
    tree = joined(spans, ROW)
    more = 10 * number
    return Take(
        wall_ns=WALL + later,
        since_ns=WALL + later - 5 * 10**9,
        clock_ns=at,
        comms=joined(
            [comm(r, events=100 + more, begun=103 + more, windows=3 + number, last_ns=at - 5 * 10**8) for r in both], COMM
        ),
        ops=joined([op(r, [900_000, 1_000_000, 70_000_000], [4096, 4096, 1 << 20]) for r in both], OP),
        links=joined(
            [link(r, 1 - r, [(x, 5_000 + x // 10) for x in (4096, 65536, 1 << 20)], channel=c, sends=s)
             for r in both for c in (-1, 3) for s in (0, 1)],
            LINK,
        ),
        times=joined(
            [fields(TIME, comm=r, what=w, sub=s, duration=stat([1000, 2000]), bytes=b)
             for r in both for w, s, b in ((5, 0, 0), (5, 3, 0), (6, 0, 0), (7, 0x10001, 64), (8, 0, 0))],
            TIME,
        ),
        spans=tree,
        rows=tree.copy() if rows else np.empty(0, ROW),
        open_rows=joined([row(0, 0, 1, 0, 1, at - 3 * 10**9, 0, COLL, flags=0, seq=99)], ROW),
        steps=np.array(
            [(4000, 0, 1, 2, 0xABC, 5, 1 << 20, 8, 6, 5, 4, 2 * 10**9, b"send", b"copying", b"fifo")], STEP
        ),
        offsets=np.array([(r, WALL - CLOCK) for r in both], OFFSET),
        rows_dropped=5,
    )  # fmt: skip
