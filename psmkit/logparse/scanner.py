"""Feed inputs to the native scanner, stream by stream and in order."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import resource
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue, load
from psmkit.logparse.ahead import MOST_JOBS, Ended, Piece, Round, Step, Turn, available, in_threads
from psmkit.logparse.arrange import Arrangement, arrange, processes
from psmkit.logparse.copies import without_copies
from psmkit.logparse.inputs import ForeignInput, Input, Reader, discover
from psmkit.logparse.merged import without_merged
from psmkit.logparse.result import ScanResult, collect
from psmkit.logparse.streams import whole
from psmkit.model import arrays
from psmkit.model.errors import CatalogueError
from psmkit.model.late import dataclass

__all__ = ["Feed", "Paths", "Sources", "catalogue_of", "open_files", "read", "scan"]

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]
Progress = Callable[[int, int], None]

_EMIT_ALL, _KEEP_CALLS = 1, 2
_SPARE = 128  # descriptors for all but the logs
_PIECE = 1 << 18  # bytes per read: small enough to be in the processor's cache when they are scanned
_LEAST_SHARED = 4 << 20  # bytes of inputs for which threads are worth their start


def catalogue_of(given: Catalogue | Sequence[Path] | None, beside: Sequence[str], notes: list[str]) -> Catalogue:
    """psmkit's catalogue, extended by a user's files and by those beside the logs, or replaced by a user's catalogue."""
    if isinstance(given, Catalogue):
        return given
    named = list(given or ())
    texts: set[bytes] = set()
    for name in named:
        with contextlib.suppress(OSError):  # load reports it
            texts.add(pathlib.Path(name).read_bytes())
    found = []
    for file in beside:
        try:
            text = pathlib.Path(file).read_bytes()
        except OSError as error:
            notes.append(f"{file}: {(error.strerror or str(error)).lower()}")
            continue
        if text not in texts:  # each folder of logs may have a copy
            texts.add(text)
            found.append(file)
    catalogue = load(named)
    for file in found:
        try:
            catalogue = load([*named, file])
        except CatalogueError as error:  # the user did not name this file
            notes.append(f"the messages of a file beside the logs are not used: {error}")
        else:
            named.append(file)
            notes.append(f"{file} was found beside the logs: its messages are known, too")
    return catalogue


@dataclass
class Sources:
    """What the paths of a scan hold, each log once, with the catalogue for it."""

    logs: list[Input]
    foreign: list[ForeignInput]
    catalogue: Catalogue
    notes: list[str]

    @classmethod
    def find(cls, paths: Paths, given: Catalogue | Sequence[Path] | None) -> Sources:
        """Look at ``paths``."""
        notes: list[str] = []
        beside: list[str] = []
        found = discover([paths] if isinstance(paths, str | os.PathLike) else paths, notes, beside)
        catalogue = catalogue_of(given, beside, notes)
        found = without_copies(found, lambda item: item.kind == "record" or bool(processes(item, catalogue)), notes)
        found = without_merged(found, lambda item: processes(item, catalogue), notes)
        logs = [i for i in found if i.foreign is None]
        arrays.prepare(sum(i.size for i in logs))
        foreign = [ForeignInput(i.path, i.foreign, i) for i in found if i.foreign is not None]
        return cls(logs, foreign, catalogue, notes)


