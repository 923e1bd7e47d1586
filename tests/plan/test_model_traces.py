"""Traces of libpsm's plans are held against the model of reclaim: what it cannot follow is wrong, in the code or in the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from psmkit.plan import (
    Config,
    Event,
    Plan,
    Scheduler,
    Simulation,
    Step,
    StepKind,
    What,
    generate,
    graph,
    simulate,
    variants,
)
from psmkit.plan.model import Admission, ModelError, PlanKind, TraceEvent, admit, model_variants

Trace = list[Event]
Kinds = dict[int, PlanKind]

# What may stand where it likes, or as often.
FREE = (What.TASK, What.CUDA, What.ORDERED, What.UPLOADED)


pytestmark = pytest.mark.usefixtures("spin")


def run(seed: int, variant: str = "coll-first", abort: bool = True) -> Simulation:
    """A mix of groups, captured or not, by one of the schedulers; now and then aborted."""
    pick = random.Random(seed)
    ranks = pick.randint(1, 4)
    steps: list[Step] = list(generate(seed, ranks, groups=pick.randint(1, 3), tasks=pick.randint(1, 5)))
    if pick.random() < 0.5:
        steps = list(graph(steps, pick.randint(1, 3)))
    if pick.random() < 0.6:
        steps += generate(seed + 1000, ranks, groups=2, tasks=3)
    if abort and pick.random() < 0.3:
        steps.insert(pick.randint(0, len(steps)), Step(StepKind.ABORT))
    config = Config(
        ranks=ranks,
        nodes=pick.choice((1, ranks)),
        scheduler=pick.choice(tuple(Scheduler)),
        variant=variant,
        pass_sm=pick.random() < 0.7,
        launch_blocking=pick.random() < 0.3,
        work_fifo_depth=pick.choice((0, 1024)),
    )
    return simulate(config, tuple(steps), seed)


def kind(plan: Plan) -> PlanKind:
    decrementing = sum(op.decrements for op in plan.ops)
    return PlanKind(plan.kernel, len(plan.ops) - decrementing, decrementing)


def traces(simulation: Simulation) -> Iterator[tuple[Trace, Kinds]]:
    for rank, plans in enumerate(simulation.plans):
        trace = [event for event in simulation.events if event.rank == rank]
        yield sorted(trace, key=lambda event: event.order), {plan.id: kind(plan) for plan in plans}


@cache
def right() -> tuple[tuple[Trace, Kinds], ...]:
    return tuple(one for seed in range(60) for one in traces(run(seed)))


@cache
def short() -> tuple[tuple[Trace, Kinds], ...]:
    """A few traces that are not aborted, and in which every kind of event occurs."""
    found = [one for seed in range(200, 240) for one in traces(run(seed, abort=False)) if len(one[0]) < 70]
    return tuple(found[:16])


def judge(cases: list[tuple[Trace, Kinds]]) -> tuple[Admission, ...]:
    return admit([trace for trace, _ in cases], [kinds for _, kinds in cases])


def tell(trace: Trace, admission: Admission) -> str:
    assert admission.event is not None
    around = trace[max(0, admission.event - 12) : admission.event + 1]
    return "\n".join(f"{e.what.name} {e.plan} {e.a} {e.b} {e.c}" for e in around) + f"\n{admission}"


def test_the_model_admits_what_the_library_does() -> None:
    cases = list(right())
    seen = {event.what for trace, _ in cases for event in trace}
    assert {What.REPLAY, What.ABORT, What.CALLBACK, What.DESTRUCTOR, What.HOST_TASK, What.DESTROY} <= seen
    assert {event.a for trace, _ in cases for event in trace if event.what is What.RECLAIMER} >= {1, 2, 3}
    refused = [tell(case[0], found) for case, found in zip(cases, judge(cases), strict=True) if not found.admitted]
    assert not refused, f"{len(refused)} of {len(cases)} traces, the first up to what cannot happen:\n{refused[0]}"


def test_what_plans_are_is_seen_in_a_trace_alone() -> None:
    found = admit([trace for trace, _ in right()])
    assert all(one.admitted for one in found)


def test_the_beginning_of_a_trace_is_admitted() -> None:
    cases = [(trace[:n], kinds) for trace, kinds in short()[:4] for n in range(len(trace))]
    assert all(found.admitted for found in judge(cases))


@pytest.mark.parametrize(
    "name", [name for name, known in model_variants().items() if known.rule and name in variants()]
)
def test_the_right_model_refuses_traces_of_a_wrong_variant(name: str) -> None:
    cases = [one for seed in range(12) for one in traces(run(seed, name))]
    assert any(not found.admitted for found in judge(cases))


def dropped(trace: Trace) -> Iterator[tuple[str, Trace]]:
    replays = sum(event.what is What.REPLAY for event in trace)
    for i, event in enumerate(trace[:-1]):  # without its last event it has only not ended
        # Without any REPLAY it is one of a real communicator, which is not told of them.
        if event.what not in FREE and (event.what is not What.REPLAY or replays > 1):
            yield f"without {event.what.name}", trace[:i] + trace[i + 1 :]


def doubled(trace: Trace) -> Iterator[tuple[str, Trace]]:
    for i, event in enumerate(trace):
        if event.what not in FREE:
            yield f"{event.what.name} twice", [*trace[: i + 1], event, *trace[i + 1 :]]


# Pairs of events of one plan, or of none, that have one order.
ORDERED = (
    (What.BARRIER, What.LAUNCHED),
    (What.PREPARE, What.PREPARED),
    (What.PREPARED, What.FINISH),
    (What.MADE, What.LAUNCHED),
    (What.LAUNCHED, What.KERNEL_DONE),
    (What.HOST_TASK, What.OP_POSTED),
    (What.OP_POSTED, What.OP_DONE),
    (What.ARMED, What.CALLBACK),
    (What.CALLBACK, What.COUNTED_OFF),
    (What.COUNTED_OFF, What.CALLBACK_OVER),
    (What.RECLAIMER, What.RECLAIM),
    (What.OP_DONE, What.RECLAIM),
    (What.KERNEL_DONE, What.RECLAIM),
    (What.CALLBACK_OVER, What.RECLAIM),
    (What.DESTRUCTOR, What.RECLAIMER),
    (What.REPLAY, What.DESTRUCTOR),
    (What.RECLAIM, What.DESTROY),
)


def swapped(trace: Trace) -> Iterator[tuple[str, Trace]]:
    """The last of the first kind and the first of the second behind it change places."""
    for first, second in ORDERED:
        for plan in {event.plan for event in trace if event.what in (first, second)}:
            if first is What.OP_POSTED and sum(e.what is first and e.plan == plan for e in trace) > 1:
                continue  # ops of a kind are one as good as the other
            mine = [i for i, e in enumerate(trace) if e.what is second and e.plan in (plan, 0)]
            before = [
                i for i, e in enumerate(trace) if e.what is first and e.plan in (plan, 0) and mine and i < mine[-1]
            ]
            after = [i for i in mine if before and i > before[-1]]
            if not after:
                continue
            i, j = before[-1], after[0]
            other = list(trace)
            other[i], other[j] = other[j], other[i]
            yield f"{second.name} before {first.name}", other


def renumbered(trace: Trace) -> Iterator[tuple[str, Trace]]:
    """Numbers that events have and the model speaks of."""
    wrong: dict[What, Callable[[Event], Event]] = {
        What.ARMED: lambda e: replace(e, a=e.a + 1),
        What.COUNTED_OFF: lambda e: replace(e, a=e.a + 1),
        What.RECLAIMER: lambda e: replace(e, a=e.a % 3 + 1),
        What.RECLAIM: lambda e: replace(e, a=e.a + 1),
        What.REFS: lambda e: replace(e, a=e.a + 1),
        What.FINISH: lambda e: replace(e, a=e.a + 1),
        What.DESTROY: lambda e: replace(e, b=e.b + 1),
    }
    for i, event in enumerate(trace):
        if event.what in wrong:
            yield f"{event.what.name} with other numbers", [*trace[:i], wrong[event.what](event), *trace[i + 1 :]]


@pytest.mark.parametrize("mutate", [dropped, doubled, swapped, renumbered])
def test_a_trace_that_was_changed_is_refused(mutate: Callable[[Trace], Iterator[tuple[str, Trace]]]) -> None:
    assert all(found.admitted for found in judge(list(short())))
    cases = [(name, changed, kinds) for trace, kinds in short() for name, changed in mutate(trace)]
    assert len({name for name, _, _ in cases}) >= 7
    found = judge([(changed, kinds) for _, changed, kinds in cases])
    admitted = sorted({name for (name, _, _), one in zip(cases, found, strict=True) if one.admitted})
    assert not admitted


def test_a_refused_trace_says_which_event_cannot_happen() -> None:
    trace, kinds = next(one for one in short() if any(e.what is What.RECLAIM for e in one[0]))
    last = max(i for i, event in enumerate(trace) if event.what is What.RECLAIM)
    twice = [*trace[: last + 1], trace[last], *trace[last + 1 :]]
    (found,) = judge([(twice, kinds)])
    assert not found.admitted
    assert found.event == last + 1
    assert found.reached < found.events


def test_an_event_that_follows_a_broken_rule_is_named_with_the_rule() -> None:
    trace, kinds = next(one for one in short() if any(e.what is What.RECLAIMER for e in one[0]))
    last = max(i for i, event in enumerate(trace) if event.what is What.RECLAIMER)
    (found,) = judge([([*trace[: last + 1], trace[last], *trace[last + 1 :]], kinds)])
    assert not found.admitted


def test_a_trace_with_too_many_plans_is_an_error() -> None:
    events: list[TraceEvent] = [Event(i, 0, What.MADE, i + 1, 1, 1, 0) for i in range(121)]
    with pytest.raises(ModelError, match="121 plans"):
        admit([events])


def test_no_traces_are_no_run() -> None:
    assert admit([]) == ()
