"""Ranks that their peers passed: a log that lost lines, and a rank that owes a step."""

from __future__ import annotations

import os
from collections import Counter

from psmkit.analysis.facts import shown_end
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name, name_of, names_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.opcounts import HEXADECIMAL
from psmkit.analysis.inference import frontier, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.frontier import Owes
from psmkit.analysis.inference.lost import Lost, lost
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref
from psmkit.model import Finding
from psmkit.model.wording import plural

__all__ = ["find"]


@rule(order=295)
def find(job: Job) -> list[Finding]:
    """PSM706 for lost logs, PSM707 for a suspect, PSM304 for a suspect that is proven to hang."""
    out = [_lost(job, found) for found in lost(job).values()]
    for run in job.runs:
        owes = frontier.suspect(job, run.index)
        if owes is not None:
            out.append(_hung(job, owes) if owes.hung else _suspect(job, owes))
    return out


def _place(job: Job, ref: Ref) -> str:
    """A line, by the name of its file where only one file has it."""
    path = job.scan.files[ref.file].path
    name = os.path.basename(path)
    return f"{name if _names(job)[name] == 1 else path}:{ref.line}"


@once
def _names(job: Job) -> Counter[str]:
    return Counter(os.path.basename(file.path) for file in job.scan.files)


def _lost(job: Job, found: Lost) -> Finding:
    who, peer = name_of(job, found.proc), name_of(job, found.by)
    rank = job.rank_of(found.proc)
    return new_finding(
        job,
        "PSM706",
        run=job.run_of(found.proc),
        title=f"the log of {who} ends at {_place(job, found.last)}; {peer} {found.what} at {_place(job, found.ref)}",
        confidence=0.9,
        explanation=f"{peer} cannot do this before {who} completes a step that is missing from its log. What {who} did later is unknown.",
        refs=[found.last, found.ref],
        procs=[found.proc, found.by],
        ranks=[rank] if rank is not None else [],
        stage="log",
    )


def _suspect(job: Job, owes: Owes) -> Finding:
    who = name_of(job, owes.proc)
    return new_finding(
        job,
        "PSM707",
        run=owes.run,
        title=f"{who} owes {owes.step}, or its log was cut after {_place(job, owes.last)}",
        confidence=0.6,
        explanation=f"{names_of(job, owes.waiting)} stopped at a later step and {_waits(owes)} for it. {_lacking(owes)}{_counting(owes)}",
        next_step=f"The job has ended. Find the rest of the log of {who}, or run again and take the stack of the rank that stands behind (gdb, py-spy dump) before something ends it."
        if shown_end.ended_from_outside(job, owes.run)
        else f"Take the stack of {who} (gdb, py-spy dump), or find the rest of its log.",
        refs=[*owes.refs[:3], owes.last, *(job.process(p).last for p in owes.waiting[:2])],
        procs=[owes.proc, *owes.waiting],
        comm=comm_name(job, owes.group) if owes.group is not None else None,
        stage=owes.stage,
    )


def _waits(owes: Owes) -> str:
    return plural(len(owes.waiting), "waits", "wait")


def _counting(owes: Owes) -> str:
    return HEXADECIMAL if "opCount" in owes.step else ""


def _lacking(owes: Owes) -> str:
    """Which proof of a hang is missing."""
    if not owes.visible:
        return "The NCCL settings of this rank may hide the step."
    if not owes.outlives:
        return "No evidence shows that its log was still written after its last line."
    return "No evidence shows that the wait lasted."


def _lasted(job: Job, owes: Owes) -> str:
    """How the log shows that time passed."""
    if owes.proc in frontier.watched(job):
        return "psmkit record saw it alive and at rest"
    if owes.silence is None:
        return "lines from outside NCCL show that the wait lasted"
    quiet, pause = owes.silence.seconds / 60, owes.silence.pause
    return f"time stamps show {quiet:.0f} min without a line of NCCL before the job was ended; the longest pause before was {pause:.0f} s"


def _hung(job: Job, owes: Owes) -> Finding:
    who, rank = name_of(job, owes.proc), job.rank_of(owes.proc)
    return new_finding(
        job,
        "PSM304",
        run=owes.run,
        title=f"{who} owes {owes.step}: {names_of(job, owes.waiting)} {_waits(owes)} for it",
        confidence=0.8,
        explanation=f"Other ranks print this step, other lines follow the last line of {who}, and {_lasted(job, owes)}.",
        refs=[
            *owes.refs[:3],
            owes.last,
            *((owes.silence.last, owes.silence.end) if owes.silence is not None else ()),
            *proof.of(job, owes.run).refs[:3],
        ],
        procs=[owes.proc, *owes.waiting],
        culprits=[rank] if rank is not None else [],
        stage=owes.stage,
    )
