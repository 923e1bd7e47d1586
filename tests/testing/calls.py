"""What the tests of the ranks fixture run in other processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess

from psmkit.testing import Rank


def swap(rank: Rank, word: str) -> tuple[int, list[bytes | None], str | None]:
    rank.barrier("begin")
    return rank.number, rank.gather(f"{word} {rank.number}".encode()), os.environ.get("PSM_TEST_WORD")


def fail(rank: Rank) -> None:
    if rank.number == 1:
        raise ValueError("no such thing")
    rank.barrier("end")


def hang(rank: Rank) -> None:
    rank.stage("asleep")
    if rank.number == 0:
        signal.pause()
    rank.barrier("end")


def die(rank: Rank) -> None:
    os.kill(os.getpid(), signal.SIGSEGV if rank.number else 0)


def leave_memory(rank: Rank, name: str) -> None:
    if rank.number == 0:
        open(f"/dev/shm/{name}", "w").close()


def leave_process(rank: Rank) -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def use_cuda(rank: Rank) -> int:
    from psmkit.lab.cuda import Face

    rt = Face("cudart13")
    count = rt.new("int *")
    rt.ok.cudaGetDeviceCount(count)
    return int(count[0])


def unpicklable(rank: Rank) -> object:
    return lambda: secrets
