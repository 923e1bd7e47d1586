"""Read the inputs of a scan ahead of it, by further threads, so that it uses more than one core.

A line is read in two steps: what it says by itself, and what that means after the lines before. Threads do the first step, and read and
decompress files; the caller does the second one, in order, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import field
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.model.late import dataclass

__all__ = ["MOST_JOBS", "Ended", "Piece", "Round", "Step", "Turn", "available", "in_threads"]

#: Threads beyond these would wait for the one that takes the lines in order.
MOST_JOBS = 4
_READ, _CLAIMED, _PARSED = range(3)
_SPARE = 2  # pieces beyond two for each thread


@dataclass(eq=False, slots=True)
class Piece:
    """Bytes of a file, in a buffer that is used again; ``ahead`` is the native object that holds their lines."""

    room: memoryview
    ahead: Any = None
    file: int = 0
    size: int = 0
    state: int = _READ


@dataclass(frozen=True, slots=True)
class Ended:
    """A file has ended; ``note`` says why so early, if it did."""

    file: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """``stream`` had its turn in this round; it is the next one's."""

    round: int
    stream: int


@dataclass(frozen=True, slots=True)
class Round:
    """Each stream had its turn; ``done`` bytes of the files were read so far."""

    done: int


Step = Piece | Ended | Turn | Round
#: Makes the steps of a scan, in order; it asks for a piece before each read.
Source = Callable[[Callable[[], Piece]], Generator[Step]]


class _StoppedError(Exception):
    """Nobody wants the next step."""


def available() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass
class _Threads:
    """Pieces on their way: ``unread`` ones wait for somebody to read their lines, ``steps`` for the caller, ``free`` ones for bytes."""

    source: Source
    stream_of: list[int]
    free: list[Piece]
    changed: threading.Condition = field(default_factory=threading.Condition)
    unread: deque[Piece] = field(default_factory=deque)
    steps: deque[Step | BaseException | None] = field(default_factory=deque)
    stopped: bool = False

    def read(self) -> None:
        """Read the inputs: the first thread's work. Where lines wait to be read, it helps."""
        last: BaseException | None = None
        try:
            for step in self.source(self._take):
                with self.changed:
                    if self.stopped:
                        return
                    self.steps.append(step)
                    if isinstance(step, Piece):
                        step.state = _READ
                        self.unread.append(step)
                    self.changed.notify_all()
                    behind = len(self.unread) > 1
                if behind:
                    self._parse_one()
        except _StoppedError:
            return
        except BaseException as error:  # the caller raises it, where its turn comes
            last = error
        with self.changed:
            self.steps.append(last)
            self.changed.notify_all()

    def parse(self) -> None:
        """Read lines until the end: the work of the other threads."""
        while True:
            with self.changed:
                while not self.unread and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
            self._parse_one()

    def _take(self) -> Piece:
        """A free piece. While there is none, the lines of others are read."""
        while True:
            with self.changed:
                if self.stopped:
                    raise _StoppedError
                if self.free:
                    return self.free.pop()
                if not self.unread:
                    self.changed.wait()
                    continue
            self._parse_one()

    def _parse_one(self) -> None:
        """Read the lines of the oldest piece that waits for that, if one does."""
        with self.changed:
            if not self.unread:
                return
            piece = self.unread.popleft()
            piece.state = _CLAIMED
        lib.ls_read_ahead(piece.ahead, self.stream_of[piece.file], ffi.from_buffer(piece.room), piece.size)
        with self.changed:
            piece.state = _PARSED
            self.changed.notify_all()

    def in_order(self) -> Iterator[Step]:
        """The steps, for the caller. It helps where the next one is not ready. A piece is free again when the next step is asked for."""
        while True:
            with self.changed:
                while not self.steps:
                    self.changed.wait()
                step = self.steps.popleft()
            if step is None:
                return
            if isinstance(step, BaseException):
                raise step
            if not isinstance(step, Piece):
                yield step
                continue
            while step.state != _PARSED:
                with self.changed:
                    if not self.unread and step.state != _PARSED:
                        self.changed.wait()
                self._parse_one()
            yield step
            with self.changed:
                self.free.append(step)
                self.changed.notify_all()

    def stop(self) -> None:
        """Let the threads end."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


def in_threads(source: Source, native: Any, mode: int, stream_of: list[int], chunk: int, jobs: int) -> Generator[Step]:
    """The steps of ``source``, which runs in another thread; the lines of each piece are read already.

    Args:
        source: makes the steps.
        native: the native catalogue.
        mode: of the native scan.
        stream_of: the stream of each file.
        chunk: bytes of a piece.
        jobs: how many threads work, the caller's included; 2 or more.
    """
    free = [
        Piece(memoryview(bytearray(chunk)), ffi.gc(lib.ls_ahead_new(native, mode), lib.ls_ahead_free))
        for _ in range(2 * jobs + _SPARE)
    ]
    shared = _Threads(source, stream_of, free)
    work = [shared.read, *[shared.parse] * (jobs - 2)]
    threads = [threading.Thread(target=target, name=f"psmkit-scan-{i}", daemon=True) for i, target in enumerate(work)]
    for thread in threads:
        thread.start()
    try:
        yield from shared.in_order()
    finally:
        shared.stop()
        for thread in threads:
            thread.join()
