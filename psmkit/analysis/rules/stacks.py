"""Stacks from gdb and py-spy: where each thread of each rank waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psmkit.analysis.facts import foreign, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of, ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign.places import Place, main_thread, place_of
from psmkit.logparse.foreign.types import StackDump, StackThread
from psmkit.model import Evidence, Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]

_WAITING = frozenset({"device", "collective"})
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class _Main:
    """The main thread of one process."""

    path: str
    dump: StackDump
    thread: StackThread
    place: Place
    proc: int | None
    rank: int | None


@rule(order=340)
def find(job: Job) -> list[Finding]:
    """The places of the threads, and the ranks whose place differs from the others'."""
    run, lasting = foreign.newest_run(job), foreign.lasting(job)
    out: list[Finding] = []
    mains: list[_Main] = []
    for path, dump in ((item.path, dump) for item in foreign.inputs(job) for dump in item.stacks):
        proc = outside.proc_of_pid(job, run, dump.pid) if run is not None and dump.pid is not None else None
        rank = job.rank_of(proc) if proc is not None else _in_command(dump)
        out.append(_where(job, run, path, dump, proc, rank))
        thread = main_thread(dump)
        if thread is not None:
            mains.append(_Main(path, dump, thread, place_of(thread), proc, rank))
    odd = [m for m in mains if m.place.kind not in _WAITING]
    if len(mains) > 2 and odd and 3 * len(odd) <= len(mains):
        out.append(_odd(job, run, lasting, mains, odd))
    return out


def _in_command(dump: StackDump) -> int | None:
    match = re.search(r"(?:--(?:global[_-])?rank[= ]|\bRANK=)(\d{1,9})\b", dump.command or "")
    return int(match.group(1)) if match else None


def _who(job: Job, dump: StackDump, proc: int | None, rank: int | None) -> str:
    if proc is not None:
        return name_of(job, proc)
    if rank is not None:
        return f"rank {rank} (pid {dump.pid})"
    return f"process {dump.pid}" if dump.pid is not None else "a process"


def _text(place: Place, thread: StackThread) -> str:
    frame = (
        f" ({place.frame.function}" + (f" at {place.frame.where}" if place.frame.where else "") + ")"
        if place.frame
        else ""
    )
    tid = f" {thread.tid}" if thread.tid is not None else ""
    if place.kind == "elsewhere":
        return f"{place.role}{tid} is in {place.what}{frame if place.frame and place.frame.where else ''}"
    return f"{place.role}{tid} waits for {place.what}{frame}"


def _where(job: Job, run: int | None, path: str, dump: StackDump, proc: int | None, rank: int | None) -> Finding:
    main = main_thread(dump)
    texts: list[tuple[StackThread, str, bool]] = []
    for thread in dump.threads:
        place = place_of(thread)
        if thread is main:
            place = replace(place, role="main thread")
        known = place.role != "thread" or place.kind != "elsewhere"
        texts.append((thread, _text(place, thread), known))
    shown = [t for t in texts if t[0] is main] + [t for t in texts if t[2] and t[0] is not main]
    who = _who(job, dump, proc, rank)
    first = shown[0][1] if shown else "no thread is recognised"
    finding = new_finding(
        job,
        "PSM304",
        run=run,
        title=f"stack of {who}: {first}",
        severity=Severity.INFO,
        confidence=0.7,
        explanation=f"{counted(len(dump.threads), 'thread')}. "
        + "; ".join(text for _, text, _ in shown[:_SHOWN])
        + ".",
        next_step="Compare with the stacks of the other ranks, and look for the rank that is elsewhere.",
        ranks=[rank] if rank is not None else [],
        procs=[proc] if proc is not None else [],
    )
    return replace(finding, evidence=tuple(Evidence(path, max(t.line, 1), text) for t, text, _ in shown[:_SHOWN]))


def _odd(job: Job, run: int | None, lasting: bool, mains: Sequence[_Main], odd: Sequence[_Main]) -> Finding:
    ranks = [m.rank for m in odd if m.rank is not None]
    who = ranks_text(ranks) if len(ranks) == len(odd) else joined(_who(job, m.dump, m.proc, m.rank) for m in odd)
    waiting = [m for m in mains if m.place.kind in _WAITING]
    finding = new_finding(
        job,
        "PSM304",
        run=run,
        title=f"{who} {plural(len(odd), 'is', 'are')} elsewhere than the {len(waiting)} others, which wait for {waiting[0].place.what}: {odd[0].place.what}",
        severity=Severity.ERROR if lasting else Severity.WARNING,
        confidence=0.8 if lasting else 0.65,
        explanation="Most ranks wait in a collective or for the GPU work of one; these do something else, and the others wait for them.",
        next_step="Find out why these ranks do not call the collective: data loading, a checkpoint, an exception handler or another branch.",
        ranks=ranks,
        procs=[m.proc for m in odd if m.proc is not None],
        culprits=ranks,
    )
    lines = [
        Evidence(m.path, max(m.thread.line, 1), f"{_who(job, m.dump, m.proc, m.rank)}: {_text(m.place, m.thread)}")
        for m in [*odd[:3], *waiting[:2]]
    ]
    return replace(finding, evidence=tuple(lines))
