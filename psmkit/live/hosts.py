"""Inspects many processes: those of this host that use NCCL, or those of a list of hosts through a command of the user. Each has its own end."""

from __future__ import annotations

import json
import os
import shlex
import socket
import string
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from psmkit.live import mapped, together, tracing
from psmkit.live.inspect import Options, inspect, rank_of
from psmkit.model.errors import InputError, PsmkitError
from psmkit.model.inspection import Inspection, Note, from_json

__all__ = ["Target", "check_template", "file_name", "inspect_all", "own_processes", "read_targets"]

_MOST = 64 << 20  # bytes of an answer
_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Target:
    """A process to inspect. ``rank`` is None if unknown."""

    host: str
    pid: int
    rank: int | None = None

    @property
    def here(self) -> bool:
        """Whether it is on this host."""
        own = socket.gethostname()
        return self.host in ("", "localhost", "127.0.0.1", own, own.partition(".")[0])


def own_processes() -> list[Target]:
    """The processes of this user, or of all users for root, that use NCCL, RCCL or libpsm, by rank and pid."""
    uid = os.getuid()
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        status = tracing.status_of(pid)
        owner = status.get("Uid", "").split()[:1]
        if pid == os.getpid() or (uid != 0 and owner != [str(uid)]) or status.get("State", "Z")[0] in "ZX":
            continue
        if mapped.uses_nccl(pid):
            found.append(Target(socket.gethostname(), pid, rank_of(pid)))
    return sorted(found, key=lambda t: (t.rank is None, t.rank or 0, t.pid))


def read_targets(path: str) -> list[Target]:
    """The processes of a file with a line ``host pid [rank]`` each; ``#`` begins a comment.

    Raises:
        InputError: the file cannot be read, or a line is wrong.
    """
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise InputError(path, error.strerror or "it cannot be read") from error
    found = []
    for number, line in enumerate(text.splitlines()[:_LINES], 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not 2 <= len(words) <= 3 or not all(word.isdecimal() for word in words[1:]) or words[0].startswith("-"):
            raise InputError(path, f"line {number}: expected `host pid [rank]`, found {line.strip()!r}")
        found.append(Target(words[0], int(words[1]), int(words[2]) if len(words) == 3 else None))
    if not found:
        raise InputError(path, "it names no process: expected a line `host pid [rank]` for each")
    return found


def check_template(template: str) -> None:
    """Refuse a command that cannot name the process.

    Raises:
        PsmkitError: it has no {pid}, or another field than {host}, {pid} and {rank}, or a quote that does not end.
    """
    try:
        shlex.split(template)
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise PsmkitError(f"--via {template!r}: {error}") from error
    if "pid" not in fields or not fields <= {"host", "pid", "rank"}:
        raise PsmkitError(
            f"--via {template!r}: expected a command with {{host}} and {{pid}}; {{rank}} is possible, too"
        )


def inspect_all(
    targets: Sequence[Target],
    options: Options,
    *,
    via: str | None = None,
    deadline: float,
    parallel: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Inspection]:
    """Inspect processes beside each other.

    Args:
        targets: the processes.
        options: for those of this host.
        via: a command that prints the inspection of {pid} on {host} as JSON. Without it only processes of this host are reached.
        deadline: seconds for all.
        parallel: how many at a time.
        progress: called with the numbers of those done and of all.

    Returns:
        One inspection for each target, in their order. One that failed has no threads, and a note that says why.
    """
    end = time.monotonic() + deadline
    done = 0

    def one(target: Target) -> Inspection:
        nonlocal done
        found = _one(target, options, via, end)
        done += 1
        if progress is not None:
            progress(done, len(targets))
        return found

    with ThreadPoolExecutor(max_workers=max(1, min(parallel, len(targets)))) as pool:
        return together.named(list(pool.map(one, targets)))


def file_name(inspection: Inspection, look: int = 1) -> str:
    """The name of the file of an inspection; ``look`` counts those of the same process."""
    number = "" if look == 1 else f".{look}"
    return f"{inspection.host}-{inspection.pid}{number}.inspect.json".replace("/", "_")


def _one(target: Target, options: Options, via: str | None, end: float) -> Inspection:
    left = end - time.monotonic()
    if left <= 0:
        return _failed(target, "the deadline passed before its turn", "raise --deadline")
    if via is None:
        if not target.here:
            return _failed(
                target, "it is on another host", "give --via 'ssh {host} psmkit inspect {pid} --format json'"
            )
        try:
            return inspect(target.pid, options)
        except tracing.Refused as error:
            return _failed(target, error.reason, error.remedy)
    return _ask(target, via, left)


def _ask(target: Target, via: str, seconds: float) -> Inspection:
    """Run the user's command; it is not given to a shell of this host."""
    fields = {"host": target.host, "pid": str(target.pid), "rank": "" if target.rank is None else str(target.rank)}
    command = [word.format(**fields) for word in shlex.split(via)]
    shown = shlex.join(command)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return _failed(target, f"no answer within {seconds:.0f} s", f"raise --deadline, or try: {shown}")
    except OSError as error:
        return _failed(target, f"cannot run {command[0]}: {error.strerror}", "correct --via")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        return from_json(json.loads(done.stdout[:_MOST]))
    except (ValueError, PsmkitError, RecursionError) as error:
        why = said[-1] if said else str(error) if done.stdout else f"it printed nothing, status {done.returncode}"
        return _failed(target, why, f"try: {shown}")


def _failed(target: Target, what: str, remedy: str) -> Inspection:
    return Inspection(
        pid=target.pid,
        host=target.host,
        command=(),
        taken=time.time(),
        rank=target.rank,
        notes=(Note(what, remedy),),
    )
