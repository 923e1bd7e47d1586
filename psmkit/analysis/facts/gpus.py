"""GPUs: the rank at a bus address, and what the Xid numbers of the driver mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once

__all__ = ["HARD_XIDS", "OWN_XIDS", "devices_of", "rank_of_bus"]

#: Xid numbers after which the GPU or its link is suspect.
HARD_XIDS = frozenset({48, 62, 64, 74, 79, 92, 94, 95, 109, 119, 120, 121, 136, 137, 140, 143, 144, 145, 149, 150, 154})
#: Xid numbers that an application's own fault raises.
OWN_XIDS = frozenset({13, 31, 32, 43, 68, 69})


def _bus_number(text: str) -> int | None:
    """A PCI address as NCCL prints it: its hex digits as one number, with a function added if it lacks one."""
    digits = text.replace(":", "").replace(".", "")
    try:
        return int(digits if "." in text else digits + "0", 16) if ":" in text else int(digits, 16)
    except ValueError:
        return None


def rank_of_bus(job: Job, run: int | None, bus: str, pid: object, host: object = None) -> int | None:
    """The rank whose GPU has this address, or whose process has this id, on this host if it is given; None if unknown."""
    if run is None or run >= len(job.runs):
        return None
    if isinstance(pid, int) and (proc := outside.proc_of_pid(job, run, pid)) is not None:
        return job.rank_of(proc)
    found = _by_bus(job).get((run, _bus_number(bus)), set())
    if host is not None and len(found) > 1:
        found = {proc for proc in found if job.process(proc).host.partition(".")[0] == str(host).partition(".")[0]}
    # On several hosts the same address denotes several GPUs.
    return job.rank_of(next(iter(found))) if len(found) == 1 else None


def devices_of(job: Job, proc: int) -> Mapping[int, int]:
    """The device of each rank of a process that drives several."""
    return _devices(job).get(proc, {})


@once
def _devices(job: Job) -> dict[int, dict[int, int]]:
    out: dict[int, dict[int, int]] = defaultdict(dict)
    for (proc, device), rank in job.numbering.by_device.items():
        out[proc].setdefault(rank, device)
    return dict(out)


@once
def _by_bus(job: Job) -> dict[tuple[int | None, int | None], set[int]]:
    out: dict[tuple[int | None, int | None], set[int]] = defaultdict(set)
    for instance in job.scan.instances:
        if instance.bus is not None:
            out[job.run_of(instance.proc), _bus_number(instance.bus)].add(instance.proc)
    return dict(out)
