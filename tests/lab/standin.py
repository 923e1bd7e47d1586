"""Rank programs in Python that behave in a given way: what the runner does about ranks does not depend on libpsm."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from psmkit.lab.runner import Job, Outcome, run

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0  # for runs that end by themselves
HEAD = """
import faulthandler, os, pathlib, signal, subprocess, sys
from psmkit.lab.rank import OthersFailedError, Rank, RunnerGoneError
rank = Rank.of_environment()
me = rank.number
def hang():
    while True: signal.pause()
def stacks_when_asked():
    path = pathlib.Path(os.environ['PSM_LAB_STACKS'])
    path.parent.mkdir(exist_ok=True)
    faulthandler.register(signal.SIGUSR1, file=path.open('w'))
"""


def play(
    folder: Path,
    code: str,
    *,
    ranks: int = 2,
    deadline: float = DEADLINE,
    grace: float = 5.0,
    stack_signal: int | None = None,
    reports: int | None = None,
    command: Sequence[str] | None = None,
) -> Outcome:
    """Run ``code`` in each rank: ``rank`` is there, ``me`` is its number."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    job = Job(
        ranks,
        lambda _rank: command or [sys.executable, "-c", HEAD + code],
        lambda _rank: environment,
        folder,
        deadline,
        grace=grace,
        stack_signal=stack_signal,
        reports=reports,
    )
    return run(job)
