"""Send batches from a separate thread, so that a slow or unreachable collector never delays the windows."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Hearing", "Outbox"]

QUEUE = 64  # batches of all signals together
_ATTEMPTS = 8  # attempts for a batch, with pauses of 1, 2, 4 ... seconds in between
_PAUSE, _LONGEST_PAUSE, _LAST_PAUSE = 1.0, 30.0, 0.1


@dataclass(slots=True)
class _Batch:
    signal: str
    data: Any
    items: int
    attempts: int = 0


class Outbox:
    """A bounded queue of batches, and the thread that sends them, oldest first.

    If the collector does not accept a batch, it is retried with growing pauses. If the queue is full, its oldest batch is dropped. Every
    item ends with one of the outcomes ``sent``, ``failed``, ``dropped`` and ``unsent`` of :meth:`counts`. ``say`` gets a line when the collector
    stops responding, and when it responds again; ``status`` gives the reason for a refusal.
    """

    def __init__(
        self,
        send: Mapping[str, Callable[[Any], bool]],
        say: Callable[[str], None],
        *,
        status: Callable[[], str] = str,
        queue: int = QUEUE,
        pause: float = _PAUSE,
        attempts: int = _ATTEMPTS,
    ) -> None:
        self._send = send
        self._say = say
        self._status = status
        self._most = queue
        self._first_pause = pause
        self._attempts = attempts
        self._queue: deque[_Batch] = deque()
        self._counts: dict[tuple[str, str], int] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._busy: _Batch | None = None
        self._down_since: float | None = None
        self._lost_while_down = 0
        self._thread = threading.Thread(target=self._run, name="psmkit-export", daemon=True)
        self._thread.start()

    def put(self, signal: str, data: Any, items: int) -> None:
        """Queue a batch; never waits. Signals without an exporter are ignored."""
        if signal not in self._send or not items:
            return
        with self._changed:
            self._queue.append(_Batch(signal, data, items))
            while len(self._queue) > self._most:
                self._count(self._queue.popleft(), "dropped")
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait until at least half of the queue is free. Every batch eventually leaves the queue, sent or not."""
        with self._changed:
            while len(self._queue) > self._most // 2:
                self._changed.wait()

    def counts(self) -> dict[tuple[str, str], int]:
        """Items by (signal, outcome)."""
        with self._changed:
            return dict(self._counts)

    def waiting(self) -> dict[str, int]:
        """Batches that are queued or being sent, by signal."""
        with self._changed:
            found = dict.fromkeys(self._send, 0)
            for batch in (*self._queue, *([self._busy] if self._busy else [])):
                found[batch.signal] += 1
            return found

    def close(self, deadline: float, stop: Callable[[], None] = lambda: None) -> int:
        """Send the rest for up to ``deadline`` seconds, then call ``stop``, which ends calls in progress. Returns the number of items not
        sent."""
        until = time.monotonic() + deadline
        with self._changed:
            # Ends a pause, because this is the last attempt.
            self._stopping.set()
            self._changed.notify_all()
            while (self._queue or self._busy) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            rest = [*self._queue, *([self._busy] if self._busy else [])]
            self._queue.clear()
            for batch in rest:
                self._count(batch, "unsent")
            self._busy = None
        stop()
        return sum(batch.items for batch in rest)

    def _count(self, batch: _Batch, outcome: str) -> None:
        key = (batch.signal, outcome)
        self._counts[key] = self._counts.get(key, 0) + batch.items
        if outcome != "sent" and self._down_since is not None:
            self._lost_while_down += batch.items

    def _run(self) -> None:
        pause = self._first_pause
        while True:
            with self._changed:
                while not self._queue:
                    if self._stopping.is_set():
                        return
                    self._changed.wait()
                batch = self._busy = self._queue.popleft()
            reason = ""
            try:
                good = self._send[batch.signal](batch.data)
            except Exception as error:  # the thread must survive whatever an exporter raises
                good, reason = False, type(error).__name__
            with self._changed:
                if self._busy is not batch:  # the outbox was closed in the meantime
                    return
                self._busy = None
                batch.attempts += 1
                if good:
                    self._count(batch, "sent")
                elif batch.attempts >= self._attempts:
                    self._count(batch, "failed")
                elif len(self._queue) >= self._most:
                    self._count(batch, "dropped")
                else:
                    self._queue.appendleft(batch)
                self._changed.notify_all()
            self._tell(good, batch.signal, self._status() or reason)
            if good:
                pause = self._first_pause
                continue
            # After close() only the deadline limits the number of attempts.
            if self._stopping.is_set():
                time.sleep(_LAST_PAUSE)
            else:
                self._stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _tell(self, good: bool, signal: str, reason: str) -> None:
        if good and self._down_since is not None:
            away = time.monotonic() - self._down_since
            self._down_since = None
            self._say(f"the collector responds again after {away:.0f} s; {self._lost_while_down} items were lost")
            self._lost_while_down = 0
        elif not good and self._down_since is None:
            self._down_since = time.monotonic()
            why = f" ({reason})" if reason else ""
            self._say(f"the collector did not accept {signal}{why}; up to {self._most} batches are kept and retried")


class Hearing(logging.Handler):
    """Captures the SDK's own log messages, so that they reach no stream: they may contain headers and whole requests. Keeps the status of the
    last one: a word such as UNAVAILABLE, or a number of HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self._status = ""
        self._logger = logging.getLogger("opentelemetry")
        self._propagated = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Record the kind of error."""
        for value in record.args if isinstance(record.args, tuple) else ():
            name = getattr(value, "name", None)
            if isinstance(name, str) and name.isupper():
                self._status = name
            elif isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
                self._status = f"HTTP status {value}"

    def status(self) -> str:
        """The last status; it is returned once."""
        found, self._status = self._status, ""
        return found

    def close(self) -> None:
        """Restore the SDK's own logging."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()
