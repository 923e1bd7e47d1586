"""Progress of a run of the lab, on standard error: a run that hangs lasts until its deadline."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from psmkit.cli.output import progress_line
from psmkit.model.wording import plural

__all__ = ["Progress"]

_PATIENCE = 5.0  # seconds before the first line
_PERIOD = 10.0
_SECOND = 1.0  # a terminal has one line that changes
_STAGES = 4


class Progress:
    """Prints a line when a run takes long, again from time to time, and when Ctrl-C ends it. A terminal has one line, with what moves.

    ``watch`` is for :func:`psmkit.lab.runner.run`, ``folder`` has the evidence.
    """

    def __init__(self, deadline: float, folder: Path) -> None:
        self._deadline, self._folder = deadline, folder
        self._stages: dict[int, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psmkit-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is KeyboardInterrupt:
            begun = self._folder.is_dir() and any(self._folder.iterdir())
            kept = f"the evidence so far is in {self._folder}; try psmkit analyze {self._folder}"
            print(f"psmkit lab: interrupted; {kept if begun else 'no rank has started'}", file=sys.stderr, flush=True)

    def watch(self, rank: int, stage: str) -> None:
        """Take note of the stage that a rank enters."""
        self._stages[rank] = stage

    def _run(self) -> None:
        begun = time.monotonic()
        with progress_line() as tell:
            if tell is not None:
                self._show(begun, tell)
                return
        patience = _PATIENCE
        while not self._done.wait(patience):
            self._say(time.monotonic() - begun)
            patience = _PERIOD

    def _show(self, begun: float, tell: Callable[[str], None]) -> None:
        """On a terminal."""
        from psmkit.lab.moved import Meter, amount

        moved = Meter(self._folder / "records")
        last = begun
        while not self._done.wait(_SECOND):
            now = time.monotonic()
            # Each byte is moved by two ends.
            speed = sum(moved().values()) / 2 / (now - last)
            last, seconds = now, now - begun
            if seconds > self._deadline:
                tell(f"{self._deadline:g} s are over: stopping the ranks and collecting their stacks")
            else:
                rate = f"; {amount(speed)}/s" if speed else ""
                tell(f"{seconds:.0f} s of {self._deadline:g} s{self._where()}{rate}")

    def _say(self, seconds: float) -> None:
        if seconds > self._deadline:
            text = f"the deadline of {self._deadline:g} s passed; stopping the ranks and collecting their stacks"
        else:
            text = f"running for {seconds:.0f} s, at most {self._deadline:g} s (--deadline){self._where()}"
        print(f"psmkit lab: {text}", file=sys.stderr, flush=True)

    def _where(self) -> str:
        counts = Counter(self._stages.copy().values()).most_common(_STAGES)
        stages = ", ".join(
            f"{count} {plural(count, 'has', 'have')} ended" if stage == "ended" else f"{count} in {stage}"
            for stage, count in counts
        )
        return f"; ranks: {stages}" if stages else ""
