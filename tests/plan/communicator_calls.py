"""What the tests of psmkit.plan.communicator run in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psmkit import transport
from psmkit.lab.cuda import Face
from psmkit.plan.communicator import Communicator, Counters
from psmkit.plan.types import Config, RedOp
from psmkit.proxy import Proxy, Settings
from psmkit.testing import Rank
from psmkit.transport import P2P, Memory
from tests.transport.calls import infos


@contextmanager
def communicator(rank: Rank, config: Config) -> Iterator[Communicator]:
    """One of the ranks' communicator. All have done what they do when it is closed."""
    settings = Settings.read(buffer_size=65536)
    with Proxy(
        rank.number, rank.ranks, device=rank.number, settings=settings, transports={P2P: transport.variant()}
    ) as proxy:
        peers = infos(rank, proxy)
        with Communicator(proxy, peers, lambda parts: rank.exchange(parts, "connect"), config) as comm:
            yield comm
            rank.barrier("done")
        rank.barrier("freed")


@dataclass
class Streams:
    """CUDA streams of the application."""

    rt: Any = field(default_factory=lambda: Face("cudart13"))

    def new(self) -> int:
        handle = self.rt.new("cudaStream_t *")
        self.rt.ok.cudaStreamCreateWithFlags(handle, 1)
        return int(self.rt.ffi.cast("uintptr_t", handle[0]))

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
            group.send(self.memory[0], (me + 1) % n)
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
    """What a rank saw."""

    wrong: list[str]
    breaches: list[str]
    whole: bool
    plans: int
    kinds: set[str]


def result(comm: Communicator, wrong: list[str]) -> Result:
    counters = comm.counters()
    return Result(
        wrong, [f"{b.rule}: {b.text}" for b in comm.breaches()], whole(counters), counters.plans,
        {event.what.name for event in comm.trace()},
    )  # fmt: skip


def mixed_groups(rank: Rank, config: Config, groups: int, several_streams: bool) -> Result:
    """Groups in a row, one over the other."""
    with communicator(rank, config) as comm, ExitStack() as stack:
        streams = Streams()
        one, two = streams.new(), streams.new()
        wrong = []
        buffers = [Mixed(comm, stack, seed) for seed in range(groups)]
        for i, mixed in enumerate(buffers):
            if several_streams:
                mixed.enqueue((one, two)[i % 2], (two, one)[i % 2])
            else:
                mixed.enqueue(one)
        comm.wait()
        for mixed in buffers:
            wrong += mixed.wrong()
        return result(comm, wrong)
