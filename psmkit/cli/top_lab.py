"""What ``psmkit top`` shows of running jobs of the lab, and what it advises where nothing reports telemetry."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psmkit.model.wording import counted, plural

if TYPE_CHECKING:
    from psmkit.lab.running import RunningJob, RunningRank
    from psmkit.report.layout import Page

__all__ = ["LabJob", "OpenStep", "advise", "jobs", "plain", "show_jobs"]

_ENDED = b"ended"
#: What every line of a log begins with.
_BEFORE = re.compile(r"^.*? NCCL (?:INFO |WARN )?")


@dataclass(frozen=True, slots=True)
class OpenStep:
    """The oldest operation that a rank has open on a connection of libpsm, as its records say, and how many are open."""

    count: int
    role: str
    peer: int
    stage: str
    done: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LabJob:
    """A run, and the open operations by process."""

    job: RunningJob
    open: dict[int, OpenStep]


def jobs(records: Path | None) -> list[LabJob]:
    """The running jobs of the lab; ``records``: only one whose ranks write their records there."""
    from psmkit.lab.running import running

    found = running()
    if records is not None:
        found = [job for job in found if job.records is not None and job.records.resolve() == records.resolve()]
    return [LabJob(job, _open(job.records) if job.records is not None else {}) for job in found]


def _open(records: Path) -> dict[int, OpenStep]:
    from psmkit.telemetry.beside import read_steps
    from psmkit.telemetry.take import text

    rows: dict[int, list[Any]] = defaultdict(list)
    for row in read_steps(str(records), time.clock_gettime_ns(time.CLOCK_MONOTONIC)):
        if row["stage"] != _ENDED and row["seq"]:
            rows[int(row["pid"])].append(row)
    out = {}
    for pid, mine in rows.items():
        oldest = max(mine, key=lambda row: int(row["age_ns"]))
        out[pid] = OpenStep(
            len(mine),
            text(oldest["role"]),
            int(oldest["peer"]),
            text(oldest["stage"]),
            int(oldest["done"]),
            int(oldest["nsteps"]),
            int(oldest["age_ns"]) / 1e9,
        )
    return out


def show_jobs(page: Page, found: Sequence[LabJob], stall: float) -> None:
    """A table for each job. Ranks that are stopped, or whose oldest operation is open for longer than ``stall`` seconds, are marked."""
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    for lab in found:
        job = lab.job
        page.blank()
        many = f"{len(job.ranks)} of {counted(job.started, 'rank')}" if job.started is not None else "none of its ranks"
        verb = plural(len(job.ranks) if job.started is not None else 1, "is", "are")
        page.cut(f"psmkit {job.kind}, process {job.runner}, for {job.seconds:.0f} s: {many} {verb} alive", "heading")
        if job.folder is not None:
            page.add("  in ", Span(str(job.folder), "place"))
        if not job.ranks:
            continue
        rows = [_row(rank, lab.open.get(rank.pid)) for rank in job.ranks]
        lines = fit(["rank", "pid", "state", "log silent", "open operations"], rows, page.width - 2)
        page.add("  ", Span(lines[0], "dim"))
        for line, rank in zip(lines[1:], job.ranks, strict=True):
            step = lab.open.get(rank.pid)
            late = rank.state != "runs" or (step is not None and step.seconds > stall)
            page.add("  ", Span(line, "warning" if late else ""))
            said = _BEFORE.sub("", rank.said).strip()
            if late and said:
                page.wrap(said, "dim", indent="        ", hang="          ", lead=Span("its log: ", "dim"))
            elif said:
                page.cut(f"its log: {said}", "dim", indent="        ")


def _row(rank: RunningRank, step: OpenStep | None) -> list[str]:
    doing = "-"
    if step is not None:
        more = f", and {step.count - 1} more" if step.count > 1 else ""
        doing = f"{step.role} {'to' if step.role == 'send' else 'from'} {step.peer}, {step.done} of {step.steps} steps, {step.stage} for {step.seconds:.1f} s{more}"
    quiet = "-" if rank.quiet is None else f"{rank.quiet:.1f} s"
    return [str(rank.rank), str(rank.pid), rank.state, quiet, doing]


def advise(page: Page, found: Sequence[LabJob], records: Path, *, given: bool) -> None:
    """Why nothing reports telemetry, and the settings that change it. ``given``: the record directory was named by --dir."""
    from psmkit.model.programs import tree

    profiler = tree() / "lib" / "libnccl-profiler-psm.so"
    page.blank()
    page.wrap(
        f"No process has a record of psmkit's profiler plugin in {records}. Start the ranks of a job with:", hang="  "
    )
    page.add(f"    export NCCL_PROFILER_PLUGIN={profiler}")
    if given:
        page.add(f"    export PSM_RECORD_DIR={records}")
    page.wrap(
        "NCCL 2.23.4 or later loads it; its log then has a line with PROFILER/PSM. A job in a container, of another user or with another TMPDIR writes "
        "elsewhere: give it PSM_RECORD_DIR, and psmkit top the same folder by --dir. On another host, run psmkit top there.",
        indent="  ",
    )
    kinds = {lab.job.kind for lab in found}
    if "lab nccl" in kinds:
        page.add(f"  For psmkit lab nccl: --env NCCL_PROFILER_PLUGIN={profiler}")
    if "lab run" in kinds:
        page.wrap(
            "The ranks of psmkit lab run are not NCCL's: they have no profiler, only what is shown above.", indent="  "
        )


def plain(lab: LabJob) -> dict[str, Any]:
    """A job as JSON."""
    job = lab.job
    ranks = [
        {**asdict(rank), "open": asdict(lab.open[rank.pid]) if rank.pid in lab.open else None} for rank in job.ranks
    ]
    return {
        "kind": job.kind,
        "runner": job.runner,
        "seconds": job.seconds,
        "folder": str(job.folder) if job.folder is not None else None,
        "started": job.started,
        "ranks": ranks,
    }
