"""Names of processes, ranks and communicators for readers."""

from __future__ import annotations

from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event
from psmkit.model import Named
from psmkit.model.late import regex

__all__ = [
    "comm_name",
    "differing",
    "joined",
    "name_of",
    "name_of_rank",
    "name_of_thread",
    "named_text",
    "names_of",
    "ranks_text",
    "short",
    "spans_of",
    "spans_text",
    "words",
]


def name_of(job: Job, proc: int) -> str:
    """``rank 3 (host:pid)``, or ``host:pid`` if the rank is unknown."""
    if not 0 <= proc < len(job.scan.processes):
        return "an unknown process"
    process, rank = job.scan.processes[proc], job.rank_of(proc)
    return process.name if rank is None else f"rank {rank} ({process.name})"


def name_of_thread(job: Job, event: Event) -> str:
    """The name of the process that printed a line; ``rank 3 (host:pid, device 3)`` if it drives several ranks."""
    rank = job.rank_of_thread(event)
    if rank is None or job.rank_of(event.proc) is not None:
        return name_of(job, event.proc)
    return f"rank {rank} ({job.process(event.proc).name}, device {event.device})"


def name_of_rank(job: Job, proc: int, rank: int | None) -> str:
    """The name of a process; ``rank 3 (host:pid)`` if it drives several ranks and ``rank`` is one of them."""
    if rank is None or job.rank_of(proc) is not None or rank not in job.ranks_of(proc):
        return name_of(job, proc)
    return f"rank {rank} ({job.process(proc).name})"


def names_of(job: Job, procs: Iterable[int], most: int = 4) -> str:
    """Name several processes: ``ranks 1, 2 and 5``."""
    procs = sorted(set(procs), key=lambda p: (job.rank_of(p) is None, job.rank_of(p) or 0, p))
    if len(procs) == 1:
        return name_of(job, procs[0])
    ranks = [job.rank_of(p) for p in procs]
    if any(rank is None for rank in ranks):
        return words([name_of(job, p) for p in procs], most)
    return ranks_text((rank for rank in ranks if rank is not None), 2 * most)


def named_text(at: Named) -> str:
    """A process as the lines name it: ``rank 3``, ``local rank 3``, ``process 4711``, ``device 3``, ``a process on node7``."""
    if at.rank is not None and (at.basis or "").endswith("only rank"):
        return f"a process (the log shows rank {at.rank} only)"
    if at.rank is not None:
        kind = next((kind for kind in _KINDS if (at.basis or "").endswith(kind)), "rank")
        return f"{kind.partition(' of ')[0]} {at.rank}" + (f" of {at.comm}" if at.comm is not None else "")
    if at.pid is not None:
        return f"process {at.pid}" + (f" (device {at.device})" if at.device is not None else "")
    if at.gpu is not None:
        return f"the GPU at {at.gpu}"
    where = [f"device {at.device}"] if at.device is not None else []
    if where and (at.basis or "").endswith("own devices"):
        return f"{where[0]} of a process"
    if at.host is None:
        return "".join(where) or "a process"
    return f"{''.join(where) or 'a process'} on {at.host}"


#: What the number of a process counts, where it is no rank of the job.
_KINDS = ("local rank", "replica of XLA")


def comm_name(job: Job, group: int) -> str:
    """A communicator's commId in hex, or ``comm#N`` if the log has none."""
    return _comm_names(job).get(group) or f"comm#{group}"


@once
def _comm_names(job: Job) -> dict[int, str]:
    return {group: f"0x{info.commid:x}" for group, info in job.groups.items() if info.commid is not None}


def words(items: Iterable[str], most: int = 6, total: int | None = None) -> str:
    """``a, b and c``; the rest of a long list is only counted. ``total`` is their number if ``items`` are only the first of them."""
    names = list(items)
    total = len(names) if total is None else total
    if total > most:
        names = [*names[: most - 1], f"{total - most + 1} more"]
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]


def joined(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    texts = list(parts)
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


_MOST_SPANS = 4


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """``rank 3``, ``ranks 1 and 2``; of many ``ranks 0-6, 8-15``, or ``ranks 0, 2, 4 and 13 more`` where few of them are neighbours."""
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > most and len(spans := spans_of(numbers)) <= _MOST_SPANS:
        return spans_text(spans)
    shown = [str(n) for n in numbers[:most]]
    if len(numbers) > most:
        shown.append(f"{len(numbers) - most} more")
    return "ranks " + joined(shown)


def spans_of(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of neighbours."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return spans


def spans_text(spans: Iterable[tuple[int, int]]) -> str:
    """``rank 3``, ``ranks 0, 1, 4-7`` for the first and last rank of each span."""
    spans = list(spans)
    texts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in spans]
    return ("rank " if len(spans) == 1 and spans[0][0] == spans[0][1] else "ranks ") + ", ".join(texts)


def short(text: str, most: int) -> str:
    """``text`` with at most ``most`` characters, cut between two words; an ellipsis marks the cut."""
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    kept = cut if text[most - 1].isspace() else cut.rpartition(" ")[0]
    return (kept if len(kept) > most // 2 else cut).rstrip(" ,;:(") + "\N{HORIZONTAL ELLIPSIS}"


#: Pointers and ports: they differ from process to process, and no reader compares them.
_OWN = regex(r"0x[0-9a-f]+|<\d+>")
_NUMBERS = regex(r"\d+")


def differing(texts: Iterable[str]) -> str:
    """What to put behind the first of these texts of several processes where they do not all say the same; they may name ranks in another order."""
    kinds = [
        (" ".join(_NUMBERS.sub("#", own).split()), *sorted(_NUMBERS.findall(own)))
        for own in (_OWN.sub("@", t) for t in texts)
    ]
    if len(set(kinds)) < 2:
        return ""
    return " (the text of the other one differs)" if len(kinds) == 2 else " (the texts of the others differ)"
