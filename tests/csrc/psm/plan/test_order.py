"""In which order kinds of tasks are taken out, in right and wrong variants, and what goes without a kernel (PassSM)."""

from __future__ import annotations

import random

import pytest

from tests.csrc.psm.plan.scheduling import (
    BROADCAST,
    FLOAT32,
    INT32,
    KIB,
    LEGACY,
    MIB,
    P2P_FIRST,
    PLANNER,
    PRESCHEDULED,
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

SMALL = {LEGACY: {"depth": 32}, PLANNER: {"args_bytes": 256, "fifo_bytes": 1024}}
COLLS = [all_reduce(MIB if i % 3 else 48 * KIB, (INT32, FLOAT32)[i % 2]) for i in range(12)]


def comm_of(kind: int, **changes: int) -> Comm:
    return Comm(scheduler=kind, nranks=4, nchannels=6, p2pn=8, per_peer=2).with_(**SMALL[kind]).with_(**changes)


def collectives(plans: list[Json]) -> list[list[tuple[int, int, int, int]]]:
    """Of each plan that has any: what all ranks must agree on. Collectives are numbered alone."""
    numbers = sorted({work["task"] for plan in plans for work in plan["works"] if work["func"] < SEND})
    place = {number: i for i, number in enumerate(numbers)}
    return [
        [(w["channel"], place[w["task"]], w["offset"], w["nbytes"]) for w in plan["works"] if w["func"] < SEND]
        for plan in plans
        if plan["ncolls"]
    ]


def of_rank(rank: int, kind: int) -> list[Task]:
    """The same collectives on all ranks, and p2p that differs."""
    p2p = [send(1, 8)] * 21 if rank == 0 else [recv(0, 8)] * 21 if rank == 1 else []
    return [*p2p, *COLLS] if kind else [*COLLS, *p2p]


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_collectives_first_makes_all_ranks_cut_alike(scheduler: Driver, kind: int) -> None:
    found = [collectives(scheduler.plans(comm_of(kind, rank=rank), of_rank(rank, kind))) for rank in range(4)]
    assert len(found[0]) > 1 and all(one == found[0] for one in found)


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_p2p_first_makes_ranks_cut_at_other_tasks(scheduler: Driver, kind: int) -> None:
    comm = comm_of(kind, order=P2P_FIRST)
    found = [collectives(scheduler.plans(comm.with_(rank=rank), of_rank(rank, kind))) for rank in range(4)]
    assert found[2] == found[3] and found[0] != found[2]


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_random_groups_agree_on_every_collective(scheduler: Driver, kind: int) -> None:
    """What one rank plans besides never moves a collective of another."""
    choose = random.Random(7)
    for _ in range(15):
        comm = comm_of(kind, nranks=choose.choice([2, 3, 4]), nchannels=choose.randint(1, 8))
        colls = [
            Task(choose.choice([0, 1, 2, 3, 4, 4, 4]), choose.choice([1, 4096, 100_000, MIB]))
            for _ in range(choose.randint(1, 30))
        ]
        found = []
        for rank in range(comm.nranks):
            tasks: list[Task] = []
            for coll in colls:
                peer = choose.randrange(comm.nranks)
                if peer != rank and choose.random() < 0.5:
                    tasks.append(choose.choice([send, recv])(peer, choose.choice([0, 8, 100_000])))
                tasks.append(coll)
            found.append(collectives(scheduler.plans(comm.with_(rank=rank), tasks)))
        assert all(one == found[0] for one in found)


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_the_same_tasks_make_the_same_plans(scheduler: Driver, kind: int) -> None:
    tasks = of_rank(0, kind)
    assert scheduler.plans(comm_of(kind), tasks) == scheduler.plans(comm_of(kind), tasks)


# ---- PassSM ----


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_p2p_under_pass_sm_has_no_kernel_and_its_ops_decrement(scheduler: Driver, kind: int) -> None:
    (plan,) = scheduler.plans(comm_of(kind, pass_sm=1), [send(1, 8), recv(3, 8)])
    assert plan["kernel"] == 0 and plan["sync"] == 2
    assert column(plan["works"], "kernel") == [0, 0] and column(plan["ops"], "decrements") == [1, 1]


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_a_mixed_plan_has_a_kernel_and_a_sync_condition_for_its_p2p(scheduler: Driver, kind: int) -> None:
    comm = comm_of(kind, pass_sm=1, nchannels=3)
    (plan,) = scheduler.plans(comm, [all_reduce(96 * KIB), send(1, 8), recv(3, 8)])
    assert plan["kernel"] == 1 and plan["sync"] == 2 and len(plan["ops"]) == 5
    assert all(work["kernel"] == (work["func"] < SEND) for work in plan["works"])
    assert all(op["decrements"] == (op["func"] >= SEND) for op in plan["ops"])
    (wrong,) = scheduler.plans(comm.with_(count_all=1), [all_reduce(96 * KIB), send(1, 8), recv(3, 8)])
    assert wrong["sync"] == 5, "collectives never decrement it"


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_collectives_alone_have_no_sync_condition(scheduler: Driver, kind: int) -> None:
    for count_all in (0, 1):
        (plan,) = scheduler.plans(comm_of(kind, pass_sm=1, count_all=count_all), [all_reduce(8)])
        assert plan["kernel"] == 1 and plan["sync"] == -1


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_what_a_rank_sends_itself_is_a_copy_under_pass_sm(scheduler: Driver, kind: int) -> None:
    tasks = [send(0, 5 * MIB, at=64), recv(0, 5 * MIB, at=128), send(0, 8, at=192), recv(0, 8, at=256)]
    (plan,) = scheduler.plans(comm_of(kind, pass_sm=1), tasks)
    assert plan["copies"] == [[64, 128, 5 * MIB], [192, 256, 8]]
    assert plan["ops"] == [] and plan["kernel"] == 0 and plan["sync"] == -1 and plan["np2ps"] == 4
    (plan,) = scheduler.plans(comm_of(kind, pass_sm=1), [*tasks, send(1, 8)])
    assert len(plan["copies"]) == 2 and plan["sync"] == 1


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_nothing_is_copied_in_place(scheduler: Driver, kind: int) -> None:
    plans = scheduler.plans(comm_of(kind, pass_sm=1), [send(0, 8, at=64), recv(0, 8, at=64), send(1, 8)])
    assert [plan["copies"] for plan in plans] == [[]]


# ---- the seed's ----


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_prescheduled_p2p_alone_is_launched(scheduler: Driver, kind: int) -> None:
    comm = comm_of(kind, pass_sm=1, order=PRESCHEDULED)
    (answer,) = scheduler.obey(comm.line(), send(1, 8).line(), "schedule 0", "drop")
    assert answer["prescheduled"] is None
    assert [(plan["np2ps"], plan["kernel"], plan["sync"]) for plan in answer["plans"]] == [(1, 0, 1)]


@pytest.mark.parametrize("kind", [LEGACY, PLANNER])
def test_prescheduled_p2p_of_a_mixed_group_is_in_no_queue(scheduler: Driver, kind: int) -> None:
    comm = comm_of(kind, pass_sm=1, order=PRESCHEDULED, depth=64)
    tasks = [*[send(1, 8)] * 3, all_reduce(8)]
    answer, left = scheduler.obey(comm.line(), *(task.line() for task in tasks), "schedule 0", "drop", "count")
    lost = answer["prescheduled"]
    assert (lost["ncolls"], lost["np2ps"], len(lost["ops"])) == (0, 3, 3)
    assert [(plan["ncolls"], plan["np2ps"]) for plan in answer["plans"]] == [(1, 0)]
    assert [left[name][0] for name in ("plans", "ops", "tasks")] == [0, 0, 0], "a drop gives it back, too"


def test_prescheduled_p2p_weighs_on_the_channels_of_collectives(scheduler: Driver) -> None:
    """Channel 4 has the send of 1 MiB: rank 0 does not give it the collective that rank 2 does."""
    comm = comm_of(LEGACY, pass_sm=1, order=PRESCHEDULED, nchannels=5, depth=0)
    colls = [Task(BROADCAST, 128 * KIB), all_reduce(32 * KIB)]
    used = {}
    for rank, p2p in ((0, [send(1, MIB)]), (2, [])):
        plans = scheduler.plans(comm.with_(rank=rank), [*p2p, *colls])
        used[rank] = [work["channel"] for plan in plans for work in plan["works"] if work["task"] == len(p2p) + 1]
    assert used == {0: [0], 2: [4]}


def test_without_pass_sm_nothing_is_prescheduled(scheduler: Driver) -> None:
    (plan,) = scheduler.plans(comm_of(LEGACY, order=PRESCHEDULED), [all_reduce(8), send(1, 8)])
    assert (plan["ncolls"], plan["np2ps"]) == (1, 1)


def test_of_a_plan_of_p2p_recv_comes_before_send(scheduler: Driver) -> None:
    for kind in (LEGACY, PLANNER):
        (plan,) = scheduler.plans(comm_of(kind), [send(2, 8), recv(2, 8)])
        assert column(plan["works"], "func") == [RECV, SEND]
