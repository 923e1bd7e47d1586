"""Process groups as torch's watchdogs print them: what each rank reports, and which ranks do not report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.deaths import workers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import is_default_group, rank_of_tag
from psmkit.analysis.inference.ras_tables import only_size
from psmkit.logparse.types import Event
from psmkit.model import Named

__all__ = [
    "OF_GROUP",
    "Group",
    "Member",
    "cut_short",
    "group_rank",
    "groups_of",
    "reporter",
    "silent_ranks",
    "size_of",
    "size_text",
]

#: What to do with a rank of a process group.
OF_GROUP = (
    "The number counts within the process group: the line does not show the rank in the job. "
    "The tag [rankN]: before other lines of this process does."
)
# Operations that all ranks call with the same number of elements; others may legitimately differ between ranks.
_EVEN = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BARRIER"})
# The larger of the two numbers of elements is the smaller one times the number of ranks.
_GATHERS = frozenset({"_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
# What a rank prints that gave up on a work, or was asked to tell about it.
_REPORTS = ("torch.watchdog.", "torch.dump.", "torch.heartbeat.")
#: At most so many lines below the last report is the end of its file.
_BELOW = 8


@dataclass(slots=True)
class Member:
    """What one rank of a process group reports about itself. ``enqueued`` and ``completed`` are its last works, -1 for none."""

    rank: int
    timeout: Event | None = None
    status: Event | None = None
    enqueued: int | None = None
    completed: int | None = None

    @property
    def seq(self) -> int | None:
        """The work that timed out here."""
        value = self.timeout.fields.get("seq") if self.timeout is not None else None
        return value if isinstance(value, int) else None

    @property
    def idle(self) -> bool:
        """Whether all that it enqueued is complete, as far as its lines say."""
        return self.enqueued is None or self.completed is None or self.completed >= self.enqueued

    @property
    def op(self) -> str | None:
        value = self.timeout.fields.get("op") if self.timeout is not None else None
        return str(value) if value is not None else None

    @property
    def size(self) -> int | None:
        value = self.timeout.fields.get("numel_in") if self.timeout is not None else None
        return value if isinstance(value, int) and self.op in _EVEN else None


@dataclass(slots=True)
class Group:
    """A process group in its watchdogs' lines; ``name`` is None if the lines lack it. Ranks are global if ``world`` is set, else
    ranks of the group. ``ratios`` are the numbers of ranks that the sizes of gathers and scatters show, ``own`` the ranks in the group.
    ``doubled`` is whether two processes print the same rank, so that there are several groups."""

    name: str | None
    members: dict[int, Member] = field(default_factory=dict)
    first: Event | None = None
    signalled: set[int] = field(default_factory=set)
    ratios: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)
    doubled: bool = False

    def member(self, rank: int) -> Member:
        return self.members.setdefault(rank, Member(rank))

    @property
    def reporters(self) -> list[Member]:
        return [m for m in self.members.values() if m.timeout is not None]


def _key(event: Event) -> str | None:
    """The name of the process group, the same for all spellings of it."""
    group = event.fields.get("group")
    if group is None:
        return None
    text = str(group)
    if not text[:1].isdigit() and isinstance(event.fields.get("pg"), int):
        return str(event.fields["pg"])
    return text.split("(", 1)[0] or text


def reporter(job: Job, event: Event) -> int | None:
    """The rank whose watchdog printed a line: the job's, else that of the line's group."""
    rank = outside.global_rank(job, event)
    if rank is None:
        own = event.fields.get("rank")
        return own if isinstance(own, int) else None
    return rank


def group_rank(event: Event) -> Named | None:
    """The rank in its process group that a line of torch names, for lines whose global rank is unknown; None for lines without one."""
    rank, group, pg = (event.fields.get(name) for name in ("rank", "group", "pg"))
    if not isinstance(rank, int) or group is None or is_default_group(event.fields):
        return None
    comm = f"process group {group}" if pg is None else f"process group {pg} ({group})"
    return Named(rank, basis=event.name, comm=comm)


def groups_of(job: Job, events: list[Event]) -> list[Group]:
    """Timeouts name no group: each is matched with the status line of the same rank about the same work."""
    out: dict[str | None, Group] = {}
    group_of: dict[tuple[int, int], str | None] = {}
    for event in events:
        rank, work = reporter(job, event), event.fields.get("work")
        if event.name == "torch.watchdog.timeout":
            work = event.fields.get("seq") if "group" in event.fields else None
        if (
            event.name in ("torch.watchdog.status", "torch.watchdog.timeout")
            and rank is not None
            and isinstance(work, int)
        ):
            group_of[(rank, work)] = _key(event)
    names = set(group_of.values())
    only = next(iter(names)) if len(names) == 1 else None
    for event in events:
        rank = reporter(job, event)
        if rank is None:
            continue
        if event.name == "torch.watchdog.timeout":
            seq = event.fields.get("seq")
            key = group_of.get((rank, seq), only) if isinstance(seq, int) else only
            if "group" in event.fields:
                key = _key(event)
            group = out.setdefault(key, Group(key))
            member = group.member(rank)
            _measure(group, rank, event)
            if member.timeout is None or (member.seq or 0) > (seq if isinstance(seq, int) else 0):
                member.timeout = event
            group.first = group.first or event
            continue
        key = _key(event)
        group = out.setdefault(key, Group(key))
        member = group.member(rank)
        enqueued, completed = event.fields.get("enqueued"), event.fields.get("completed")
        if isinstance(enqueued, int) and (member.enqueued is None or enqueued >= member.enqueued):
            member.enqueued, member.status = enqueued, event
            member.completed = completed if isinstance(completed, int) else None
        source = event.fields.get("from_rank")
        if event.name == "torch.dump.timeout_signal":
            group.signalled.add(source if isinstance(source, int) else rank)
    # In releases without status lines, timeouts occur beside status lines of other ranks: one group holds both.
    loose = out.get(None)
    if loose is not None and len(out) == 2:
        key = next(k for k in out if k is not None)
        for rank, member in loose.members.items():
            if member.timeout is not None:
                out[key].member(rank).timeout = out[key].member(rank).timeout or member.timeout
        out[key].first = out[key].first or loose.first
        out[key].ratios |= loose.ratios
        out[key].own.update(loose.own)
        out[key].doubled |= loose.doubled
        del out[None]
    return list(out.values())


def _measure(group: Group, rank: int, event: Event) -> None:
    """Note what the timeout of a rank shows about the size of its group."""
    sizes = [value for name in ("numel_in", "numel_out") if isinstance(value := event.fields.get(name), int)]
    # lines without a group and a tag may be of several groups with the same ranks
    clear = group.name is not None or event.tag is not None
    if (
        event.fields.get("op") in _GATHERS
        and clear
        and len(sizes) == 2
        and min(sizes) > 0
        and not max(sizes) % min(sizes)
    ):
        group.ratios.add(max(sizes) // min(sizes))
    own, seen = event.fields.get("rank"), group.members[rank].timeout
    # the exception of a rank quotes its report in a line without a tag
    if seen is not None and seen.tag is not None and event.tag is not None:
        group.doubled |= seen.fields.get("seq") == event.fields.get("seq") and seen.tag != event.tag
    group.own[rank] = own if isinstance(own, int) else rank


def size_of(job: Job, run: int | None, group: Group) -> int | None:
    """The number of ranks of a group: the job's for the default one, by its lines or a RAS answer, else what the sizes of its gathers and scatters show."""
    if group.name in (None, "0"):
        known = job.runs[run].nranks if run is not None and run < len(job.runs) else None
        known = known if known is not None else workers(job, run)
        if known is None and len(job.runs) < 2:
            # with one communicator, it is that of the default group; a rank beyond it belongs to another job
            size = only_size(job)
            known = size if size is not None and all(0 <= rank < size for rank in group.members) else None
        if known is not None:
            return known
    (size,) = group.ratios if len(group.ratios) == 1 and not group.doubled else (None,)
    return size if size is not None and all(0 <= rank < size for rank in group.own.values()) else None


