"""Run groups of collectives, sends and recvs as plans, over CUDA streams and the proxies of real ranks.

The schedulers, launch and reclaim are libpsm's. Kernels are host functions, and collectives are rings over memory that the host
can access. docs/plan.md describes the life of a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self

from psmkit._native.psm import ffi, lib
from psmkit.model.wording import counted, plural
from psmkit.plan.simulation import _breach, configure
from psmkit.plan.types import Breach, Config, DataType, Event, Func, RedOp, What
from psmkit.proxy.errors import AbortedError, InvalidError, PsmError, UnsupportedError, WaitTimeoutError, check
from psmkit.proxy.service import Proxy
from psmkit.transport.ends import End, recv_setup, send_setup
from psmkit.transport.memory import Buffer, Memory, Raw, on_device, place_of
from psmkit.transport.types import ConnectInfo, PeerInfo

__all__ = ["Communicator", "Counters", "Group"]

#: Sends bytes to other ranks, by rank, and returns theirs for this rank: ``Rank.exchange`` of psmkit.testing, for example.
Exchange = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]

_FORMATS = {
    "b": DataType.INT8, "B": DataType.UINT8, "c": DataType.UINT8, "i": DataType.INT32, "I": DataType.UINT32, "l": DataType.INT64,
    "L": DataType.UINT64, "q": DataType.INT64, "Q": DataType.UINT64, "e": DataType.FLOAT16, "f": DataType.FLOAT32,
    "d": DataType.FLOAT64,
}  # fmt: skip
_REDUCED = frozenset(DataType) - {DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT8E4M3, DataType.FLOAT8E5M2}
_RING, _P2P = 0, 1  # connIndex
_MOST_BREACHES = 100
_TRACE = 1 << 16  # events
_LEAST_PAUSE, _MOST_PAUSE = 20e-6, 2e-3


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a communicator, and the contents of its pools.

    Args:
        plans: plans made so far.
        ops: proxy ops made so far.
        tasks: tasks enqueued so far.
        plans_live: plans that are not reclaimed.
        ops_live: ops of those plans.
        tasks_live: tasks of those plans, and of an open group.
        plans_pool: plan objects in the pool, in use and free.
        ops_pool: likewise.
        tasks_pool: likewise.
        scoped_bytes: bytes of the memory stack of a group.
        permanent_bytes: bytes of the memory stack of the pools.
        persistent_refs: plans that graphs hold.
        callbacks_queued: callbacks queued so far for the main thread.
    """

    plans: int
    ops: int
    tasks: int
    plans_live: int
    ops_live: int
    tasks_live: int
    plans_pool: int
    ops_pool: int
    tasks_pool: int
    scoped_bytes: int
    permanent_bytes: int
    persistent_refs: int
    callbacks_queued: int


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Group:
    """Tasks that are launched together at the end of its ``with`` block; :meth:`Communicator.group` creates it.

    Buffers are numpy arrays and other objects with Python's buffer protocol, CUDA arrays, ``Memory`` and ``Raw``. Sends and
    recvs accept device memory; collectives need host memory. The communicator keeps the buffers alive, and the caller must not
    change them until the group has ended.
    """

    def __init__(self, ranks: int, stream: int) -> None:
        self._ranks, self._stream = ranks, stream
        self._tasks: list[tuple[Any, int]] = []
        self._kept: list[Any] = []

    def send(self, buffer: Buffer, peer: int, *, stream: int | None = None) -> None:
        """Send a buffer. The receiver passes the same size.

        Args:
            buffer: the data to send.
            peer: the receiver; if it is this rank, the same group must receive as much.
            stream: a stream other than the group's; the two synchronise with each other around the group.
        """
        place, size = self._place(buffer, writable=False)
        self._add(Func.SEND, place, ffi.NULL, size, DataType.UINT8, peer=peer, stream=stream)

    def recv(self, buffer: Buffer, peer: int, *, stream: int | None = None) -> None:
        """Receive into a buffer; parameters as for ``send``."""
        place, size = self._place(buffer, writable=True)
        self._add(Func.RECV, ffi.NULL, place, size, DataType.UINT8, peer=peer, stream=stream)

    def all_reduce(
        self, source: Buffer, target: Buffer | None = None, op: RedOp = RedOp.SUM, *,
        datatype: DataType | None = None, stream: int | None = None,
    ) -> None:  # fmt: skip
        """Reduce over all ranks, element by element; each gets the result.

        Args:
            source: this rank's elements.
            target: for the result, of the same size; None: in place.
            op: the reduction.
            datatype: type of the elements; None: that of ``source``.
            stream: as for ``send``.
        """
        kind = _type_of(source, datatype)
        begin, size = self._place(source, writable=target is None)
        into, room = (begin, size) if target is None else self._place(target, writable=True)
        self._same(size, room, "all_reduce")
        self._add(Func.ALLREDUCE, begin, into, _count(size, kind), kind, op=op, stream=stream)

    def reduce(
        self, source: Buffer, target: Buffer | None, root: int, op: RedOp = RedOp.SUM, *,
        datatype: DataType | None = None, stream: int | None = None,
    ) -> None:  # fmt: skip
        """As ``all_reduce``, but only the root gets the result; other ranks pass None for ``target``."""
        kind = _type_of(source, datatype)
        begin, size = self._place(source, writable=False)
        into, room = (ffi.NULL, size) if target is None else self._place(target, writable=True)
        self._same(size, room, "reduce")
        self._add(Func.REDUCE, begin, into, _count(size, kind), kind, op=op, peer=root, stream=stream)

    def reduce_scatter(
        self, source: Buffer, target: Buffer, op: RedOp = RedOp.SUM, *,
        datatype: DataType | None = None, stream: int | None = None,
    ) -> None:  # fmt: skip
        """Reduce over all ranks; each gets its block of the result.

        Args:
            source: a block for each rank.
            target: for this rank's block.
            op: the reduction.
            datatype: type of the elements; None: that of ``source``.
            stream: as for ``send``.
        """
        kind = _type_of(source, datatype)
        begin, size = self._place(source, writable=False)
        into, room = self._place(target, writable=True)
        self._same(size, room * self._ranks, "reduce_scatter")
        self._add(Func.REDUCESCATTER, begin, into, _count(room, kind), kind, op=op, stream=stream)

    def all_gather(self, source: Buffer, target: Buffer, *, stream: int | None = None) -> None:
        """Gather the blocks of all ranks on every rank.

        Args:
            source: this rank's block.
            target: for the blocks, by rank.
            stream: as for ``send``.
        """
        begin, size = self._place(source, writable=False)
        into, room = self._place(target, writable=True)
        self._same(size * self._ranks, room, "all_gather")
        self._add(Func.ALLGATHER, begin, into, size, DataType.UINT8, stream=stream)

    def broadcast(self, buffer: Buffer, root: int, *, stream: int | None = None) -> None:
        """Copy the root's buffer into every rank's buffer."""
        place, size = self._place(buffer, writable=True)
        self._add(Func.BROADCAST, place, place, size, DataType.UINT8, peer=root, stream=stream)

    def _place(self, buffer: Buffer, *, writable: bool) -> tuple[Any, int]:
        pointer, size, kept = place_of(buffer, writable=writable)
        self._kept += [kept, buffer]
        return pointer, size

    def _same(self, size: int, room: int, name: str) -> None:
        if size != room:
            raise ValueError(f"{name}: sizes {size} and {room} do not match for {self._ranks} ranks")

    def _add(
        self, func: Func, source: Any, target: Any, count: int, kind: DataType, *,
        op: RedOp = RedOp.SUM, peer: int = 0, stream: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= peer < self._ranks:
            raise ValueError(f"bad rank {peer}, expected 0 to {self._ranks - 1}")
        if func.reduces and (op is RedOp.AVG or kind not in _REDUCED):
            raise UnsupportedError(
                f"{func.label} of {kind.label} by {op.label} is not supported; rings on the host reduce integers, "
                "float32 and float64 by sum, product, maximum and minimum",
                stage="plan",
            )
        task = ffi.new("struct psmPlanTask *")
        task.func, task.peer, task.datatype, task.redop, task.count = int(func), peer, int(kind), int(op), count
        task.sendbuff, task.recvbuff = source, target
        self._tasks.append((task, self._stream if stream is None else stream))


class Communicator:
    """All ranks' plans from the view of one rank: the connections between them, and the groups that are launched over them.

    All ranks create it together, with the same configuration, and one thread uses it. It is closed by ``close``, at the end of ``with``, or
    with its proxy. While graphs hold its plans, closing waits until they are destroyed.

    Args:
        proxy: this rank's proxy, which knows all addresses and has the p2p transport.
        peers: the infos that all ranks published, by rank.
        exchange: passes connect infos to the other ranks.
        config: scheduler, number of channels, and so on; the same on all ranks. None: the defaults of ``Config``.

    Raises:
        InvalidError: bad arguments, such as too few infos or values that are not powers of two.
        NotFoundError: the variant does not exist.
        PsmError: the ranks could not be connected.
    """

    def __init__(
        self, proxy: Proxy, peers: Sequence[PeerInfo], exchange: Exchange, config: Config | None = None
    ) -> None:
        self.proxy, self.rank, self.ranks = proxy, proxy.rank, proxy.ranks
        self.config = config or Config(ranks=self.ranks)
        if self.config.ranks != self.ranks or len(peers) != self.ranks:
            raise InvalidError(
                f"bad communicator of {self.config.ranks} ranks with {len(peers)} infos, expected {self.ranks} of each, as the proxy has",
                rank=self.rank,
                stage="plan",
            )
        self._comm: Any = None
        self._engine: Any = None
        self._ends: list[End] = []
        self._kept: list[Any] = []
        self._last: tuple[Counters, tuple[Event, ...], tuple[Breach, ...]] | None = None
        try:
            self._connect(peers, exchange)
            self._make()
        except BaseException:
            self._free()
            raise
        proxy.adopt(self)

    # ---- life ----

    def _keys(self) -> Iterator[tuple[int, int, int, int]]:
        """Peer, send, index, channel of all ends on this rank."""
        for channel in range(self.config.channels if self.ranks > 1 else 0):
            yield (self.rank + 1) % self.ranks, 1, _RING, channel
            yield (self.rank - 1) % self.ranks, 0, _RING, channel
        for channel in range(self.config.p2p_channels):
            for peer in range(self.ranks):
                if peer != self.rank:
                    yield peer, 1, _P2P, channel
                    yield peer, 0, _P2P, channel

    def _connect(self, peers: Sequence[PeerInfo], exchange: Exchange) -> None:
        me, ends = peers[self.rank], dict[tuple[int, int, int, int], End]()
        for key in sorted(self._keys()):
            peer, send, index, channel = key
            setup = send_setup if send else recv_setup
            ends[key] = setup(self.proxy, me, peers[peer], channel=channel, index=index)
            self._ends.append(ends[key])
        parts: dict[int, bytes] = {}
        for (peer, *_), end in ends.items():
            parts[peer] = parts.get(peer, b"") + end.info.pack()
        got = exchange(parts)
        for peer in parts:
            # In the peer's order: what this rank sends, the peer receives.
            theirs = sorted((1 - send, index, channel) for other, send, index, channel in ends if other == peer)
            data = got.get(peer, b"")
            size = len(data) // len(theirs)
            for i, (send, index, channel) in enumerate(theirs):
                ends[peer, 1 - send, index, channel].connect(ConnectInfo(data[i * size : (i + 1) * size]))
        channels = max(self.config.channels, self.config.p2p_channels)
        self._connectors = ffi.new("psmP2pConnector *[]", channels * self.ranks * 4)
        for (peer, send, index, channel), end in ends.items():
            self._connectors[((channel * self.ranks + peer) * 2 + send) * 2 + index] = end.pointer
        self._table = ffi.new("struct psmPlanConnectorTable *")
        self._table.size = ffi.sizeof("struct psmPlanConnectorTable")
        self._table.nChannels, self._table.nRanks = channels, self.ranks
        self._table.connectors = self._connectors

    def _make(self) -> None:
        connectors = ffi.new("struct psmPlanConnectors *")
        connectors.find, connectors.context = ffi.addressof(lib, "psmPlanFindConnector"), self._table
        name = ffi.new("char[]", self.config.variant.encode())
        record = ffi.new("struct psmPlanConfig *")
        configure(record[0], self.config, name)
        record.rank = self.rank
        engine, comm = ffi.new("const struct psmPlanEngine **"), ffi.new("psmPlanComm **")
        with self.proxy.use(waits=True) as state:
            on_device(state)
            check(lib.psmPlanCudaEngine(state, connectors, engine))
            self._engine = engine[0]
            check(lib.psmPlanCommCreate(record, self._engine, comm))
            self._comm = comm[0]

    def _free(self) -> None:
        with self.proxy.use(waits=True) as state:
            on_device(state)
            if self._comm is not None:
                check(lib.psmPlanCommFinish(self._comm))
                self._last = self.counters(), self.trace(), self.breaches()
            comm, self._comm = self._comm, None
            if comm is not None:
                check(lib.psmPlanCommDestroy(comm))
            engine, self._engine = self._engine, None
            if engine is not None:
                lib.psmPlanCudaEngineFree(engine)
        self._kept.clear()
        for end in reversed(self._ends):
            end.close()
        self._ends.clear()

    def close(self) -> None:
        """Wait for all launched work, or for the abort, and free everything. Idempotent.

        Raises:
            PsmError: cleanup failed.
        """
        self.proxy.release(self)
        if self._comm is not None and not self.proxy.closed:
            self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or self._comm is None or self.proxy.closed:
            self.close()
            return
        # Others may wait for this rank's part.
        self.abort(f"{type(error).__name__}: {error}")
        try:
            self.close()
        except PsmError as second:
            error.add_note(f"closing the communicator failed, too: {second}")

    def _alive(self) -> Any:
        if self._comm is None:
            raise ValueError("the communicator was closed")
        return self._comm

    # ---- groups ----

    @contextmanager
    def group(self, stream: int = 0) -> Iterator[Group]:
        """Collect tasks, and launch them at the end of the block; an exception launches none.

        All ranks pass the same collectives in the same order. A group on a stream that is being captured becomes part of the graph,
        and runs each time the graph is launched.

        Args:
            stream: a CUDA stream of the rank's device, as a number (``torch.cuda.Stream.cuda_stream``); 0: the legacy one.

        Raises:
            PsmError: nothing was launched, or an abort ends what was.
        """
        comm = self._alive()
        group = Group(self.ranks, stream)
        yield group
        with self.proxy.use(waits=True) as state:
            on_device(state)
            self._kept += group._kept
            try:
                for task, on in group._tasks:
                    check(lib.psmPlanEnqueue(comm, task, ffi.cast("void *", on)))
            except PsmError:
                lib.psmPlanGroupDrop(comm)
                raise
            check(lib.psmPlanGroupEnd(ffi.new("psmPlanComm *[]", [comm]), 1))

    def poll(self) -> int:
        """Run the callbacks that other threads have queued, without waiting; returns their number."""
        ran = ffi.new("uint64_t *")
        with self.proxy.use() as state:
            on_device(state)
            check(lib.psmPlanPoll(self._alive(), 0, ran))
        return int(ran[0])

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all groups have ended, except those in graphs; their data is then complete.

        Args:
            timeout: seconds; None: no limit, because a peer may legitimately be late. Groups continue after a timeout.

        Raises:
            WaitTimeoutError: the timeout has passed.
            PsmError: an operation failed, here or on another rank, or was aborted.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = _LEAST_PAUSE
        while True:
            if self.poll():
                pause = _LEAST_PAUSE
            counters = self.counters()
            if counters.plans_live <= counters.persistent_refs:
                break
            if end is not None and time.monotonic() >= end:
                left = counters.plans_live - counters.persistent_refs
                raise WaitTimeoutError(
                    f"the groups have not ended in {timeout:g} s: {counted(left, 'plan')} {plural(left, 'is', 'are')} open; "
                    "check their peers",
                    rank=self.rank,
                    stage="plan",
                )
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE)
        if counters.persistent_refs == 0:
            self._kept.clear()
        error = self.proxy.async_error
        if error is not None:
            raise error
        if self.aborted:
            raise AbortedError("the communicator was aborted", rank=self.rank, stage="plan")

    # ---- trouble ----

    def abort(self, reason: str = "") -> None:
        """End everything that runs, on all ranks. Callable from any thread."""
        self.proxy.abort(reason)
        lib.psmPlanAbort(self._alive())

    @property
    def aborted(self) -> bool:
        """Whether it was aborted, here or by another rank."""
        return bool(lib.psmPlanAborted(self._alive())) or self.proxy.aborted

    # ---- trace and counters ----

    def counters(self) -> Counters:
        """The counters. Available after close, as are ``trace`` and ``breaches``."""
        if self._comm is None and self._last is not None:
            return self._last[0]
        record = ffi.new("struct psmPlanCounters *")
        record.size = ffi.sizeof("struct psmPlanCounters")
        check(lib.psmPlanCount(self._alive(), record))
        return Counters(**{f.name: int(getattr(record, _camel(f.name))) for f in fields(Counters)})

    def trace(self) -> tuple[Event, ...]:
        """The last events, oldest first."""
        if self._comm is None and self._last is not None:
            return self._last[1]
        rows = ffi.new("struct psmPlanEvent[]", _TRACE)
        count = int(lib.psmPlanTrace(self._alive(), rows, _TRACE))
        return tuple(
            Event(int(e.order), e.rank, What(e.what), int(e.plan), int(e.a), int(e.b), int(e.c))
            for e in rows[0 : min(count, _TRACE)]
        )

    def breaches(self) -> tuple[Breach, ...]:
        """The rules broken so far, in order; after close also those that only show at the end."""
        if self._comm is None and self._last is not None:
            return self._last[2]
        rows = ffi.new("struct psmPlanBreach[]", _MOST_BREACHES)
        count = int(lib.psmPlanBreaches(self._alive(), rows, _MOST_BREACHES))
        return tuple(_breach(rows[i]) for i in range(min(count, _MOST_BREACHES)))

    def __repr__(self) -> str:
        return f"<Communicator of rank {self.rank} of {self.ranks}{', closed' if self._comm is None else ''}>"


def _type_of(buffer: Buffer, given: DataType | None) -> DataType:
    if given is not None:
        return given
    if isinstance(buffer, (Memory, Raw)):
        return DataType.UINT8
    text = memoryview(buffer).format.lstrip("@=<")
    if text not in _FORMATS:
        raise TypeError(f"bad element format {text!r}: pass datatype")
    return _FORMATS[text]


def _count(size: int, kind: DataType) -> int:
    if size % kind.size:
        raise ValueError(f"{size} bytes are not a multiple of the size of {kind.label}")
    return size // kind.size
