"""Looks into one live process: threads, stacks, what each waits for, and the step in which it stands."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psmkit
from psmkit.live import (
    by_state,
    debugger,
    descriptors,
    kernel,
    mapped,
    procfs,
    python,
    record,
    standing,
    state,
    tracing,
)
from psmkit.live.kernel import Task
from psmkit.logparse.foreign.places import place_of
from psmkit.logparse.foreign.stacks import parse_stacks
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, Library, Note, Standing, StateObject

__all__ = ["Options", "environment_of", "inspect", "rank_of", "ranks_of"]

#: Variables that name the rank of a process, and those that name their number; the first that is set counts.
_RANK = ("PSM_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
_RANKS = ("PSM_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")
#: Libraries whose functions and types tell where a process stands.
_TOLD = re.compile(r"lib(?:nccl|rccl|psm)\.so")
_VARIABLES = re.compile(r"^psmkit: (\d+) #(\d+) \S.*?((?: (?:rank|peer|type|job)=-?\d+)+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Options:
    """How to look. ``tool`` is one of :data:`psmkit.live.debugger.TOOLS`, None for the first that is installed, "none" for no native stacks.
    ``timeout`` are the seconds that each tool may take."""

    tool: str | None = None
    python: bool = True
    state: bool = True
    timeout: float = 60.0
    frames: int = debugger.FRAMES


def environment_of(pid: int) -> Mapping[str, str]:
    """The environment that a process was started with; empty: it is gone or not ours."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def _number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((int(text) for name in names if (text := environment.get(name, "")).isdecimal()), None)


def rank_of(pid: int) -> int | None:
    """The rank that the launcher gave a process, None if unknown."""
    return _number(environment_of(pid), _RANK)


def ranks_of(pid: int) -> int | None:
    """The number of ranks that the launcher told a process, None if unknown."""
    return _number(environment_of(pid), _RANKS)


def inspect(pid: int, options: Options = Options()) -> Inspection:
    """Look into a process. It goes on afterwards.

    Raises:
        psmkit.live.tracing.Refused: it may not be traced, or is gone; the text is one line with the remedy.
    """
    tracing.check(pid)
    taken = time.time()
    notes: list[Note] = []
    files = mapped.mapped(pid)
    rank = rank_of(pid)
    libraries = mapped.libraries(files)
    objects, of_state = _state(pid, options, notes)
    recorded = record.operations(pid)
    tasks = {task.tid: task for task in kernel.tasks(pid, descriptors.Descriptors(pid))}
    python_frames = _python(pid, files, options, notes)
    dump, seen, stopped = _native(pid, options, notes)
    stacks = {thread.tid: thread.frames for thread in dump.threads} if dump is not None else {}
    threads = tuple(
        _thread(pid, task, stacks.get(task.tid, ()), python_frames.get(task.tid, ())) for task in tasks.values()
    )
    bare = [
        library for library in libraries if library.symbols != "debug" and _TOLD.match(os.path.basename(library.path))
    ]
    if bare:
        notes.append(_symbols_note(bare))
    if not tracing.status_of(pid):
        notes.append(Note("the process ended while it was inspected"))
    return Inspection(
        pid=pid,
        host=socket.gethostname(),
        command=_command(pid),
        taken=taken,
        started=taken - procfs.age_of(pid) if procfs.age_of(pid) else None,
        rank=rank,
        nranks=ranks_of(pid),
        stopped=stopped,
        psmkit=psmkit.__version__,
        standing=(
            *_stopped(pid, tasks, rank),
            *by_state.combined(
                standing.of_stacks(threads, tasks, seen, rank, rank_of, pid), record.standings(recorded), objects
            ),
        ),
        threads=threads,
        state=(*objects, *record.objects(recorded)),
        libraries=tuple(_merged(libraries, of_state)),
        notes=tuple(notes),
    )


def _stopped(pid: int, tasks: Mapping[int, Task], rank: int | None) -> list[Standing]:
    """A process that a signal has stopped waits for nobody, whatever its stacks show."""
    if not tasks or any(task.state != "T" for task in tasks.values()):
        return []
    who = f"rank {rank}" if rank is not None else f"process {pid}"
    return [Standing("stopped", None, f"{who} is stopped by a signal: kill -CONT {pid}", "state T in /proc", rank)]


def _command(pid: int) -> tuple[str, ...]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0"))


def _state(pid: int, options: Options, notes: list[Note]) -> tuple[list[StateObject], list[Library]]:
    """The objects in the memory of the process, which drgn reads without stopping it."""
    if not options.state:
        return [], []
    try:
        objects, libraries, said = state.read(pid, deadline=options.timeout)
    except state.StateError as error:
        notes.append(Note(f"no state: {error}"))
        return [], []
    notes += said
    return objects, libraries


