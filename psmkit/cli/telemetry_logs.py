"""Findings of logs that grow beside the telemetry: analysed again, in a thread, when they changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from psmkit.model import Finding
from psmkit.model.errors import PsmkitError

__all__ = ["LogFindings"]

_EVERY = 30.0  # seconds


class LogFindings:
    """Runs the analysis over ``paths``; each finding is new once. ``say`` gets what goes wrong."""

    def __init__(self, paths: Sequence[str], say: Callable[[str], None]) -> None:
        self._paths = tuple(paths)
        self._say = say
        self._known: set[tuple[object, ...]] = set()
        self._new: list[Finding] = []
        self._sizes: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> None:
        """Analyse now, if anything changed."""
        sizes = self._look()
        if sizes == self._sizes:
            return
        self._sizes = sizes
        from psmkit import analyze

        try:
            found = analyze(self._paths).findings
        except (PsmkitError, OSError) as error:
            self._say(f"--logs: {error}")
            return
        with self._lock:
            for finding in found:
                key = (finding.code, finding.comm, finding.ranks, finding.evidence[:1])
                if key not in self._known:
                    self._known.add(key)
                    self._new.append(finding)

    def new(self) -> list[Finding]:
        """Findings since the last call."""
        with self._lock:
            found, self._new = self._new, []
        return found

    def start(self) -> None:
        """Analyse now and again in a thread."""
        self._thread = threading.Thread(target=self._run, name="psmkit-logs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop. An analysis that runs is not waited for."""
        self._end.set()

    def _run(self) -> None:
        while True:
            self.read()
            if self._end.wait(_EVERY):
                return

    def _look(self) -> tuple[int, ...]:
        out = []
        for path in self._paths:
            inside = (
                [os.path.join(at, n) for at, _, names in os.walk(path) for n in names]
                if os.path.isdir(path)
                else [path]
            )
            for name in sorted(inside):
                try:
                    out.append(os.stat(name).st_size)
                except OSError:
                    out.append(-1)
        return tuple(out)