def _reporting(job: Job, run: int | None, group: Group) -> set[int]:
    """The ranks of a group whose watchdogs print anything, as numbers of the group."""
    out = {group.own.get(rank, rank) for rank in group.members}
    if group.name in (None, "0"):
        out |= _printing(job).get(run, set())
    return out


@once
def _printing(job: Job) -> dict[int | None, set[int]]:
    """The ranks of each run whose watchdogs print anything."""
    return {
        run: {rank for event in events if (rank := reporter(job, event)) is not None} | _cut_runs(job).get(run, set())
        for run, events in outside.runs_of(job, *_REPORTS).items()
    }


@once
def _cut_runs(job: Job) -> dict[int | None, set[int]]:
    return {run: _cut_off(job, events) for run, events in outside.runs_of(job, *_REPORTS).items()}


def cut_short(job: Job, run: int | None) -> bool:
    """Whether a file ends within a report of a run's ranks: others may report below the cut."""
    return bool(_cut_runs(job).get(run))


def _cut_off(job: Job, events: Iterable[Event]) -> set[int]:
    """The ranks of which a file ends within an error line of torch, below reports: they may report the same."""
    lasts = {
        e.ref.file: e.ref for e in sorted(events, key=lambda e: e.ref) if not job.scan.files[e.ref.file].complete_end
    }
    out: set[int] = set()
    for ref in lasts.values():
        for _ in range(_BELOW):
            after = lines.below(job, ref)
            if after is None:
                break
            ref = after
        else:
            continue
        tag, error, _ = "".join(quote.text for quote in job.quotes.of(ref)).partition("]:[E")
        rank = rank_of_tag(tag) if error else None
        out |= {rank} if rank is not None else set()
    return out


def silent_ranks(job: Job, run: int | None, group: Group) -> MissingRanks:
    """The ranks of a group without a report: those below its size, or below the highest rank in view if nothing shows the size."""
    seen = _reporting(job, run, group)
    total = size_of(job, run, group)
    return MissingRanks(max(seen, default=-1) + 1 if total is None else total, seen)


def size_text(job: Job, run: int | None, group: Group) -> str:
    """The number of ranks of a group, as far as known."""
    total = size_of(job, run, group)
    return str(total) if total is not None else f"at least {max(_reporting(job, run, group)) + 1}"
