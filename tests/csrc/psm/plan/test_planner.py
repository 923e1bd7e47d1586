"""The planner, rule by rule; the values are those that NCCL 2.26's own functions give for the same tasks."""

from __future__ import annotations

import pytest

from tests.csrc.psm.plan.scheduling import (
    ALLGATHER,
    ARGS,
    BROADCAST,
    FIFO,
    FLOAT16,
    FLOAT32,
    KIB,
    MIB,
    PERSISTENT,
    PLANNER,
    RECV,
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

COMM = Comm(scheduler=PLANNER, nchannels=4, p2pn=8, per_peer=2)
COLL, P2P = 96, 48  # bytes of a work


def parts(plan: Json, task: int) -> list[tuple[int, int]]:
    """Channel and bytes of each part of a task."""
    return [(work["channel"], work["nbytes"]) for work in plan["works"] if work["task"] == task]


def test_tasks_of_a_kind_come_small_ones_first_and_the_kind_of_the_largest_leads(scheduler: Driver) -> None:
    tasks = [
        all_reduce(64 * KIB),
        Task(BROADCAST, 4 * MIB),
        all_reduce(MIB),
        all_reduce(16 * KIB),
        Task(BROADCAST, 100),
    ]
    (plan,) = scheduler.plans(COMM, tasks)
    order = [task for _, task in sorted({(work["place"], work["task"]) for work in plan["works"]})]
    assert order == [4, 1, 3, 0, 2]
    counts = {op["task"]: op["count"] for op in plan["ops"]}
    assert [counts[task] for task in order] == [0, 2, 4, 6, 8]


def test_tasks_of_about_one_size_keep_the_order_of_the_application(scheduler: Driver) -> None:
    """Bins are powers of two in quarters, of the traffic in KiB; twice the bytes of an all-reduce."""
    tasks = [all_reduce(70 * KIB), all_reduce(64 * KIB), all_reduce(79 * KIB), all_reduce(63 * KIB)]
    (plan,) = scheduler.plans(COMM.with_(nchannels=1), tasks)
    assert column(plan["works"], "task") == [3, 0, 1, 2]


def test_a_collective_is_laid_over_channels_by_traffic(scheduler: Driver) -> None:
    """2 * 1,000,000 bytes over 4 channels are 500,000 each: 31 cells of 16 KiB of traffic, 8 KiB of bytes; rounded up,
    and the last channel has what is left."""
    (plan,) = scheduler.plans(COMM, [all_reduce(1_000_000)])
    assert parts(plan, 0) == [(0, 253952), (1, 253952), (2, 253952), (3, 238144)]
    assert column(plan["works"], "offset") == [0, 253952, 507904, 761856]


def test_the_next_collective_begins_where_the_last_one_ended(scheduler: Driver) -> None:
    """3 tasks of 48 KiB have 96 KiB of traffic each: a share of 72 KiB a channel is 5 cells of 8 KiB, 40 KiB."""
    (plan,) = scheduler.plans(COMM, [all_reduce(48 * KIB)] * 3)
    kib = [[(channel, nbytes / KIB) for channel, nbytes in parts(plan, task)] for task in range(3)]
    assert kib == [[(0, 40), (1, 8)], [(1, 32), (2, 16)], [(2, 24), (3, 24)]]


def test_small_collectives_count_as_full_cells(scheduler: Driver) -> None:
    """Six of 16 KiB of traffic are 24 KiB a channel: two go to each, until none is left."""
    (plan,) = scheduler.plans(COMM, [all_reduce(8)] * 6)
    assert [parts(plan, task) for task in range(6)] == [[(0, 8)], [(0, 8)], [(1, 8)], [(1, 8)], [(2, 8)], [(2, 8)]]


def test_gathers_have_the_traffic_of_all_ranks(scheduler: Driver) -> None:
    """A cell is 2 KiB of 8 ranks: 16 KiB a rank are 128 KiB, 32 KiB a channel."""
    (plan,) = scheduler.plans(COMM, [Task(ALLGATHER, 16 * KIB)])
    assert parts(plan, 0) == [(channel, 4 * KIB) for channel in range(4)]


def test_parts_of_any_type_make_all_elements(scheduler: Driver) -> None:
    for datatype, size in ((FLOAT16, 2), (FLOAT32, 4)):
        for count in (1, 4097, 100_003):
            (plan,) = scheduler.plans(COMM, [all_reduce(count, datatype)])
            works = plan["works"]
            ends = [work["offset"] + work["nbytes"] for work in works]
            assert column(works, "offset") == [0, *ends[:-1]] and ends[-1] == count * size
            assert all(work["nbytes"] % size == 0 for work in works)


def test_a_collective_of_nothing_is_none(scheduler: Driver) -> None:
    assert scheduler.plans(COMM, [all_reduce(0)]) == []
    (plan,) = scheduler.plans(COMM, [all_reduce(0), all_reduce(8)])
    assert column(plan["works"], "task") == [1] and plan["ncolls"] == 1


def test_a_batch_holds_ten_collectives_of_a_kind(scheduler: Driver) -> None:
    one = COMM.with_(nchannels=1)
    (plan,) = scheduler.plans(one, [all_reduce(8)] * 21)
    assert [i for i, first in enumerate(column(plan["works"], "first")) if first] == [0, 10, 20]
    assert plan["batches"] == 3 and plan["work_bytes"] == 21 * COLL
    (plan,) = scheduler.plans(
        one, [all_reduce(8), all_reduce(8, redop=1), all_reduce(8, redop=2), all_reduce(8, redop=3)]
    )
    assert plan["batches"] == 3, "min and max are one kind"


def test_works_too_far_from_the_first_extend_the_batch(scheduler: Driver) -> None:
    """Of 8 channels, one has works of one kind that are 64 works apart: the bits of a batch do not reach."""
    comm = Comm(scheduler=PLANNER, nranks=128, p2pn=32, per_peer=1, args_bytes=8192)
    (plan,) = scheduler.plans(comm, [send(peer, 8) for peer in range(1, 128)])
    on_one = [work for work in plan["works"] if work["channel"] == 1]
    assert column(on_one, "place", "first") == [(0, 1), (32 * P2P, 0), (64 * P2P, 2), (96 * P2P, 0)]
    assert len({op["count"] for op in plan["ops"] if op["channel"] == 1}) == 1, "an extension is no new batch for ops"


def test_a_batch_has_no_round_twice_and_eight_p2p(scheduler: Driver) -> None:
    one = COMM.with_(p2pn=1, per_peer=1, nranks=16)
    (plan,) = scheduler.plans(one, [send(1, 8), send(1, 16), send(3, 8)])
    assert column(plan["works"], "task", "first") == [(0, 1), (2, 0), (1, 1)]
    assert column(plan["ops"], "task", "count") == [(0, 3), (2, 3), (1, 5)]
    (plan,) = scheduler.plans(one, [send(peer, 8) for peer in range(1, 16)])
    assert [i for i, first in enumerate(column(plan["works"], "first")) if first] == [0, 8]


def test_send_and_recv_of_a_round_are_one_work(scheduler: Driver) -> None:
    """Round 2 of rank 0 of 8 sends to 3 and receives from 5; its channel is its number."""
    (plan,) = scheduler.plans(COMM, [send(3, 100), recv(5, 200)])
    assert column(plan["works"], "channel", "func", "peer", "place", "first") == [
        (2, RECV, 5, 0, 1),
        (2, SEND, 3, 0, 0),
    ]
    assert plan["work_bytes"] == P2P
    assert column(plan["ops"], "func", "count") == [(RECV, 3), (SEND, 3)]


def test_the_p2p_schedule_goes_by_quadratic_distances(scheduler: Driver) -> None:
    (order,) = scheduler.obey(Comm(scheduler=PLANNER, nranks=16, p2pn=1, per_peer=1).line(), "order")
    assert order["send"] == [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]
    (order,) = scheduler.obey(Comm(scheduler=PLANNER, rank=5, nranks=6).line(), "order")
    assert order == {"send": [5, 0, 2, 1, 4, 3], "recv": [5, 4, 2, 3, 0, 1]}
    (order,) = scheduler.obey(Comm(scheduler=PLANNER, rank=1, nranks=6, nnodes=3).line(), "order")
    assert order == {"send": [1, 0, 3, 2, 5, 4], "recv": [1, 0, 5, 4, 3, 2]}


@pytest.mark.parametrize(
    ("nranks", "nbytes", "expected"),
    [
        (8, 256 * KIB, [(1, 256)]),
        (2, 8 * KIB, [(1, 8)]),
        (2, 64 * KIB, [(1, 16), (5, 16), (3, 16), (7, 16)]),
        (2, 0, [(1, 0)]),
    ],
)
def test_parts_of_a_p2p_lie_far_apart(
    scheduler: Driver, nranks: int, nbytes: int, expected: list[tuple[int, int]]
) -> None:
    """8 ranks leave a channel for each p2p, 2 ranks four: an eighth of a chunk is worth a channel."""
    (plan,) = scheduler.plans(COMM.with_(nranks=nranks, per_peer=4), [send(1, nbytes)])
    found = sorted(plan["works"], key=lambda work: work["offset"])
    assert [(work["channel"], work["nbytes"] / KIB) for work in found] == expected
    assert len(plan["ops"]) == len(expected)


def test_a_part_that_rounding_leaves_empty_has_no_op(scheduler: Driver) -> None:
    """9 KiB in four parts are 4 KiB, 4 KiB, 1 KiB and nothing."""
    (plan,) = scheduler.plans(COMM.with_(nranks=2, per_peer=4, chunk=KIB), [send(1, 9 * KIB)])
    assert sorted(column(plan["works"], "nbytes")) == [0, KIB, 4 * KIB, 4 * KIB]
    assert sorted(column(plan["ops"], "nbytes")) == [KIB, 4 * KIB, 4 * KIB]


def test_ops_are_merged_by_count_collectives_first(scheduler: Driver) -> None:
    tasks = [all_reduce(MIB), all_reduce(MIB), send(1, 8), recv(7, 8), send(1, 8), send(3, 8)]
    (plan,) = scheduler.plans(COMM, tasks)
    ids = [(op["count"] & 1, op["count"] >> 1, op["channel"]) for op in plan["ops"]]
    assert ids == sorted(ids) and len(set(column(plan["ops"], "count"))) == 4


def test_works_lie_in_the_arguments_when_they_fit(scheduler: Driver) -> None:
    """32 bytes, 16 a batch, 96 a work: 4 channels and one collective are 192 bytes."""
    for room, storage in ((192, ARGS), (191, FIFO)):
        (plan,) = scheduler.plans(COMM.with_(args_bytes=room), [all_reduce(MIB)])
        assert plan["storage"] == storage and plan["batches"] == 4
    (plan,) = scheduler.plans(COMM.with_(args_bytes=191), [all_reduce(MIB)], 1)
    assert plan["storage"] == PERSISTENT


def test_a_plan_takes_half_of_the_fifo(scheduler: Driver) -> None:
    comm = COMM.with_(nchannels=1, args_bytes=192, fifo_bytes=2048)
    assert column(scheduler.plans(comm, [all_reduce(8)] * 25), "ncolls") == [10, 10, 5]
    assert column(scheduler.plans(comm, [all_reduce(8)] * 25, 1), "ncolls") == [25]


def test_batches_have_to_fit_into_the_arguments(scheduler: Driver) -> None:
    """Room for 4 batches: two sends to one peer need two on one channel, and each may need one on every channel of it."""
    comm = COMM.with_(args_bytes=32 + 4 * 16, p2pn=1, per_peer=1)
    plans = scheduler.plans(comm, [send(1, 8)] * 10)
    assert column(plans, "np2ps") == [4, 4, 2]


def test_p2p_waits_until_no_collective_is_left(scheduler: Driver) -> None:
    comm = COMM.with_(nchannels=1, args_bytes=192, fifo_bytes=2048)
    plans = scheduler.plans(comm, [send(1, 8), *[all_reduce(8)] * 12])
    assert [(plan["ncolls"], plan["np2ps"]) for plan in plans] == [(10, 0), (2, 1)]


def test_a_plan_that_takes_nothing_is_an_error_that_says_what_to_give(scheduler: Driver) -> None:
    """NCCL asks again and again without an end."""
    status, error = scheduler.error(COMM.with_(args_bytes=64), [all_reduce(MIB)])
    assert status == "PSM_ERR_INVALID"
    assert error == (
        "a plan may have 64 bytes of kernel arguments and half of a work FIFO of 1048576 bytes, and the next task does "
        "not fit: set workArgsBytes to at least 1056 (32, and 16 for each channel), and workFifoBytes to at least 256"
    )


def test_a_send_in_place_to_the_own_rank_is_left_out(scheduler: Driver) -> None:
    assert scheduler.plans(COMM, [send(0, 8, at=64), recv(0, 8, at=64)]) == []
    (plan,) = scheduler.plans(COMM, [send(0, 8, at=64), recv(0, 8, at=64), send(1, 8)])
    assert column(plan["works"], "task") == [2] and plan["np2ps"] == 3
    (plan,) = scheduler.plans(COMM, [send(0, 8, at=64), recv(0, 8, at=128)])
    assert len(plan["works"]) == 2 and plan["ops"] == []
