"""Give psmkit a log through a pipe, and watch its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import clean
from benchmarks.run import rss_anon

__all__ = ["Fed", "feed"]

_TICK = 0.02


@dataclass(frozen=True)
class Fed:
    """An analysis of a pipe: bytes, seconds, seconds of processor time, largest RssAnon in MiB, exit status, report as data, its standard error.

    ``points``: RssAnon after so many bytes were given.
    """

    size: int
    seconds: float
    cpu: float
    anon: float
    status: int
    report: dict[str, Any]
    errors: str
    points: tuple[tuple[int, float], ...] = ()

    @property
    def verdict(self) -> str:
        return str(self.report.get("verdict", f"exit {self.status}"))

    @property
    def culprits(self) -> set[int]:
        return {c["global_rank"] for c in self.report.get("culprits", ()) if c.get("global_rank") is not None}


def feed(pieces: Iterable[memoryview], options: Sequence[str] = (), every: int = 0) -> Fed:
    """Run `psmkit analyze -` on ``pieces``.

    Args:
        options: more of analyze's.
        every: bytes from one point of memory to the next; 0: none.
    """
    psmkit = str(Path(sys.executable).parent / "psmkit")
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        out, said = Path(name) / "report.json", Path(name) / "errors"
        with said.open("wb") as errors:
            begin = time.perf_counter()
            process = subprocess.Popen(
                [psmkit, "analyze", "--format", "json", "--output", str(out), *options, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=clean(),
            )
        peak = 0.0
        stop = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not stop.wait(_TICK):
                peak = max(peak, rss_anon(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        size, points = 0, []
        try:
            assert process.stdin is not None
            try:
                for piece in pieces:
                    process.stdin.write(piece)
                    if every and (size + len(piece)) // every > size // every:
                        points.append((size + len(piece), rss_anon(process.pid)))
                    size += len(piece)
                process.stdin.close()
            except BrokenPipeError:
                pass  # its status says why
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            stop.set()
            watcher.join()
            if process.returncode is None:
                process.kill()
                process.wait()
        report = json.loads(out.read_text()) if out.exists() and out.stat().st_size else {}
        return Fed(
            size,
            time.perf_counter() - begin,
            used.ru_utime + used.ru_stime,
            peak,
            process.returncode,
            report,
            said.read_text(errors="replace")[-2000:],
            tuple(points),
        )
