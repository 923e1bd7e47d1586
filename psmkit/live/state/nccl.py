"""NCCL's objects in the memory of a process, by the names that its members have in the releases since 2.18. What a release lacks is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import drgn

from psmkit.live.state.memory import Peek, Target
from psmkit.live.state.roots import communicators
from psmkit.model.inspection import StateObject, Value

__all__ = ["read"]

_MOST = 4096
_PEERS = 8192  # peers of channels that are looked at, of all communicators
_NOT_YET = "not launched"
_SENT: Mapping[object, str] = {"ncclWorkP2pTypeSend": "Send", "ncclWorkP2pTypeRecv": "Recv"}
_STATES = ("none", "ready", "in progress")
#: Transport and direction: the local info of its proxy's end, while the progress thread runs operations on it.
_RESOURCES = {
    (0, 1): "struct p2pShmProxyInfo",
    (0, 0): "struct p2pShmProxyInfo",
    (1, 1): "struct shmProxyInfo",
    (1, 0): "struct shmProxyInfo",
    (2, 1): "struct sendNetResources",
    (2, 0): "struct recvNetResources",
}


def read(target: Target) -> Iterator[StateObject]:
    """All communicators, with what belongs to them. A proxy that several share is with the first of them."""
    proxies, left = set[int](), [_PEERS]
    # What decides comes first, for the case that the limits are reached: all proxies before any connection.
    made = [
        (comm, target.gather(_values(comm)), target.gather(_urgent(comm, proxies)))
        for comm in target.gather(communicators(target))
    ]
    for comm, values, parts in made:
        parts += target.gather(_connections(comm, left))
        rank, known = comm.number("rank"), comm.number("commHash") or 0
        name = f"communicator {known:#x}, rank {rank} of {comm.number('nRanks')}"
        yield StateObject("communicator", name, comm.address, rank, values=tuple(values), parts=tuple(parts))


def _values(comm: Peek) -> Iterator[Value]:
    yield Value("commHash", f"{comm.number('commHash') or 0:#x}")
    yield from comm.values("rank", "nRanks", "cudaDev", "nNodes", "nChannels", "p2pnChannels", "opCount", "collOpCount")
    yield from _shared(comm)
    yield from _sequence(comm)
    yield from _flag(comm, "abortFlag")
    yield from _flag(comm, "childAbortFlag")
    yield from comm.values("destroyFlag", "revokedFlag", "finalizeCalled", "initState", "asyncResult")
    yield from comm.values("persistentRefs", "localPersistentRefs")


def _flag(comm: Peek, name: str) -> tuple[Value, ...]:
    """Since 2.17 a flag is where a pointer leads."""
    value = comm.word_at(4, name) if comm.points(name) else comm.number(name)
    return () if value is None else (Value(name, value),)


def _shared(comm: Peek) -> Iterator[Value]:
    """Counts of the resources that a communicator and its children share."""
    shared = comm.follow("sharedRes")
    if shared is None:
        return
    if not comm.has("collOpCount"):
        yield from shared.values("collOpCount")
    counts = [shared.number("p2pOpCount", i) for i in range(min(shared.size("p2pOpCount"), 256))]
    if counts:
        yield Value("p2pOpCount", sum(count or 0 for count in counts))


def _sequence(comm: Peek) -> Iterator[Value]:
    """How often each collective was called (2.23 and later)."""
    names = comm.target.enumerators("ncclFunc_t", "ncclFunc")
    for i in range(min(comm.size("seqNumber"), 64)):
        if count := comm.number("seqNumber", i):
            yield Value(f"seqNumber.{names.get(i, i)}", count)


def _urgent(comm: Peek, proxies: set[int]) -> Iterator[StateObject]:
    proxy = comm.follow("proxyState") or (shared.follow("proxyState") if (shared := comm.follow("sharedRes")) else None)
    if proxy is not None and proxy.address not in proxies:
        proxies.add(proxy.address)
        yield _proxy(comm, proxy)
    yield from _fifo(comm)
    yield from _plans(comm)


# ---- the proxy ----


def _proxy(comm: Peek, proxy: Peek) -> StateObject:
    rank = comm.number("rank")
    parts = comm.target.gather(_pending(rank, proxy), _ops(rank, proxy))
    values = proxy.values(
        "tpRank", "tpnRanks", "cudaDev", "stop", "asyncResult", ("progress_stop", "progressState", "stop")
    )
    return StateObject("proxy", f"proxy of rank {rank}", proxy.address, rank, values=values, parts=tuple(parts))


def _pending(rank: int | None, proxy: Peek) -> Iterator[StateObject]:
    """Calls to proxies whose answer has not been fetched. NCCL keeps neither their type nor their peer: the stack and the log have them, by the opId."""
    for call in proxy.list("expectedResponses", most=_MOST):
        identity = call.number("opId") or 0
        yield StateObject(
            "pending call",
            f"opId {identity:#x}",
            call.address,
            rank,
            values=(
                Value("opId", f"{identity:#x}"),
                Value("answered", call.number("done") or 0),
                *call.values("respSize"),
                *(call.values("res") if call.number("done") else ()),  # a failure until the answer comes
            ),
        )


def _ops(rank: int | None, proxy: Peek) -> Iterator[StateObject]:
    progress = proxy.inside("progressState")
    if progress is None:
        return
    for args in progress.list("active", most=_MOST):
        yield _op(rank, args, "")
        for waiting in args.list("nextPeer", next="nextPeer", most=_MOST):
            yield _op(rank, waiting, "waits for the one before it on its connection")


def _op(rank: int | None, args: Peek, said: str) -> StateObject:
    patterns = args.target.enumerators("ncclPattern_t", "ncclPattern")
    functions = args.target.enumerators("ncclFunc_t", "ncclFunc")
    state, pattern, function = args.number("state"), args.number("pattern"), args.number("coll")
    count = min(max(args.number("nsubs") or 0, 0), args.size("subs"))
    subs = [_sub(rank, args, sub, i) for i in range(count) if (sub := args.inside("subs", i)) is not None]
    stands = said or (_STATES[state] if state is not None and 0 <= state < len(_STATES) else str(state))
    values = [Value("state", stands)]
    if pattern is not None:
        values.append(Value("pattern", patterns.get(pattern, pattern)))
    if function is not None:
        values.append(Value("function", functions.get(function, function)))
    values += args.values("opCount", "nsubs", "done", "idle", "protocol", "sliceSteps", "chunkSteps")
    peers, channels = {sub.peer for sub in subs}, {sub.channel for sub in subs}
    what = patterns.get(pattern, "") if pattern is not None else ""
    return StateObject(
        "proxy op",
        f"op {args.number('opCount')}: {what} {stands}".replace("  ", " "),
        args.address,
        rank,
        peers.pop() if len(peers) == 1 else None,
        channels.pop() if len(channels) == 1 else None,
        tuple(values),
        tuple(subs),
    )


def _sub(rank: int | None, args: Peek, sub: Peek, i: int) -> StateObject:
    peer, channel = sub.number("peer"), sub.number("channelId")
    steps = sub.values("base", "posted", "received", "flushed", "transmitted", "done", "end", "nsteps", "nbytes", "reg")
    connection = sub.follow("connection")
    words = (Value("role", "send" if connection.number("send") else "recv"), *_words(connection)) if connection else ()
    return StateObject(
        "sub", f"sub {i}: peer {peer}, channel {channel}", args.address, rank, peer, channel, steps + words
    )


def _words(connection: Peek) -> tuple[Value, ...]:
    """Head and tail of a connection that the progress thread drives."""
    direction = connection.number("transport"), connection.number("send")
    kind = next((name for key, name in _RESOURCES.items() if key == direction), None)
    resources = connection.follow("transportResources", kind=kind) if kind else None
    values = [*connection.values(("connection", "state"))]
    if resources is None:
        return tuple(values)
    for shown, name in (("head", "sendMem"), ("tail", "recvMem")):
        memory = resources.number(name)
        kind = "struct ncclSendMem" if shown == "head" else "struct ncclRecvMem"
        if memory and connection.target.holds(memory, 64) and (words := connection.target.at(kind, memory)):
            values += words.values(shown)
    return (*values, *resources.values("step"))


# ---- the work FIFO and the plans ----


def _fifo(comm: Peek) -> Iterator[StateObject]:
    """Bytes since 2.22, slots before it. Where the number that was consumed is an array, one for each channel, the least that the host saw is kept."""
    values = []
    for shown, names in (
        ("produced", ("workFifoProduced", "workFifoSent")),
        ("consumed", ("workFifoConsumed", "workFifoConsumedLeast", "workFifoAckdMin")),
        ("size", ("workFifoBytes", "workFifoDepth")),
    ):
        name = next((name for name in names if comm.has(name) and not comm.points(name)), None)
        if name and (value := comm.number(name)) is not None:
            values.append(Value(shown, value))
    if values:
        yield StateObject("work fifo", "work FIFO", 0, comm.number("rank"), values=tuple(values))


def _works(comm: Peek, plan: Peek) -> Iterator[StateObject]:
    """Sends and receives in the works of a plan's kernel, in releases that keep no tasks, up to 2.21. They stay in the FIFO until it wraps around: the
    first work of each channel from the head on, and each says how far behind the head the next one is."""
    kind, depth, begin = comm.target.type("struct ncclWork"), comm.number("workFifoDepth"), comm.number("workFifoHeap")
    head, on_device = plan.number("workHead"), comm.number("devWorkFifoHeap")
    if kind is None or not depth or not begin or not head or not on_device:
        return
    size = drgn.sizeof(kind)
    first, seen = (head - on_device) // size, set[int]()
    for channel in range(min(plan.number("channelCount") or 0, 256) if 0 <= first < depth else 0):
        slot = first + channel
        while 0 <= slot < depth and slot not in seen and (work := comm.target.at(kind, begin + slot * size)):
            seen.add(slot)
            if work.word("header", "type") == "ncclWorkTypeP2p":
                for i in range(work.size("p2pElems")):
                    if (what := work.word("p2pElems", i, "p2pType")) in _SENT:
                        yield _message(work, i, _SENT[what])
            slot = -1 if work.number("header", "isLast") else first + (work.number("header", "workNext") or 0)


def _message(work: Peek, i: int, what: str) -> StateObject:
    peer = work.number("p2pElems", i, "peer")
    high, low = (work.number("p2pElems", i, f"count{part}32") or 0 for part in ("Hi", "Lo"))
    values = (Value("function", what), Value("bytes", high << 32 | low))
    return StateObject("task", f"{what}, rank {peer}", work.address, peer=peer, values=values)


def _plans(comm: Peek) -> Iterator[StateObject]:
    kind = "struct ncclKernelPlan"
    for callback in comm.list("callbackQueue", "head", most=_MOST):
        name = comm.target.symbol(callback.number("fn") or 0) or ""
        if "reclaimPlan" not in name:
            yield StateObject(
                "callback", f"callback {name or 'of unknown name'} waits for the main thread", callback.address
            )
        elif plan := comm.target.at(kind, callback.address):  # a plan begins with its reclaimer
            yield _plan(comm, plan, "waits for its reclaim by the main thread")
    place: tuple[str, ...] = ("planner",) if comm.has("planner", "planQueue") else ()
    waiting = comm.number(*place, "unlaunchedPlansHead")
    launched = waiting is None or waiting != comm.number(*place, "planQueue", "head")
    for plan in comm.list(*place, "planQueue", "head", most=_MOST):
        launched = launched and plan.address != waiting
        yield _plan(comm, plan, "launched, its group goes on" if launched else _NOT_YET)


def _plan(comm: Peek, plan: Peek, said: str) -> StateObject:
    names = ("persistent", "hasProxyOps", "isHostCbEnq", "collOpCount", "nWorkBatches", "workBytes", "channelMask")
    kept = (_task(task) for task in plan.list("p2pTaskQueue", "head", most=_MOST))
    works = _works(comm, plan) if plan.has("workHead") and said != _NOT_YET else ()
    tasks = tuple(comm.target.gather(kept, works))
    values = (Value("stands", said), *plan.values(*names))
    return StateObject("plan", f"plan: {said}", plan.address, values=values, parts=tasks)


def _task(task: Peek) -> StateObject:
    """A send or receive of a plan, in releases that keep it until the plan is reclaimed."""
    functions, function = task.target.enumerators("ncclFunc_t", "ncclFunc"), task.number("func")
    what = str(functions.get(function, function)) if function is not None else "task"
    values = (Value("function", what), *task.values("bytes"))
    return StateObject(
        "task", f"{what}, rank {task.number('root')}", task.address, peer=task.number("root"), values=values
    )


# ---- connections ----


def _connections(comm: Peek, left: list[int]) -> Iterator[StateObject]:
    """The connectors of all channels that were set up."""
    rank, nranks = comm.number("rank"), min(max(comm.number("nRanks") or 0, 0), 1 << 20)
    for channel in range(min(comm.size("channels"), 256)):
        if not comm.number("channels", channel, "peers"):
            continue
        for peer in range(nranks):
            if peer == rank:
                continue
            left[0] -= 1
            if left[0] < 0:
                comm.target.note(f"only the connections of the first {_PEERS} peers of channels were looked at")
                return
            address = comm.word_at(8, "channels", channel, "peers", index=peer)
            ends = comm.target.at("struct ncclChannelPeer", address) if address else None
            if ends is not None:
                yield from _ends(comm, ends, channel, peer)


def _ends(comm: Peek, ends: Peek, channel: int, peer: int) -> Iterator[StateObject]:
    for role in ("send", "recv"):
        for i in range(min(ends.size(role), 8)):
            end = ends.inside(role, i)
            if end is None or not (end.number("connected") or end.number("transportComm")):
                continue
            values = [Value("role", role), Value("connIndex", i), *end.values("connected")]
            if name := comm.target.symbol(end.number("transportComm") or 0):
                values.append(Value("transport", name.removesuffix("Transport")))
            # The service's end is at this address only where the service is in this process.
            if end.number("proxyConn", "sameProcess") and (service := end.follow("proxyConn", "connection")):
                values += service.values(("proxy_state", "state"))
            values += end.values(("step", "conn", "step"))
            for word in ("head", "tail"):
                if (value := end.word_at(8, "conn", word)) is not None:
                    values.append(Value(word, value))
            name = f"{'to' if role == 'send' else 'from'} rank {peer}, channel {channel}/{i}"
            yield StateObject("connection", name, ends.address, comm.number("rank"), peer, channel, tuple(values))
