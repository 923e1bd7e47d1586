"""Logs out of the ordinary: each would fill the memory of a program that keeps what it reads."""

from __future__ import annotations

import random
from collections.abc import Iterator

from psmkit.synth.large import Large, Order

__all__ = ["hosts", "job", "long_line", "unanswered", "unmatched"]

_MB = 1_000_000
Pieces = Iterator[memoryview]


def job(ranks: int, size: int | None = None, nodes: int | None = None) -> Pieces:
    """A healthy job of any size."""
    return (piece.data for piece in Large(Order(ranks, size=size, nodes=nodes)).stream())


def _halves() -> tuple[bytes, bytes]:
    """The log of a small healthy job, cut where it works."""
    text = b"".join(bytes(piece) for piece in job(8, 200_000))
    at = text.index(b"\n", len(text) // 2) + 1
    return text[:at], text[at:]


def long_line(length: int) -> Pieces:
    """A job with a line of so many bytes within."""
    before, after = _halves()
    yield memoryview(before)
    yield memoryview(b"node0:6001:6001 [0] NCCL INFO ")
    piece = memoryview(b"x" * _MB)
    for at in range(0, length, _MB):
        yield piece[: min(_MB, length - at)]
    yield memoryview(b"\n" + after)


def unanswered(count: int) -> Pieces:
    """A job in which a service answers so many calls that nobody receives, each of another id."""
    before, after = _halves()
    yield memoryview(before)
    for begin in range(0, count, 10_000):
        lines = (
            f"node0:6001:6030 [0] NCCL INFO proxyProgressAsync opId={0x7F0000000000 + 16 * n:#x} op.type=3 op.reqBuff=0x7f01 op.respSize=88 done\n"
            for n in range(begin, min(begin + 10_000, count))
        )
        yield memoryview("".join(lines).encode())
    yield memoryview(after)


def unmatched(length: int) -> Pieces:
    """A job with so many bytes of NCCL lines whose texts nobody knows, in many shapes."""
    before, after = _halves()
    yield memoryview(before)
    rng, written = random.Random(1), 0
    syllables = [a + b for a in "bdfglmnprstvz" for b in "aeiou"]
    known = ["".join(rng.choices(syllables, k=3)) for _ in range(5000)]
    while written < length:
        words = rng.choices(known, k=4000)
        lines = (
            f"node0:600{1 + i % 8}:600{1 + i % 8} [{i % 8}] NCCL INFO {' '.join(words[i * 5 : i * 5 + 5])}\n"
            for i in range(800)
        )
        text = "".join(lines).encode()
        written += len(text)
        yield memoryview(text)
    yield memoryview(after)


def hosts(count: int) -> Pieces:
    """So many hosts with a rank each, from its start to its end."""
    return job(count, None, count)
