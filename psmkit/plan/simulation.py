"""Simulate N ranks of libpsm, their streams and proxies, in one thread and in an order that a seed determines."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from psmkit._native.psm import ffi, lib
from psmkit.plan.types import (
    Breach,
    Config,
    Event,
    Func,
    Op,
    Plan,
    Rule,
    Scheduler,
    Simulation,
    Step,
    Variant,
    What,
    Work,
)
from psmkit.proxy.errors import check, text_of

__all__ = ["check_trace", "configure", "rules", "simulate", "variants"]

_EVENT = struct.Struct("=QQqqqii")
_MOST_BREACHES = 1000
_EXTENDS = 2  # psmPlanWorkInfo.first
_STORAGES = {
    int(lib.PSM_PLAN_ARGS): "arguments",
    int(lib.PSM_PLAN_FIFO): "fifo",
    int(lib.PSM_PLAN_PERSISTENT): "persistent",
}
_NOWHERE = (1 << 64) - 1  # order of a breach without an event


def rules() -> tuple[Rule, ...]:
    """All rules, from the table of libpsm."""
    table = ffi.new("const struct psmPlanRule **")
    count = int(lib.psmPlanRules(table))
    rows = (table[0][i] for i in range(count))
    return tuple(Rule(text_of(r.name), text_of(r.text), int(r.schedulers)) for r in rows)


def variants() -> dict[str, Variant]:
    """All variants by name, the right one first."""
    table = ffi.new("const struct psmPlanVariant **")
    count = int(lib.psmPlanVariants(table))
    rows = (table[0][i] for i in range(count))
    found = (
        Variant(text_of(v.name), text_of(v.summary), text_of(v.outcome), bool(v.wrong), int(v.schedulers)) for v in rows
    )
    return {variant.name: variant for variant in found}


def simulate(config: Config, steps: Sequence[Step], seed: int = 0) -> Simulation:
    """Run these steps on the ranks.

    Args:
        config: configuration of their communicators.
        steps: the steps, in order; :func:`psmkit.plan.read` and :func:`psmkit.plan.generate` make them.
        seed: determines the order in which main threads, streams and proxies run.

    Raises:
        InvalidError: a bad step or value.
        NotFoundError: the variant does not exist.
        PsmError: the simulation failed. A run that hangs or breaks rules is a result, not a failure.
    """
    name = ffi.new("char[]", config.variant.encode())
    rows = ffi.new("struct psmPlanStep[]", max(len(steps), 1))
    for row, step in zip(rows, steps, strict=False):
        _fill(row, step)
    wanted = ffi.new("struct psmPlanSimulation *")
    wanted.size = ffi.sizeof("struct psmPlanSimulation")
    configure(wanted.config, config, name)
    wanted.seed, wanted.steps, wanted.nsteps = seed % (1 << 64), rows, len(steps)
    out = ffi.new("psmPlanResult **")
    check(lib.psmPlanSimulate(wanted, out))
    result = ffi.gc(out[0], lib.psmPlanResultFree)
    try:
        return Simulation(
            config=config,
            seed=seed,
            steps=tuple(steps),
            plans=tuple(tuple(_plans(result, rank)) for rank in range(config.ranks)),
            events=tuple(_events(result, config.ranks)),
            breaches=tuple(_result_breaches(result)),
            stuck=bool(lib.psmPlanResultStuck(result)),
        )
    finally:
        ffi.release(result)


def check_trace(events: Iterable[Event], scheduler: Scheduler, *, ended: bool) -> tuple[Breach, ...]:
    """Check an existing trace against the rules.

    Args:
        events: events of each rank by ``order``.
        scheduler: the scheduler that made it.
        ended: nothing followed, so what is still open stays open for ever.
    """
    packed = b"".join(_EVENT.pack(e.order, e.plan, e.a, e.b, e.c, int(e.what), e.rank) for e in events)
    count = len(packed) // _EVENT.size
    rows = ffi.new("struct psmPlanEvent[]", max(count, 1))
    ffi.memmove(rows, packed, len(packed))
    out = ffi.new("struct psmPlanBreach[]", _MOST_BREACHES)
    found = int(lib.psmPlanCheckTrace(rows, count, int(scheduler), int(ended), out, _MOST_BREACHES))
    return tuple(_breach(out[i]) for i in range(min(found, _MOST_BREACHES)))


def _fill(row: Any, step: Step) -> None:
    row.kind = int(step.kind)
    row.rank = -1 if step.rank is None else step.rank
    task = step.task
    if task is None:
        row.task.count = step.count
        return
    row.task.func, row.task.peer, row.task.count = int(task.func), task.peer, task.count
    row.task.datatype, row.task.redop = int(task.datatype), int(task.redop)


def configure(record: Any, config: Config, name: Any) -> None:
    """Fill in a ``psmPlanConfig``; ``name`` is the variant as C's text, which has to live as long as the record."""
    record.size = ffi.sizeof("struct psmPlanConfig")
    record.nRanks, record.nNodes, record.scheduler = config.ranks, config.nodes, int(config.scheduler)
    record.nChannels = config.channels
    record.p2pnChannels, record.p2pnChannelsPerPeer = config.p2p_channels, config.p2p_channels_per_peer
    record.passSm, record.launchBlocking = int(config.pass_sm), int(config.launch_blocking)
    record.workFifoDepth, record.workFifoBytes = config.work_fifo_depth, config.work_fifo_bytes
    record.workArgsBytes, record.p2pChunkSize = config.work_args_bytes, config.p2p_chunk_bytes
    record.compCap, record.cgaClusterSize = config.comp_cap, config.cluster
    record.release, record.mixEpochs, record.p2pLLThreshold = (
        config.release,
        int(config.mix_epochs),
        config.ll_threshold,
    )
    record.variant = name


