"""The files behind the logs of a job: where they are, what became of them, and when their lines arrived."""

from __future__ import annotations

import glob
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import field

from psmkit.logparse.arrange import HEAD, Head, Name
from psmkit.logparse.inputs import CATALOGUE, walk
from psmkit.logparse.streams import Input, Place, Spool
from psmkit.model.errors import InputError
from psmkit.model.late import dataclass

__all__ = ["START", "TAIL", "Arrivals", "Found", "Key", "Log", "Part", "Paths"]

Key = tuple[int, int]  # device and inode

#: So many of the first bytes tell files apart, and so many of the last ones show that a file goes on where it ended.
START, TAIL = 1 << 10, 64
_MOST_ARRIVALS = 256
_MAGIC = frozenset("*?[")


class Arrivals:
    """When the lines of a file arrived. Old times are thinned out: of most lines only an upper bound stays."""

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._times: list[float] = []

    def add(self, lines: int, when: float) -> None:
        """The file has so many lines now."""
        if self._lines and self._lines[-1] == lines:
            self._times[-1] = when  # the begun line grew
            return
        self._lines.append(lines)
        self._times.append(when)
        if len(self._lines) > _MOST_ARRIVALS:
            half = _MOST_ARRIVALS // 2
            self._lines[:half] = self._lines[1:half:2]
            self._times[:half] = self._times[1:half:2]

    def of(self, line: int) -> float | None:
        """When a line was there; None: no line is."""
        if not self._lines:
            return None
        return self._times[min(bisect_left(self._lines, line), len(self._times) - 1)]

    def __len__(self) -> int:
        return len(self._times)

    @property
    def last(self) -> float | None:
        """When the last bytes arrived."""
        return self._times[-1] if self._times else None


@dataclass(eq=False, slots=True)
class Part:
    """A file. A log that is rotated or truncated has several, one after the other.

    ``offset`` bytes of it are scanned, of ``seen`` that it has; ``start`` and ``tail`` are the first and the last of them. ``number`` is its number in the
    scan, -1: it has none yet. ``lost``: its bytes are gone; ``gone``: it is at no path that is followed. ``until`` is when it ceased to be the file behind its
    path. ``before`` are the processes of the log when a part began that continues it, ``names`` its own first ones, until some are known.
    """

    path: str
    key: Key
    offset: int = 0
    seen: int = 0
    fd: int = -1
    number: int = -1
    start: bytes = b""
    tail: bytes = b""
    lost: bool = False
    gone: bool = False
    until: float | None = None
    modified: float = 0.0
    before: frozenset[Name] = frozenset()
    names: Head | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)

    def place(self, nothing: Spool) -> Place:
        """Where its scanned bytes are."""
        if self.lost:
            return Place(nothing, 0, 0)
        return Place(f"/proc/self/fd/{self.fd}" if self.fd >= 0 else self.path, 0, self.offset)


@dataclass(eq=False, slots=True)
class Log:
    """What was written to a path, and its ``parts``. ``kind`` is as in :class:`Input`, empty as long as it is not known.

    ``head`` has the processes of its first lines, of which ``heading`` bytes were read; ``begun`` is the line at their end. ``looked`` is the size at which
    its kind was found, ``peeked`` the size and the time of a log whose head is read anew when it changes. ``refused`` says why it is not followed.
    """

    path: str
    parts: list[Part]
    order: int = 0
    kind: str = ""
    encoding: str | None = None
    foreign: str | None = None
    refused: str = ""
    looked: int = -1
    head: Head = field(default_factory=Head)
    heading: int = 0
    begun: bytes = b""
    peeked: tuple[int, float] = (-1, 0.0)

    @property
    def last(self) -> Part:
        """The file that grows."""
        return self.parts[-1]

    @property
    def plain(self) -> bool:
        """Whether its bytes are scanned as they come."""
        return self.kind == "log" and self.encoding is None and self.foreign is None and not self.refused

    @property
    def readable(self) -> bool:
        """Whether it is an input of the scan."""
        return bool(self.kind) and self.foreign is None and not self.refused

    @property
    def headed(self) -> bool:
        """Whether all of its head is known."""
        return self.heading >= HEAD

    def forget_head(self) -> None:
        """Its first lines are other ones now."""
        self.head, self.heading, self.begun, self.peeked = Head(), 0, b"", (-1, 0.0)

    def input(self, part: Part, nothing: Spool, name: str) -> Input:
        """A part as an input of the scan."""
        return Input(
            name, self.kind, part.offset, self.foreign, self.encoding, part.place(nothing), hash(part.start), part.key
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is there now."""

    path: str
    key: Key
    size: int
    modified: float


class Paths:
    """The files behind the paths that a user names: files, globs and folders. They need not exist yet."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self.catalogues: dict[str, None] = {}
        #: Paths behind which nothing is.
        self.waiting: list[str] = []
        self._looked: set[str] = set()

    def look(self) -> Iterator[Found]:
        """The files that are there now, in the order in which `psmkit analyze` reads them.

        Raises:
            InputError: a path is nothing that can be followed.
        """
        self.waiting = []
        self._looked.clear()
        for path in self.paths:
            found = False
            for one in self._behind(path):
                found = True
                yield one
            if not found:
                self.waiting.append(path)

    def _behind(self, path: str) -> Iterator[Found]:
        if os.path.isdir(path):
            yield from self._folder(path)
        elif _MAGIC.isdisjoint(path) or os.path.exists(path):
            yield from self._file(path, named=True)
        else:
            for name in sorted(glob.glob(path, recursive=True)):
                if not os.path.isdir(name):
                    yield from self._file(name, named=False)
                elif "**" not in path:
                    yield from self._folder(name)

    def _folder(self, folder: str) -> Iterator[Found]:
        for entry in walk(folder):
            if entry.name == CATALOGUE:
                self.catalogues[entry.path] = None
                continue
            try:
                found = entry.stat()
            except OSError:
                continue
            yield Found(entry.path, (found.st_dev, found.st_ino), found.st_size, found.st_mtime)

    def _file(self, path: str, *, named: bool) -> Iterator[Found]:
        try:
            found = os.stat(path)
        except OSError:
            return
        if not stat.S_ISREG(found.st_mode):
            if named:
                raise InputError(path, "it is no file that grows, but a pipe or a device: `psmkit analyze` reads it")
            return
        folder = os.path.dirname(path)
        if folder not in self._looked:
            self._looked.add(folder)
            if os.path.isfile(beside := os.path.join(folder, CATALOGUE)):
                self.catalogues[beside] = None
        if os.path.basename(path) != CATALOGUE:
            yield Found(path, (found.st_dev, found.st_ino), found.st_size, found.st_mtime)
