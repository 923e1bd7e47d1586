"""The native stack that a dying process prints: the first frame outside the C library, and the outermost call that has a known name."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import pid_of_tag, process_of_tags
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = ["Stack", "printed"]

# Functions of the C and C++ libraries that raise and handle a signal.
_C_LIBRARY = (
    "sigaction",
    "killpg",
    "gsignal",
    "raise",
    "abort",
    "funlockfile",
    "pthread_",
    "restore_rt",
    "__GI_",
    "__libc_",
    "_int_free",
    "_int_malloc",
    "malloc_",
    "__nss_database_lookup",  # the exported name next to memcpy() and memset()
)
_C_LIBRARIES = ("libc.", "libc-", "libpthread.", "libpthread-", "libstdc++.")
# What signal handlers and glog print of themselves, and of what they cannot name.
_HANDLERS = ("(unknown)", "FailureSignalHandler", "WriteFailureInfo", "google::LogMessage")
# The library with the signal handler of UCX; functions of it that handle a signal, and the frames without a name below them.
_UCX = "libucs.so"
_UCX_HANDLER = ("ucs_handle_error", "ucs_debug_", "ucs_fatal_error", "ucs_error_signal", "ucs_log_")
# Calls of NCCL, MPI and of what is below them begin so; a capital follows, or the underscore ends the prefix.
_ENTRIES = ("nccl", "pnccl", "MPI_", "PMPI_", "cuda", "ibv_", "ucp_", "fi_", "horovod_")
_LIBRARIES = dict.fromkeys(_ENTRIES, "a library") | {
    "nccl": "NCCL",
    "pnccl": "NCCL",
    "MPI_": "MPI",
    "PMPI_": "MPI",
    "cuda": "CUDA",
    "ucp_": "UCX",
    "fi_": "libfabric",
    "horovod_": "Horovod",
}
#: Where a thread begins.
_THREADS = ("start_thread", "clone")
_ABSL = ("sys.absl.frame", "sys.absl.pc")  # the second is the top of a stack
_FRAMES = ("sys.ompi.frame", "sys.ucx.frame", *_ABSL)
_MOST_FRAMES = 4000
# Frames of one stack have at most so many lines of other processes between them.
_GAP = 200
# A stack that stands above the line with the signal ends at most so many lines above it.
_ABOVE = 3


@dataclass(frozen=True, slots=True)
class Stack:
    """A printed stack. ``first`` is its first frame outside the C library, ``entry`` the outermost call with a known name.

    ``whole`` is False if the log does not show its top, ``torn`` is True if it lacks a frame above the first one. ``nearest`` is True if the names
    are those of the nearest exported functions. ``refs`` are their lines.
    """

    first: str
    entry: str | None
    whole: bool
    torn: bool
    refs: tuple[Ref, ...]
    nearest: bool = False

    @property
    def told(self) -> str:
        """What a headline adds behind the manner of the death."""
        if not self.whole:
            return f", and its stack passes through {self.first}" + (f" and {self.entry}" if self.entry else "")
        return f" in {self.first}" + (f", called from {self.entry}" if self.entry else "")

    @property
    def explained(self) -> str:
        """What the stack shows, in a sentence."""
        if self.nearest:
            return "A thread of the library begins in this stack at a function that only programs call: its names are those of the nearest exported functions."
        if self.torn:
            return f"A frame above {self.first} is not in the log, or its line is torn."
        if not self.whole:
            return f"The log does not show the top of the stack. The first frame in it outside the C library is in {self.first}."
        return f"The first frame outside the C library is in {self.first}."


def printed(job: Job, death: Death) -> Stack | None:
    """The stack of a process that died, None if no line shows one."""
    start = min((e.ref.seq for e in death.events if e.name.startswith("sys.")), default=None)
    if start is None:
        library = death.where if death.where and death.where.endswith((".so", ".so.2")) else None
        return Stack(library, None, True, False, ()) if library is not None else None
    stream, stacks = death.events[0].stream, _stacks(job)
    every = stacks.get((stream, "all", 0))
    if every is None or start - every[-1].ref.seq > _ABOVE:
        return None  # most of thousands: the frames of the last ones are not kept
    for frames in _candidates(stacks, stream, death.pid, start):
        found = _read(frames)
        if found is not None:
            return found
    return None


def _candidates(
    stacks: dict[tuple[int, str, int], list[Event]], stream: int, pid: int | None, start: int
) -> Iterator[Sequence[Event]]:
    """Frames that may be of a process: those below its signal, its own ones first, and a stack just above it."""
    nobody = stacks.get((stream, "no pid", 0), [])
    for place in ((stream, "all", 0),) if pid is None else ((stream, "pid", pid), (stream, "no pid", 0)):
        known = stacks.get(place, [])
        yield list(_one(map(known.__getitem__, range(_after(known, start), len(known)))))
    above = list(_one(map(nobody.__getitem__, range(_after(nobody, start) - 1, -1, -1))))
    if above and start - above[0].ref.seq <= _ABOVE:
        yield above[::-1]


_seq = attrgetter("ref.seq")


def _after(frames: Sequence[Event], seq: int) -> int:
    return bisect.bisect_left(frames, seq, key=_seq)


def _one(frames: Iterable[Event]) -> Iterator[Event]:
    """The frames of one stack: up to where their numbers begin again."""
    before: Event | None = None
    step = 0
    for frame in frames:
        if before is not None:
            numbers = before.fields.get("n"), frame.fields.get("n")
            far = abs(frame.ref.seq - before.ref.seq) > _GAP
            if (
                far
                or (frame.name != before.name and not {frame.name, before.name} <= {*_ABSL})
                or (frame.tag, frame.fields.get("pid")) != (before.tag, before.fields.get("pid"))
            ):
                return
            if isinstance(numbers[0], int) and isinstance(numbers[1], int):
                here = 1 if numbers[1] > numbers[0] else -1
                if step and here != step:
                    return
                step = here
        before = frame
        yield frame


def _read(frames: Sequence[Event]) -> Stack | None:
    first: Event | None = None
    entry: Event | None = None
    handler = False
    for frame in frames:
        if first is None:
            handler, own = _of_handler(frame, handler)
            if own:
                continue
            first = frame
        if _is_entry(str(frame.fields.get("fn", ""))):
            entry = frame
    if first is None:
        return None
    if (library := _nearest(frames)) is not None and _is_entry(str(first.fields.get("fn", ""))):
        return Stack(library, None, True, False, (first.ref,), nearest=True)
    named = entry if entry is not None and _function(entry) != _function(first) else None
    top = frames[0].fields.get("n", 0)
    at, number = frames.index(first), first.fields.get("n")
    torn = isinstance(top, int) and isinstance(number, int) and abs(number - top) > at
    refs = (first.ref, named.ref) if named is not None else (first.ref,)
    return Stack(
        _place(first), _function(named) if named is not None else None, (top == 0 or handler) and not torn, torn, refs
    )


def _nearest(frames: Sequence[Event]) -> str | None:
    """The library that lacks the names of its own functions: a thread begins in one that programs call."""
    names = [str(frame.fields.get("fn", "")) for frame in frames]
    for name, below in itertools.pairwise(names):
        if below.startswith(_THREADS) and _is_entry(name):
            return next(library for prefix, library in _LIBRARIES.items() if name.startswith(prefix))
    return None


def _of_handler(frame: Event, before: bool) -> tuple[bool, bool]:
    """Whether the handler of UCX is above or at this frame, and whether the frame is of a handler or of the C library."""
    library, function = _library(frame), str(frame.fields.get("fn", "")).strip()
    if library.startswith(_UCX):
        handler = function.startswith(_UCX_HANDLER)
        return handler or before, handler or (before and not function)
    if library:
        return before, library.startswith(_C_LIBRARIES)
    return before, not function or any(name in function for name in (*_C_LIBRARY, *_HANDLERS))


def _is_entry(function: str) -> bool:
    return any(
        function.startswith(prefix) and (prefix.endswith("_") or function[len(prefix) :][:1].isupper())
        for prefix in _ENTRIES
    )


def _library(frame: Event) -> str:
    return str(frame.fields.get("library", "")).rpartition("/")[2]


def _function(frame: Event) -> str:
    function = str(frame.fields.get("fn", "")).strip()
    return f"{function.removesuffix('()')}()" if function else ""


def _place(frame: Event) -> str:
    function, library = _function(frame), _library(frame)
    return f"{function} of {library}" if function and library else function or library


def _own_tags(job: Job) -> dict[Ref, int | None]:
    """The process of a frame behind two tags: the tag of a scan is the first one."""
    frames = [e.ref for e in job.events(*_ABSL) if e.tag is not None][:_MOST_FRAMES]
    lines.prefetch(job, frames)
    return {ref: process_of_tags("".join(e.text for e in job.quotes.of(ref)))[0] for ref in frames}


@once
def _stacks(job: Job) -> dict[tuple[int, str, int], list[Event]]:
    """The frames of printed stacks of each stream, of each process id in it, and those that name no process."""
    out: dict[tuple[int, str, int], list[Event]] = defaultdict(list)
    own_tags = _own_tags(job)
    for event in sorted(job.events(*_FRAMES), key=lambda e: (e.stream, e.ref.seq)):
        pid = event.fields.get("pid", own_tags.get(event.ref, pid_of_tag(event.tag)))
        own = (event.stream, "pid", pid) if isinstance(pid, int) else (event.stream, "no pid", 0)
        for place in ((event.stream, "all", 0), own):
            out[place].append(event)
    return dict(out)