def _plans(result: Any, rank: int) -> Iterable[Plan]:
    info = ffi.new("struct psmPlanInfo *")
    for i in range(int(lib.psmPlanResultPlans(result, rank))):
        check(lib.psmPlanResultPlan(result, rank, i, info))
        yield Plan(
            rank=rank,
            id=int(info.id),
            channel_mask=int(info.channelMask),
            channel_ubound=int(info.channelUbound),
            channel_count=int(info.channelCount),
            has_proxy_ops=bool(info.hasProxyOps),
            persistent=bool(info.persistent),
            kernel=bool(info.kernel),
            colls=int(info.ncolls),
            p2ps=int(info.np2ps),
            sync_count=None if info.syncCount < 0 else int(info.syncCount),
            work_bytes=int(info.workBytes),
            tasks=int(info.ntasks),
            ops=tuple(_op(info.ops[k]) for k in range(info.nops)),
            works=tuple(_work(info.works[k]) for k in range(info.nworks)),
            storage=_STORAGES[int(info.storage)],
        )


def _op(op: Any) -> Op:
    kind = Func(op.func)
    return Op(int(op.opCount), op.channel, kind, op.peer, bool(op.decrements), int(op.nbytes), int(op.task))


def _work(work: Any) -> Work:
    return Work(
        channel=work.channel,
        func=Func(work.func),
        peer=work.peer,
        first=bool(work.first),
        kernel=bool(work.kernel),
        nbytes=int(work.nbytes),
        task=int(work.task),
        extends=work.first == _EXTENDS,
        place=int(work.place),
        round_to=work.roundTo,
        round_from=work.roundFrom,
    )


def _events(result: Any, ranks: int) -> Iterable[Event]:
    """The events of all ranks, in the order in which they happened."""
    table = ffi.new("const struct psmPlanEvent **")
    traces = []
    for rank in range(ranks):
        count = int(lib.psmPlanResultEvents(result, rank, table))
        raw = bytes(ffi.buffer(table[0], count * _EVENT.size)) if count else b""
        traces.append(_EVENT.iter_unpack(raw))
    order = ffi.new("const int32_t **")
    for i in range(int(lib.psmPlanResultOrder(result, order))):
        number, plan, a, b, c, what, rank = next(traces[order[0][i]])
        yield Event(number, rank, What(what), plan, a, b, c)


def _result_breaches(result: Any) -> Iterable[Breach]:
    table = ffi.new("const struct psmPlanBreach **")
    count = int(lib.psmPlanResultBreaches(result, table))
    return [_breach(table[0][i]) for i in range(count)]


def _breach(b: Any) -> Breach:
    other = None if b.other < 0 else int(b.other)
    order = None if b.order == _NOWHERE else int(b.order)
    return Breach(text_of(b.rule), int(b.rank), other, int(b.plan), order, text_of(b.text))
