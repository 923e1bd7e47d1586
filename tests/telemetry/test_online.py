"""The verdict while a job runs: who stands still, who is late, which link is slow, what was lost. Healthy figures say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.model import Finding
from psmkit.telemetry.layout import COLL, COMM, LINK, OP, P2P, PROXY_OP, PROXY_STEP, ROW
from psmkit.telemetry.online import Limits, Watch

SECOND = 1_000_000_000
NOW = 100 * SECOND
HASH = 0xABC
COLLECTIVE, POINT, OPERATION, STEP = 1, 2, 3, 4
SENDS = 4


def comms(ranks: int = 4, **of_rank_0: int) -> Any:
    rows = np.zeros(ranks, COMM)
    rows["id"] = rows["rank"] = np.arange(ranks)
    rows["comm_hash"], rows["nranks"], rows["host"], rows["pid"] = HASH, ranks, b"node1", 100 + np.arange(ranks)
    for name, value in of_rank_0.items():
        rows[name][0] = value
    return rows


def step(rank: int, peer: int, state: int, *, sends: bool, begun: int = 10 * SECOND, channel: int = 1) -> Any:
    row = np.zeros(1, ROW)
    row["comm"], row["start_ns"] = rank, begun
    row["event"]["type"], row["event"]["flags"], row["event"]["state"] = STEP, SENDS if sends else 0, state
    u = np.zeros(1, PROXY_STEP)
    u["peer"], u["step"], u["channel"] = peer, 7, channel
    row["event"]["u"] = u.view("u1")
    return row


def other(rank: int, kind: int, dtype: Any, *, begun: int = 10 * SECOND, flags: int = 0, **values: int) -> Any:
    row = np.zeros(1, ROW)
    row["comm"], row["start_ns"] = rank, begun
    row["event"]["type"], row["event"]["flags"], row["event"]["state"] = kind, flags, 255
    u = np.zeros(1, dtype)
    for name, value in values.items():
        u[name] = value
    row["event"]["u"] = u.view("u1")
    return row


def judge(
    who: Any = None, ops: Any = None, links: Any = None, rows: Sequence[Any] = (), watch: Watch | None = None
) -> list[Finding]:
    return (watch or Watch()).update(
        comms() if who is None else who,
        np.zeros(0, OP) if ops is None else ops,
        np.zeros(0, LINK) if links is None else links,
        np.concatenate(rows) if rows else np.zeros(0, ROW),
        NOW,
    )


# ---- stuck ----


def test_waits_are_followed_to_the_rank_whose_gpu_does_not_come() -> None:
    [found] = judge(
        rows=[
            step(0, 3, 10, sends=False),
            step(3, 2, 10, sends=False),
            step(2, 1, 10, sends=False),
            step(1, 2, 8, sends=True),
        ]
    )
    assert (found.code, found.culprits, found.ranks, found.stage) == ("PSM931", (1,), (0, 1, 2, 3), "SendGPUWait")
    assert found.title == (
        "communicator 0xabc has made no progress for 90 s: rank 1 waits for its GPU to fill the buffer (channel 1, step 7)"
    )
    assert "rank 0 for 90 s in RecvWait: waits for data of rank 3" in found.explanation
    assert found.processes == ("node1:101",)


def test_a_rank_that_has_nothing_open_is_who_the_others_wait_for() -> None:
    [found] = judge(rows=[step(0, 1, 10, sends=False), step(2, 1, 20, sends=True)])
    assert found.culprits == (1,)
    assert "rank 1 has nothing open: it has not come to this operation" in found.title


def test_a_rank_that_waits_in_another_communicator_is_told_with_that() -> None:
    who = np.concatenate([comms(2), comms(2)])
    who["id"], who["comm_hash"] = np.arange(4), [HASH, HASH, 0xDEF, 0xDEF]
    first, second = judge(who, rows=[step(0, 1, 10, sends=False), step(3, 0, 8, sends=True)])
    assert first.culprits == (1,) and second.culprits == (1,)
    assert "rank 1 has nothing open here: its process waits in communicator 0xdef for its GPU" in first.title


def test_a_peer_on_another_host_is_named_as_not_seen_here() -> None:
    [found] = judge(rows=[step(0, 9, 10, sends=False)])
    assert found.culprits == (9,) and "rank 9 is not on this host" in found.title


def test_ranks_that_wait_for_each_other_are_told_without_a_culprit() -> None:
    [found] = judge(rows=[step(0, 1, 10, sends=False), step(1, 0, 10, sends=False)])
    assert found.culprits == () and "ranks 0 and 1 wait for each other" in found.title


def test_a_dead_rank_is_named_as_dead_and_told_apart() -> None:
    who = comms()
    who["owner"][2] = 1
    found = judge(who, rows=[step(0, 2, 10, sends=False), step(2, 1, 8, sends=True, begun=90 * SECOND)])
    assert {(f.code, f.culprits) for f in found} == {("PSM936", (2,)), ("PSM931", (2,))}
    assert any("rank 2 is dead" in f.title for f in found)
    assert any("ended with 1 open event" in f.title and "SendGPUWait" in f.explanation for f in found)


def test_the_step_tells_more_than_its_operation_and_its_collective() -> None:
    [found] = judge(
        rows=[
            other(0, COLLECTIVE, COLL, func=4, seq=12),
            other(0, OPERATION, PROXY_OP, peer=1, steps=4),
            step(0, 1, 8, sends=True, begun=80 * SECOND),
        ]
    )
    assert found.stage == "SendGPUWait" and "for 20 s" in found.title


def test_an_operation_without_steps_is_told_by_its_name() -> None:
    [found] = judge(rows=[other(1, COLLECTIVE, COLL, func=4, seq=12)])
    assert found.culprits == (1,) and "the end of its AllReduce 12" in found.title
    [found] = judge(rows=[other(1, POINT, P2P, func=6, peer=3)])
    assert "the end of its Send with rank 3" in found.title
    [found] = judge(rows=[other(1, OPERATION, PROXY_OP, peer=3, steps=4, flags=SENDS)])
    assert "its send with rank 3 to begin (channel 0, 4 steps)" in found.title


def test_what_is_young_or_complete_is_no_stall() -> None:
    assert judge(rows=[step(0, 1, 10, sends=False, begun=NOW - 9 * SECOND)]) == []
    assert judge(rows=[other(1, COLLECTIVE, COLL, flags=16)]) == []
    patient = Watch(Limits(stall=200))
    assert judge(rows=[step(0, 1, 10, sends=False)], watch=patient) == []


def test_the_last_change_of_state_counts_not_the_start() -> None:
    row = step(0, 1, 10, sends=False)
    row["event"]["u"][0].view(PROXY_STEP)["net_ns"] = NOW - SECOND
    assert judge(rows=[row]) == []


# ---- late ranks ----


def durations(of_rank: Sequence[float], count: int = 50, **more: int) -> Any:
    rows = np.zeros(len(of_rank), OP)
    rows["comm"], rows["type"], rows["func"], rows["by_proxy"] = np.arange(len(of_rank)), 1, 4, count
    rows["duration"]["count"], rows["duration"]["sum"] = count, np.array(of_rank) * count * 1e3
    for name, value in more.items():
        rows[name] = value
    return rows


def test_the_rank_with_the_short_operations_is_late() -> None:
    [found] = judge(ops=durations([1000, 1010, 400, 990]))
    assert (found.code, found.culprits) == ("PSM932", (2,))
    assert found.title == "rank 2 begins AllReduce of communicator 0xabc about 600 us after the others"


@pytest.mark.parametrize(
    "ops",
    [
        durations([1000, 1010, 1020, 990]),
        durations([1000, 1010, 400, 990], count=5),
        durations([10, 10, 4, 10]),
        durations([1000, 400]),
        durations([2000, 1000, 400, 3000]),
        durations([1000, 1010, 400, 990], by_proxy=0, by_enqueue=50),
        durations([1000, 1010, 400, 990], other=1),
    ],
    ids=["alike", "few", "short", "two ranks", "all differ", "only enqueued", "without a key"],
)
def test_what_does_not_prove_a_late_rank_says_nothing(ops: Any) -> None:
    assert judge(ops=ops) == []


def test_updates_are_judged_together_and_forgotten_in_time() -> None:
    watch = Watch(Limits(periods=3))
    for _ in range(3):
        found = judge(ops=durations([1000, 1010, 400, 990], count=12), watch=watch)
    assert [f.code for f in found] == ["PSM932"]
    for _ in range(3):
        found = judge(ops=durations([1000, 1010, 1000, 990], count=12), watch=watch)
    assert found == []


# ---- slow links ----


def link(
    sender: int, receiver: int, rate: float, latency: float = 5_000, sizes: Sequence[int] = (4096, 65536, 1 << 20)
) -> Any:
    """rate: bytes a ns; 20 transfers of each size."""
    row = np.zeros(1, LINK)
    x = np.repeat(np.array(sizes, float), 20)
    y = latency + x / rate
    row["comm"], row["rank"], row["peer"], row["channel"], row["sends"] = sender, sender, receiver, -1, 1
    row["count"], row["sx"], row["sy"], row["sxx"], row["sxy"] = len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum()
    row["syy"] = (y * y).sum()
    return row


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def test_a_link_slower_than_the_others_is_named_with_both_ends() -> None:
    links = np.concatenate([link(a, b, 2.0 if (a, b) == (1, 2) else 10.0) for a, b in RING])
    [found] = judge(links=links)
    assert (found.code, found.ranks, found.culprits) == ("PSM933", (1, 2), ())
    assert "the link from rank 1 to rank 2" in found.title and "times slower" in found.title
    assert found.processes == ("node1:101", "node1:102")


def test_links_of_other_sizes_are_compared_by_their_fit() -> None:
    links = [link(a, b, 10.0, sizes=(1 << 16, 1 << 20) if a else (1 << 12, 1 << 22)) for a, b in RING]
    assert judge(links=np.concatenate(links)) == []


def test_one_size_is_compared_only_with_its_like() -> None:
    slow = np.concatenate([link(a, b, 1.0 if a == 0 else 10.0, sizes=(1 << 20,) * 2) for a, b in RING])
    assert [f.code for f in judge(links=slow)] == ["PSM933"]
    elsewhere = np.concatenate([link(a, b, 10.0, sizes=(1 << 26 if a == 0 else 1 << 16,) * 2) for a, b in RING])
    assert judge(links=elsewhere) == []


def test_all_links_to_one_rank_blame_the_rank() -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    links = np.concatenate([link(a, b, 1.0 if b == 3 else 10.0) for a, b in pairs])
    [found] = judge(links=links)
    assert (found.code, found.culprits) == ("PSM932", (3,)) and "all links to rank 3" in found.title


def test_small_differences_and_single_channels_say_nothing() -> None:
    assert judge(links=np.concatenate([link(a, b, 6.0 if a == 1 else 10.0) for a, b in RING])) == []
    links = np.concatenate([link(a, b, 1.0 if a == 1 else 10.0) for a, b in RING])
    links["channel"] = 0
    assert judge(links=links) == []


# ---- loss ----


def test_loss_and_breaches_are_told_once_with_their_counts() -> None:
    watch = Watch()
    [lost] = judge(comms(begun=1000, dropped_full=7, overwritten=3), watch=watch)
    assert (lost.code, lost.ranks) == ("PSM934", (0,)) and "lost 10 events" in lost.title
    assert judge(comms(begun=2000, dropped_full=7, overwritten=3), watch=watch) == []
    [again] = judge(comms(begun=2000, dropped_full=8, overwritten=3), watch=watch)
    assert "lost 1 events" in again.title
    [breach] = judge(comms(begun=2000, dropped_full=8, overwritten=3, stopped_twice=2), watch=watch)
    assert breach.code == "PSM935" and "2 events stopped twice" in breach.title


# ---- any input ----


@given(st.binary(min_size=0, max_size=8 * ROW.itemsize), st.integers(0, 3))
def test_any_rows_are_judged_without_an_exception(data: bytes, ranks: int) -> None:
    whole = data[: len(data) // ROW.itemsize * ROW.itemsize]
    rows = np.frombuffer(whole, ROW).copy()
    rows["comm"] %= 4
    for found in Watch().update(comms(ranks), np.zeros(0, OP), np.zeros(0, LINK), rows, 1 << 63):
        assert found.code in ("PSM931", "PSM936") and found.title.isprintable()
