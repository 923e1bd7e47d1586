"""Processes that wait in a known way, for tests that look into them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from psmkit.live import procfs

__all__ = ["needs_eu_stack", "needs_gdb", "process", "until"]

needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb (scripts/debuggers.sh)")
needs_eu_stack = pytest.mark.skipif(shutil.which("eu-stack") is None, reason="needs elfutils (scripts/debuggers.sh)")

DEADLINE = 60.0


def until(done: object, what: str) -> None:
    """Wait until ``done()`` is true."""
    end = time.monotonic() + DEADLINE
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.01)


@contextmanager
def process(code: str, *, waits: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has printed a line; ``waits``: it then sleeps in the kernel."""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        if waits:
            until(lambda: procfs.state_of(child.pid) == "S", "it never slept")
        yield child
    finally:
        child.kill()
        child.communicate()
