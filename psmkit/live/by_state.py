"""The step in which a process stands, and the rank for which it waits, by the objects in its memory: what its stacks do not show of the data path and of
connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from psmkit.model.inspection import Standing, StateObject
from psmkit.model.wording import counted

__all__ = ["combined", "communicators", "exchanges", "launches", "of_kernel", "standings"]

_SHOWN = 8  # ranks that are named
_SLOTS = 8  # of a connection's buffer: NCCL_STEPS
_STEPS = ("posted", "received", "flushed", "transmitted", "done")


def standings(objects: Iterable[StateObject], *, kernel: bool = False) -> list[Standing]:
    """Where the communicators of NCCL stand, one for each peer and step. What moved between the two samples stands nowhere.

    Args:
        objects: of :func:`psmkit.live.state.read`.
        kernel: the stacks show that work of the GPU goes on. A plan alone does not: NCCL reclaims it only at the next launch.
    """
    found: dict[tuple[str, int | None, int | None], Standing] = {}
    for comm in objects:
        if comm.kind != "communicator":
            continue
        parts = list(_walk(comm.parts))
        for op in (part for part in parts if part.kind == "proxy op"):
            for sub in op.parts:
                _add(found, _of_sub(comm.rank, sub))
        for connection in (part for part in parts if part.kind == "connection"):
            _add(found, _of_connection(comm.rank, connection))
        for one in _of_kernels(comm, parts) if kernel else ():
            _add(found, one)
    return list(found.values())


def combined(
    by_stacks: Sequence[Standing], by_record: Sequence[Standing], objects: Sequence[StateObject]
) -> list[Standing]:
    """A stack that shows the data path, or a call to a process's own proxy, does not show for whom; libpsm's record and the memory of NCCL do.

    Args:
        by_stacks: of :func:`psmkit.live.standing.of_stacks`.
        by_record: of :func:`psmkit.live.record.standings`.
        objects: of :func:`psmkit.live.state.read`.
    """
    by_memory = standings(objects, kernel=any(s.stage == "data" and s.peer is None for s in by_stacks))
    # A proxy that is at work on a request waits for nobody's connection.
    asks = any(s.stage == "Connect" and s.peer in (None, s.rank) for s in by_stacks)
    works = any(" answers " in s.text for s in by_stacks)
    connects = [s for s in by_memory if s.stage == "Connect" and asks and not works]
    data = [*by_record, *(s for s in by_memory if s.stage == "data")]
    if not data:
        return [*connects, *by_stacks]
    first = [_ending(s, data) for s in by_stacks if s.stage not in ("data", "enqueue")]
    return [*connects, *first, *data, *(s for s in by_stacks if s.stage == "data" and s.peer is not None)]


def _ending(one: Standing, data: Sequence[Standing]) -> Standing:
    """A communicator ends when the operations of its proxy have ended."""
    left = {s.peer: s for s in data if s.peer is not None and s.rank == one.rank}
    if one.stage != "destroy" or one.peer is not None or len(left) != 1:
        return one
    ((peer, operation),) = left.items()
    text = f"{one.text}: an operation of its proxy is left, with rank {peer}"
    return replace(one, peer=peer, text=text, proof=f"{one.proof}; {operation.proof}")


def communicators(objects: Iterable[StateObject]) -> Iterator[tuple[str, StateObject]]:
    """The communicators that have a name which all their ranks know, with it."""
    for one in objects:
        name = _words(one).get("commHash") if one.kind == "communicator" else None
        if isinstance(name, str) and int(name, 16):
            yield name, one


def exchanges(comm: StateObject, *, newest: bool = False) -> dict[int, frozenset[str]]:
    """Send and Recv by the peer, of the kernels that were launched last: by the tasks of their plans, or of the newest one alone. Plans that wait for their
    reclaim may be of kernels that have ended."""
    found: dict[int, set[str]] = {}
    for task in _tasks(list(_walk(comm.parts)), newest=newest):
        if task.peer is not None and task.peer != comm.rank:
            found.setdefault(task.peer, set()).add(str(_words(task).get("function")))
    return {peer: frozenset(functions) for peer, functions in found.items()}


def launches(comm: StateObject) -> int:
    """How many kernels a communicator has launched."""
    return count if isinstance(count := _words(comm).get("opCount"), int) else 0


def of_kernel(standing: Standing) -> bool:
    """Whether a step is that of a process that waits for a kernel, as stacks or its memory show it."""
    return standing.stage == "data" and (" a kernel" in standing.text or " work on its " in standing.text)


def _tasks(parts: Sequence[StateObject], *, newest: bool = False) -> list[StateObject]:
    plans = [part for part in parts if part.kind == "plan" and _words(part).get("stands") != "not launched"]
    return [task for plan in (plans[-1:] if newest else plans) for task in plan.parts]


def _of_kernels(comm: StateObject, parts: Sequence[StateObject]) -> list[Standing]:
    """Kernels that were launched: the words that they wait for are in the memory of the GPU, but the host knows with whom they exchange data."""
    rank, tasks = comm.rank, exchanges(comm)
    if not tasks:
        return []
    ends = [part for part in parts if part.kind == "connection" and part.peer in tasks]
    by_words = [one for peer in sorted(tasks) if (one := _of_words(rank, peer, tasks[peer], ends)) is not None]
    if by_words:
        return by_words
    proof = f"{counted(len(_tasks(parts)), 'send or receive', 'sends and receives')} of kernels in its memory"
    if len(tasks) == 1:
        (peer,) = tasks
        return [Standing("data", peer, f"rank {rank} waits in data for rank {peer}, in a kernel", proof, rank)]
    ranks = ", ".join(map(str, sorted(tasks)[:_SHOWN]))
    text = f"rank {rank} waits in data for a kernel, which exchanges data with {len(tasks)} ranks: {ranks}"
    return [Standing("data", None, text, proof, rank)]


def _of_words(rank: int | None, peer: int, functions: frozenset[str], ends: Sequence[StateObject]) -> Standing | None:
    """What head and tail say, where they are in memory of the host: all slots are full, or nothing has come since the begin. In between they do not
    show whether the steps of this kernel are done."""
    mine = [(end, words) for end in ends if end.peer == peer and (words := _head_and_tail(end)) is not None]
    if any(_moves(end) for end, _ in mine):
        return None
    who = f"rank {rank} waits in data for rank {peer}, which has"
    for end, (role, head, tail) in mine:
        if role == "send" and "Send" in functions and tail - head >= _SLOTS:
            text, proof = f"{who} to receive step {head}", f"head {head} and tail {tail} of the connection {end.name}"
            return Standing("data", peer, text, proof, rank)
    heard = [(head, tail) for _, (role, head, tail) in mine if role == "recv"]
    if "Recv" in functions and heard and not any(map(any, heard)):
        proof = f"head and tail of {counted(len(heard), 'connection')} from rank {peer} are 0"
        return Standing("data", peer, f"{who} sent nothing yet", proof, rank)
    return None


def _head_and_tail(end: StateObject) -> tuple[object, int, int] | None:
    words = _words(end)
    head, tail = words.get("head"), words.get("tail")
    if not words.get("connected") or not isinstance(head, int) or not isinstance(tail, int):
        return None
    return words.get("role"), head, tail


def _add(found: dict[tuple[str, int | None, int | None], Standing], one: Standing | None) -> None:
    if one is not None:
        found.setdefault((one.stage, one.rank, one.peer), one)


def _walk(objects: Sequence[StateObject]) -> Iterator[StateObject]:
    for one in objects:
        yield one
        yield from _walk(one.parts)


def _words(one: StateObject) -> Mapping[str, object]:
    return {value.name: value.value for value in one.values}


def _moves(one: StateObject) -> bool:
    return any(value.moving for value in one.values)


def _of_sub(rank: int | None, sub: StateObject) -> Standing | None:
    """An operation of a proxy: a sender posts buffers to its kernel, transmits what the kernel has filled, and is done with what the network took. A
    receiver posts buffers to the network, and what was received and transmitted to its kernel is done when the kernel has taken it."""
    words, peer = _words(sub), sub.peer
    steps = {name: value for name in _STEPS if isinstance(value := words.get(name), int)}
    if _moves(sub) or peer is None or words.get("role") not in ("send", "recv") or "done" not in steps:
        return None
    sends, of = words["role"] == "send", f"{steps['done']} of {words.get('nsteps')} steps done"
    reached = steps.get("transmitted" if sends else "received", 0)
    if steps["done"] >= (number if isinstance(number := words.get("nsteps"), int) else 1 << 62):
        return None
    who = f"rank {rank} waits in data"
    if sends and steps["done"] < reached:
        text = f"{who} for rank {peer}, which has to receive step {steps['done']}"
    elif not sends and reached < steps.get("posted", 0):
        text = f"{who} for rank {peer}, which has to send step {reached}"
    else:
        does = "fill" if sends else "take"
        text = f"{who} for its own kernel, which has to {does} step {reached if sends else steps['done']}"
        text += f", in a {'send to' if sends else 'receive from'} rank {peer}"
        return Standing("data", None, text, f"state of {sub.name}: {of}", rank)
    return Standing("data", peer, text, f"state of {sub.name}: {of}", rank)


def _of_connection(rank: int | None, connection: StateObject) -> Standing | None:
    """A connection that its proxy was set up for and has not connected: the proxy waits for the proxy of the peer."""
    words = _words(connection)
    if words.get("connected") or words.get("proxy_state") != "connSetupDone" or connection.peer is None:
        return None
    way = "to" if words.get("role") == "send" else "from"
    text = f"rank {rank} waits in Connect for rank {connection.peer}: its proxy has no connection {way} that rank yet"
    return Standing("Connect", connection.peer, text, f"state of the connection {connection.name}", rank)
