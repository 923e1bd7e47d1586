"""Tasks that kill the worker that runs them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from psmkit.cluster import tasks

#: A folder: each file in it is a death that happened.
DEATHS = "PSM_TEST_DEATHS"


def once(asked: bytes) -> bytes:
    """As :func:`psmkit.cluster.tasks.part`, in a worker that dies of the first one."""
    try:
        (Path(os.environ[DEATHS]) / "first").touch(exist_ok=False)
    except FileExistsError:
        return tasks.part(asked)
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def always(_asked: bytes) -> bytes:
    """A task that no worker survives."""
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def other_version(asked: bytes) -> bytes:
    """A task on a machine with another psmkit."""
    return tasks.part(asked.replace(b'"fingerprint": "', b'"fingerprint": "0'))
