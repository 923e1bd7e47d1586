"""What ``psmkit plan lint`` reads: a task file, dumps of the flight recorder, and logs, which tell the release and the channels."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.logparse.foreign.types import FlightDump
    from psmkit.plan import Step

__all__ = ["MOST_STEPS", "Read", "read"]

#: Steps of all ranks that a lint takes.
MOST_STEPS = 4_000_000
_LOOKED = 1 << 16
_OF_TASKS = re.compile(r"(?:[\d, -]+:)?\s*([A-Za-z_]+)(?:\s|$)")


class _InputError(PsmkitError):
    pass


@dataclass(slots=True)
class Read:
    """What the inputs say.

    Attributes:
        steps: what the ranks do; None if no input has groups.
        told: fields of a ``Config``.
        several: fields of which a log shows several values, with a sentence about them.
        notes: what lacks.
    """

    steps: tuple[Step, ...] | None = None
    told: dict[str, int] = field(default_factory=dict)
    several: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read(paths: Sequence[str], ranks: int | None, group: str | None) -> Read:
    """Read all inputs.

    Raises:
        PsmkitError: one cannot be read, or they do not fit together.
    """
    out = Read()
    tasks = [path for path in paths if path == "-" or _has_tasks(path)]
    others = [path for path in paths if path not in tasks]
    if len(tasks) > 1:
        raise _InputError(f"{counted(len(tasks), 'task file')}: give one")
    if others:
        _logs_and_dumps(out, others, group)
    if tasks:
        from psmkit import plan

        count = ranks or out.told.get("ranks")
        if count is None:
            raise _InputError(f"{tasks[0]}: give --ranks N, the number of ranks, or a log of the job")
        if tasks[0] == "-":
            out.steps = plan.parse(
                sys.stdin.read(plan.MAX_BYTES * (MOST_STEPS // plan.MAX_STEPS)), count, "standard input", MOST_STEPS
            )
        else:
            out.steps = plan.read(tasks[0], count, MOST_STEPS)
    return out


def _has_tasks(path: str) -> bool:
    """Whether the first line that is no comment is one of a task file."""
    from psmkit.plan.tasks import WORDS

    try:
        with open(path, "rb") as file:
            text = file.read(_LOOKED).decode("utf-8", "replace")
    except OSError:
        return False
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    first = next((line for line in lines if line), "")
    match = _OF_TASKS.match(first)
    return not first or (match is not None and match[1].lower() in WORDS)


def _logs_and_dumps(out: Read, paths: Sequence[str], group: str | None) -> None:
    from psmkit.analysis.facts import foreign
    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inputs import scanned
    from psmkit.reproduce.evidence import settings

    with ExitStack() as stack:
        job = make_job(stack.enter_context(scanned(paths)))
        told = settings(job)
        out.told, out.several = told.values, told.several
        loaded = foreign.inputs(job)
        broken = [item for item in loaded if item.error]
        if broken and not any(item.flights for item in loaded):
            raise _InputError(f"{broken[0].path}: {broken[0].error}")
        dumps = [dump for item in loaded for dump in item.flights]
        if any(item.truncated for item in loaded):
            out.notes.append("A dump is too large and was read in part.")
    if dumps:
        _dumps(out, dumps, group)


# ---- dumps ----


def _dumps(out: Read, dumps: Sequence[FlightDump], group: str | None) -> None:
    """The sends and recvs of a process group: those of one number were one batch."""
    from psmkit.plan import Step, StepKind, Task
    from psmkit.reproduce.flights import p2p, size_of

    names = sorted({entry.group for dump in dumps for entry in dump.entries if entry.is_p2p})
    if not names:
        raise _InputError(
            "the dumps have no send and no recv: a lint needs those of one batch, as torch's flight recorder has them"
        )
    if group is None and len(names) > 1:
        raise _InputError(
            f"the dumps have {counted(len(names), 'process group')} with sends and recvs: give --group with one of {', '.join(names[:8])}"
        )
    name = group if group is not None else names[0]
    if name not in names:
        raise _InputError(f"no process group {name} with sends and recvs, expected one of {', '.join(names[:8])}")
    by_rank: dict[int, list[tuple[int, Task]]] = {}
    highest = -1
    for dump in dumps:
        for entry in dump.entries:
            found = p2p(entry) if entry.is_p2p and entry.group == name else None
            if found is None:
                continue
            func, rank, peer = found
            highest = max(highest, rank, peer)
            count, kind = size_of(entry)
            by_rank.setdefault(rank, []).append((entry.seq, Task(func, count, kind, peer=peer)))
    if not by_rank:
        raise _InputError(f"process group {name}: the names of its operations do not show who sends to whom")
    members = max((len(dump.groups[name].ranks) for dump in dumps if name in dump.groups), default=0)
    out.told["ranks"] = max(members, highest + 1)
    missing = sorted(set(range(out.told["ranks"])) - set(by_rank))
    if missing:
        out.notes.append(f"No dump of {counted(len(missing), 'rank')}: {', '.join(map(str, missing[:8]))}.")
    steps: list[Step] = []
    for rank, entries in sorted(by_rank.items()):
        number = None
        for seq, task in entries:
            if number is not None and seq != number:
                steps.append(Step(StepKind.GROUP_END, None, rank))
            number = seq
            steps.append(Step(StepKind.TASK, task, rank))
        steps.append(Step(StepKind.GROUP_END, None, rank))
    if len(steps) > MOST_STEPS:
        raise _InputError(f"more than {MOST_STEPS:,} sends and recvs")
    out.steps = tuple(steps)
