"""Group files into streams: parts of one run are read one after the other, other files side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.decode import table
from psmkit.logparse.inputs import Input, Reader, natural

__all__ = ["Arrangement", "arrange", "processes"]

_HEAD = 1 << 18
_SIGHTINGS = 4096

Name = tuple[str, str, int]  # launcher tag, host, pid


@dataclass
class Arrangement:
    """``streams`` lists the files of each stream in reading order. ``homes`` are (stream, host, pid, home stream): if the lines of
    a process lie in two streams and one of them lacks its beginning, the process belongs to the other (its home)."""

    streams: list[list[int]]
    stream_of: list[int]
    homes: list[tuple[int, str, int, int]] = field(default_factory=list)


@dataclass
class _Head:
    threads: set[tuple[Name, int]] = field(default_factory=set)
    births: dict[Name, int] = field(default_factory=lambda: defaultdict(int))


def arrange(inputs: Sequence[Input], catalogue: Catalogue) -> Arrangement:
    """Sort files into streams by their first lines."""
    if len(inputs) < 2:
        return Arrangement([[i] for i in range(len(inputs))], list(range(len(inputs))))
    room = ffi.new("ls_sighting[]", _SIGHTINGS)
    heads = [_head(item, catalogue, room) for item in inputs]
    streams = _chains(inputs, heads)
    stream_of = [0] * len(inputs)
    for number, files in enumerate(streams):
        for file in files:
            stream_of[file] = number
    return Arrangement(streams, stream_of, _homes(streams, heads))


def processes(item: Input, catalogue: Catalogue) -> Set[tuple[str, str, int]]:
    """The processes that the first lines of an input name, each by the tag of a launcher, its host and its pid."""
    return {name for name, _ in _head(item, catalogue, ffi.new("ls_sighting[]", _SIGHTINGS)).threads}


def _head(item: Input, catalogue: Catalogue, found: Any) -> _Head:
    """The threads in the first lines of an input. ``found`` is room for :data:`_SIGHTINGS`, which all inputs share."""
    reader = Reader(item)
    data = b""
    while len(data) < _HEAD and (more := reader.read(_HEAD - len(data))):
        data += more
    reader.close()
    scan = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)
    count = lib.ls_peek(scan, data, len(data), found, _SIGHTINGS)
    at, size = table(scan, "ls_text")
    texts = bytes(ffi.buffer(at, size)) if size else b""
    tags, _ = table(scan, "ls_tags")
    head = _Head()
    for i in range(count):
        seen = found[i]
        name = (_text(texts, tags[seen.tag]) if seen.tag >= 0 else "", _text(texts, seen.host), seen.pid)
        head.threads.add((name, seen.tid))
        head.births[name] += seen.births
    return head


def _text(texts: bytes, packed: int) -> str:
    start = packed >> 20
    return texts[start : start + (packed & (1 << 20) - 1)].decode("utf-8", "surrogateescape")


def _chains(inputs: Sequence[Input], heads: Sequence[_Head]) -> list[list[int]]:
    """Files that show the same thread are parts of one run, unless each shows the thread's beginning."""
    order = sorted(range(len(inputs)), key=lambda i: (natural(inputs[i].path), i))
    owner: dict[tuple[Name, int], int] = {}
    follows: dict[int, int] = {}
    beginnings = {i: None for i in order if any(heads[i].births.values())}
    for i in beginnings:
        for thread in heads[i].threads:
            if heads[i].births[thread[0]]:
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


def _homes(streams: Sequence[Sequence[int]], heads: Sequence[_Head]) -> list[tuple[int, str, int, int]]:
    seen: dict[Name, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for stream, files in enumerate(streams):
        for file in files:
            for name, births in heads[file].births.items():
                seen[name][stream] += births
    homes = []
    for (_, host, pid), where in seen.items():
        born = [s for s, births in where.items() if births]
        if len(where) > 1 and len(born) <= 1:
            home = born[0] if born else min(where)
            homes += [(s, host, pid, home) for s in where if s != home]
    return homes
