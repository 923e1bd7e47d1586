"""Long logs, fast: a healthy job whose ranks work for as many rounds as it takes to fill a file.

Init and teardown come from the simulator. In between each rank runs rounds of two collectives, a send and a recv, the
registration of a buffer with a neighbour's proxy (a proxy call and an fd exchange), its release, and some lines of no interest. Rounds are
rendered from a few woven templates with fresh ids, so a gigabyte takes seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from psmkit.synth.connections import Plan
from psmkit.synth.dialects import DIALECTS
from psmkit.synth.job import Job
from psmkit.synth.sim import Process, pointer

__all__ = ["calls", "stream", "write_files", "write_stream"]

_TEMPLATES = 12
_OP, _RELEASE, _UDS, _BUFFER = range(4)  # fresh ids of a rank in a round


_Line = tuple[str, list[int]]  # a text with holes, and which value goes into which hole


def _proxied(me: str, there: str, buffer: int, kind: int, name: str, hole: int, size: int) -> list[_Line]:
    """A proxy call: the lines of its caller and of the service thread that answers it."""
    return [
        (
            f"{there}proxyProgressAsync opId=0x%x op.type={kind} op.reqBuff={pointer(buffer)} op.respSize={size} done",
            [hole],
        ),
        (f"{me}ncclPollProxyResponse Received new opId=0x%x", [hole]),
        (f"{there}Received and initiated operation={name} res=0", []),
        (f"{me}resp.opId=0x%x matches expected opId=0x%x", [hole, hole]),
    ]


class _Round:
    """One round of all ranks as a woven text with holes, and which value goes into which hole."""

    def __init__(self, threads: list[list[_Line]], rng: random.Random) -> None:
        places, live = [0] * len(threads), list(range(len(threads)))
        texts: list[str] = []
        holes: list[int] = []
        while live:
            i = rng.choice(live)
            for _ in range(rng.randint(1, 3)):
                text, values = threads[i][places[i]]
                texts.append(text)
                holes += values
                places[i] += 1
                if places[i] == len(threads[i]):
                    live.remove(i)
                    break
        self.text = ("\n".join(texts) + "\n").encode()
        self.holes = np.array(holes)

    def render(self, values: np.ndarray) -> bytes:
        return self.text % tuple(values[self.holes].tolist())

    @classmethod
    def of(cls, job: Job, rng: random.Random) -> _Round:
        return cls([cls._rank(job, p) for p in job.processes], rng)

    @staticmethod
    def _rank(job: Job, p: Process) -> list[_Line]:
        """Lines of a rank in their order, the lines of its neighbour's service among them."""
        n = job.plan.ranks
        service = next(q for q in job.processes if q.host == p.host and q.local == p.local ^ 1)
        me, there, uds = (
            f"{job.prefix(q, t)} NCCL INFO " for q, t in ((p, "main"), (service, "service"), (service, "uds"))
        )
        comm, stream = pointer(job.comms[p.rank]), pointer(p.base + 0x140)
        op, release, exchange, buffer = (4 * p.rank + kind + 1 for kind in (_OP, _RELEASE, _UDS, _BUFFER))
        step = 0

        def call(coll: str, count: int, root: int) -> _Line:
            text = f"{coll}: opCount %x sendbuff {pointer(p.base + 0x51000)} recvbuff 0x%x count {count} datatype 7 op 0 root {root} "
            return f"{me}{text}comm {comm} [nranks={n}] stream {stream}", [step, buffer]

        def proxied(kind: int, name: str, hole: int, size: int) -> list[_Line]:
            return _proxied(me, there, service.base + 0x3C0, kind, name, hole, size)

        asked = f"{me}ProxyCall UDS comm {comm} rank {p.rank} tpRank {service.rank}({job.hashes[service.rank]:x}) reqSize 8 respSize 0 respFd"
        return [
            call("AllReduce", 65536, 0),
            (f"{me}Mem Realloc old size 32, new size 64 pointer 0x%x", [buffer]),
            call("AllGather", 16384, 0),
            call("Send", 4096, (p.rank + 1) % n),
            call("Recv", 4096, (p.rank - 1) % n),
            (f"{me}misc/utils.cc:233 memory stack hunk malloc(65536)", []),
            (f"{asked} {pointer(p.base + 0xEDA48)} opId 0x%x", [exchange]),
            (f"{uds}proxyUDSRecvReq::ncclProxyMsgGetFd rank {p.rank} opId 0x%x handle=0x%x", [exchange, buffer]),
            (f"{uds}UDS proxyGetFd received handle 0x%x peer {p.rank} opId %x", [buffer, exchange]),
            (f"{asked} 43 opId 0x%x - DONE", [exchange]),
            (f"{me}UDS: ClientGetFd handle 0x%x tpRank {service.rank} returned fd 43 sameProcess 0", [buffer]),
            (
                f"{me}rank {p.rank} - IPC registering buffer 0x%x size 65536 (baseAddr 0x%x size 2097152) to peer {service.rank}",
                [buffer, buffer],
            ),
            *proxied(11, "Register", op, 8),
            (
                f"{me}rank {p.rank} - IPC register buffer 0x%x size 65536 (baseAddr 0x%x size 2097152) to peer {service.rank} regAddr 0x%x offsetOut 0",
                [buffer] * 3,
            ),
            (f"{me}init.cc:437 Cuda Alloc Size 23648 pointer 0x%x", [buffer]),
            (
                f"{me}rank {p.rank} - IPC deregistered buffer 0x%x peer {service.rank} ipc remote buffer 0x%x",
                [buffer, buffer],
            ),
            *proxied(12, "Deregister", release, 0),
        ]


