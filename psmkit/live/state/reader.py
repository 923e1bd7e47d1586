"""Reads a process twice and compares. Runs in the child process that :func:`psmkit.live.state.read` starts, because drgn is C code over foreign files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

from psmkit.live.state import elf, libpsm, nccl
from psmkit.live.state.memory import Map, Target
from psmkit.live.state.samples import merged
from psmkit.model.inspection import Library, Note, StateObject

__all__ = ["inspect"]

_PSM = re.compile(r"libpsm\.so")
_NCCL = re.compile(r"lib(nccl|rccl)(-\w+)?\.so|libtorch_cuda\.so")
_PLUGIN = re.compile(r"libnccl-(net|profiler|tuner|env|gin)")
_GONE = " (deleted)"  # as /proc marks a file without a name
_DEBUG = 4 << 30  # bytes of debug information
_ADVICE = {
    "psm": "a build with debug information (a checkout's `make setup`, or CMAKE_BUILD_TYPE=RelWithDebInfo) would show pending calls with their opIds,"
    " connections with their steps, operations and plans",
    "nccl": "a build with debug information (make src.build with -g in CXXFLAGS), or its debug file under /usr/lib/debug, would show communicators,"
    " connections, pending opIds, proxy operations with their steps, and plans",
}


def inspect(pid: int, seconds: float, gap: float) -> tuple[list[StateObject], list[Library], list[Note]]:
    """The state of a process, by two samples."""
    target = Target(pid, time.monotonic() + seconds)
    target.open()
    libraries, rooms = _load(target)
    samples: list[list[StateObject]] = []
    for again in (False, True) if rooms else ():
        if again:
            time.sleep(max(min(gap, target.until - time.monotonic() - 0.1), 0))
        target.look()
        samples.append(target.gather(*(room(target) for room in rooms)))
    state = merged(samples[0], samples[1]) if samples else []
    return state, libraries, target.notes


def _load(target: Target) -> tuple[list[Library], list[Callable[[Target], Iterator[StateObject]]]]:
    """The debug information of the libraries of interest, and of no other."""
    program = target.program
    program.set_enabled_debug_info_finders([])
    libraries: list[Library] = []
    rooms: list[Callable[[Target], Iterator[StateObject]]] = []
    main = os.readlink(f"/proc/{target.pid}/exe").removesuffix(_GONE)
    modules = [module for module, _ in program.loaded_modules()]
    files: dict[str, Map] = {}  # of what is mapped: the first mapping
    for one in target.maps:
        if one.path.startswith("/") and one.inode:
            files.setdefault(one.path, one)
    for mapped, one in files.items():
        path = mapped.removesuffix(_GONE)
        name = os.path.basename(path)
        kind = "psm" if _PSM.match(name) else "nccl" if _NCCL.match(name) and not _PLUGIN.match(name) else ""
        if not kind and path != main:
            continue
        file = f"/proc/{target.pid}/root{path}"
        if path == main:
            file = f"/proc/{target.pid}/exe"
        elif path != mapped:  # replaced by a new build: the old one is still there for who may see it
            file = f"/proc/{target.pid}/map_files/{one.begin:x}-{one.end:x}"
        seen = elf.look(file, version=kind == "nccl")
        if seen is None:
            target.note(f"{mapped} cannot be read: its debug information cannot be used", "run this as root")
            continue
        module = next((m for m in modules if any(a <= one.begin < b for a, b in m.address_ranges or ())), None)
        symbols = seen.symbols
        if module is not None and (kind or symbols == "debug"):
            if seen.debug > _DEBUG:
                target.note(f"{path} has {seen.debug >> 20} MiB of debug information: too much to load")
            else:
                module.try_file(file)
                if kind and module.wants_debug_file():
                    program.find_standard_debug_info([module])
                symbols = "table" if module.wants_debug_file() and symbols == "debug" else symbols
                symbols = "debug" if not module.wants_debug_file() else symbols
        if kind and symbols != "debug":
            target.note(f"{path} has no debug information: its state is not shown", _ADVICE[kind])
        libraries.append(Library(path, seen.version, seen.build_id, symbols))
    if target.variable("psm_alive_first") is not None:
        rooms.append(libpsm.read)
    if target.type("struct ncclComm") is not None:
        rooms.append(nccl.read)
    return libraries, rooms
