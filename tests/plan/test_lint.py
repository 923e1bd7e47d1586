"""The lint says what the simulation does, its changes make groups safe, and carried rounds make every cut safe."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from psmkit.plan import Config, Func, Scheduler, Step, StepKind, Task, packed, parse, simulate
from psmkit.plan.cut import BUFFERED, Cut
from psmkit.plan.lint import P2P_BYTES, Answer, lint
from psmkit.plan.releases import releases

ROWS = releases()
CARRIED = [row.since for row in ROWS if row.carries]
RESTARTED = [row.since for row in ROWS if not row.carries]


def config(release: int, ranks: int, **more: int) -> Config:
    values = {"channels": 4, "p2p_channels": 4, "p2p_channels_per_peer": 1, "work_fifo_bytes": 1 << 20, **more}
    return Config(ranks=ranks, scheduler=Scheduler.PLANNER, release=release, pass_sm=False, **values)  # type: ignore[arg-type]


def group(chance: random.Random, ranks: int, most: int) -> list[Step]:
    """Sends with their recvs, of any two ranks, in any order."""
    steps = []
    for _ in range(chance.randint(1, most)):
        source, target = chance.randrange(ranks), chance.randrange(ranks)
        count = chance.choice((1, 1000, 40_000, 600_000))
        steps.append(Step(StepKind.TASK, Task(Func.SEND, count, peer=target), source))
        steps.append(Step(StepKind.TASK, Task(Func.RECV, count, peer=source), target))
    return [*steps, Step(StepKind.GROUP_END)]


def ends(made: Config, steps: list[Step], buffered: int = 0) -> bool:
    with Cut(made, packed.pack(steps)) as cut:
        return cut.run(buffered, 0).ended


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_run_of_the_lint_ends_if_and_only_if_the_simulation_does(row) -> None:  # type: ignore[no-untyped-def]
    chance = random.Random(row.since)
    seen = set()
    for turn in range(60):
        ranks = chance.choice((2, 3, 4, 9))
        p2p = chance.choice((1, 2, 4))
        made = config(
            row.since,
            ranks,
            p2p_channels=p2p,
            p2p_channels_per_peer=chance.choice((1, p2p)),
            work_args_bytes=chance.choice((64, 80, 128)) + 16 * p2p,
            work_fifo_bytes=chance.choice((1024, 4096, 1 << 20)),
        )
        steps = [
            step for _ in range(chance.choice((1, 1, 3))) for step in group(chance, ranks, chance.choice((40, 150)))
        ]
        stuck = simulate(made, steps, turn).stuck
        assert ends(made, steps) is not stuck, (made, steps)
        seen.add(stuck)
    assert seen == {True, False} or not row.event_room


@pytest.mark.parametrize("release", CARRIED)
def test_with_carried_rounds_no_cut_is_stuck(release: int) -> None:
    """Plans of a few works, cut in different places on each rank, and a FIFO that is large enough."""
    chance = random.Random(release)
    for _ in range(150):
        ranks, p2p = chance.choice((2, 3, 4, 8, 12)), chance.choice((1, 2, 8))
        made = config(release, ranks, p2p_channels=p2p, work_args_bytes=chance.choice((64, 96, 192)) + 16 * p2p)
        made = replace(made, mix_epochs=chance.random() < 0.3, nodes=chance.choice((1, 1, 2 if ranks % 2 == 0 else 1)))
        steps = group(chance, ranks, 150)
        assert ends(made, steps), (made, steps)


@pytest.mark.parametrize("release", RESTARTED)
def test_without_carried_rounds_some_cuts_are_stuck_however_much_a_connection_buffers(release: int) -> None:
    chance = random.Random(5)
    found = 0
    for _ in range(150):
        made = config(release, 4, p2p_channels=1, work_args_bytes=96)
        steps = group(chance, 4, 150)
        found += not ends(made, steps, BUFFERED)
    assert found > 0


@pytest.mark.parametrize("release", RESTARTED)
def test_a_message_from_each_rank_to_each_is_safe_with_any_cut(release: int) -> None:
    chance = random.Random(6)
    for _ in range(60):
        ranks = chance.choice((3, 4, 9))
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if chance.random() < 0.7]
        steps = [step for a, b in pairs for step in (_send(a, b), _recv(a, b))] or [_send(0, 0), _recv(0, 0)]
        made = config(release, ranks, p2p_channels=1, work_args_bytes=chance.choice((64, 96)))
        assert ends(made, [*steps, Step(StepKind.GROUP_END)])


def _send(source: int, target: int, count: int = 16) -> Step:
    return Step(StepKind.TASK, Task(Func.SEND, count, peer=target), source)


def _recv(source: int, target: int, count: int = 16) -> Step:
    return Step(StepKind.TASK, Task(Func.RECV, count, peer=source), target)


# ---- the work FIFO ----


@pytest.mark.parametrize("release", [row.since for row in ROWS if row.event_room])
@pytest.mark.parametrize("fifo", [8192, 1 << 20])
def test_the_largest_group_of_a_ring_is_what_the_fifo_holds(release: int, fifo: int) -> None:
    made = config(release, 2, work_fifo_bytes=fifo)
    # A last plan of few works lies in the kernel's arguments: so many more than the FIFO holds, and no more, fit.
    holds = fifo // P2P_BYTES
    assert lint(made, [_send(0, 1), _recv(0, 1)] * holds, search=False).answer in (Answer.SAFE, Answer.UNDECIDED)
    few = lint(made, [_send(0, 1), _recv(0, 1)] * (holds * 7 // 8), search=False)
    assert few.answer is Answer.SAFE
    many = lint(made, [_send(0, 1), _recv(0, 1)] * (holds + 64), search=False)
    assert (many.answer, many.proof) == (Answer.HANGS, "arithmetic")
    assert not ends(made, [_send(0, 1), _recv(0, 1)] * (holds + 64), BUFFERED)


def test_the_changes_of_a_group_that_needs_too_much_make_it_safe() -> None:
    made = config(23007, 2, work_fifo_bytes=8192)
    steps = parse("send 16 to=+1 times=300\nrecv 16 from=-1 times=300", 2)
    found = lint(made, steps)
    assert found.answer is Answer.HANGS and [change.kind for change in found.changes] == ["split", "fifo"]
    split, fifo = found.changes
    assert found.largest.messages == split.value and found.largest.exact
    array = packed.pack(steps)
    for messages, answer in ((split.value, Answer.SAFE), (split.value + 1, Answer.UNDECIDED)):
        smaller = packed.split(array, packed.messages(array, 2), messages)
        assert smaller is not None and lint(made, smaller, search=False).answer is answer
    assert lint(replace(made, work_fifo_bytes=fifo.value), steps, search=False).answer is Answer.SAFE
    assert lint(replace(made, work_fifo_bytes=fifo.value // 2), steps, search=False).answer is not Answer.SAFE


def test_a_captured_group_needs_no_fifo() -> None:
    steps = parse("capture\nsend 16 to=+1 times=3000\nrecv 16 from=-1 times=3000\nend\ncaptured\nreplay 2", 2)
    found = lint(config(23007, 2, work_fifo_bytes=8192), steps)
    assert found.answer is Answer.SAFE and found.needs[0].fifo_bytes == 0


# ---- cuts ----


def stuck_group(release: int) -> tuple[Config, list[Step]]:
    chance = random.Random(5)
    made = config(release, 4, p2p_channels=1, work_args_bytes=96)
    while True:
        steps = group(chance, 4, 150)
        if not ends(made, steps, BUFFERED):
            return made, steps


@pytest.mark.parametrize("release", RESTARTED)
def test_a_group_with_bad_cuts_has_its_circle_and_its_changes(release: int) -> None:
    made, steps = stuck_group(release)
    found = lint(made, steps)
    assert (found.answer, found.proof) == (Answer.HANGS, "run")
    assert "ranks cut their groups in different places" in found.why
    assert len(found.cycle) >= 2
    for wait, after in zip(found.cycle, [*found.cycle[1:], found.cycle[0]], strict=True):
        assert wait.peer == after.rank and wait.mate_plan is not None and wait.mate_plan >= after.plan
    kinds = {change.kind: change for change in found.changes}
    assert kinds["release"].value == 22907 and "split" in kinds
    assert lint(replace(made, release=22907), steps, search=False).answer is Answer.SAFE
    array = packed.pack(steps)
    smaller = packed.split(array, packed.messages(array, 4), kinds["split"].value)
    assert smaller is not None and lint(made, smaller, search=False).answer is Answer.SAFE
    assert any("order of the calls" in note for note in found.notes)


def test_the_order_of_calls_changes_no_plan() -> None:
    made, steps = stuck_group(22705)
    tasks, end = steps[:-1], steps[-1]
    by_rank = sorted(tasks, key=lambda step: (step.rank or 0, step.task is not None and step.task.func))
    with Cut(made, packed.pack(steps)) as one, Cut(made, packed.pack([*by_rank, end])) as two:
        names = ["rank", "id", "storage", "nbatches", "workBytes", "np2ps"]
        assert one.plans[names].tolist() == two.plans[names].tolist()
        assert one.run(0, 0).ended is two.run(0, 0).ended is False


def test_the_same_group_is_answered_alike_each_time() -> None:
    made, steps = stuck_group(22705)
    assert lint(made, steps) == lint(made, steps)
