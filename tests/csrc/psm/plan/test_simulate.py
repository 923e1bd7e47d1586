"""Simulated ranks: right variants break nothing in any order of their threads, each wrong one breaks what it declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psmkit._native.psm import ffi, lib
from tests.csrc.psm.plan import programs

LEGACY, PLANNER = 0, 1
ALLREDUCE, SEND, RECV = 4, 6, 7
TASK, GROUP_END, CAPTURE, CAPTURED, REPLAY, DROP_GRAPH, POLL, ABORT = range(8)


def variants() -> dict[str, tuple[str, bool, int]]:
    table = ffi.new("struct psmPlanVariant **")
    rows = [table[0][i] for i in range(lib.psmPlanVariants(table))]
    return {
        ffi.string(row.name).decode(): (ffi.string(row.outcome).decode(), bool(row.wrong), row.schedulers)
        for row in rows
    }


def exchange(count: int = 1000) -> list[tuple[int, int, int, int, int]]:
    return [(TASK, -1, ALLREDUCE, 0, count), (TASK, 0, SEND, 1, count), (TASK, 1, RECV, 0, count)]


END = (GROUP_END, -1, 0, 0, 0)


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.getbasetemp(), "simulations")


def run(program: Path, *arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(programs.run(program, arguments))
    return answer


@pytest.mark.parametrize("scheduler", [LEGACY, PLANNER])
@pytest.mark.parametrize("variant", [name for name, (_, wrong, _) in variants().items() if not wrong])
def test_right_variants_break_nothing_and_never_hang(simulations: Path, variant: str, scheduler: int) -> None:
    done = run(simulations, variant, scheduler, 300)
    assert (done["broken"], done["stuck"]) == ({}, 0), done["first"]
    assert done["events"] > 300 * 100


@pytest.mark.parametrize("scheduler", [LEGACY, PLANNER])
def test_an_abort_at_any_point_unblocks_everybody(simulations: Path, scheduler: int) -> None:
    done = run(simulations, "coll-first", scheduler, 500, "abort=1", "first=1000")
    assert (done["broken"], done["stuck"]) == ({}, 0), done["first"]


@pytest.mark.parametrize("scheduler", [LEGACY, PLANNER])
def test_whatever_an_application_does_a_rank_keeps_its_rules(simulations: Path, scheduler: int) -> None:
    """Ranks that enqueue different things hang, and differ; what a communicator does with its plans is right."""
    done = run(simulations, "coll-first", scheduler, 400, "wild=1")
    assert set(done["broken"]) <= {"cut.differs", "channel.differs", "stuck"}, done["first"]
    assert done["stuck"] < 300 and done["refused"] < 300


@pytest.mark.parametrize(
    ("variant", "scheduler"),
    [(name, at) for name, (_, wrong, of) in variants().items() for at in (LEGACY, PLANNER) if wrong and of >> at & 1],
)
def test_wrong_variants_break_the_rule_that_they_declare(simulations: Path, variant: str, scheduler: int) -> None:
    outcome = variants()[variant][0]
    done = run(simulations, variant, scheduler, 40)
    # Where the mix has what the variant is about: a few have no p2p of some rank in the graph, or none behind a collective.
    assert done["broken"].get(outcome, 0) >= 30, done
    # What is freed too early is told and used by nobody: sanitizers are quiet, also when somebody aborts.
    run(simulations, variant, scheduler, 60, "abort=1")
    run(simulations, variant, scheduler, 60, "wild=1")


@pytest.mark.parametrize("site", ["plan.prepare", "plan.launch", "plan.host_task", "plan.callback"])
@pytest.mark.parametrize("scheduler", [LEGACY, PLANNER])
def test_ranks_whose_groups_fail_keep_their_rules_and_give_everything_back(
    simulations: Path, scheduler: int, site: str
) -> None:
    """The others wait for them, which is a hang, and plan more than they do."""
    out = programs.run(
        simulations, ("coll-first", scheduler, 60, "abort=1"), PSM_FAULTS=f"{site}:error=NO_MEMORY:p=0.2"
    )
    done = json.loads(out.splitlines()[-1])
    assert f"PSM_FAULTS: error at {site}" in out
    assert set(done["broken"]) <= {"cut.differs", "channel.differs", "stuck"}, done["first"]
    assert done["runs"] == 60 and done["refused"] == 0


def test_what_only_hangs_is_told_as_stuck(simulations: Path) -> None:
    for variant in ("lost-callback", "count-all-ops"):
        done = run(simulations, variant, PLANNER, 20)
        assert done["stuck"] == done["broken"]["stuck"] == 20


def test_p2p_that_is_planned_first_makes_ranks_differ(simulations: Path) -> None:
    done = run(simulations, "p2p-first", PLANNER, 60)
    assert done["broken"]["cut.differs"] > 5
    assert done["broken"]["channel.differs"] > 2
    done = run(simulations, "prescheduled-p2p", LEGACY, 60)
    assert done["broken"]["channel.differs"] > 20
    assert done["broken"]["pool.lost"] == 60


class Simulation:
    """One run, as Python sees it."""

    def __init__(self, steps: list[tuple[int, int, int, int, int]], ranks: int, seed: int = 0, **config: Any) -> None:
        what = ffi.new("struct psmPlanSimulation *")
        what.size, what.seed, what.nsteps = ffi.sizeof("struct psmPlanSimulation"), seed, len(steps)
        what.config.size, what.config.nRanks, what.config.nNodes = ffi.sizeof("struct psmPlanConfig"), ranks, 1
        defaults = {"nChannels": 2, "p2pnChannels": 2, "p2pnChannelsPerPeer": 1, "passSm": 1, "scheduler": PLANNER}
        name = ffi.new("char[]", config.pop("variant", "coll-first").encode())
        what.config.variant = name
        for key, value in {**defaults, **config}.items():
            setattr(what.config, key, value)
        array = ffi.new("struct psmPlanStep[]", max(1, len(steps)))
        for step, (kind, rank, func, peer, count) in zip(array, steps, strict=False):
            step.kind, step.rank = kind, rank
            step.task.func, step.task.peer, step.task.count, step.task.datatype = func, peer, count, 7
        what.steps = array
        out = ffi.new("psmPlanResult **")
        self.status = lib.psmPlanSimulate(what, out)
        self.error = ffi.string(lib.psm_last_error().text).decode() if self.status < 0 else ""
        self.result = ffi.gc(out[0], lib.psmPlanResultFree)

    def events(self, rank: int) -> list[tuple[int, int, int, int, int]]:
        out = ffi.new("struct psmPlanEvent **")
        count = lib.psmPlanResultEvents(self.result, rank, out)
        assert [out[0][i].order for i in range(count)] == list(range(count))
        return [(e.what, e.plan, e.a, e.b, e.c) for e in (out[0][i] for i in range(count))]

    def breaches(self) -> list[tuple[str, int, int, str]]:
        out = ffi.new("struct psmPlanBreach **")
        count = lib.psmPlanResultBreaches(self.result, out)
        found = [out[0][i] for i in range(count)]
        return [(ffi.string(b.rule).decode(), b.rank, b.plan, ffi.string(b.text).decode()) for b in found]

    def order(self) -> list[int]:
        out = ffi.new("int32_t **")
        return [out[0][i] for i in range(lib.psmPlanResultOrder(self.result, out))]


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    runs = [Simulation([*exchange(), END, *exchange(), END], 2, seed) for seed in (1, 1, 2)]
    assert [run.order() for run in runs[:2]] == [runs[0].order()] * 2
    assert runs[0].order() != runs[2].order()
    assert runs[0].events(0) == runs[1].events(0)


def test_the_result_keeps_plans_that_were_reclaimed() -> None:
    done = Simulation([*exchange(), END], 2)
    assert [lib.psmPlanResultPlans(done.result, rank) for rank in (0, 1, 2)] == [1, 1, 0]
    info = ffi.new("struct psmPlanInfo *")
    assert lib.psmPlanResultPlan(done.result, 0, 0, info) == 0
    assert (info.id, info.ncolls, info.np2ps, info.syncCount) == (1, 1, 1, 1)
    assert [info.ops[i].func for i in range(info.nops)].count(SEND) == 1
    assert {info.works[i].func for i in range(info.nworks)} == {ALLREDUCE, SEND}
    assert lib.psmPlanResultPlan(done.result, 0, 1, info) < 0
    what = [e[0] for e in done.events(0)]
    assert what.index(lib.PSM_PLAN_RECLAIM) > what.index(lib.PSM_PLAN_CALLBACK_OVER)
    assert what[-1] == lib.PSM_PLAN_DESTROY


@pytest.mark.parametrize("scheduler", [LEGACY, PLANNER])
def test_each_launch_of_a_graph_posts_its_ops_again_and_its_destructor_gives_them_back(scheduler: int) -> None:
    steps = [(CAPTURE, -1, 0, 0, 0), *exchange(), END, (CAPTURED, -1, 0, 0, 0), (REPLAY, -1, 0, 0, 3)]
    done = Simulation([*steps, *exchange(), END, (DROP_GRAPH, -1, 0, 0, 0)], 2, scheduler=scheduler)
    assert done.breaches() == []
    events = done.events(1)
    tasks = [e for e in events if e[0] == lib.PSM_PLAN_HOST_TASK]
    assert [(e[1], e[2]) for e in tasks] == [(1, 1), (1, 1), (1, 1), (2, 1)]  # all of the host stream
    reclaimers = {e[1]: e[2] for e in events if e[0] == lib.PSM_PLAN_RECLAIMER}
    assert reclaimers == {1: lib.PSM_PLAN_BY_DESTRUCTOR, 2: lib.PSM_PLAN_BY_HOST_TASK}
    assert [(e[2], e[3]) for e in events if e[0] == lib.PSM_PLAN_REFS] == [(1, 1), (0, -1)]


def test_a_hang_says_who_waits_for_what_and_is_torn_down() -> None:
    done = Simulation([(TASK, 0, SEND, 1, 8), END], 2)  # nobody receives
    assert lib.psmPlanResultStuck(done.result)
    found = [(rule, rank, text) for rule, rank, _, text in done.breaches()]
    assert ("stuck", 0, "the host function of plan 1 waits: 1 left of the count") in found
    assert {rule for rule, _, _ in found} == {"stuck"}
    assert done.events(0)[-1] == (lib.PSM_PLAN_DESTROY, 0, 0, 0, 0)


def test_a_collective_that_a_rank_does_not_enter_holds_the_others_up() -> None:
    done = Simulation([(TASK, 0, ALLREDUCE, 0, 8), END], 2)
    assert any(text.startswith("the kernel of plan 1 waits on channels 0x1") for _, _, _, text in done.breaches())


def test_a_poll_that_waits_comes_back_when_a_plan_was_reclaimed() -> None:
    done = Simulation([*exchange(), END, (POLL, -1, 0, 0, 1), (TASK, -1, ALLREDUCE, 0, 8), END], 2)
    what = [e[0] for e in done.events(0)]
    assert what.index(lib.PSM_PLAN_RECLAIM) < [i for i, w in enumerate(what) if w == lib.PSM_PLAN_TASK][-1]


def test_without_pass_sm_kernels_do_it_all() -> None:
    done = Simulation([*exchange(), END], 2, passSm=0)
    assert done.breaches() == []
    assert lib.PSM_PLAN_ARMED not in [e[0] for e in done.events(0)]
    assert (lib.PSM_PLAN_LAUNCHED, 1, 1, 0, 0) in done.events(0)


@pytest.mark.parametrize(
    ("steps", "config", "error"),
    [
        ([(TASK, -1, ALLREDUCE, 0, 8), END], {"variant": "none"}, "there is no plan variant none"),
        ([(TASK, 0, SEND, 7, 8), END], {}, "7"),
        ([(11, 0, 0, 0, 0)], {}, "step 0 has kind 11"),
        ([(TASK, 5, SEND, 0, 8)], {}, "rank 5"),
        ([(TASK, -1, ALLREDUCE, 0, 8), (CAPTURE, -1, 0, 0, 0), END], {}, "not captured, but ends while it is captured"),
        ([(CAPTURE, -1, 0, 0, 0), *exchange(), (CAPTURED, -1, 0, 0, 0), END], {}, "captured, but ends while it is not"),
        ([], {"nRanks": 0}, "0 ranks"),
        ([], {"nChannels": 99}, "99 channels"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_reason(
    steps: list[tuple[int, int, int, int, int]], config: dict[str, Any], error: str
) -> None:
    done = Simulation(steps, 2, **config)
    assert done.status < 0
    assert error in done.error