@dataclass
class Feed:
    """A scan in progress: the sorted inputs, the native scan, and the read positions."""

    catalogue: Catalogue
    inputs: list[Input]
    foreign: list[ForeignInput]
    arrangement: Arrangement
    native: Any
    notes: list[str] = field(default_factory=list)
    #: Of the native scan.
    mode: int = 0
    #: Bytes to read of each input at most; None: all.
    left: list[int] | None = None
    #: Called after each turn of a stream with the number of the round and of the stream.
    turned: Callable[[int, int], None] | None = None

    @classmethod
    def start(cls, paths: Paths, given: Catalogue | Sequence[Path] | None, mode: int) -> Feed:
        """Find the inputs of ``paths`` and prepare to read them."""
        sources = Sources.find(paths, given)
        return cls.of(sources.logs, sources.foreign, sources.catalogue, mode, sources.notes)

    @classmethod
    def of(
        cls,
        logs: list[Input],
        foreign: list[ForeignInput],
        catalogue: Catalogue,
        mode: int,
        notes: list[str],
        arrangement: Arrangement | None = None,
    ) -> Feed:
        """Prepare to read these logs, which are arranged by their first lines unless that is given."""
        native = ffi.gc(lib.ls_scan_new(catalogue.native, mode), lib.ls_scan_free)
        if arrangement is None:
            arrangement = arrange(logs, catalogue)
        for _ in arrangement.streams:
            lib.ls_scan_stream(native)
        for number in range(len(logs)):
            file = lib.ls_scan_file(native, arrangement.stream_of[number])
            if logs[number].kind == "record":
                lib.ls_scan_record(native, file)
        for stream, host, pid, home in arrangement.homes:
            name = host.encode("utf-8", "surrogateescape")
            lib.ls_scan_home(native, stream, name, len(name), pid, home)
        return cls(catalogue, logs, foreign, arrangement, native, notes, mode)

    def run(self, chunk: int, progress: Progress | None, jobs: int | None = 1) -> Iterator[None]:
        """Read all inputs, one chunk of each stream in turn so that the ranks advance together. Yields after each chunk.

        ``jobs`` is how many threads work at most, None: one a core. The result does not depend on it.
        """
        jobs = min(available() if jobs is None else jobs, MOST_JOBS)
        total = sum(i.size for i in self.inputs)
        source = functools.partial(self._steps, chunk)
        if jobs > 1 and total >= _LEAST_SHARED:
            native = self.catalogue.native
            steps = in_threads(source, native, self.mode, self.arrangement.stream_of, max(chunk, _PIECE), jobs)
        else:
            piece = Piece(memoryview(bytearray(max(chunk, _PIECE))))
            steps = source(lambda: piece)
        with contextlib.closing(steps):
            for step in steps:
                if isinstance(step, Piece):
                    if step.ahead is None:
                        lib.ls_feed(self.native, step.file, ffi.from_buffer(step.room), step.size)
                    else:
                        lib.ls_feed_ahead(self.native, step.file, step.ahead)
                elif isinstance(step, Ended):
                    lib.ls_end_file(self.native, step.file)
                    if step.note is not None:
                        self.notes.append(step.note)
                elif isinstance(step, Turn):
                    if self.turned is not None:
                        self.turned(step.round, step.stream)
                    yield
                else:
                    lib.ls_end_round(self.native)
                    if progress is not None:
                        progress(step.done, total)
        lib.ls_finish(self.native)

    def _steps(self, chunk: int, take: Callable[[], Piece]) -> Generator[Step]:
        """What the scan gets, in order. ``take`` gives the piece for the next read; it is free when the next step is asked for."""
        done = 0
        queues = [deque(files) for files in self.arrangement.streams if files]
        readers: dict[int, Reader] = {}
        room, turn = open_files(len(queues)), 0
        held = 0  # of files that have to stay open: a log can be closed and continued later, a compressed file cannot
        spare: Piece | None = None
        try:
            while queues:
                for queue in queues:
                    file = queue[0]
                    reader = readers.get(file)
                    if reader is None and self.inputs[file].size < min(chunk, _PIECE):
                        spare = spare or take()
                        if (size := whole(self.inputs[file], spare.room[: min(chunk, _PIECE)])) is not None:
                            spare.file, spare.size = file, size
                            yield spare
                            spare = None
                            yield Ended(file)
                            done += size
                            queue.popleft()
                            yield Turn(turn, self.arrangement.stream_of[file])
                            continue
                    if reader is None:
                        if held >= room:
                            continue  # until another stream ends
                        reader = readers[file] = Reader(self.inputs[file])
                        held += not reader.can_park
                    before, fed = reader.consumed, 0
                    most = chunk if self.left is None else min(chunk, self.left[file])
                    while fed < most:
                        piece = spare or take()
                        spare = None
                        wanted = min(_PIECE if self.inputs[file].kind == "log" else chunk, most - fed)
                        piece.file, piece.size = file, reader.readinto(piece.room[:wanted])
                        fed += piece.size
                        ended = piece.size < wanted
                        yield piece
                        if ended:
                            break
                    if self.left is not None:
                        self.left[file] -= fed
                    done += reader.consumed - before
                    if not fed:
                        held -= not reader.can_park
                        readers.pop(file)
                        yield Ended(file, reader.note)
                        reader.close()
                        queue.popleft()
                    elif len(queues) > room and reader.can_park:
                        reader.park()
                    yield Turn(turn, self.arrangement.stream_of[file])
                queues, turn = [queue for queue in queues if queue], turn + 1
                yield Round(done)
        finally:
            for open_reader in readers.values():
                open_reader.close()


def open_files(streams: int) -> int:
    """How many streams may be open at once. Raises the limit of open files if that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    # Others may hold files in this process, too.
    return streams if soft == resource.RLIM_INFINITY else max(soft - _SPARE, 1)


def scan(
    paths: Paths,
    *,
    catalogue: Catalogue | Sequence[Path] | None = None,
    keep_calls: bool = False,
    progress: Progress | None = None,
    chunk: int = 1 << 20,
    jobs: int | None = None,
) -> ScanResult:
    """Read logs once.

    Args:
        paths: a file, glob, folder or ``-`` for standard input, or a sequence of them.
        catalogue: TOML files with additional messages, or a :class:`~psmkit.catalogue.Catalogue` to use instead of psmkit's.
            Without the latter, a ``psmkit.toml`` beside the logs is read, too.
        keep_calls: keep all proxy calls and fd exchanges, not only incomplete ones.
        progress: called from time to time with the bytes read so far and the total.
        chunk: bytes to read from a stream before the next stream's turn.
        jobs: how many threads work at most; None: one a core. The result does not depend on it.

    Raises:
        InputError: a path does not exist or cannot be read.
        CatalogueError: a TOML file is invalid.
    """
    sources = Sources.find(paths, catalogue)
    return read(sources, keep_calls=keep_calls, progress=progress, chunk=chunk, jobs=jobs)


def read(
    sources: Sources,
    *,
    keep_calls: bool = False,
    progress: Progress | None = None,
    chunk: int = 1 << 20,
    jobs: int | None = 1,
) -> ScanResult:
    """Read what was found; arguments and result are those of :func:`scan`."""
    mode = _KEEP_CALLS if keep_calls else 0
    feed = Feed.of(sources.logs, sources.foreign, sources.catalogue, mode, sources.notes)
    for _ in feed.run(chunk, progress, jobs):
        pass
    return collect(feed.native, feed.catalogue, feed.inputs, feed.arrangement.stream_of, feed.foreign, feed.notes)
