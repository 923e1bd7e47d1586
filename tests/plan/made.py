"""A simulation made by hand: four ranks, a group of two collectives and a send, and what went wrong with it."""

from __future__ import annotations

from psmkit.plan import Breach, Config, Event, Func, Op, Plan, Rule, Simulation, What, Work, parse

TASKS = """
allreduce 1M
allgather 64K bfloat16
0: send 64K to=1
1: recv 64K from=0
"""
RULES = {
    "cut.differs": Rule("cut.differs", "All ranks put the same collectives into a plan.", 3),
    "reclaim.early": Rule("reclaim.early", "A plan is reclaimed after its last op.", 3),
}


def simulation(wrong: bool = True, text: str = "plan 1 holds one collective on rank 1 and two on rank 0") -> Simulation:
    """Right, or with a cut that differs on rank 1, whose plan 1 is freed early, and rank 2 stuck."""
    plans = tuple(_plans(rank, wrong) for rank in range(4))
    events: list[Event] = []
    for rank in range(4):
        events += _trace(rank, plans[rank], wrong)
    early = next(e.order for e in events if e.rank == 1 and e.what is What.RECLAIM)
    breaches = (
        Breach("cut.differs", 1, 0, 1, None, text),
        Breach("reclaim.early", 1, None, 1, early, "plan 1 is freed with 2 proxy ops"),
    )
    config = Config(ranks=4, variant="p2p-first" if wrong else "coll-first")
    return Simulation(config, 7, parse(TASKS, 4), plans, tuple(events), breaches if wrong else (), wrong)


def _plans(rank: int, wrong: bool) -> tuple[Plan, ...]:
    reduce = tuple(Work(c, Func.ALLREDUCE, -1, c == 0, True, 1 << 20, 0) for c in range(4))
    gather = tuple(Work(c, Func.ALLGATHER, -1, c == 2, True, 1 << 17, 1) for c in (2, 3))
    ops = tuple(Op(0, c, Func.ALLREDUCE, -1, False, 1 << 20, 0) for c in range(4))
    late = wrong and rank == 1
    first = Plan(
        rank, 1, 15, 4, 4, True, False, True, 1 if late else 2, 0, None, 512, 2, ops, reduce + gather * (not late)
    )
    if rank > 1:
        return (first,)
    func = Func.SEND if rank == 0 else Func.RECV
    p2p = (Op(1, 0, func, 1 - rank, True, 1 << 18, 2),)
    return first, Plan(rank, 2, 1, 1, 1, True, False, late, int(late), 1, 1, 64, 1, p2p, gather if late else ())


def _trace(rank: int, plans: tuple[Plan, ...], wrong: bool) -> list[Event]:
    out: list[Event] = []

    def add(what: What, plan: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        out.append(Event(len(out), rank, what, plan, a, b, c))

    add(What.PREPARE, 0, 1, 3)
    for plan in plans:
        add(What.MADE, plan.id, plan.channel_mask, plan.colls, plan.p2ps)
    for plan in plans:
        add(What.LAUNCHED, plan.id, 1 if plan.kernel else 2)
        add(What.HOST_TASK, plan.id)
        for op in plan.ops:
            add(What.OP_POSTED, plan.id, op.op_count, op.channel, int(op.decrements))
        add(What.RECLAIMER, plan.id, 1)
    add(What.FINISH, 0, 1)
    for plan in plans:
        early = wrong and rank == 1 and plan.id == 1
        if plan.sync_count is not None:
            add(What.CALLBACK, plan.id, plan.sync_count)
        for number, op in enumerate(plan.ops):
            if early and number == 2:
                add(What.RECLAIM, plan.id, 2, 1)
            add(What.OP_DONE, plan.id, op.op_count, op.channel, int(op.decrements))
        if plan.sync_count is not None:
            add(What.CALLBACK_OVER, plan.id)
        if plan.kernel:
            add(What.KERNEL_DONE, plan.id)
        if not early:
            add(What.RECLAIM, plan.id)
    if wrong and rank == 2:
        add(What.STUCK, 1, 5)
    else:
        add(What.DESTROY)
    return out
