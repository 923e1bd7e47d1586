"""Process groups as torch's watchdogs print them: what each rank reports, and which ranks do not report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import islice

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.deaths import workers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import is_default_group, rank_of_tag
from psmkit.analysis.inference.ras_tables import only_size
from psmkit.logparse.types import Event, Ref
from psmkit.model import Named
from psmkit.model.late import dataclass, regex

__all__ = [
    "LISTED_SILENT",
    "OF_GROUP",
    "Group",
    "Member",
    "cut_ranks",
    "cut_short",
    "group_rank",
    "groups_of",
    "job_ranks",
    "least_of",
    "level_calls",
    "others_text",
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
# A coalesced work that returns so many times its input gathers; a batch of sends and receives seldom does.
_GATHERED = 4
# The larger of the two numbers of elements is the smaller one times the number of ranks.
_GATHERS = frozenset({"_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
# What a rank prints that gave up on a work, or was asked to tell about it.
_REPORTS = ("torch.watchdog.", "torch.dump.", "torch.heartbeat.")
#: More silent ranks than this are no short list of places to look at.
LISTED_SILENT = 8
#: At most so many lines below the last report is the end of its file.
_BELOW = 8
_OWN_RANK = regex(r"\[Rank (\d{1,9})\](?: |$)")
#: Lines of torch without fields, each after the place in its sources: a shorter one is cut.
_WHOLE = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "To avoid data inconsistency, we are taking the entire process down.",
    "To avoid this inconsistency, we are taking the entire process down.",
)


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
        fields = self.timeout.fields if self.timeout is not None else {}
        value, out = fields.get("numel_in"), fields.get("numel_out")
        if not isinstance(value, int):
            return None
        gathers = isinstance(out, int) and value > 0 and out % value == 0 and out >= _GATHERED * value
        return value if self.op in _EVEN or (self.op == "COALESCED" and gathers) else None


@dataclass(slots=True)
class Group:
    """A process group in its watchdogs' lines; ``name`` is None if the lines lack it, ``label`` is what users call it.

    Ranks are global, or ranks of the group where ``within`` is set: a line does not show the global one. ``ratios`` are the numbers of
    ranks that the sizes of gathers and scatters show, ``least`` the largest of them in lines that may be of several groups, ``own`` the ranks in the group. ``doubled`` is whether two processes print the same
    rank, so that there are several groups.
    """

    name: str | None
    members: dict[int, Member] = field(default_factory=dict)
    first: Event | None = None
    signalled: set[int] = field(default_factory=set)
    ratios: set[int] = field(default_factory=set)
    least: int = 0
    own: dict[int, int] = field(default_factory=dict)
    doubled: bool = False
    label: str | None = None
    within: bool = False

    @property
    def default(self) -> bool:
        """Whether it is the group of all ranks, whose numbers are those of the job."""
        return self.name in (None, "0")

    def job_rank(self, own: int) -> int | None:
        """The global rank of a rank of the group, if the ranks in view leave one: torch sorts the ranks of a group."""
        if self.default:
            return own
        known = {} if self.within else {number: rank for rank, number in self.own.items()}
        below = max((number for number in known if number <= own), default=None)
        above = min((number for number in known if number >= own), default=None)
        if below is None or above is None or known[above] - known[below] != above - below:
            return None
        return known[below] + own - below

    def ranks(self, text: str) -> str:
        """Ranks in a text, with the group that their numbers count in."""
        return f"{text} of group {self.label or self.name}" if self.within else text

    def member(self, rank: int) -> Member:
        return self.members.setdefault(rank, Member(rank))

    @property
    def reporters(self) -> list[Member]:
        return [m for m in self.members.values() if m.timeout is not None]

    @property
    def folded(self) -> bool:
        """Whether Ray folds equal reports of several processes into one line."""
        return any(m.timeout is not None and m.timeout.count > 1 for m in self.members.values())


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


def _join(loose: Group, group: Group) -> None:
    """Add timeouts without a group: in releases without status lines, they occur beside status lines of other ranks."""
    for rank, member in loose.members.items():
        if member.timeout is not None:
            group.member(rank).timeout = group.member(rank).timeout or member.timeout
    group.first = group.first or loose.first
    group.ratios |= loose.ratios
    group.least = max(group.least, loose.least)
    group.own.update(loose.own)
    group.doubled |= loose.doubled
    group.within |= loose.within and not group.default


def groups_of(job: Job, events: list[Event]) -> list[Group]:
    """Timeouts name no group: each is matched with the status line of the same rank about the same work."""
    out: dict[str | None, Group] = {}
    ranks, unknown = _ranks(job, events)
    group_of: dict[tuple[int, int], str | None] = {}
    for event in events:
        if event.name == "torch.watchdog.timeout":
            work = event.fields.get("seq") if "group" in event.fields else None
        else:
            work = event.fields.get("work") if event.name == "torch.watchdog.status" else None
        if isinstance(work, int) and (rank := ranks.get(event.ref)) is not None:
            group_of[(rank, work)] = _key(event)
    names = set(group_of.values())
    only = next(iter(names)) if len(names) == 1 else None
    for event in events:
        rank = ranks.get(event.ref)
        if rank is None:
            continue
        if event.name == "torch.watchdog.timeout":
            seq = event.fields.get("seq")
            key = group_of.get((rank, seq), only) if isinstance(seq, int) else only
            if "group" in event.fields:
                key = _key(event)
            group = out[key] if key in out else out.setdefault(key, Group(key))
            _note(group, rank, event, event.ref in unknown)
            member = group.member(rank)
            _measure(group, rank, event)
            if member.timeout is None or (member.seq or 0) > (seq if isinstance(seq, int) else 0):
                member.timeout = event
            group.first = group.first or event
            continue
        key = _key(event)
        group = out[key] if key in out else out.setdefault(key, Group(key))
        _note(group, rank, event, event.ref in unknown)
        member = group.member(rank)
        enqueued, completed = event.fields.get("enqueued"), event.fields.get("completed")
        if isinstance(enqueued, int) and (member.enqueued is None or enqueued >= member.enqueued):
            member.enqueued, member.status = enqueued, event
            member.completed = completed if isinstance(completed, int) else None
        source = event.fields.get("from_rank")
        if event.name == "torch.dump.timeout_signal":
            group.signalled.add(source if isinstance(source, int) else rank)
    if len(out) == 2 and None in out:
        _join(out.pop(None), *out.values())
    for group in out.values():
        if group.within:
            _count_within(group)
    return list(out.values())


def _ranks(job: Job, events: list[Event]) -> tuple[dict[Ref, int], set[Ref]]:
    """The rank that printed each line, and the lines that show only a rank of a group.

    The exception of a rank has no tag: other lines of its group show which global rank has its number there.
    """
    known = {event.ref: rank for event in events if (rank := outside.global_rank(job, event)) is not None}
    told: dict[tuple[str | None, object], set[int]] = {}
    for event in events:
        if event.ref in known and "group" in event.fields:
            told.setdefault((_key(event), event.fields.get("rank")), set()).add(known[event.ref])
    out, unknown = dict(known), set()
    for event in events:
        own = event.fields.get("rank")
        if event.ref in known or not isinstance(own, int):
            continue
        same = told.get((_key(event), own), set()) if "group" in event.fields else set()
        out[event.ref] = next(iter(same)) if len(same) == 1 else own
        if len(same) != 1:
            unknown.add(event.ref)
    return out, unknown


def _note(group: Group, rank: int, event: Event, unknown: bool) -> None:
    """Note the name of a group, and the number of a rank in it."""
    own = event.fields.get("rank")
    if group.label is None:
        group.label = str(event.fields.get("group", "")).partition("(")[2].rstrip(")") or None
    group.own[rank] = own if isinstance(own, int) else rank
    group.within |= unknown and not group.default


def _count_within(group: Group) -> None:
    """Number the ranks of a group by their places in it."""
    members, group.members = group.members, {}
    for rank, member in members.items():
        own = group.own.get(rank, rank)
        if own not in group.members or group.members[own].timeout is None:
            group.members[own] = member
        member.rank = own
    group.own = {rank: rank for rank in group.members}


def _measure(group: Group, rank: int, event: Event) -> None:
    """Note what the timeout of a rank shows about the size of its group."""
    # lines without a group and a tag may be of several groups with the same ranks
    clear = group.name is not None or event.tag is not None
    if event.fields.get("op") in _GATHERS:
        sizes = [value for name in ("numel_in", "numel_out") if isinstance(value := event.fields.get(name), int)]
        if len(sizes) == 2 and min(sizes) > 0 and not max(sizes) % min(sizes):
            ratio = max(sizes) // min(sizes)
            group.ratios |= {ratio} if clear else set()
            group.least = max(group.least, ratio)
    seen = group.members[rank].timeout
    # the exception of a rank quotes its report in a line without a tag
    if seen is not None and seen.tag is not None and event.tag is not None:
        group.doubled |= seen.fields.get("seq") == event.fields.get("seq") and seen.tag != event.tag


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
        run: {rank for event in events if (rank := reporter(job, event)) is not None} | cut_ranks(job, run)
        for run, events in outside.runs_of(job, *_REPORTS).items()
    }


@once
def _cut_runs(job: Job) -> dict[int | None, set[int | None]]:
    return {run: _cut_off(job, events) for run, events in outside.runs_of(job, *_REPORTS).items()}


def cut_short(job: Job, run: int | None) -> bool:
    """Whether a file ends within a report of a run's ranks: others may report below the cut."""
    return bool(_cut_runs(job).get(run))


