"""The legacy scheduler, rule by rule; the values are those that NCCL 2.19's own functions give for the same tasks."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.csrc.psm.plan.scheduling import (
    ALLGATHER,
    BROADCAST,
    FIFO,
    FLOAT32,
    INT32,
    KIB,
    MIB,
    PERSISTENT,
    RECV,
    REDUCESCATTER,
    SEND,
    Comm,
    Driver,
    Json,
    Task,
    all_reduce,
    column,
    recv,
    send,
)

COMM = Comm(nchannels=4, p2pn=8, per_peer=2)


def channels(plan: Json, task: int) -> list[int]:
    return [work["channel"] for work in plan["works"] if work["task"] == task]


@pytest.mark.parametrize(
    ("nbytes", "n"), [(0, 1), (1, 1), (65535, 1), (65536, 2), (100_000, 3), (131_072, 4), (MIB, 4)]
)
def test_a_collective_alone_has_a_channel_for_each_32_kib(scheduler: Driver, nbytes: int, n: int) -> None:
    (plan,) = scheduler.plans(COMM, [all_reduce(nbytes)])
    assert channels(plan, 0) == list(range(n))
    assert sum(column(plan["works"], "nbytes")) == nbytes


def test_neighbours_of_one_kind_share_the_channels_by_their_bytes(scheduler: Driver) -> None:
    """4 MiB in all over 4 channels: 16 MiB a channel is halved until it is 1 MiB, so that all are used."""
    (plan,) = scheduler.plans(
        COMM, [all_reduce(MIB), all_reduce(2 * MIB), all_reduce(512 * KIB), all_reduce(512 * KIB)]
    )
    assert [channels(plan, task) for task in range(4)] == [[0], [1, 2], [3], [3]]


def test_a_neighbour_of_another_type_or_operation_is_not_joined(scheduler: Driver) -> None:
    """Joined, 40 KiB of 80 KiB have 3 of 4 channels at 16 KiB each; alone, the one that the tuner gives."""
    one = all_reduce(10 * KIB, FLOAT32)
    (joined,) = scheduler.plans(COMM, [one, one])
    assert [channels(joined, task) for task in range(2)] == [[0, 1, 2], [1, 2, 3]]
    for other in (all_reduce(10 * KIB, INT32), all_reduce(10 * KIB, FLOAT32, redop=1)):
        (apart,) = scheduler.plans(COMM, [one, other])
        assert [channels(apart, task) for task in range(2)] == [[0], [1]]


def test_min_and_max_and_types_of_gathers_are_one_kind(scheduler: Driver) -> None:
    """The device has one function for min and max, and gathers move bytes: elements share a slot."""
    one = COMM.with_(nchannels=1)
    (plan,) = scheduler.plans(one, [all_reduce(8, redop=2), all_reduce(8, redop=3)])
    assert column(plan["works"], "first") == [1, 0]
    (plan,) = scheduler.plans(one, [Task(ALLGATHER, 8, datatype=FLOAT32), Task(ALLGATHER, 8)])
    assert column(plan["works"], "first", "nbytes") == [(1, 32), (0, 8)]


def test_the_least_loaded_channels_are_taken(scheduler: Driver) -> None:
    """8 MiB leave 2 MiB on each of 4 channels. Then kinds alternate, so that nothing is joined: 96 KiB leave 32 KiB more
    on 0, 1 and 2. For 64 KiB, 0 gives way to 3, and 1 stays. Now 0, 2 and 3 have least: the lowest is taken."""
    tasks = [all_reduce(8 * MIB), Task(BROADCAST, 96 * KIB), all_reduce(64 * KIB), Task(BROADCAST, 32 * KIB)]
    (plan,) = scheduler.plans(COMM, tasks)
    assert [channels(plan, task) for task in range(4)] == [[0, 1, 2, 3], [0, 1, 2], [1, 3], [0]]
    parts = {work["channel"]: work["offset"] for work in plan["works"] if work["task"] == 2}
    assert parts == {3: 0, 1: 32 * KIB}, "3 is in the place of 0, the first"


def test_a_slot_takes_nine_collectives_of_a_kind(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(COMM.with_(nchannels=1), [all_reduce(100)] * 20)
    assert [i for i, first in enumerate(column(plan["works"], "first")) if first] == [0, 9, 18]
    assert plan["batches"] == 3 and plan["work_bytes"] == 3 * 512


def test_collectives_with_other_threads_do_not_share_a_slot(scheduler: Driver) -> None:
    """8 KiB are worth 128 threads and 32 KiB 512: one of another kind between them keeps them from being tuned as one."""
    two = COMM.with_(nchannels=2)
    for nbytes, first in ((8 * KIB, 1), (32 * KIB, 0)):
        (plan,) = scheduler.plans(two, [all_reduce(32 * KIB), Task(BROADCAST, 32 * KIB), all_reduce(nbytes)])
        assert column([w for w in plan["works"] if w["channel"] == 0], "task", "first") == [(0, 1), (2, first)]


def test_ops_of_collectives_count_by_collective_and_those_of_p2p_by_slot(scheduler: Driver) -> None:
    tasks = [all_reduce(MIB), all_reduce(MIB), send(1, 100), recv(7, 100), send(1, 200)]
    (plan,) = scheduler.plans(COMM, tasks)
    ops = plan["ops"]
    assert column(ops, "channel") == sorted(column(ops, "channel")), "channel by channel"
    assert {op["count"] for op in ops if op["task"] == 0} == {0}
    assert {op["count"] for op in ops if op["task"] == 1} == {2}
    # To one step away: channel 4 is 1 mirrored in 3 bits. No collective is there: slots 1 and 2, and bit 0 says p2p.
    assert column([op for op in ops if op["task"] > 1], "channel", "func", "task", "count") == [
        (4, RECV, 3, 3),
        (4, SEND, 2, 3),
        (4, SEND, 4, 5),
    ]


def test_a_p2p_on_a_channel_of_collectives_counts_their_slots(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(COMM.with_(nchannels=8), [all_reduce(4 * MIB), send(1, 100)])
    assert column([op for op in plan["ops"] if op["func"] == SEND], "channel", "count") == [(4, 2 << 1 | 1)]


def test_an_empty_collective_has_no_op_and_an_empty_p2p_has_one(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(COMM, [all_reduce(0), send(1, 0), recv(7, 0)])
    assert column(plan["ops"], "func", "nbytes") == [(RECV, 0), (SEND, 0)]
    assert len(plan["works"]) == 3


@pytest.mark.parametrize(
    ("peer", "per_peer", "expected"), [(1, 1, [4]), (2, 1, [2]), (3, 1, [6]), (7, 1, [7]), (1, 4, [4, 5, 6, 7])]
)
def test_the_channel_of_a_peer_is_its_distance_mirrored(
    scheduler: Driver, peer: int, per_peer: int, expected: list[int]
) -> None:
    """The parts lie behind it, one for each channel of a peer; more than one only where ranks leave channels over."""
    comm = COMM.with_(per_peer=per_peer, chunk=1024)
    (plan,) = scheduler.plans(comm, [send(peer, 128 * KIB)])
    assert sorted(set(channels(plan, 0))) == expected


def test_both_ends_of_a_p2p_come_to_the_same_channels(scheduler: Driver) -> None:
    for nranks, nnodes in ((8, 1), (6, 1), (12, 3), (18, 2)):
        comm = Comm(nranks=nranks, nnodes=nnodes, p2pn=16, per_peer=4, chunk=4096)
        for a, b in ((0, 1), (2, 5), (nranks - 1, 0), (1, nranks - 2)):
            (from_,) = scheduler.plans(comm.with_(rank=a), [send(b, 100_000)])
            (to,) = scheduler.plans(comm.with_(rank=b), [recv(a, 100_000)])
            where = ("channel", "offset", "nbytes")
            assert sorted(column(from_["works"], *where)) == sorted(column(to["works"], *where))


def test_rounds_go_around_the_ranks_and_have_holes(scheduler: Driver) -> None:
    (order,) = scheduler.obey(Comm(rank=4, nranks=6).line(), "order")
    assert order == {"send": [4, 5, -1, -1, 0, 1, 2, 3], "recv": [4, 3, 2, 1, 0, -1, -1, 5]}
    (order,) = scheduler.obey(Comm(rank=1, nranks=6, nnodes=3).line(), "order")
    assert order == {"send": [1, 0, 3, 2, 5, 4], "recv": [1, 0, 5, 4, 3, 2]}


def test_p2p_is_taken_round_by_round_not_in_the_order_of_the_application(scheduler: Driver) -> None:
    tasks = [send(5, 8), recv(1, 8), send(1, 8), recv(7, 8), send(1, 16)]
    (plan,) = scheduler.plans(COMM.with_(p2pn=1, per_peer=1), tasks)
    assert column(plan["works"], "func", "peer", "task") == [
        (RECV, 7, 3),
        (SEND, 1, 2),
        (SEND, 5, 0),
        (RECV, 1, 1),
        (SEND, 1, 4),
    ]


def test_a_slot_has_no_peer_twice_and_eight_of_a_direction(scheduler: Driver) -> None:
    one = Comm(nranks=16, p2pn=1, per_peer=1)
    (plan,) = scheduler.plans(one, [send(1, 8), send(1, 8), send(2, 8)])
    assert column(plan["works"], "peer", "first") == [(1, 1), (2, 0), (1, 1)]
    # Rounds 0 and 8 begin slots whatever is in the last: 8 ranks around are rounds 0 to 7.
    (plan,) = scheduler.plans(one, [send(peer, 8) for peer in range(1, 16)])
    assert column([w for w in plan["works"] if w["first"]], "peer") == [1, 8]


def test_large_p2p_is_cut_into_chunks_over_the_channels_of_the_peer(scheduler: Driver) -> None:
    """One channel is enough for 8 ranks on 8, but a chunk has 32 p2p chunks at most, here 32 KiB: then another channel."""
    comm = COMM.with_(chunk=1024)
    (plan,) = scheduler.plans(comm, [send(1, 128 * KIB)])
    assert column(plan["works"], "channel", "offset", "nbytes") == [(4, 0, 65536), (5, 65536, 65536)]
    (plan,) = scheduler.plans(comm, [send(1, 32 * KIB)])
    assert column(plan["works"], "channel", "nbytes") == [(4, 32768)]


def test_a_plan_takes_half_of_the_fifo(scheduler: Driver) -> None:
    """Slots of 4 channels, 9 collectives of a kind each: 8 slots are 72 collectives of 4 channels."""
    plans = scheduler.plans(COMM.with_(depth=16), [all_reduce(MIB)] * 40)
    assert [plan["ncolls"] for plan in plans] == [40]
    plans = scheduler.plans(COMM.with_(depth=16), [all_reduce(MIB, (INT32, FLOAT32)[i % 2]) for i in range(5)])
    assert [plan["batches"] for plan in plans] == [8, 8, 4]
    assert [plan["ncolls"] for plan in plans] == [2, 2, 1]
    (plan,) = scheduler.plans(COMM.with_(depth=16), [all_reduce(MIB, (INT32, FLOAT32)[i % 2]) for i in range(5)], 1)
    assert plan["batches"] == 20 and plan["persistent"] == 1 and plan["storage"] == PERSISTENT


def test_counts_begin_again_in_each_plan(scheduler: Driver) -> None:
    plans = scheduler.plans(COMM.with_(depth=16), [all_reduce(MIB, (INT32, FLOAT32)[i % 2]) for i in range(5)])
    assert [sorted(set(column(plan["ops"], "count"))) for plan in plans] == [[0, 2], [0, 2], [0]]
    assert column(plans, "id") == [1, 2, 3] and column(plans, "storage") == [FIFO] * 3


def test_p2p_waits_until_no_collective_is_left(scheduler: Driver) -> None:
    """The budget of the first plan has room for the send after two collectives, but the third does not fit."""
    tasks = [send(1, 8), *(all_reduce(MIB, (INT32, FLOAT32)[i % 2]) for i in range(3))]
    plans = scheduler.plans(COMM.with_(depth=32, nchannels=6), tasks)
    assert [(plan["ncolls"], plan["np2ps"]) for plan in plans] == [(2, 0), (1, 1)]


def test_a_p2p_is_cut_where_the_budget_ends(scheduler: Driver) -> None:
    """Each chunk has a slot: they are more than the channels of the peer, whose slots may not have it twice."""
    plans = scheduler.plans(COMM.with_(depth=8, chunk=1024), [send(1, 10 * 32 * KIB)])
    parts = [work for plan in plans for work in plan["works"]]
    assert sum(column(parts, "nbytes")) == 10 * 32 * KIB
    plans = scheduler.plans(COMM.with_(depth=2, chunk=1024), [send(1, 10 * 32 * KIB)])
    assert [(plan["batches"], plan["ntasks"]) for plan in plans] == [(1, 0), (1, 1)]
    assert column([work for plan in plans for work in plan["works"]], "offset") == [0, 163840]


def test_a_plan_that_takes_nothing_is_an_error_that_says_what_to_give(scheduler: Driver) -> None:
    status, error = scheduler.error(COMM.with_(depth=4), [all_reduce(MIB), send(1, 8)])
    assert status == "PSM_ERR_INVALID"
    assert error == (
        "a plan may fill half of the work FIFO, 2 of 4 slots, and the next task needs more: set workFifoDepth "
        "(NCCL_WORK_FIFO_DEPTH) to at least 128"
    )


def test_plans_before_the_one_that_takes_nothing_are_given_back(scheduler: Driver) -> None:
    small = all_reduce(100)
    status, _ = scheduler.error(COMM.with_(depth=4), [small, Task(BROADCAST, 100), small, Task(BROADCAST, MIB)])
    assert status == "PSM_ERR_INVALID"


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([send(0, 8)], "task 1 sends to its own rank, but the group has no matching recv: put both into one group"),
        (
            [recv(0, 8)],
            "task 1 receives from its own rank, but the group has no matching send: put both into one group",
        ),
        (
            [send(0, 8), recv(0, 9)],
            "task 1 sends 8 bytes to its own rank, task 2 receives 9: use the same size for both",
        ),
    ],
)
@pytest.mark.parametrize("kind", [0, 1])
def test_a_rank_sends_itself_only_what_it_receives(scheduler: Driver, tasks: list[Task], text: str, kind: int) -> None:
    assert scheduler.error(COMM.with_(scheduler=kind), [all_reduce(8), *tasks]) == ("PSM_ERR_INVALID", text)


def test_what_a_rank_sends_itself_has_works_and_no_op(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(COMM, [send(0, 8, at=64), recv(0, 8, at=128)])
    assert column(plan["works"], "func", "kernel") == [(RECV, 1), (SEND, 1)]
    assert plan["ops"] == plan["copies"] == [] and plan["proxy"] == 0 and plan["kernel"] == 1


def test_each_part_of_a_collective_is_of_whole_elements(scheduler: Driver) -> None:
    for task in (all_reduce(100_003, FLOAT32), Task(REDUCESCATTER, 50_001, datatype=FLOAT32)):
        (plan,) = scheduler.plans(COMM, [task])
        parts = sorted(column(plan["works"], "offset", "nbytes"))
        assert all(nbytes % 4 == 0 for _, nbytes in parts)
        ends = [offset + nbytes for offset, nbytes in parts]
        assert [offset for offset, _ in parts] == [0, *ends[:-1]] and ends[-1] == task.count * 4


def test_every_channel_ends_in_one_last_work(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(COMM, [all_reduce(MIB), all_reduce(MIB), send(1, 8)])
    assert Counter(w["channel"] for w in plan["works"] if w["last"]) == dict.fromkeys((0, 1, 2, 3, 4), 1)
    assert plan["mask"] == 0b11111 and plan["ubound"] == plan["count"] == 5
