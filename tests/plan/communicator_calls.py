"""What the tests of psmkit.plan.communicator run in other processes."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psmkit import transport
from psmkit.lab.cuda import Face
from psmkit.lab.runner import RankOutcome
from psmkit.plan.communicator import Communicator, Counters, Group
from psmkit.plan.types import Config, DataType, Event, RedOp
from psmkit.proxy import Proxy, PsmError, Settings
from psmkit.testing import Rank
from psmkit.transport import P2P, Memory
from tests.transport.calls import infos


@contextmanager
def communicator(rank: Rank, config: Config) -> Iterator[Communicator]:
    """One of the ranks' communicator."""
    settings = Settings.read(buffer_size=65536)
    with Proxy(
        rank.number, rank.ranks, device=rank.number, settings=settings, transports={P2P: transport.variant()}
    ) as proxy:
        peers = infos(rank, proxy)
        with Communicator(proxy, peers, lambda parts: rank.exchange(parts, "connect"), config) as comm:
            yield comm


class Streams:
    """CUDA streams of the application; they are destroyed behind the communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.rt = Face("cudart13")
        self._made: list[Any] = []
        comm.proxy.adopt(self)
        self._proxy = comm.proxy

    def new(self) -> int:
        handle = self.rt.new("cudaStream_t *")
        self.rt.ok.cudaStreamCreateWithFlags(handle, 1)
        self._made.append(handle[0])
        return int(self.rt.ffi.cast("uintptr_t", handle[0]))

    def close(self) -> None:
        self._proxy.release(self)
        for stream in self._made:
            self.rt.ok.cudaStreamDestroy(stream)

    def at(self, stream: int) -> Any:
        return self.rt.ffi.cast("cudaStream_t", stream)


class Mixed:
    """Buffers of a group of collectives, sends and recvs, and what has to be in them.

    Sizes are such that they go over several channels and chunks, and that some do not.
    """

    def __init__(self, comm: Communicator, stack: ExitStack, seed: int) -> None:
        self.comm, me, n = comm, comm.rank, comm.ranks
        rng = [np.random.default_rng(seed * 100 + r) for r in range(n)]
        self.floats = [r.random(300_001).astype(np.float32) for r in rng]
        self.ints = [r.integers(-(2**31), 2**31, 5_003, dtype=np.int32) for r in rng]
        self.doubles = [r.random(7) for r in rng]
        self.bytes = [r.integers(0, 256, 70_001, dtype=np.uint8) for r in rng]
        self.reduced = np.empty_like(self.floats[0])
        self.summed, self.largest = self.ints[me].copy(), np.empty_like(self.doubles[0])
        self.gathered = np.empty(n * 70_001, np.uint8)
        self.cast = self.bytes[me].copy()
        self.root = seed % n
        self.scattered = np.empty(5_003, np.int32)
        self.blocks = [np.concatenate([self.ints[r] + b for b in range(n)]) for r in range(n)]
        self.collected = np.empty_like(self.doubles[0]) if me == self.root else None
        self.outbox = {p: self.pattern(me, p, seed) for p in range(n)}
        self.inbox = {p: np.zeros_like(self.pattern(p, me, seed)) for p in range(n)}
        self.memory = stack.enter_context(Memory(comm.proxy, 200_000)), stack.enter_context(Memory(comm.proxy, 200_000))
        self.memory[0].write(bytes([(seed + me) & 0xFF]) * 200_000)
        self.seed = seed

    @staticmethod
    def pattern(source: int, target: int, seed: int) -> np.ndarray[Any, Any]:
        size = 1 + 40_000 * source + 777 * target
        return (np.arange(size) * (source + 3) + target + seed).astype(np.uint8)

    def enqueue(self, stream: int, other: int | None = None) -> None:
        """The group; every third task on another stream."""
        me, n = self.comm.rank, self.comm.ranks
        with self.comm.group(stream) as group:
            for peer in range(n):
                group.send(self.outbox[peer], peer, stream=other)
                group.recv(self.inbox[peer], peer)
            group.all_reduce(self.floats[me], self.reduced)
            group.broadcast(self.cast, self.root, stream=other)
            group.all_gather(self.bytes[me], self.gathered)
            group.all_reduce(self.summed)
            group.reduce_scatter(self.blocks[me], self.scattered)
            group.send(self.memory[0], (me + 1) % n)  # of one rank: behind what it sends itself above
            group.recv(self.memory[1], (me - 1) % n)
            group.reduce(self.doubles[me], self.collected, self.root, RedOp.PROD, stream=other)
            group.all_reduce(self.doubles[me], self.largest, RedOp.MAX)

    def wrong(self) -> list[str]:
        """What is not as it has to be."""
        me, n = self.comm.rank, self.comm.ranks
        with np.errstate(over="ignore"):
            summed = np.sum(np.stack(self.ints), axis=0, dtype=np.int32)
            blocks = sum(
                (b[me * 5_003 : (me + 1) * 5_003] for b in self.blocks[1:]),
                self.blocks[0][me * 5_003 : (me + 1) * 5_003],
            )
        right = {
            "all_reduce float32": np.allclose(self.reduced, np.sum(np.stack(self.floats), axis=0), rtol=1e-5),
            "all_reduce int32": np.array_equal(self.summed, summed),
            "all_reduce max": np.array_equal(self.largest, np.max(np.stack(self.doubles), axis=0)),
            "broadcast": np.array_equal(self.cast, self.bytes[self.root]),
            "all_gather": np.array_equal(self.gathered, np.concatenate(self.bytes)),
            "reduce_scatter": np.array_equal(self.scattered, blocks),
            "reduce": self.collected is None
            or np.allclose(self.collected, np.prod(np.stack(self.doubles), axis=0), rtol=1e-12),
            "device memory": self.memory[1].read() == bytes([(self.seed + (me - 1) % n) & 0xFF]) * 200_000,
            **{f"from {p}": np.array_equal(self.inbox[p], self.pattern(p, me, self.seed)) for p in range(n)},
        }
        return [name for name, good in right.items() if not good]

    def clear(self) -> None:
        """As it was before the group."""
        me = self.comm.rank
        for buffer in (self.reduced, self.largest, self.gathered, self.scattered, *self.inbox.values()):
            buffer.fill(0)
        self.summed[:] = self.ints[me]
        self.cast[:] = self.bytes[me]
        self.memory[1].write(bytes(200_000))


def whole(counters: Counters) -> bool:
    """Nothing is taken from the pools."""
    live = counters.plans_live, counters.ops_live, counters.tasks_live
    return live == (0, 0, 0) and counters.persistent_refs == 0


@dataclass
class Result:
    """What a rank saw, when all was closed."""

    wrong: list[str]
    said: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    whole: bool = False
    counters: Counters | None = None
    trace: tuple[Event, ...] = ()

    def close(self, comm: Communicator) -> Result:
        comm.close()
        self.breaches = [breach.rule for breach in comm.breaches()]
        self.counters, self.trace = comm.counters(), comm.trace()
        self.whole = whole(self.counters)
        return self

    @property
    def kinds(self) -> set[str]:
        return {event.what.name for event in self.trace}


def mixed_groups(rank: Rank, config: Config, groups: int, several_streams: bool) -> Result:
    """Groups in a row, one over the other."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        streams = Streams(comm)
        one, two = streams.new(), streams.new()
        buffers = [Mixed(comm, stack, seed) for seed in range(groups)]
        for i, mixed in enumerate(buffers):
            if several_streams:
                mixed.enqueue((one, two)[i % 2], (two, one)[i % 2])
            else:
                mixed.enqueue(one)
        comm.wait()
        got = Result([name for mixed in buffers for name in mixed.wrong()])
        rank.barrier("over")
        return got.close(comm)