def cut_ranks(job: Job, run: int | None) -> set[int]:
    """The ranks of the error lines within which files end, as far as these lines name them."""
    return {rank for rank in _cut_runs(job).get(run, ()) if rank is not None}


def _cut_off(job: Job, events: Sequence[Event]) -> set[int | None]:
    """The ranks of which a file ends within an error line of torch, below reports: they may report the same. None for a line that names no rank."""
    lasts = {e.ref.file: e.ref for e in sorted(events, key=lambda e: e.ref)}
    out: set[int | None] = set()
    torn = {e.ref for e in events if e.name == "torch.watchdog.timeout" and "timeout" not in e.fields}
    for file, ref in lasts.items():
        if job.scan.files[file].lines - ref.line > _BELOW:
            continue
        out |= {None} if ref in torn else set()
        for _ in range(_BELOW):
            after = lines.below(job, ref)
            if after is None:
                break
            ref = after
        else:
            continue
        line = "".join(quote.text for quote in job.quotes.of(ref))
        tag, error, text = line.partition("]:[E")
        if not error and line.startswith("[E"):
            error, text = "[E", line[2:]
        # a copy of a log may end with a line break that the log does not have; the place in torch's sources ends with a bracket
        begun = "Watchdog caught" in text and "WorkNCCL(" not in text
        said = _OWN_RANK.sub("", text.partition("] ")[2])
        begun = begun or not said.strip() or any(whole.startswith(said) and whole != said for whole in _WHOLE if said)
        cut = error and ("]" not in text or begun or not job.scan.files[file].complete_end)
        rank = rank_of_tag(tag) if cut else None
        if cut and rank is None and (own := _OWN_RANK.search(text)) is not None:
            rank = int(own[1])  # behind the tag of another launcher
        out |= {rank} if cut else set()
    return out


