"""The step in which a process stands, and the rank for which it waits, by the objects in its memory: what its stacks do not show of the data path and of
connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from psmkit.model.inspection import Standing, StateObject
from psmkit.model.wording import counted

__all__ = ["standings"]

_SHOWN = 8  # ranks that are named
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
        if kernel:
            _add(found, _of_plans(comm.rank, parts))
    return list(found.values())


def _of_plans(rank: int | None, parts: Sequence[StateObject]) -> Standing | None:
    """Kernels that were launched: the words that they wait for are in the memory of the GPU, but the tasks of their plans name the peers."""
    plans = [part for part in parts if part.kind == "plan" and _words(part).get("stands") != "not launched"]
    peers = sorted({task.peer for plan in plans for task in plan.parts if task.peer is not None and task.peer != rank})
    if not peers:
        return None
    proof = f"the tasks of {counted(len(plans), 'plan')} in its memory"
    if len(peers) == 1:
        return Standing("data", peers[0], f"rank {rank} waits in data for rank {peers[0]}, in a kernel", proof, rank)
    text = f"rank {rank} waits in data for a kernel, which exchanges data with {len(peers)} ranks: {', '.join(map(str, peers[:_SHOWN]))}"
    return Standing("data", None, text, proof, rank)


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