def on_the_legacy_stream(rank: Rank, config: Config) -> Result:
    with communicator(rank, config) as comm, ExitStack() as stack:
        mixed = Mixed(comm, stack, 5)
        mixed.enqueue(0)
        comm.wait()
        got = Result(mixed.wrong())
        rank.barrier("over")
        return got.close(comm)


def many_groups(rank: Rank, config: Config, groups: int) -> tuple[Result, list[Counters]]:
    """Small ones; what is counted after a tenth of them, and at the end."""
    with communicator(rank, config) as comm:
        stream, counted = Streams(comm).new(), []
        number = np.zeros(10, np.int64)
        note, got = np.zeros(3, np.uint8), np.zeros(3, np.uint8)
        wrong = []
        for i in range(groups):
            number[:] = i + comm.rank
            note[:] = i % 256
            with comm.group(stream) as group:
                group.all_reduce(number)
                group.send(note, (comm.rank + 1) % comm.ranks)
                group.recv(got, (comm.rank - 1) % comm.ranks)
            comm.wait()
            if not (number == comm.ranks * i + 6).all() or not (got == i % 256).all():
                wrong.append(f"group {i}")
            if i in (groups // 10, groups - 1):
                counted.append(comm.counters())
        rank.barrier("over")
        return Result(wrong).close(comm), counted


def long_group(rank: Rank, config: Config, collectives: int, pairs: int) -> Result:
    """More than the work FIFO holds: plans wait until kernels have made room."""
    with communicator(rank, config) as comm:
        stream, me, n = Streams(comm).new(), comm.rank, comm.ranks
        # Of two kinds in turn, so that each takes a slot of its own.
        sums = [np.arange(16, dtype=(np.float64, np.int32)[i % 2]) + i + me for i in range(collectives)]
        right = [n * (s - me) + n * (n - 1) // 2 for s in sums]
        sent = np.arange(pairs * 4, dtype=np.int32).reshape(pairs, 4) + me
        got = np.zeros_like(sent)
        with comm.group(stream) as group:
            for array in sums:
                group.all_reduce(array)
            for i in range(pairs):
                group.send(sent[i], (me + 1 + i % (n - 1)) % n)
                group.recv(got[i], (me - 1 - i % (n - 1)) % n)
        comm.wait()
        source = np.array([(me - 1 - i % (n - 1)) % n for i in range(pairs)])
        wrong = [f"sum {i}" for i in range(collectives) if not np.array_equal(sums[i], right[i])]
        wrong += [] if np.array_equal(got, sent - me + source[:, None]) else ["p2p"]
        rank.barrier("over")
        return Result(wrong).close(comm)


def alone(rank: Rank, config: Config) -> Result:
    """All tasks of a communicator of one rank are copies."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        mixed = Mixed(comm, stack, 4)
        mixed.enqueue(Streams(comm).new())
        comm.wait()
        return Result(mixed.wrong()).close(comm)


# ---- graphs ----


def replayed(rank: Rank, config: Config, mode: int) -> tuple[Result, Result]:
    """A group is captured, launched three times with a group beside it, and its graph destroyed. What was broken and open before
    that, and in the end."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        streams = Streams(comm)
        rt = streams.rt
        one, two = streams.new(), streams.new()
        mixed, beside = Mixed(comm, stack, 1), Mixed(comm, stack, 2)
        graph, executable = rt.new("cudaGraph_t *"), rt.new("cudaGraphExec_t *")
        rt.ok.cudaStreamBeginCapture(streams.at(one), mode)
        mixed.enqueue(one)
        small = np.full(3, comm.rank, np.int64)
        with comm.group(one) as group:  # another one into the same graph
            group.all_reduce(small)
        rt.ok.cudaStreamEndCapture(streams.at(one), graph)
        rt.ok.cudaGraphInstantiate(executable, graph[0], 0)
        wrong = []
        for i in range(3):
            mixed.clear()
            beside.clear()
            small[:] = comm.rank + i
            rank.barrier(f"clear-{i}")
            rt.ok.cudaGraphLaunch(executable[0], streams.at(one))
            beside.enqueue(two, one)
            rt.ok.cudaStreamSynchronize(streams.at(one))
            comm.wait()
            wrong += [f"replay {i}: {name}" for name in mixed.wrong()]
            wrong += [f"beside {i}: {name}" for name in beside.wrong()]
            wrong += [] if (small == comm.ranks * i + 6).all() else [f"replay {i}: small"]
        held = Result(wrong, breaches=[b.rule for b in comm.breaches()], counters=comm.counters())
        rank.barrier("over")
        rt.ok.cudaGraphExecDestroy(executable[0])
        rt.ok.cudaGraphDestroy(graph[0])
        return held, Result([]).close(comm)


def abandoned(rank: Rank, config: Config) -> Result:
    """A capture that comes to nothing: its graph goes, and what the group had with it. A group after it completes."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        streams = Streams(comm)
        rt, one, two = streams.rt, streams.new(), streams.new()
        mixed, graph, memory = Mixed(comm, stack, 6), rt.new("cudaGraph_t *"), rt.new("void **")
        rt.ok.cudaStreamBeginCapture(streams.at(one), 0)
        mixed.enqueue(one)
        said = [str(rt.cudaMalloc(memory, 1)), str(rt.cudaStreamEndCapture(streams.at(one), graph))]
        rank.barrier("abandoned")
        mixed.enqueue(two)
        comm.wait()
        got = Result(mixed.wrong(), said)
        rank.barrier("over")
        return got.close(comm)


# ---- trouble ----


def said_by(act: Callable[[], object]) -> str:
    try:
        act()
    except PsmError as error:
        return f"{type(error).__name__}: {error.text}"
    return "nothing"


def ended_by_abort(rank: Rank, config: Config) -> Result:
    """What hangs until rank 0 has seen that, and aborts."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        mixed = Mixed(comm, stack, 3)
        mixed.enqueue(Streams(comm).new())
        said = [said_by(lambda: comm.wait(0.3))]
        before = [breach.rule for breach in comm.breaches()]
        rank.barrier("hung")
        if comm.rank == 0:
            comm.abort("it hangs")
        said.append(said_by(comm.wait))
        rank.barrier("over")
        got = Result(before, said).close(comm)
        assert comm.proxy.aborted
    return got


def killed(rank: Rank, config: Config) -> Result:
    """Rank 3 dies where the others wait for its part."""
    with communicator(rank, config) as comm:
        stream, numbers = Streams(comm).new(), np.arange(100_000, dtype=np.float32)
        with comm.group(stream) as group:
            group.all_reduce(numbers)
        comm.wait()
        rank.barrier("one-is-over")
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)

        def act() -> None:  # a rank that is slow hears of the death before it launches
            with comm.group(stream) as group:
                group.all_reduce(numbers)
                group.send(numbers, (comm.rank + 1) % comm.ranks)
                group.recv(np.empty_like(numbers), (comm.rank - 1) % comm.ranks)
            comm.wait()

        return Result([], [said_by(act)]).close(comm)


def one_fails(rank: Rank, config: Config) -> Result:
    """A rank cannot launch its part, and says so."""
    with communicator(rank, config) as comm:
        stream, numbers = Streams(comm).new(), np.arange(100_000, dtype=np.float32)
        rank.barrier("connected")

        def act() -> None:
            with comm.group(stream) as group:
                group.all_reduce(numbers)
                group.send(numbers, (comm.rank + 1) % comm.ranks)
                group.recv(np.empty_like(numbers), (comm.rank - 1) % comm.ranks)
            comm.wait()

        said = said_by(act)
        comm.abort(said)
        rank.barrier("over")  # nobody frees what another still looks at
        return Result([], [said]).close(comm)


def refused(rank: Rank, config: Config) -> tuple[list[str], Result]:
    """What cannot be launched, and that a group after it can."""
    said = []
    with communicator(rank, config) as comm, ExitStack() as stack:
        streams, ten = Streams(comm), np.zeros(10, np.float32)
        stream = streams.new()
        attempts: list[Callable[[Group], None]] = [
            lambda g: g.send(ten, 4),
            lambda g: g.recv(b"cannot be written to", 0),
            lambda g: g.all_reduce(ten, np.zeros(9, np.float32)),
            lambda g: g.all_gather(ten, np.zeros(10, np.float32)),
            lambda g: g.all_reduce(np.zeros(3, np.complex64)),
            lambda g: g.all_reduce(np.zeros(3, np.uint8), datatype=DataType.FLOAT16),
            lambda g: g.all_reduce(np.zeros(3, np.float16)),
            lambda g: g.all_reduce(ten, None, RedOp.AVG),
        ]
        for attempt in attempts:
            try:
                with comm.group(stream) as group:
                    group.all_reduce(ten)
                    attempt(group)
            except (ValueError, TypeError, BufferError, PsmError) as error:
                said.append(type(error).__name__)
        # Two streams, one of which is captured: the first task is forgotten, too.
        graph, other = streams.rt.new("cudaGraph_t *"), streams.new()
        streams.rt.ok.cudaStreamBeginCapture(streams.at(other), 2)
        try:
            with comm.group(stream) as group:
                group.all_reduce(ten)
                group.all_reduce(ten, stream=other)
        except PsmError as error:
            said.append(type(error).__name__)
        streams.rt.ok.cudaStreamEndCapture(streams.at(other), graph)
        streams.rt.ok.cudaGraphDestroy(graph[0])
        mixed = Mixed(comm, stack, 7)
        mixed.enqueue(stream)
        comm.wait()
        got = Result(mixed.wrong())
        rank.barrier("over")
        return said, got.close(comm)


def value_of(outcome: RankOutcome) -> Any:
    """What a rank's call returned, of a run in which another one failed."""
    return pickle.loads(bytes.fromhex(outcome.reports[0]["value"]))
