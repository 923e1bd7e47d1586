"""The plans of one rank: those that the simulation of all ranks makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psmkit.plan import Config, Func, Scheduler, Step, StepKind, Task, generate, packed, simulate
from psmkit.plan.own import own_plans
from psmkit.proxy import InvalidError


@pytest.mark.parametrize("scheduler", [Scheduler.LEGACY, Scheduler.PLANNER])
@pytest.mark.parametrize("pass_sm", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rank_alone_makes_the_plans_that_it_makes_among_all(seed: int, pass_sm: bool, scheduler: Scheduler) -> None:
    steps = generate(seed, 4, 4, 12)
    plain = [s for s in steps if s.kind in (StepKind.TASK, StepKind.GROUP_END)]
    config = Config(ranks=4, scheduler=scheduler, pass_sm=pass_sm)
    done = simulate(config, plain, 0)
    for rank in range(4):
        own = own_plans(config, rank, packed.pack(plain))
        told = [(p.id, p.channel_mask, p.colls, p.p2ps, len(p.ops), p.work_bytes, p.kernel) for p in done.plans[rank]]
        ours = [
            (int(p["id"]), int(p["channelMask"]), int(p["ncolls"]), int(p["np2ps"]), int(p["nops"]), int(p["workBytes"]), bool(p["kernel"]))
            for p in own.plans
        ]  # fmt: skip
        assert ours == told


def test_a_rank_of_a_large_communicator_is_cut_by_its_own_tasks() -> None:
    ranks = 10_240
    tasks = [Task(func, 1024, peer=peer) for peer in range(1, ranks) for func in (Func.SEND, Func.RECV)]
    steps = packed.pack([*(Step(StepKind.TASK, task, 0) for task in tasks), Step(StepKind.GROUP_END, None, 0)])
    own = own_plans(Config(ranks=ranks, nodes=ranks // 8, scheduler=Scheduler.PLANNER), 0, steps)
    assert int(own.plans["np2ps"].sum()) == len(tasks) == int(own.plans["ntasks"].sum())
    assert len(own.plans) > 1 and own.permanent > ranks


def test_more_plans_than_first_fit_are_all_there() -> None:
    steps = packed.pack([Step(StepKind.TASK, Task(Func.ALLREDUCE, 8), 0), Step(StepKind.GROUP_END, None, 0)] * 200)
    own = own_plans(Config(ranks=4, scheduler=Scheduler.PLANNER), 0, steps)
    assert own.plans["group"].tolist() == list(range(200))


def test_a_step_that_is_no_task_is_refused() -> None:
    steps = packed.pack([Step(StepKind.ABORT, None, 0)])
    with pytest.raises(InvalidError, match="expected tasks and ends of groups"):
        own_plans(Config(ranks=2), 0, steps)
    with pytest.raises(InvalidError, match="rank 5 of 2"):
        own_plans(replace(Config(ranks=2)), 5, steps)
