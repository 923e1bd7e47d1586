"""The work of a watch, turn by turn: look at the files, judge what is new, look into processes, and say how long to wait."""

from __future__ import annotations

import time
from collections.abc import Sequence

from psmkit.watch.follow import Follower
from psmkit.watch.judge import Judge
from psmkit.watch.local import Inspector
from psmkit.watch.state import Sight, State

__all__ = ["Watch"]

#: The parts of the time that looking at files and judging may take.
_POLLING, _JUDGING = 0.05, 0.15
_LEAST, _MOST = 0.1, 5.0


class Watch:
    """The state of a job whose logs grow.

    Looking at files takes at most a twentieth of a core, and judging at most 15 percent: with many files both happen less often. Lines are scanned once, as
    they come, whatever that takes.
    """

    def __init__(self, follower: Follower, state: State, inspector: Inspector | None = None) -> None:
        self.follower, self.state, self.inspector = follower, state, inspector
        self.judge = Judge()
        self.cost = 0.0  # of the last look
        self._new = True
        self._after = self._preparation = 0.0

    def turn(self) -> tuple[Sight | None, Sight] | None:
        """Do what there is to do now; returns what was reported before and what is new, if something is to be reported."""
        begun = time.process_time()
        self._new = self.follower.poll() or self._new
        self.cost = time.process_time() - begun
        self._answer(wait=False)
        self._inspect()
        if self._new and not self.judge.busy and time.monotonic() >= self._after:
            self._begin()
        return self.state.look(time.time(), more=self._new or self.judge.busy)

    def last_turn(self) -> tuple[Sight | None, Sight] | None:
        """Judge all that is there, unless the user stopped the first reading of it: a part of a log would show what is not so."""
        self._answer(wait=True)
        if self.follower.interrupted:
            self.state.unread()
        else:
            self.follower.stop = lambda: False
            if self.follower.poll() or self._new:
                self._begin()
                self._answer(wait=True)
        return self.state.look(time.time())

    @property
    def pause(self) -> float:
        """Seconds until the next turn, unless the judge answers before."""
        return min(max(self.cost / _POLLING, _LEAST), _MOST)

    def close(self) -> None:
        """End what runs and close the files."""
        self.judge.close()
        if self.inspector is not None:
            self.inspector.close()
        self.follower.close()

    def _begin(self) -> None:
        begun = time.process_time()
        self.follower.prepare()
        self._preparation = time.process_time() - begun
        if self.follower.interrupted:
            return
        try:
            self.judge.begin(self.follower, self.inspector.inputs if self.inspector is not None else ())
        except OSError as error:  # no room for another process: the files are followed, and it is tried again
            self.state.error = f"no process to judge in: {error.strerror}"
            self._after = time.monotonic() + _MOST
            return
        self._new = False

    def _answer(self, *, wait: bool) -> None:
        found = self.judge.wait() if wait else self.judge.ask()
        if found is None:
            return
        self._after = time.monotonic() + (self._preparation + self.judge.cost) * (1 / _JUDGING - 1)
        self.state.take(found, self.judge.parts, time.time())
        self.follower.remember(self.judge.parts, found.quoted)

    def _inspect(self) -> None:
        inspector = self.inspector
        if inspector is None:
            return
        if inspector.check(self.state.heard(inspector.asked)) or inspector.poll():
            self._new = True
        blamed: Sequence[tuple[str, int]] = self.state.blamed()
        if blamed:
            inspector.ask(blamed, self.state.heard(blamed))
