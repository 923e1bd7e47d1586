"""Kills for memory that a scheduler or a kernel reports without the process: what a log says of them where a process was killed."""

from __future__ import annotations

import os
import signal as signals

from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.launcher_ends import bare_host
from psmkit.logparse.types import Event, Ref

__all__ = ["LESS_MEMORY", "advice", "reported"]

LESS_MEMORY = "Use less host memory per rank (data loader workers, pinned buffers), or raise the memory limit of the job or container."
#: Lines about a kill that name no process, with who says so.
_REPORTS = {"launch.slurm.oom": "Slurm", "sys.kernel.oom_reaper": "the kernel log"}


def reported(job: Job, run: int | None, death: Death) -> list[Ref]:
    """The line that reports a kill for memory, where the end of this process may be that kill."""
    event = _report(job, run, death)
    return [event.ref] if event is not None else []


def advice(job: Job, run: int | None, death: Death) -> str:
    """What to do about a process that got SIGKILL."""
    event = _report(job, run, death)
    if event is None:
        pod = any(".k8s" in e.name for e in death.events)
        return f"Search the kernel log of {'its node' if pod else death.host or 'its host'} (dmesg) for the OOM killer, and the scheduler's log for a kill."
    where = f"{os.path.basename(job.scan.files[event.ref.file].path)}:{event.ref.line}"
    who = _REPORTS[event.name]
    return f"{who[0].upper()}{who[1:]} reports a kill for memory ({where}), so this one is probably it. {LESS_MEMORY}"


def _report(job: Job, run: int | None, death: Death) -> Event | None:
    if death.signal != signals.SIGKILL or death.oom or death.sent:
        return None
    for event in job.events(*_REPORTS):
        host = event.fields.get("host")
        ours = job.run_of_event(event) in (run, None)
        if ours and (host is None or death.host is None or bare_host(host) == bare_host(death.host)):
            return event
    return None
