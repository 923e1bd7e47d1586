"""Let the system's loader load a library, in child processes: psmkit itself never loads a foreign library."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.model.errors import InputError
from psmkit.plugins.elf import NotLoadable, interpreter
from psmkit.plugins.programs import child

__all__ = ["Loaded", "Trace", "load", "trace"]

_PATIENCE = 60.0  # seconds for code that runs on load
_MOST = 1 << 20  # bytes of a child's output
_MISSING = re.compile(r"^\s*(\S.*?) => not found$", re.M)
_UNDEFINED = re.compile(r"undefined symbol: (\S+?)(?:, version (\S+))?\s+\((.*)\)\s*$", re.M)
_REFUSED = re.compile(r"object '(.*)' from LD_PRELOAD cannot be preloaded \((.*)\)")
_VERSION = re.compile(r"^.*version [`'](\S+)' not found \(required by (.*)\)\s*$", re.M)


@dataclass(frozen=True, slots=True)
class Trace:
    """Why a library cannot be loaded: missing libraries and undefined symbols."""

    libraries: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a process that loaded the library saw. ``tables``: symbol -> (name, whether each slot is set)."""

    error: str | None = None
    tables: Mapping[str, tuple[str | None, tuple[bool, ...]]] | None = None


def trace(path: Path, preload: Sequence[str] = ()) -> Trace | None:
    """Let the system's loader list what the library needs. None if the system has no such loader.

    ``preload`` are libraries of the program, as in LD_PRELOAD.

    Raises:
        InputError: one of them does not exist.
    """
    program = interpreter(Path(sys.executable))
    if program is None:
        return None
    settings = {**_environment(preload), "LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "1", "LD_BIND_NOW": "1"}
    try:
        _, said = _run([program, str(path.absolute())], env=settings)
    except NotLoadable:
        return None
    refused = _REFUSED.search(said)
    if refused is not None:
        raise InputError(refused.group(1), f"it cannot be preloaded: {refused.group(2)}")
    own = {str(path), str(path.absolute())}
    undefined = {name for name, _, user in _UNDEFINED.findall(said) if user in own}
    return Trace(
        tuple(dict.fromkeys(_MISSING.findall(said))),
        tuple(sorted(undefined)),
        tuple(dict.fromkeys(version for version, user in _VERSION.findall(said) if user in own)),
    )


def _environment(preload: Sequence[str]) -> dict[str, str]:
    settings = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for name in preload:
        if re.search(r"[:\s]", name):
            raise InputError(name, "a library whose name has blanks or colons cannot be preloaded")
    if preload:
        settings["LD_PRELOAD"] = ":".join(preload)
    return settings


def load(path: Path, tables: Mapping[str, tuple[int, Sequence[int]]], preload: Sequence[str] = ()) -> Loaded:
    """Load the library as NCCL does, in a child, and read its tables: symbol -> (bytes to read, offsets of slots)."""
    task = json.dumps({"path": str(path.absolute()), "tables": {name: list(what) for name, what in tables.items()}})
    reader, writer = os.pipe()
    script = Path(__file__).with_name("_probe.py")
    try:
        status, said = _run(
            [sys.executable, "-I", "-S", str(script), str(writer)],
            stdin=task.encode("utf-8", "surrogateescape"),
            fd=writer,
            env=_environment(preload),
        )
    except NotLoadable as error:
        os.close(reader)
        return Loaded(str(error))
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        answer = pipe.read(_MOST) or b""  # a child of the library's may still hold the other end
    try:
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            return Loaded(str(found["error"]))
        return Loaded(tables={str(symbol): _entry(entry) for symbol, entry in found["tables"].items()})
    except (ValueError, LookupError, TypeError, AttributeError):
        return Loaded(_death(status, said))  # code of the library may have written there


def _entry(entry: dict[str, Any]) -> tuple[str | None, tuple[bool, ...]]:
    name = entry["name"]
    return (None if name is None else str(name)), tuple(bool(slot) for slot in entry["slots"])


def _death(status: int, said: str) -> str:
    last = (said.strip().splitlines() or [""])[-1][:200]
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return f"a process that loaded it ended {how}{': ' + last if last else ''}"


def _run(
    command: list[str], stdin: bytes = b"", fd: int | None = None, env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and output of a child without a terminal, in a session of its own.

    Raises:
        NotLoadable: the child did not end.
    """
    fds = () if fd is None else (fd,)
    with tempfile.TemporaryFile() as out:
        with child(command, out, stdin=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, pass_fds=fds) as process:
            try:
                process.communicate(stdin, timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                raise NotLoadable(f"a process that loads it did not end within {_PATIENCE:.0f} s") from None
        out.seek(0)
        return process.returncode, out.read(_MOST).decode("utf-8", "surrogateescape")
