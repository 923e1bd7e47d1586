"""What two runs were given and what they chose: settings, versions, topology, networks, rank by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.model.difference import SettingDifference

__all__ = ["settings"]

# Facts to compare: kind, message, field that names it (None: the message does), fields that hold its value.
_FACTS: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("setting", "param.env", "name", ("value",)),
    ("version", "init.version", None, ("version",)),
    ("version", "init.git_version", None, ("version",)),
    ("version", "init.cuda_driver", None, ("driver",)),
    ("version", "plugin.loaded", "kind", ("name", "version")),
    ("network", "net.using", None, ("net", "name", "network", "value")),
    ("topology", "comm.shape", None, ("nranks", "nodes", "local_ranks", "mnnvl")),
    ("topology", "graph.pattern", "pattern", ("channels", "bw_intra", "bw_inter", "type_intra", "type_inter")),
    ("topology", "init.channels", None, ("coll", "collnet", "nvls", "p2p", "p2p_peer")),
    ("topology", "init.p2p_chunk", None, ("chunk",)),
    ("topology", "transport.p2p.type", None, ("direct", "direct_mode", "cuda")),
)


def _facts(job: Job, ranks: Mapping[int, int]) -> dict[tuple[str, str], dict[int, str]]:
    procs = {proc: rank for rank, proc in ranks.items()}
    out: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for kind, message, naming, fields in _FACTS:
        for event in job.events(message):
            rank = procs.get(event.proc)
            if rank is None:
                continue
            name = str(event.fields.get(naming, message)) if naming is not None else message
            if kind != "setting" and naming is not None:
                name = f"{message} {name}"
            value = " ".join(
                f"{f}={event.fields[f]}" if len(fields) > 1 else str(event.fields[f])
                for f in fields
                if f in event.fields
            )
            out[(kind, name)].setdefault(rank, value.rstrip("."))
    return out


def settings(good: Job, ours: Mapping[int, int], bad: Job, theirs: Mapping[int, int]) -> list[SettingDifference]:
    """What differs on ranks of both jobs; ``ours`` and ``theirs`` have the process of each rank."""
    one, other = _facts(good, ours), _facts(bad, theirs)
    both = sorted(set(ours) & set(theirs))
    out = []
    for kind, name in sorted(set(one) | set(other)):
        a, b = one.get((kind, name), {}), other.get((kind, name), {})
        by_values: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for rank in both:
            if a.get(rank) != b.get(rank):
                by_values[(a.get(rank), b.get(rank))].append(rank)
        for (left, right), ranks in by_values.items():
            out.append(SettingDifference(kind, name, left, right, tuple(ranks)))
    return out + _hosts(good, ours, bad, theirs, both) + _transports(good, ours, bad, theirs, both)


def _hosts(
    good: Job, ours: Mapping[int, int], bad: Job, theirs: Mapping[int, int], both: Sequence[int]
) -> list[SettingDifference]:
    """Ranks that share their host with others than before. The names of hosts differ between equal runs."""
    sides = []
    for job, procs in ((good, ours), (bad, theirs)):
        on: dict[str, list[int]] = defaultdict(list)
        names = {rank: job.process(procs[rank]).host or "" for rank in both}
        if not all(names.values()):  # a log without its hosts does not say where its ranks were
            return []
        for rank in both:
            on[names[rank]].append(rank)
        sides.append({rank: tuple(on[names[rank]]) for rank in both})
    by_values: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for rank in both:
        if sides[0][rank] != sides[1][rank]:
            by_values[sides[0][rank], sides[1][rank]].append(rank)
    return [
        SettingDifference("topology", "ranks on one host", _ranges(left), _ranges(right), tuple(ranks))
        for (left, right), ranks in by_values.items()
    ]


def _transports(
    good: Job, ours: Mapping[int, int], bad: Job, theirs: Mapping[int, int], both: Sequence[int]
) -> list[SettingDifference]:
    """Ranks whose channels to the same peer go over another transport."""
    one, other = _channels(good, ours), _channels(bad, theirs)
    by_values: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (rank, peer), left in one.items():
        right = other.get((rank, peer))
        if right is not None and right != left and rank in both:
            by_values[" ".join(sorted(left)), " ".join(sorted(right))].add(rank)
    return [
        SettingDifference("topology", "transport of channels", left, right, tuple(sorted(ranks)))
        for (left, right), ranks in sorted(by_values.items())
    ]


# Lines about a channel to a peer: its rank, the transport, and what to call that. Both ends print a line about a network; the sender's counts.
_CHANNELS = (("transport.channel", "dst", "via", ""), ("net.channel.send", "to_rank", "net", "NET/"))


def _channels(job: Job, ranks: Mapping[int, int]) -> dict[tuple[int, int], set[str]]:
    """The transports from a rank to each peer, which the line numbers in its communicator."""
    procs = {proc: rank for rank, proc in ranks.items()}
    out: dict[tuple[int, int], set[str]] = defaultdict(set)
    for message, to, how, begins in _CHANNELS:
        for event in job.events(message):
            rank, peer, via = procs.get(event.proc), event.fields.get(to), event.fields.get(how)
            if rank is not None and isinstance(peer, int) and via:
                out[rank, peer].add(begins + str(via).partition(" comm ")[0].strip())
    return out


def _ranges(ranks: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
