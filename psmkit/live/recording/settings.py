"""The environment of a recorded command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from psmkit.live.recording.layout import Layout
from psmkit.model.settings import logs_of_a_run

__all__ = ["INSIDE", "Settings", "make", "masked", "masked_words", "of_process"]

#: Set in a recorded command: a `psmkit record` below it only runs its command.
INSIDE = "PSMKIT_RECORD_FOLDER"
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_OPTION = re.compile(r"(?P<name>--?[\w-]+)(?P<value>=.*)?", re.DOTALL)
_MASK = "(masked)"
# Values that are switches and no secrets.
_PLAIN = frozenset({"", "0", "1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """``added`` is set for the command. ``kept`` was set by the user to another value, and stays: name, value, what psmkit would set."""

    environment: dict[str, str]
    added: dict[str, str] = field(default_factory=dict)
    kept: dict[str, tuple[str, str]] = field(default_factory=dict)


def make(
    layout: Layout, port: int, base: Mapping[str, str], *, torch: bool = True, profiler: str | None = None
) -> Settings:
    """The settings for a command that is recorded into a folder.

    Args:
        layout: the folder.
        port: a port for NCCL's RAS threads on this host.
        base: the environment of the user.
        torch: set those of PyTorch's flight recorder. A program without PyTorch ignores them.
        profiler: the path of the profiler plugin, which writes windows into the records; None: do not load it.
    """
    root = layout.root.absolute()
    flight = str(root / "flight" / "trace_rank_")
    wanted = logs_of_a_run(str(root / "logs")) | {
        "NCCL_RAS_ENABLE": "1",
        "NCCL_RAS_ADDR": f"localhost:{port}",
        "NCCL_TOPO_DUMP_FILE": str(root / "facts" / "nccl-topology.xml"),
        "PSM_RECORD_DIR": str(root / "records"),
        "PSM_RECORD_KEEP": "1",
        INSIDE: str(root),
    }
    if torch:
        wanted |= {
            # Since 2.9; the name before that is still read. A release ignores the names that it does not know.
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": flight,
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": flight,
            # A byte into the pipe of a rank asks it for a dump (2.3 and later).
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(root / "flight" / "pipe_rank_"),
        }
    if profiler is not None:
        wanted["NCCL_PROFILER_PLUGIN"] = profiler
    added = {name: value for name, value in wanted.items() if name not in base}
    kept = {name: (base[name], value) for name, value in wanted.items() if name in base and base[name] != value}
    return Settings({**base, **added}, added, kept)


def masked(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without secrets, sorted by name: by the names of variables, and passwords in addresses."""
    return {
        name: _MASK
        if _SECRET.search(name) and environment[name] not in _PLAIN
        else _IN_ADDRESS.sub(_MASK, environment[name])
        for name in sorted(environment)
    }


def masked_words(command: list[str]) -> list[str]:
    """A command line without secrets: the values of options whose names say so, and passwords in addresses."""
    out, hide = [], False
    for word in command:
        option = _OPTION.fullmatch(word)
        name, told, value = word.partition("=")
        if hide and option is None:
            out.append(_MASK)
        elif told and _SECRET.search(name) and value not in _PLAIN:
            out.append(f"{name}={_MASK}")
        else:
            out.append(_IN_ADDRESS.sub(_MASK, word))
        hide = option is not None and not told and bool(_SECRET.search(name))
    return out


def of_process(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty: it is gone or not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}