def _merged(libraries: list[Library], more: list[Library]) -> list[Library]:
    """Each file once; what the reader of the state says of it counts."""
    known = {library.path: library for library in libraries}
    return list((known | {library.path: library for library in more}).values())


def _python(
    pid: int, files: list[mapped.Mapped], options: Options, notes: list[Note]
) -> dict[int, tuple[InspectedFrame, ...]]:
    if not options.python or not python.is_python(files):
        return {}
    found = python.stacks(pid, options.timeout)
    if found.trouble is not None:
        notes.append(Note(f"no Python frames: {found.trouble}", found.remedy))
    return found.frames


def _native(
    pid: int, options: Options, notes: list[Note]
) -> tuple[StackDump | None, dict[tuple[int, int], standing.Seen], float | None]:
    if options.tool == "none":
        return None, {}, None
    tool = debugger.available(options.tool)
    if tool is None:
        missing, remedy = _MISSING[options.tool]
        notes.append(Note(f"no native stacks: there is no {missing} on the path", remedy))
        return None, {}, None
    taken = debugger.take(pid, tool, timeout=options.timeout, frames=options.frames, questions=standing.questions())
    dump = dump_of(taken)
    if taken.trouble is not None or dump is None:
        notes.append(_trouble(pid, taken))
    return dump, _variables(taken.text), taken.stopped


def _trouble(pid: int, taken: debugger.Taken) -> Note:
    """Why a tool gave no stacks, or not all."""
    said = [line.strip() for line in taken.text.splitlines() if line.strip()]
    denied = next((line for line in said if "not permitted" in line or "Permission denied" in line), None)
    if denied is not None:
        return Note(f"no native stacks: {taken.tool}: {denied}", tracing.remedy_of_denial())
    reason = taken.trouble or (said[-1] if said else f"{taken.tool} printed nothing")
    return Note(f"no native stacks, or not all: {reason}", f"run {taken.tool} -p {pid} to see why")


#: What is missing where the wanted tool is, and what to do.
_MISSING = {
    None: ("gdb and no eu-stack", "install gdb, or elfutils for eu-stack"),
    "gdb": ("gdb", "install gdb, or elfutils and give --stacks eu-stack"),
    "eu-stack": ("eu-stack", "install elfutils, or gdb and give --stacks gdb"),
}


def dump_of(taken: debugger.Taken) -> StackDump | None:
    """The threads in what a tool printed."""
    dumps = parse_stacks(taken.text, taken.tool)
    return max(dumps, key=lambda dump: len(dump.threads)) if dumps else None


def _variables(text: str) -> dict[tuple[int, int], standing.Seen]:
    """What gdb_frames.py printed."""
    found = {}
    for match in _VARIABLES.finditer(text):
        pairs = {key: int(number) for key, _, number in (word.partition("=") for word in match[3].split())}
        found[int(match[1]), int(match[2])] = standing.Seen(
            pairs.get("rank"), pairs.get("peer"), pairs.get("type"), pairs.get("job")
        )
    return found


def _thread(
    pid: int, task: Task, frames: Sequence[Frame], python_frames: tuple[InspectedFrame, ...]
) -> InspectedThread:
    stack = StackThread(task.name, task.tid, None, tuple(frames))
    place = place_of(stack)
    if place.kind in ("elsewhere", "unknown") and python_frames:
        # Python's frames say what the program does, native ones below them only how.
        by_python = tuple(Frame(f.function, f.where) for f in python_frames)
        place = place_of(StackThread(task.name, task.tid, None, by_python))
    what = place.text if place.frame else ""
    return InspectedThread(
        tid=task.tid,
        name=task.name,
        role="main thread" if place.role == "thread" and task.tid == pid else place.role,
        kind=place.kind,
        waits="; ".join(part for part in (what, task.does) if part),
        state=task.state,
        wchan=task.wchan,
        syscall=task.syscall,
        frames=tuple(InspectedFrame(frame.function, frame.where) for frame in frames),
        python=python_frames,
    )


def _symbols_note(libraries: Sequence[Library]) -> Note:
    names = ", ".join(os.path.basename(library.path) for library in libraries)
    bare = any(library.symbols == "none" for library in libraries)
    lost = "names of functions, arguments and the state in memory" if bare else "arguments and the state in memory"
    return Note(
        f"{names}: no debug information: {lost} are not shown",
        "install its debug package, or build it with -g, and keep the file where it was (docs/inspect.md)",
    )
