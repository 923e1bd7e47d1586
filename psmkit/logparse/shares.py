"""How the streams of a job are shared out: what belongs together stays together, and shares are about equally large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

from psmkit.logparse.arrange import Arrangement, Head
from psmkit.logparse.parts import Share
from psmkit.logparse.streams import Input

__all__ = ["by_host", "shares", "units"]


def units(arrangement: Arrangement, together: Iterable[Set[int]] = ()) -> list[list[int]]:
    """The streams in groups that only one scan may read: a process lies in several of them, or they are in one set of ``together``."""
    above = list(range(len(arrangement.streams)))

    def root(stream: int) -> int:
        while above[stream] != stream:
            above[stream] = above[above[stream]]
            stream = above[stream]
        return stream

    pairs = [{stream, home} for stream, _, _, home in arrangement.homes]
    for group in [*pairs, *together]:
        first = root(min(group))
        for stream in group:
            above[root(stream)] = first
    out: dict[int, list[int]] = defaultdict(list)
    for stream in range(len(arrangement.streams)):
        out[root(stream)].append(stream)
    return list(out.values())


def by_host(arrangement: Arrangement, heads: Sequence[Head]) -> list[set[int]]:
    """The streams whose heads name the same host: its processes may have answered each other's calls."""
    on: dict[str, set[int]] = defaultdict(set)
    for stream, files in enumerate(arrangement.streams):
        for file in files:
            for _, host, _ in heads[file].names:
                on[host].add(stream)
    return [streams for streams in on.values() if len(streams) > 1]


def shares(
    inputs: Sequence[Input], arrangement: Arrangement, groups: Sequence[Sequence[int]], most: int
) -> list[Share]:
    """At most ``most`` shares of whole groups of streams. Neighbours stay together as far as their sizes allow: they are on one host."""

    def size(group: Sequence[int]) -> int:
        return sum(inputs[file].size for stream in group for file in arrangement.streams[stream])

    sizes = [size(group) for group in groups]
    wanted = sum(sizes) / max(most, 1)
    taken: list[list[int]] = [[]]
    held = 0
    for group, n in zip(groups, sizes, strict=True):
        if taken[-1] and held + n / 2 > wanted and len(taken) < most:
            taken.append([])
            held = 0
        taken[-1] += group
        held += n
    return [_share(inputs, arrangement, sorted(streams)) for streams in taken if streams]


def _share(inputs: Sequence[Input], arrangement: Arrangement, streams: Sequence[int]) -> Share:
    files = [arrangement.streams[stream] for stream in streams]
    own = set(streams)
    homes = [home for home in arrangement.homes if home[0] in own]
    return Share(streams, files, {file: inputs[file] for of in files for file in of}, homes)
