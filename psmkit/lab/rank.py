"""A rank in Python: the other end of the runner's socket, for rank programs that are written in Python."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psmkit.model.wording import counted

__all__ = ["OthersFailedError", "Rank", "RunnerGoneError", "end_with_parent", "prepare"]

_PR_SET_PDEATHSIG, _PR_SET_PTRACER, _ANY = 1, 0x59616D61, ctypes.c_ulong(-1)


def end_with_parent() -> None:
    """End this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def prepare() -> None:
    """Tie this process to its runner: it ends with it, the runner's gdb may attach to it, and a signal makes it write its stacks."""
    end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY)
    path = Path(os.environ["PSM_LAB_STACKS"])
    path.parent.mkdir(parents=True, exist_ok=True)
    # Open until the process ends, because the signal handler writes to it.
    faulthandler.register(signal.SIGUSR1, file=path.open("w"), all_threads=True)


class RunnerGoneError(Exception):
    """The runner closed the socket: the run is over."""


class OthersFailedError(Exception):
    """Other ranks failed or died before they reached a barrier. ``count``: how many."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(f"{counted(count, 'other rank')} failed or died before barrier {name}")
        self.name, self.count = name, count


class Rank:
    """This process as one of ``ranks``. Not for use by several threads.

    Args:
        number: this rank.
        ranks: number of ranks.
        connection: the socket that was inherited from the runner.
    """

    def __init__(self, number: int, ranks: int, connection: socket.socket) -> None:
        self.number, self.ranks = number, ranks
        self._socket = connection
        self._input = connection.makefile("rb")
        self._send(f"hello {number} {os.getpid()}")

    @classmethod
    def of_environment(cls) -> Rank:
        """This process, from the environment that its runner set."""
        descriptor = int(os.environ["PSM_LAB_SOCKET"])
        return cls(int(os.environ["PSM_RANK"]), int(os.environ["PSM_RANKS"]), socket.socket(fileno=descriptor))

    def stage(self, name: str) -> None:
        """Set the stage of this rank; the result names it when the rank hangs or dies in it."""
        self._send(f"stage {name}")

    def trouble(self, text: str) -> None:
        """Send the first failure immediately: this rank may not reach its report."""
        self._send(f"trouble {' '.join(text.split())}")

    def barrier(self, name: str = "barrier", *, failed: bool = False) -> None:
        """Wait for all ranks.

        Raises:
            OthersFailedError: some of them come no more.
        """
        self._send(f"barrier {name} {int(failed)}")
        others = int(self._receive("go", name))
        if others and not failed:
            raise OthersFailedError(name, others)

    def exchange(self, parts: Mapping[int, bytes], name: str = "exchange") -> dict[int, bytes]:
        """Send bytes to other ranks, and return the bytes from them, by rank; ranks that left are missing."""
        words = [f"{rank}:{data.hex()}" for rank, data in parts.items()]
        self._send(" ".join([f"exchange {name}", *words]))
        answers = (part.partition(":") for part in self._receive("exchanged", name).split())
        return {int(rank): bytes.fromhex(data) for rank, _, data in answers}

    def gather(self, data: bytes, name: str = "gather") -> list[bytes | None]:
        """The bytes of all ranks, by rank; None for a rank that left."""
        got = self.exchange(dict.fromkeys(range(self.ranks), data), name)
        return [got.get(rank) for rank in range(self.ranks)]

    def report(self, report: Mapping[str, Any]) -> None:
        """Send a result to the runner: a dict that JSON can represent."""
        self._send(f"report {json.dumps(dict(report))}")

    def close(self) -> None:
        """Close the socket."""
        self._input.close()
        self._socket.close()

    def _send(self, line: str) -> None:
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise RunnerGoneError(f"the runner is gone: {error.strerror}") from None

    def _receive(self, word: str, name: str) -> str:
        line = self._input.readline().decode()
        if not line.endswith("\n"):
            raise RunnerGoneError("the runner is gone, or has ended the run")
        said, _, rest = line.rstrip("\n").partition(" ")
        about, _, rest = rest.partition(" ")
        if (said, about) != (word, name):
            raise RunnerGoneError(f"bad answer {line[:60]!r} of the runner, expected {word} {name}")
        return rest