def stream(size: int, seed: int = 1, ranks: int = 64, dialect: str = "2.27") -> Iterator[bytes]:
    """Pieces of a log of about ``size`` bytes, of ``ranks`` ranks on hosts of eight."""
    plan = Plan(ranks=ranks, hosts=max(1, ranks // 8), work="coll", steps=1, channels=1)
    job = Job(DIALECTS[dialect], plan, seed)
    job.run()
    texts = [line.text for line in job.lines]
    end = next(
        i
        for i, text in enumerate(texts)
        if "operation=Stop" in text or "operation=Close" in text or "] exit: stop" in text
    )
    # Nobody enqueues in the teardown; what others still print is no business of theirs.
    late = [i for i in range(end, len(texts)) if ": opCount" in texts[i]]
    head = "".join(texts[i] + "\n" for i in [*range(end), *late]).encode()
    tail = "".join(texts[i] + "\n" for i in range(end, len(texts)) if i not in set(late)).encode()
    rng = random.Random(seed)
    rounds = [_Round.of(job, rng) for _ in range(_TEMPLATES)]
    numbers = np.random.default_rng(seed)
    written = len(head) + len(tail)
    yield head
    step = plan.steps
    while written < size:
        values = np.empty(1 + 4 * ranks, dtype=np.uint64)
        values[0] = step
        fresh = numbers.integers(0, 1 << 63, 4 * ranks, dtype=np.uint64) * 2
        fresh.reshape(ranks, 4)[:, (_OP, _RELEASE, _BUFFER)] = 0x7F0000000000 + (
            fresh.reshape(ranks, 4)[:, (_OP, _RELEASE, _BUFFER)] >> np.uint64(26) & np.uint64(0xFFFFFFFFF0)
        )
        values[1:] = fresh
        piece = rng.choice(rounds).render(values)
        written += len(piece)
        step += 1
        yield piece
    yield tail


def calls(size: int, seed: int = 1, processes: int = 4096) -> Iterator[bytes]:
    """Pieces of a log of about ``size`` bytes of ``processes`` processes, eight on a host, that print proxy calls and nothing else."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    threads = []
    for p in range(processes):
        pid = 100_000 + 40 * p
        me, there = (f"node{p // 8:04d}:{pid}:{pid + thread} [{p % 8}] NCCL INFO " for thread in (0, 17))
        base = 0x7F0000000000 + (p << 24)
        threads.append(_proxied(me, there, base + 0x3C0, 11, "Register", 2 * p, 8))
        threads[-1] += _proxied(me, there, base + 0x3C0, 12, "Deregister", 2 * p + 1, 0)
    rounds = [_Round(threads, rng) for _ in range(2)]
    written = 0
    while written < size:
        ids = 0x7F0000000000 + numbers.integers(0, 1 << 32, 2 * processes, dtype=np.uint64) * 16
        piece = rng.choice(rounds).render(ids)
        written += len(piece)
        yield piece


def write_stream(file: BinaryIO, size: int, seed: int = 1, ranks: int = 64, dialect: str = "2.27") -> int:
    """Write a stream to ``file``; returns how many bytes were written."""
    return sum(file.write(piece) for piece in stream(size, seed, ranks, dialect))


def write_files(folder: Path, size: int, seed: int = 1, ranks: int = 64, dialect: str = "2.27") -> int:
    """Write the lines of a stream into a file for each process, as NCCL_DEBUG_FILE=nccl.%h.%p.log does; returns how many bytes were written."""
    files: dict[bytes, BinaryIO] = {}
    with ExitStack() as stack:
        for piece in stream(size, seed, ranks, dialect):
            for line in piece.splitlines(keepends=True):
                host, pid, _ = line.split(b":", 2)
                file = files.get(host + b":" + pid)
                if file is None:
                    opened = (folder / f"nccl.{host.decode()}.{pid.decode()}.log").open("wb", buffering=1 << 16)
                    file = files[host + b":" + pid] = stack.enter_context(opened)
                file.write(line)
    return sum(path.stat().st_size for path in folder.iterdir())
