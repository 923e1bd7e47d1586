"""``psmkit`` with an analysis that answers at once, slowly, or not at all; a script for the tests of the terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import psmkit
from psmkit.cli.app import main
from psmkit.model import Report
from tests.report import samples


def fake(paths: tuple[str, ...], *, progress: Callable[[int, int], None] | None = None, **_: Any) -> Report:
    """The sample that the path names; ``slow`` reports progress for a while, ``stuck`` until it is interrupted."""
    name = paths[0]
    step = 0
    while name == "stuck" or (name == "slow" and step < 30):
        if progress is not None:
            progress(step * 1000, 30_000)
        time.sleep(0.1)
        step += 1
    if name == "bug":
        raise RuntimeError("a thing\nbroke")
    return samples.ALL.get(name, samples.hung)()


if __name__ == "__main__":
    if os.environ.get("STUB_PIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    psmkit.analyze = fake  # type: ignore[assignment]
    sys.exit(main())
