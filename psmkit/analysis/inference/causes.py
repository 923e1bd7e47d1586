"""What stopped a rank outside NCCL: an exception, a helper that died, an error of its GPU, its death."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psmkit.analysis.facts import deaths, endings, gpus, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.exceptions import raised
from psmkit.logparse.types import Ref

__all__ = ["Cause", "causes"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank did not come to its next collective. ``text`` follows the rank's name: ``it raised KeyError: 3``."""

    text: str
    refs: tuple[Ref, ...]


def causes(job: Job, run: int | None) -> dict[int | None, Cause]:
    """The cause of each rank that has one (None: of a rank that is not known), the most telling first.

    What follows the end of other ranks in the same stream is no cause.
    """
    out: dict[int | None, Cause] = {}
    for part in (_gpus, _exceptions, _helpers, _deaths):
        for rank, cause in part(job, run):
            out.setdefault(rank, cause)
    return out


def _gpus(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for event in job.events("sys.kernel.xid"):
        number, bus = event.fields.get("xid"), str(event.fields.get("bus", ""))
        if job.run_of_event(event) == run and number in gpus.HARD_XIDS:
            rank = gpus.rank_of_bus(job, run, bus, event.fields.get("pid"))
            yield rank, Cause(f"its GPU at {bus} reported Xid {number}", (event.ref,))
    for event in job.events("sys.cuda.error", "sys.cuda.oom"):
        if job.run_of_event(event) == run and not endings.stopped(job, event):
            what = (
                "ran out of device memory"
                if event.name == "sys.cuda.oom"
                else f"got a CUDA error: {_short(event.fields.get('error'))}"
            )
            yield outside.global_rank(job, event), Cause(f"it {what}", (event.ref,))


def _exceptions(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for rank, item in raised(job, run).items():
        if not endings.went_on(job, item.event, outside.proc_of_event(job, item.event), run):
            yield rank, Cause(f"it raised {item.text}", (item.event.ref,))


def _helpers(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for event in job.events("sys.dataloader.killed"):
        if job.run_of_event(event) == run and not endings.stopped(job, event):
            yield outside.global_rank(job, event), Cause("a worker of its data loader died", (event.ref,))


def _deaths(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for death in deaths.collect(job, run):
        first = min(death.events, key=lambda e: (e.stream, e.ref.seq))
        # watchdogs end their own process by SIGABRT, launchers end the others by signals
        if death.sent or (
            endings.stopped(job, first) and not (death.root or death.oom or death.signal in deaths.FAULTS)
        ):
            continue
        if death.signal is None or death.oom or death.signal in deaths.FAULTS or death.signal == deaths.KILLED:
            yield death.rank, Cause(f"it {deaths.manner(death)}", (first.ref,))


def _short(value: object) -> str:
    return str(value if value is not None else "")[:120]
