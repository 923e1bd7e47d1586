"""Task mixes for hypothesis: what a program can do that uses NCCL rightly. They shrink to few tasks, ranks and groups."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from psmkit.plan import Config, Func, Scheduler, Step, StepKind, Task, dump, graph

__all__ = ["Case", "cases"]

_COLLS = (Func.ALLREDUCE, Func.ALLGATHER, Func.REDUCESCATTER, Func.BROADCAST, Func.REDUCE)
_COUNTS = (1, 4 << 10, 64 << 10, 1 << 20)


@dataclass(frozen=True)
class Case:
    """What is simulated."""

    config: Config
    steps: tuple[Step, ...]
    seed: int

    def __repr__(self) -> str:  # what hypothesis prints of a counterexample
        return f"{self.config}, order {self.seed}, tasks:\n{dump(self.steps)}"


@st.composite
def _group(draw: st.DrawFn, ranks: int, to_self: bool) -> list[Step]:
    """Collectives in one order on all ranks, sends with their recvs; where a rank enqueues what is its own."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.sampled_from(_COUNTS))
        if draw(st.booleans()):
            func = draw(st.sampled_from(_COLLS))
            root = draw(st.integers(0, ranks - 1)) if func.rooted else 0
            steps.append(Step(StepKind.TASK, Task(func, count, peer=root)))
        else:
            source = draw(st.integers(0, ranks - 1))
            target = (source + draw(st.integers(0 if to_self else 1, ranks - 1))) % ranks
            for _ in range(draw(st.sampled_from((1, 1, 2, 6)))):
                steps.append(Step(StepKind.TASK, Task(Func.SEND, count, peer=target), source))
                steps.append(Step(StepKind.TASK, Task(Func.RECV, count, peer=source), target))
    steps.append(Step(StepKind.GROUP_END))
    return steps


@st.composite
def _steps(draw: st.DrawFn, ranks: int, to_self: bool) -> tuple[Step, ...]:
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        group = draw(_group(ranks, to_self))
        steps += graph(group, draw(st.integers(1, 3))) if draw(_seldom()) else group
    return tuple(steps)


def _seldom() -> st.SearchStrategy[bool]:
    return st.integers(0, 3).map(lambda n: n == 3)


def _config(ranks: int, scheduler: Scheduler, variant: str) -> st.SearchStrategy[Config]:
    # Small budgets, so that few tasks are cut into several plans.
    legacy = scheduler is Scheduler.LEGACY
    return st.builds(
        lambda p2p, budget, **more: Config(
            p2p_channels=p2p[0],
            p2p_channels_per_peer=p2p[1],
            work_fifo_bytes=budget[0],
            work_args_bytes=budget[1],
            **more,
        ),
        ranks=st.just(ranks),
        scheduler=st.just(scheduler),
        variant=st.just(variant),
        channels=st.sampled_from((2, 1, 4)),
        p2p=st.sampled_from(((2, 1), (2, 2), (1, 1), (4, 1), (4, 2))),
        pass_sm=st.sampled_from((True, False)),
        launch_blocking=_seldom(),
        work_fifo_depth=st.sampled_from((16, 64, 0)) if legacy else st.just(0),
        budget=st.just((0, 0)) if legacy else st.sampled_from(((1024, 512), (0, 0), (4096, 1024))),
    )


@st.composite
def cases(draw: st.DrawFn, scheduler: Scheduler, variant: str) -> Case:
    """Cases of a scheduler and a variant."""
    ranks = draw(st.integers(2, 4))
    config = draw(_config(ranks, scheduler, variant))
    # A shallow FIFO may end between a recv from oneself and its send, which NCCL's legacy scheduler refuses.
    steps = draw(_steps(ranks, not 0 < config.work_fifo_depth < 1024))
    return Case(config, steps, draw(st.integers(0, 1 << 16)))
