"""Group files into streams: parts of one run are read one after the other, other files side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import field

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.decode import table
from psmkit.logparse.inputs import Input, natural
from psmkit.logparse.streams import first_bytes
from psmkit.model.late import dataclass

__all__ = ["HEAD", "Arrangement", "Head", "Name", "Peek", "arrange", "arranged", "processes"]

#: How many bytes of a file tell of which processes it is.
HEAD = 1 << 18
_SIGHTINGS = 4096
_MOST_TAGS = 4096

Name = tuple[str, str, int]  # launcher tag, host, pid


@dataclass
class Arrangement:
    """``streams`` lists the files of each stream in reading order. ``homes`` are (stream, host, pid, home stream): if the lines of
    a process lie in two streams and one of them lacks its beginning, the process belongs to the other (its home)."""

    streams: list[list[int]]
    stream_of: list[int]
    homes: list[tuple[int, str, int, int]] = field(default_factory=list)


@dataclass
class Head:
    """What the first lines of an input name."""

    threads: dict[tuple[Name, int], None] = field(default_factory=dict)
    born: set[Name] = field(default_factory=set)  # those whose beginning the lines show

    @property
    def names(self) -> set[Name]:
        """Its processes."""
        return {name for name, _ in self.threads}


def arrange(inputs: Sequence[Input], catalogue: Catalogue) -> Arrangement:
    """Sort files into streams by their first lines."""
    if len(inputs) < 2:
        return Arrangement([[i] for i in range(len(inputs))], list(range(len(inputs))))
    peek = Peek(catalogue)
    return arranged(inputs, [peek.head(item) for item in inputs])


def arranged(inputs: Sequence[Input], heads: Sequence[Head]) -> Arrangement:
    """Sort files into streams by what their heads name."""
    streams = _chains(inputs, heads)
    stream_of = [0] * len(inputs)
    for number, files in enumerate(streams):
        for file in files:
            stream_of[file] = number
    return Arrangement(streams, stream_of, _homes(streams, heads))


def processes(item: Input, catalogue: Catalogue) -> Set[tuple[str, str, int]]:
    """The processes that the first lines of an input name, each by the tag of a launcher, its host and its pid."""
    return Peek(catalogue).head(item).names


class Peek:
    """Reads the first lines of inputs. They share the room for lines and for what these name."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._lines = memoryview(bytearray(HEAD))
        self._room = ffi.new("ls_sighting[]", _SIGHTINGS)
        self._begin()

    def _begin(self) -> None:
        self._scan = ffi.gc(lib.ls_scan_new(self._catalogue.native, 0), lib.ls_scan_free)
        self._texts: dict[int, str] = {}

    def head(self, item: Input) -> Head:
        """The threads in the first lines of an input."""
        head = Head()
        self.add(head, self._lines[: first_bytes(item, self._lines)])
        return head

    def add(self, head: Head, lines: bytes | memoryview) -> bool:
        """Add the threads in further lines of an input to its head; returns whether it names more than before."""
        count = lib.ls_peek(self._scan, ffi.from_buffer(lines), len(lines), self._room, _SIGHTINGS)
        before = len(head.threads), len(head.born)
        sightings = self._room[0:count]
        tags, known = table(self._scan, "ls_tags") if any(seen.tag >= 0 for seen in sightings) else ([], 0)
        for seen in sightings:
            name = (self._text(tags[seen.tag]) if seen.tag >= 0 else "", self._text(seen.host), seen.pid)
            head.threads[name, seen.tid] = None
            if seen.born:
                head.born.add(name)
        if known > _MOST_TAGS:
            self._begin()  # no input may use up the tags of the others
        return before != (len(head.threads), len(head.born))

    def _text(self, packed: int) -> str:
        text = self._texts.get(packed)
        if text is None:
            at, _ = table(self._scan, "ls_text")
            raw = bytes(ffi.buffer(at + (packed >> 20), packed & (1 << 20) - 1))
            text = self._texts[packed] = raw.decode("utf-8", "surrogateescape")
        return text


def _chains(inputs: Sequence[Input], heads: Sequence[Head]) -> list[list[int]]:
    """Files that show the same thread are parts of one run, unless each shows the thread's beginning."""
    if all(head.born or not head.threads for head in heads):
        return [[i] for i in range(len(inputs))]
    order = sorted(range(len(inputs)), key=lambda i: (natural(inputs[i].path), i))
    owner: dict[tuple[Name, int], int] = {}
    follows: dict[int, int] = {}
    beginnings = {i: None for i in order if heads[i].born}
    for i in beginnings:
        for thread in heads[i].threads:
            if thread[0] in heads[i].born:
                owner[thread] = i
    for i in order:
        if i in beginnings:
            continue
        earlier = {owner[thread] for thread in heads[i].threads if thread in owner}
        if len(earlier) == 1:
            follows[i] = earlier.pop()
        for thread in heads[i].threads:
            owner.setdefault(thread, follows.get(i, i))
    chains: dict[int, list[int]] = {i: [i] for i in range(len(inputs)) if i not in follows}
    for i in order:
        if i in follows:
            chains[_root(follows, i)].append(i)
    return list(chains.values())


def _root(follows: dict[int, int], i: int) -> int:
    while i in follows:
        i = follows[i]
    return i


def _homes(streams: Sequence[Sequence[int]], heads: Sequence[Head]) -> list[tuple[int, str, int, int]]:
    seen: dict[Name, dict[int, bool]] = defaultdict(dict)
    for stream, files in enumerate(streams):
        for file in files:
            for name in dict.fromkeys(name for name, _ in heads[file].threads):
                seen[name][stream] = seen[name].get(stream, False) or name in heads[file].born
    homes = []
    for (_, host, pid), where in seen.items():
        born = [s for s, beginning in where.items() if beginning]
        if len(where) > 1 and len(born) <= 1:
            home = born[0] if born else min(where)
            homes += [(s, host, pid, home) for s in where if s != home]
    return homes
