"""The comparison of ``psmkit diff GOOD BAD``: where the steps of each rank part, what only one side has, and other differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from psmkit.analysis.facts.job import Job
from psmkit.analysis.views.surroundings import settings
from psmkit.analysis.views.tracks import Step, tracks
from psmkit.logparse.types import Ref
from psmkit.model import Evidence
from psmkit.model.difference import Difference, OperationDifference, PairedStep, StepDifference
from psmkit.model.errors import PsmkitError
from psmkit.model.late import dataclass

__all__ = ["compare"]

_BEFORE, _AFTER = 4, 12  # steps shown before and from the first difference on
_COMPARED = 48  # steps that are paired again after it
_NAMED = 3  # files of a host that an error names


def compare(good: Job, bad: Job) -> Difference:
    """Compare two jobs (scans made with ``keep_calls=True``), rank by rank.

    Raises:
        PsmkitError: a side holds more than one run, or no process with a known rank.
    """
    ours, theirs = _ranks(good, "GOOD"), _ranks(bad, "BAD")
    parting, operations, equal = [], [], []
    for rank in sorted(set(ours) & set(theirs)):
        one, other = tracks(good, ours[rank]), tracks(bad, theirs[rank])
        found = _parting(rank, one, other)
        if found is None:
            equal.append(rank)
        else:
            parting.append(found)
            operations += _operations(rank, _Side(good, ours[rank]), one, _Side(bad, theirs[rank]), other)
    for side, job in enumerate((good, bad)):
        # In the order of the files: a line before the last one read costs a compressed file another pass.
        job.quotes.of(*sorted(ref for found in parting for ref in found.refs(side)))
    steps = [_difference(f, _Side(good, ours[f.rank]), _Side(bad, theirs[f.rank])) for f in parting]
    return Difference(
        steps=tuple(steps),
        settings=tuple(settings(good, ours, bad, theirs)),
        missing=tuple(sorted(set(ours) - set(theirs))),
        extra=tuple(sorted(set(theirs) - set(ours))),
        equal_ranks=tuple(equal),
        not_compared=tuple(
            f"{side} {job.process(proc).name}"
            for side, job, ranks in (("GOOD", good, ours), ("BAD", bad, theirs))
            for proc in _without_rank(job, ranks)
        ),
        operations=tuple(operations),
        unseen=tuple(sorted({r for job in (good, bad) for r in job.missing_ranks(0).listed} - set(ours) - set(theirs))),
    )


def _ranks(job: Job, side: str) -> dict[int, int]:
    """The processes of the only run, by rank."""
    if len(job.runs) > 1:
        names = "; ".join(_named(job, run.procs) for run in job.runs)
        raise PsmkitError(f"{side} holds {len(job.runs)} runs ({names}): give the logs of one job")
    procs = sorted(job.runs[0].procs) if job.runs else []
    apart = _apart(job, procs)
    if len(apart) > 1:
        names = "; ".join(_named(job, part) for part in apart)
        raise PsmkitError(
            f"{side} holds {len(apart)} runs, or groups of ranks that share no communicator ({names}): give the logs of one job"
        )
    out: dict[int, int] = {}
    for proc in procs:
        rank = job.rank_of(proc)
        if rank is None:
            continue
        if rank in out:
            names = "; ".join(_named(job, {p}) for p in (out[rank], proc))
            raise PsmkitError(f"{side} holds rank {rank} twice ({names}): give the logs of one job")
        out[rank] = proc
    if not out:
        raise PsmkitError(
            f"{side} holds no process with one known rank ({_named(job, procs)}): "
            "give logs that one process a rank wrote with NCCL_DEBUG=INFO, from their start"
        )
    return out


def _apart(job: Job, procs: Sequence[int]) -> list[set[int]]:
    """The processes with a communicator, in parts that share none: each part numbers its ranks from 0."""
    part_of: dict[int, int] = {}  # communicator -> part
    parts: dict[int, tuple[set[int], set[int]]] = {}  # communicators and processes, the part that grew last at the end
    for proc in procs:
        groups = {i.group for i in job.instances_of.get(proc, ())}
        if not groups:
            continue
        touched = sorted({part_of[g] for g in groups if g in part_of}, key=lambda part: -sum(map(len, parts[part])))
        # the smaller parts join the largest
        part = touched[0] if touched else proc
        known, members = parts.pop(part, (set(), set()))
        for more, others in ((groups, {proc}), *(parts.pop(other) for other in touched[1:])):
            known |= more
            members |= others
            part_of.update(dict.fromkeys(more, part))
        parts[part] = (known, members)
    return [members for _, members in parts.values()]


def _named(job: Job, procs: Iterable[int]) -> str:
    """Processes by host, each host with its files."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    for proc in sorted(procs):
        process = job.process(proc)
        hosts[process.host or "a host without a name"][job.scan.files[process.first.file].path] = None
    said = (f"{host} in {_few(list(files))}" for host, files in hosts.items())
    return " and ".join(said) or "processes without an NCCL line"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _without_rank(job: Job, ranks: Mapping[int, int]) -> list[int]:
    """The processes that are not compared; damaged prefixes are no processes."""
    return sorted(set(job.runs[0].procs) - set(ranks.values()) - job.phantoms)


