"""libpsm's objects in the memory of a process, from its list of what is alive (csrc/psm/core/alive.h)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import drgn

from psmkit.live.state.memory import Peek, Target
from psmkit.model.inspection import StateObject, Value

__all__ = ["read"]

_TYPES = (
    *("none", "Init", "SharedInit", "Setup", "Connect", "Start", "Close", "Abort", "Stop"),
    *("GetFd", "QueryFd", "Register", "Deregister"),
)
_STATES = ("uninitialised", "initialised", "shared init done", "set up", "connected")
_OP_STATES = ("none", "ready", "in progress")
_OWNERS = {"PSM_ALIVE_PROXY": "struct psmProxyState", "PSM_ALIVE_PLANS": "struct psmPlanComm"}
_P2P = 5  # PSM_TRANSPORT_P2P
_MOST = 4096  # calls, connections, ops of one proxy


def read(target: Target) -> Iterator[StateObject]:
    """All proxies and all communicators of plans; none: the debug information names no list of them, or it is empty."""
    first = target.variable("psm_alive_first")
    if first is None:
        return
    for node in Peek(target, first.read_(), 0).list():
        owner = _owner(target, node)
        if owner is None:
            target.note(f"libpsm's list of objects holds one of an unknown kind at {node.address:#x}")
        elif node.word("kind") == "PSM_ALIVE_PROXY":
            yield _proxy(owner)
        else:
            yield _plans(owner)


def _owner(target: Target, node: Peek) -> Peek | None:
    kind = target.type(_OWNERS.get(str(node.word("kind")), "void"))
    if kind is None or kind.kind != drgn.TypeKind.STRUCT:
        return None
    return target.at(kind, node.address - drgn.offsetof(kind, "alive"))


def _name(names: tuple[str, ...], number: int | None) -> str:
    return names[number] if number is not None and 0 <= number < len(names) else str(number)


def _plain(word: str | int | None, prefix: str) -> str:
    """PSM_STAGE_ZERO_COPY as "zero copy"."""
    return str(word).removeprefix(prefix).replace("_", " ").lower()


def _age(begun: int | None) -> tuple[Value, ...]:
    """By CLOCK_MONOTONIC, which all processes share. 0: no time was kept."""
    return (Value("age_ms", max((time.monotonic_ns() - begun) // 1_000_000, 0)),) if begun else ()


# ---- proxies ----


def _proxy(state: Peek) -> StateObject:
    rank, nranks = state.number("rank"), state.number("nranks")
    values = [
        *state.values("device", "aborted", "async_status"),
        Value("phase", _plain(state.word("phase"), "PSM_PHASE_")),
    ]
    if lost := _lost(state, nranks or 0):
        values.append(Value("lost_peers", " ".join(map(str, lost))))
    if counts := state.inside("counts"):
        values += counts.values("calls", "served", "retried", "late", "refused", "resent", "fds_sent", "fds_received")
    if error := state.chars("async_error", "text"):
        values.append(Value("error", error))
    parts = state.target.gather(_calls(state), _fetches(state), _requests(state), _ops(state), _connections(state))
    return StateObject(
        "psm proxy", f"proxy of rank {rank} of {nranks}", state.address, rank, values=tuple(values), parts=tuple(parts)
    )


def _lost(state: Peek, nranks: int) -> list[int]:
    begin = state.number("lost")
    nranks = min(max(nranks, 0), _MOST)
    if not begin or not state.target.holds(begin, nranks):
        return []
    state.target.spend(nranks)
    return [rank for rank, gone in enumerate(state.target.raw(begin, nranks)) if gone][:64]


def _pointed(of: Peek, kind: str, *path: str) -> Iterator[Peek]:
    """The objects of a table: `slots` and `count` of a member."""
    count = of.number(*path, "count") or 0
    if count > _MOST:
        of.target.note(f"only the first {_MOST} of {count} objects ({kind}) were looked at")
    for i in range(min(count, _MOST)):
        if (address := of.word_at(8, *path, "slots", index=i)) and (found := of.target.at(kind, address)):
            yield found


def _calls(state: Peek) -> Iterator[StateObject]:
    """Calls whose answer nobody has fetched."""
    rank = state.number("rank")
    for call in _pointed(state, "struct psm_call", "calls"):
        if not call.number("taken"):
            continue
        peer, slot, generation = call.number("peer"), call.number("slot"), call.number("generation")
        kind = _name(_TYPES, call.number("type"))
        identity = (generation or 0) << 32 | (slot or 0)
        yield StateObject(
            "pending call",
            f"{kind} to the proxy of rank {peer}",
            call.address,
            rank,
            peer,
            values=(
                Value("opId", f"{identity:#x}"),
                Value("type", kind),
                Value("answered", call.number("done") or 0),
                *_age(call.number("begun")),
            ),
        )


def _fetches(state: Peek) -> Iterator[StateObject]:
    """Descriptors that are asked for and have not come."""
    rank = state.number("rank")
    for fetch in state.list("uds", "jobs", most=_MOST):
        kind, peer = _name(_TYPES, fetch.number("type")), fetch.number("rank")
        yield StateObject(
            "pending call",
            f"{kind} to the UDS of rank {peer}",
            fetch.address,
            rank,
            peer,
            values=(
                Value("opId", f"{fetch.number('op_id') or 0:#x}"),
                Value("type", kind),
                Value("answered", fetch.number("done") or 0),
                *fetch.values("attempts", "pid"),
                *_age(fetch.number("begun")),
            ),
        )


def _requests(state: Peek) -> Iterator[StateObject]:
    """Requests that this proxy has not answered yet."""
    service = state.follow("serving")
    if service is None:
        return
    for request in service.list("pending", most=_MOST):
        asker = request.follow("peer")
        peer = asker.number("rank") if asker else None
        kind = _name(_TYPES, request.number("type"))
        yield StateObject(
            "unanswered request",
            f"{kind} of rank {peer}",
            request.address,
            state.number("rank"),
            peer,
            values=(
                Value("opId", f"{request.number('op_id') or 0:#x}"),
                Value("type", kind),
                *_age(request.number("begun")),
            ),
        )


# ---- connections and operations ----


def _connections(state: Peek) -> Iterator[StateObject]:
    for connection in _pointed(state, "struct psm_connection", "connections"):
        if connection.number("taken"):
            yield _connection(state, connection)


def _connection(state: Peek, connection: Peek) -> StateObject:
    rank, caller = state.number("rank"), connection.number("pub", "rank")
    stage = _name(_STATES, connection.number("pub", "connState"))
    role = "send" if connection.number("pub", "send") else "recv"
    if connection.number("pub", "transport") == _P2P and caller != rank:
        role = "fetch"  # a rank does Setup of p2p at its own proxy; at another one it only fetches descriptors
    values = [
        Value("state", stage),
        Value("role", role),
        Value("caller", caller if caller is not None else -1),
        Value("id", f"{connection.number('pub', 'id') or 0:#x}"),
        *connection.values(("transport", "pub", "transport"), "running", "freeing"),
    ]
    local = _local(connection)
    if local is None:
        # Nothing but its caller is known before Setup is done.
        name = f"{role}, {stage}, of rank {caller}"
        return StateObject("psm connection", name, connection.address, rank, caller, values=tuple(values))
    conn = local.inside("conn") or local
    peer, channel = conn.number("peer"), conn.number("channel")
    values += [
        Value("pair", f"{conn.number('pair') or 0:#x}"),
        Value("stage", _plain(conn.word("stage"), "PSM_STAGE_")),
        *conn.values("connIndex", "connected", "seq", "step", "steps"),
        *_words(local),
    ]
    sub = conn.follow("active")
    if sub:
        values += sub.values("base", "posted", "transmitted", "done", "nsteps", "nbytes")
    if moved := conn.number("moved_ns"):
        values.append(Value("age_ms", max((time.monotonic_ns() - moved) // 1_000_000, 0)))
    name = f"{'to' if role == 'send' else 'from'} rank {peer}, channel {channel}"
    return StateObject("psm connection", name, connection.address, rank, peer, channel, tuple(values))


def _local(connection: Peek) -> Peek | None:
    """The local info of its transport. A handler of a variant may keep another type there: the table of functions tells."""
    target, address = connection.target, connection.number("pub", "transportResources")
    base = target.at("struct psm_conn", address) if address else None
    if base is None or not address:
        return None
    ops = base.number("ops")
    for table, kind in (("psm_p2p_conn_ops", "struct psmP2pLocalInfo"), ("psm_net_conn_ops", "struct psmNetLocalInfo")):
        found = target.variable(table)
        if found is not None and found.address_ == ops:
            return target.at(kind, address)
    return None


def _words(local: Peek) -> tuple[Value, ...]:
    """Head and tail of the FIFO: p2p has them in the control segment, net in its own memory."""
    if shared := local.follow("shared"):
        ended = shared.values(("sendEnded", "sendEnded", "value"), ("recvEnded", "recvEnded", "value"))
        return (
            *shared.values(("sendHead", "sendHead", "value"), ("recvTail", "recvTail", "value")),
            *(value for value in ended if value.value),
        )
    return local.values("passed", "credits", "credits_posted", "tail", "offered", "lost", "over")


def _ops(state: Peek) -> Iterator[StateObject]:
    """What the progress thread runs, and what was given to it and not begun."""
    if progress := state.inside("progress"):
        for args in progress.list("active", most=_MOST):
            yield _op(state, args)
            for waiting in args.list("nextPeer", next="nextPeer", most=_MOST):
                yield _op(state, waiting, "waits for the one before it on its connection")
        for name, said in (("posted", "posted, not begun"), ("saved", "saved, not posted")):
            for posted in progress.list(name, most=_MOST):
                yield _given(state, posted, said)


def _op(state: Peek, args: Peek, said: str = "") -> StateObject:
    subs, count = [], max(args.number("nsubs") or 0, 0)
    for i in range(min(count, args.size("subs"))):
        sub = args.inside("subs", i)
        if sub is None:
            break
        peer, channel = sub.number("peer"), sub.number("channel")
        subs.append(
            StateObject(
                "sub",
                f"sub {i}: peer {peer}, channel {channel}",
                args.address,
                state.number("rank"),
                peer,
                channel,
                sub.values("base", "posted", "transmitted", "done", "nsteps", "nbytes", "offset"),
            )
        )
    only = subs[0] if len(subs) == 1 else None
    name = said or _name(_OP_STATES, args.number("state"))
    return StateObject(
        "proxy op",
        f"op {args.number('opCount')}: {name}",
        args.address,
        state.number("rank"),
        only.peer if only else None,
        only.channel if only else None,
        (Value("state", name), *args.values("opCount", "nsubs", "done", "idle")),
        tuple(subs),
    )


def _given(state: Peek, posted: Peek, said: str) -> StateObject:
    peer, channel = posted.number("op", "peer"), posted.number("op", "channel")
    return StateObject(
        "proxy op",
        f"op {posted.number('op', 'opCount')}: {said}",
        posted.address,
        state.number("rank"),
        peer,
        channel,
        (Value("state", said), *posted.values(("opCount", "op", "opCount"), ("nbytes", "op", "nbytes"))),
    )


# ---- plans ----


def _plans(comm: Peek) -> StateObject:
    rank = comm.number("config", "rank")
    fifo = StateObject(
        "work fifo",
        "work FIFO",
        0,
        rank,
        values=comm.values(("produced", "fifo", "sent"), ("consumed", "fifo", "acked"), ("depth", "fifo", "depth")),
    )
    parts = comm.target.gather(
        [fifo],
        _waiting(comm, "reclaimer enqueued, not taken", "callbacks", "head"),
        _waiting(comm, "waits for its end before it is reclaimed", "waiting"),
        (_plan(plan, "of the group") for plan in comm.list("planHead", most=_MOST)),
    )
    values = comm.values("openPlans", "openWork", "hostTasks", "aborted", "finished", "collOpCount", "persistentRefs")
    return StateObject("communicator", f"plans of rank {rank}", comm.address, rank, values=values, parts=tuple(parts))


def _waiting(comm: Peek, said: str, *path: str) -> Iterator[StateObject]:
    """Plans whose reclaimer is in a queue. A reclaimer is the first member of its plan, but for one variant."""
    for callback in comm.list(*path, most=_MOST):
        name, address = comm.target.symbol(callback.number("fn") or 0), callback.address
        kind = comm.target.type("struct psmPlan")
        if kind is None or name not in ("psm_plan_reclaim", "psm_plan_reclaim_second"):
            continue
        if name == "psm_plan_reclaim_second":
            address -= drgn.offsetof(kind, "second")
        if plan := comm.target.at(kind, address):
            yield _plan(plan, said)


def _plan(plan: Peek, said: str) -> StateObject:
    return StateObject(
        "plan",
        f"plan {plan.number('id')}: {said}",
        plan.address,
        values=(
            Value("stands", said),
            *plan.values("open", "enqueued", "reclaimed", "cancelled", "kernelRuns", "callbacks", "hostCbEnq"),
            *plan.values("ncolls", "np2ps", "nops", "persistent"),
        ),
    )
