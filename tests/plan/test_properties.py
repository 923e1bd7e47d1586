"""What holds for all task mixes under the right variant, and the smallest mix that shows what is wrong with each wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from psmkit.plan import Config, Scheduler, Simulation, StepKind, parse, simulate, variants
from tests.plan.mixes import Case, cases

RIGHT = [v.name for v in variants().values() if not v.wrong]
WRONG = [(v.name, v.outcome, s) for v in variants().values() if v.wrong for s in Scheduler if v.schedulers & s.bit]


def run(case: Case) -> Simulation:
    return simulate(case.config, case.steps, case.seed)


def collectives(simulation: Simulation, rank: int) -> list[tuple[int, int, frozenset[int]]]:
    """(which collective, which plan of those with collectives, its channels), told by the plans alone."""
    numbers = [i for i, task in enumerate(simulation.tasks_of(rank)) if not task.func.p2p]
    out: dict[tuple[int, int], set[int]] = {}
    with_colls = [plan for plan in simulation.plans[rank] if plan.colls]
    for k, plan in enumerate(with_colls):
        for work in plan.works:
            if not work.func.p2p:
                out.setdefault((numbers.index(work.task), k), set()).add(work.channel)
    return [(coll, k, frozenset(channels)) for (coll, k), channels in sorted(out.items())]


def spread(simulation: Simulation) -> bool:
    """Sends and recvs of a group are in several plans. NCCL's legacy scheduler may then have a recv in one and the send of the same
    round in the next, which hangs when the peer does the same: docs/plan.md. It takes a FIFO that is shallow for its group."""
    for rank, plans in enumerate(simulation.plans):
        groups = 0
        open_group = False
        for step in simulation.steps:
            if step.kind is StepKind.GROUP_END:
                groups += open_group
                open_group = False
            elif step.task is not None and step.task.func.p2p and step.rank in (None, rank):
                open_group = True
        if sum(plan.p2ps > 0 for plan in plans) > groups:
            return True
    return False


def broken(simulation: Simulation) -> set[str]:
    """The rules that are broken, the limit of the legacy scheduler apart."""
    limit = simulation.config.scheduler is Scheduler.LEGACY and spread(simulation)
    return {b.rule for b in simulation.breaches} - ({"stuck"} if limit else set())


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("variant", RIGHT)
def test_all_ranks_cut_plans_at_the_same_task_and_choose_the_same_channels(variant: str, scheduler: Scheduler) -> None:
    @given(case=cases(scheduler, variant))
    @settings(max_examples=120, deadline=None, derandomize=True, database=None)
    def check(case: Case) -> None:
        done = run(case)
        assert not broken(done), done.breaches
        first = collectives(done, 0)
        assert len({coll for coll, _, _ in first}) == sum(not t.func.p2p for t in done.tasks_of(0))
        for rank in range(1, case.config.ranks):
            assert collectives(done, rank) == first

    check()


@pytest.mark.parametrize("scheduler", Scheduler)
def test_plans_do_not_depend_on_the_order_in_which_threads_and_streams_run(scheduler: Scheduler) -> None:
    @given(case=cases(scheduler, "coll-first"), seed=st.integers(0, 1 << 32))
    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    def check(case: Case, seed: int) -> None:
        one, other = run(case), run(replace(case, seed=seed))
        assert one.plans == other.plans and one.stuck == other.stuck and not broken(other)

    check()


def counterexample(variant: str, rule: str, scheduler: Scheduler) -> Case:
    """The smallest case in which a variant breaks a rule, and the right one breaks none: it is the variant that is wrong, not the tasks."""

    def shows(case: Case) -> bool:
        if not any(b.rule == rule for b in run(case).breaches):
            return False
        return not run(replace(case, config=replace(case.config, variant="coll-first"))).breaches

    found = find(
        cases(scheduler, variant),
        shows,
        settings=settings(
            max_examples=1000, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink)
        ),
    )
    print(f"{variant} breaks {rule}: {found!r}")
    return found


@pytest.mark.parametrize(("variant", "outcome", "scheduler"), WRONG, ids=lambda v: getattr(v, "label", v))
def test_a_counterexample_of_a_wrong_variant_is_found_and_shrunk(
    variant: str, outcome: str, scheduler: Scheduler
) -> None:
    found = counterexample(variant, outcome, scheduler)
    assert found.config.ranks == 2 and len(found.steps) <= 12


@pytest.mark.parametrize("rule", ["cut.differs", "channel.differs"])
@pytest.mark.parametrize("scheduler", Scheduler)
def test_p2p_that_is_planned_first_lets_cuts_and_channels_diverge(scheduler: Scheduler, rule: str) -> None:
    found = counterexample("p2p-first", rule, scheduler)
    done = run(found)
    plans = [collectives(done, rank) for rank in range(found.config.ranks)]
    assert any(mine != plans[0] for mine in plans)


def test_a_mixed_group_whose_count_has_all_ops_hangs() -> None:
    found = counterexample("count-all-ops", "stuck", Scheduler.PLANNER)
    assert {t.func.p2p for t in run(found).tasks_of(0)} == {True, False}


def test_a_legacy_fifo_that_ends_between_the_halves_of_an_exchange_hangs() -> None:
    """As NCCL's does, which asks for room before the recv of a round and again before its send."""
    text = "allreduce 1\nbroadcast 1\n0: send 64K to=1\n1: recv 64K from=0\n1: send 64K to=0\n0: recv 64K from=1\nallreduce 64K"
    config = Config(ranks=2, work_fifo_depth=16, p2p_channels_per_peer=2)
    done = simulate(config, parse(text, 2))
    assert done.stuck and spread(done) and {b.rule for b in done.breaches} == {"stuck"}
    for enough in (
        replace(config, work_fifo_depth=32),
        replace(config, scheduler=Scheduler.PLANNER, work_fifo_depth=0),
    ):
        assert not simulate(enough, parse(text, 2)).breaches