@dataclass(frozen=True, slots=True)
class _Side:
    """A rank's process on one side, and the lines to quote."""

    job: Job
    proc: int

    def line(self, step: Step | None) -> Evidence | None:
        found = self.job.quotes.of(step.ref) if step is not None else ()
        return found[0] if found else None

    def place(self, step: Step | None) -> str | None:
        if step is None or step.ref is None:
            return None
        return f"{self.job.scan.files[step.ref.file].path}:{step.ref.line}"


_Row = tuple[str, Step | None, Step | None]


@dataclass(frozen=True, slots=True)
class _Parting:
    """Where the steps of a rank part: after ``common`` steps of a track. Only the rows that are shown are kept, not all steps of all ranks."""

    rank: int
    track: str
    common: int
    good: Step | None
    bad: Step | None
    rows: Sequence[_Row]
    good_more: int
    bad_more: int

    def refs(self, side: int) -> list[Ref]:
        steps = [(good, bad)[side] for _, good, bad in self.rows]
        return [step.ref for step in steps if step is not None and step.ref is not None]


def _parting(rank: int, one: Mapping[str, Sequence[Step]], other: Mapping[str, Sequence[Step]]) -> _Parting | None:
    """The first difference over all tracks: a differing step in the bad log, else a missing step, else a differing total."""
    found: list[tuple[tuple[int, int], str, int]] = []
    for place, track in enumerate(one):
        a, b = one[track], other[track]
        common = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x.text != y.text), min(len(a), len(b)))
        if common == len(a) == len(b):
            continue
        left, right = _at(a, common), _at(b, common)
        if right is not None and right.ref is not None:
            at = right.ref.seq
        else:
            # of the steps that the bad log lacks, the first one of the good log
            at = (1 << 60) + (left.ref.seq if left is not None and left.ref is not None else 0)
        if any(step is not None and step.total for step in (left, right)):
            at = 1 << 61
        found.append(((at, place), track, common))
    if not found:
        return None
    _, track, common = min(found)
    a, b = one[track], other[track]
    rows = _rows(a, b, common)
    more = [
        len(steps) - max(common - _BEFORE, 0) - sum(row[n] is not None for row in rows) for n, steps in ((1, a), (2, b))
    ]
    return _Parting(rank, track, common, _at(a, common), _at(b, common), rows, *more)


def _at(steps: Sequence[Step], number: int) -> Step | None:
    return steps[number] if number < len(steps) else None


def _rows(good: Sequence[Step], bad: Sequence[Step], common: int) -> list[_Row]:
    """The last common steps and those from the first difference on, paired where they agree again."""
    rows: list[_Row] = [("same", good[n], bad[n]) for n in range(max(common - _BEFORE, 0), common)]
    a, b = good[common : common + _COMPARED], bad[common : common + _COMPARED]
    matcher = SequenceMatcher(None, [step.text for step in a], [step.text for step in b], autojunk=False)
    for what, left, left_end, right, right_end in matcher.get_opcodes():
        for x, y in zip_longest(a[left:left_end], b[right:right_end]):
            mark = "same" if what == "equal" else "good" if y is None else "bad" if x is None else "differs"
            rows.append((mark, x, y))
    return rows[: min(common, _BEFORE) + _AFTER]


def _difference(found: _Parting, ours: _Side, theirs: _Side) -> StepDifference:
    around = [
        PairedStep(mark, _text(one), _text(other), ours.line(one), theirs.line(other))
        for mark, one, other in found.rows
    ]
    return StepDifference(
        rank=found.rank,
        process=theirs.job.process(theirs.proc).name,
        index=found.common,
        common=found.common,
        good=_text(found.good),
        bad=_text(found.bad),
        good_at=ours.line(found.good),
        bad_at=theirs.line(found.bad),
        track=found.track,
        around=tuple(around),
        good_more=found.good_more,
        bad_more=found.bad_more,
    )


def _text(step: Step | None) -> str | None:
    return step.text if step is not None else None


def _operations(
    rank: int,
    ours: _Side,
    one: Mapping[str, Sequence[Step]],
    theirs: _Side,
    other: Mapping[str, Sequence[Step]],
) -> list[OperationDifference]:
    """How many steps of each kind only one side has, over all tracks."""
    out = []
    for track in one:
        good, bad = _by_kind(one[track]), _by_kind(other[track])
        for kind in dict.fromkeys([*good, *bad]):
            a, b = good.get(kind, []), bad.get(kind, [])
            counts = sum(step.count for step in a), sum(step.count for step in b)
            if any(step.total for step in (*a, *b)):
                missing, extra = max(counts[0] - counts[1], 0), max(counts[1] - counts[0], 0)
                first, second = (a[:1] if missing else []), (b[:1] if extra else [])
            else:
                first, second = _without(a, b), _without(b, a)
                missing, extra = len(first), len(second)
            if missing or extra:
                places = ours.place(first[0] if first else None), theirs.place(second[0] if second else None)
                out.append(OperationDifference(rank, track, kind, *counts, missing, extra, *places))
    return out


def _by_kind(steps: Sequence[Step]) -> dict[str, list[Step]]:
    out: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        out[step.kind].append(step)
    return out


def _without(steps: Sequence[Step], others: Sequence[Step]) -> list[Step]:
    """The steps that the others have not, or not as often."""
    left = Counter(step.text for step in others)
    out = []
    for step in steps:
        if left[step.text]:
            left[step.text] -= 1
        else:
            out.append(step)
    return out
