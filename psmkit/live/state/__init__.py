"""The state of a live process, read out of its memory by its debug information, without stopping it.

A child process does the reading: drgn parses files of the other process in C, so a crash or a wait there must end as a note, not end the inspection.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from psmkit.live import procfs
from psmkit.live.state import elf
from psmkit.model.errors import PsmkitError
from psmkit.model.inspection import InspectionError, Library, Note, StateObject, from_json

__all__ = ["StateError", "read"]

_SLACK = 2.0  # seconds beyond the deadline in which the child may start and write its answer
_WITHOUT = Note(
    "drgn is not installed: the state in memory is not shown",
    "pip install 'psmkit[live]' shows it where NCCL or libpsm has debug information",
)


class StateError(PsmkitError):
    """The memory of a process may not or cannot be read."""


def read(pid: int, *, deadline: float, gap: float = 0.2) -> tuple[list[StateObject], list[Library], list[Note]]:
    """The state of a process: two samples, ``gap`` seconds apart. It is not stopped, and runs on.

    Args:
        pid: a process of this host, seen from this pid namespace.
        deadline: seconds that this may take. What was not read by then is missing, and a note says so.
        gap: seconds between the two samples. Words that differ are marked as moving.

    Returns:
        Objects; the libraries of interest and what symbols they have; what could not be read, with the remedy.

    Raises:
        StateError: there is no such process, it may not be read, or it is none of 64 bits. One line with the remedy.
    """
    _check(pid)
    if importlib.util.find_spec("drgn") is None:
        return [], [], [_WITHOUT]
    # Plugins of drgn are for its own command line, and take longer to load than all the rest.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DRGN_")}
    command = [sys.executable, "-P", "-m", "psmkit.live.state", str(pid), "--json"]
    command += ["--deadline", str(deadline), "--gap", str(gap)]
    try:
        done = subprocess.run(
            command,
            env={**plain, "DRGN_DISABLE_PLUGINS": "*"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline + _SLACK,
        )
    except subprocess.TimeoutExpired:
        return [], [], [Note(f"the state was not read within {deadline:g} s", "give it more time")]
    _check(pid)
    try:
        inspection = from_json(json.loads(done.stdout))
    except (ValueError, InspectionError):
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"the reader ended with status {done.returncode}"
        return [], [], [Note(f"the state could not be read: {why}")]
    return list(inspection.state), list(inspection.libraries), list(inspection.notes)


def _check(pid: int) -> None:
    state = procfs.state_of(pid)
    if not state:
        raise StateError(f"there is no process {pid}: it has ended, or runs in another pid namespace")
    if state in "ZX":
        raise StateError(f"process {pid} has ended: nobody has waited for it yet, and its memory is gone")
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        with open(f"/proc/{pid}/maps", "rb") as maps:
            empty = not maps.read(1)
    except FileNotFoundError:
        raise StateError(f"there is no process {pid}: it has just ended") from None
    except ProcessLookupError:
        empty = True
    except OSError as error:
        raise StateError(
            f"the memory of process {pid} (uid {_owner(pid)}) may not be read: {error.strerror}; {_remedy(pid)}"
        ) from None
    if empty:
        raise StateError(f"process {pid} has no memory of its own: it is a thread of the kernel, or has ended")
    seen = elf.look(f"/proc/{pid}/exe")
    if seen is not None and seen.bits == 32:
        raise StateError(f"process {pid} is a 32-bit program: psmkit reads 64-bit ones")


def _remedy(pid: int) -> str:
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope and _owner(pid) == str(os.geteuid()):
        return f"kernel.yama.ptrace_scope is {scope}: run this as root, or set it to 0"
    return "run this as that user or as root, with CAP_SYS_PTRACE in a container"


def _owner(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return "?"
