"""psmPlanLintOpen and psmPlanLintRunOnce: what they refuse, and that a run says what each rank waits for."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit._native.psm import ffi, lib

PLANNER = 1
ALLREDUCE, SEND, RECV = 4, 6, 7
TASK, GROUP_END, CAPTURE, CAPTURED, REPLAY, ABORT = 0, 1, 2, 3, 4, 7
WAIT_FIFO, WAIT_PEER, WAIT_CHANNEL = (
    int(value) for value in (lib.PSM_PLAN_WAIT_FIFO, lib.PSM_PLAN_WAIT_PEER, lib.PSM_PLAN_WAIT_CHANNEL)
)
END = (GROUP_END, -1, 0, 0, 0)


def copy(kind: str, found: Any) -> Any:
    """A struct that outlives the lint that holds it."""
    mine = ffi.new(f"{kind} *")
    mine[0] = found
    return mine


class Lint:
    """A lint of steps (kind, rank, func, peer, bytes)."""

    def __init__(self, steps: list[tuple[int, int, int, int, int]], ranks: int = 2, **config: int) -> None:
        self.steps = ffi.new("struct psmPlanStep[]", max(len(steps), 1))
        for row, (kind, rank, func, peer, count) in zip(self.steps, steps, strict=False):
            row.kind, row.rank, row.task.func, row.task.peer, row.task.count = kind, rank, func, peer, count
        wanted = ffi.new("struct psmPlanSimulation *")
        wanted.size = ffi.sizeof("struct psmPlanSimulation")
        wanted.config.size = ffi.sizeof("struct psmPlanConfig")
        values = {"scheduler": PLANNER, "nChannels": 1, "p2pnChannels": 1, "p2pnChannelsPerPeer": 1, "release": 23007}
        for name, value in {**values, "nRanks": ranks, **config}.items():
            setattr(wanted.config, name, value)
        wanted.steps, wanted.nsteps = self.steps, len(steps)
        out = ffi.new("psmPlanLint **")
        self.status = int(lib.psmPlanLintOpen(wanted, out))
        self.lint = ffi.gc(out[0], lib.psmPlanLintFree)

    def run(self, steps: int = 0, unrecorded: int = 0) -> tuple[bool, list[Any]]:
        what, ended = ffi.new("struct psmPlanLintRun *"), ffi.new("int *")
        waits, count = ffi.new("const struct psmPlanLintWait **"), ffi.new("size_t *")
        what.size, what.steps, what.unrecorded = ffi.sizeof("struct psmPlanLintRun"), steps, unrecorded
        assert lib.psmPlanLintRunOnce(self.lint, what, ended, waits, count) == 0
        return bool(ended[0]), [copy("struct psmPlanLintWait", waits[0][i]) for i in range(count[0])]

    def plans(self) -> list[Any]:
        table = ffi.new("const struct psmPlanLintPlan **")
        return [copy("struct psmPlanLintPlan", table[0][i]) for i in range(lib.psmPlanLintPlans(self.lint, table))]


def pair(count: int = 64, source: int = 0, target: int = 1) -> list[tuple[int, int, int, int, int]]:
    return [(TASK, source, SEND, target, count), (TASK, target, RECV, source, count)]


def test_a_message_ends_and_its_plan_is_told() -> None:
    lint = Lint([*pair(), END])
    assert lint.run() == (True, []) and lint.run() == (True, [])  # a run leaves nothing behind
    first, second = lint.plans()
    assert (first.rank, first.group, first.id, first.np2ps, first.workBytes) == (0, 0, 1, 1, 48)
    assert (first.firstTask, first.lastTask, second.rank) == (0, 0, 1)


def test_a_group_that_is_open_at_the_end_is_ended() -> None:
    assert len(Lint(pair()).plans()) == 2


def test_nothing_to_do_ends() -> None:
    assert Lint([]).run() == (True, []) and Lint([END]).run() == (True, [])


def test_a_send_without_a_recv_ends_if_its_connection_buffers_it_and_waits_else() -> None:
    lint = Lint([(TASK, 0, SEND, 1, 64), END])
    ended, (wait,) = lint.run()
    assert not ended
    assert (wait.rank, wait.kind, wait.func, wait.peer, wait.task) == (0, WAIT_PEER, SEND, 1, 0)
    assert (wait.plan, wait.matePlan, wait.mateTask) == (1, 0, 2**64 - 1)
    assert lint.run(steps=8) == (True, [])


def test_a_connection_buffers_as_many_steps_as_told() -> None:
    # Nine sends of one step; the receiver takes none, because it first waits for a message that nobody sends.
    steps = [(TASK, 0, SEND, 1, 64)] * 9
    assert Lint([*steps, END]).run(steps=9)[0]
    ended, (wait,) = Lint([*steps, END]).run(steps=8)
    assert not ended and wait.task == 8
    ended, (wait,) = Lint([(TASK, 0, SEND, 1, 5 << 20), END]).run(steps=8)  # 10 steps of at most 512 KiB
    assert not ended and wait.task == 0


def test_a_send_to_the_own_rank_waits_for_nobody() -> None:
    assert Lint([*pair(64, 0, 0), END]).run()[0]


def test_a_collective_waits_for_all_ranks() -> None:
    ended, waits = Lint([(TASK, 0, ALLREDUCE, 0, 64), END], ranks=3).run()
    assert not ended
    assert [(wait.rank, wait.kind, wait.func, wait.channel) for wait in waits] == [(0, WAIT_CHANNEL, ALLREDUCE, 0)]
    assert Lint([(TASK, -1, ALLREDUCE, 0, 64), *pair(), END], ranks=3).run()[0]


def test_a_graph_runs_at_each_launch_and_needs_no_fifo() -> None:
    launch = (REPLAY, -1, 0, 0, 1)
    lint = Lint(
        [(CAPTURE, -1, 0, 0, 0), *pair() * 200, END, (CAPTURED, -1, 0, 0, 0), launch, launch], workFifoBytes=1024
    )
    assert lint.run()[0]
    assert {plan.storage for plan in lint.plans()} == {int(lib.PSM_PLAN_PERSISTENT)}
    alone = [(CAPTURE, -1, 0, 0, 0), *pair(), END, (CAPTURED, -1, 0, 0, 0), launch, (REPLAY, 0, 0, 0, 1)]
    assert not Lint(alone).run()[0]  # rank 1 launches it once


def test_the_host_waits_for_room_that_comes_back_behind_its_own_group() -> None:
    # 256 bytes hold five works, and a plan two of them, as there is room for two batches in the arguments.
    small = {"workFifoBytes": 256, "workArgsBytes": 64}
    assert Lint([*pair() * 5, END], **small).run()[0]
    ended, waits = Lint([*pair() * 6, END], **small).run()
    assert not ended
    assert [(w.rank, w.kind, w.plan, w.needs, w.has) for w in waits] == [(r, WAIT_FIFO, 3, 96, 64) for r in (0, 1)]
    assert not Lint([*pair() * 5, END], **small).run(unrecorded=32)[0]
    assert Lint([*pair() * 4, END] * 50, **small).run(unrecorded=32)[0]


def test_up_to_2_26_kernels_give_room_back() -> None:
    assert Lint([*pair() * 60, END], workFifoBytes=256, workArgsBytes=64, release=22606).run()[0]


@pytest.mark.parametrize(
    ("steps", "config"),
    [
        ([], {"nRanks": 0}),
        ([], {"nRanks": 1025}),
        ([], {"scheduler": 0}),
        ([], {"release": 22105}),
        ([], {"p2pnChannels": 3}),
        ([(TASK, 2, SEND, 0, 1)], {}),
        ([(TASK, 0, SEND, 2, 1)], {}),
        ([(ABORT, -1, 0, 0, 0)], {}),
        ([(TASK, 0, SEND, 0, 1), END], {}),  # no recv from itself
    ],
)
def test_what_is_refused(steps: list[tuple[int, int, int, int, int]], config: dict[str, int]) -> None:
    lint = Lint(steps, **config)
    assert lint.status == int(lib.PSM_ERR_INVALID) and lint.lint == ffi.NULL


def test_null_is_refused() -> None:
    assert lib.psmPlanLintOpen(ffi.NULL, ffi.NULL) == int(lib.PSM_ERR_INVALID)
    assert lib.psmPlanLintRunOnce(ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL) == int(lib.PSM_ERR_INVALID)
    lib.psmPlanLintFree(ffi.NULL)