def silent_ranks(job: Job, run: int | None, group: Group) -> MissingRanks:
    """The ranks of a group without a report: those below its size, or below the highest rank in view if nothing shows the size."""
    seen = _reporting(job, run, group)
    total = size_of(job, run, group)
    return MissingRanks(least_of(job, run, group) if total is None else total, seen)


def least_of(job: Job, run: int | None, group: Group) -> int:
    """The least number of ranks that the lines of a group show: of each rank in view, and of the sizes of one gather."""
    return max(max(_reporting(job, run, group), default=-1) + 1, group.least)


def job_ranks(job: Job, run: int | None, group: Group, silent: MissingRanks) -> list[int] | None:
    """The global ranks of the few silent ranks of a group; None if the lines do not show them, or show that one reports elsewhere."""
    found = [group.job_rank(own) for own in islice(silent, LISTED_SILENT + 1)]
    known = [rank for rank in found if rank is not None]
    if len(known) < len(found) or len(found) > LISTED_SILENT:
        return None
    return None if not group.default and not _printing(job).get(run, set()).isdisjoint(known) else known


def size_text(job: Job, run: int | None, group: Group) -> str:
    """The number of ranks of a group, as far as known."""
    total = size_of(job, run, group)
    return str(total) if total is not None else f"at least {least_of(job, run, group)}"


def others_text(job: Job, run: int | None, reporting: int) -> str:
    """Whether the log shows more processes than those that report, where it does not show how many ranks there are."""
    printing = job.runs[run].procs - job.phantoms if run is not None and run < len(job.runs) else frozenset()
    if (shown := max(len(outside.tagged_pids(job)), len(printing))) > reporting:
        return f"the log shows lines of {shown} processes, and no report of another one"
    return "the log holds no report of another rank"


def level_calls(job: Job, run: int) -> bool:
    """Whether the NCCL lines of all ranks of a run are in view and show the same number of calls."""
    world = job.runs[run].world
    group = job.groups.get(world) if world is not None else None
    return group is not None and len(group.ranks) >= group.nranks and len({r.ops for r in group.ranks}) == 1
