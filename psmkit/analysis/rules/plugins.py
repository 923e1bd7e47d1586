"""Plugins that were asked for and that NCCL runs without: the usual answer to the question why a job is slow."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import plugins
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import names_of
from psmkit.analysis.facts.plugins import Unloaded, Unused
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.model import Finding

__all__ = ["find"]


@rule(order=355)
def find(job: Job) -> list[Finding]:
    """PSM606, one finding for each plugin of each run."""
    groups: dict[tuple[int | None, str, str], list[Unused]] = defaultdict(list)
    for one in plugins.unused(job):
        groups[(job.run_of(one.proc), one.kind, one.name)].append(one)
    lost: dict[tuple[int | None, str, str], list[Unloaded]] = defaultdict(list)
    for gone in plugins.unloaded(job):
        lost[(job.run_of(gone.proc), gone.name, gone.after)].append(gone)
    return [_finding(job, run, group) for (run, _, _), group in groups.items()] + [
        _lost(job, run, group) for (run, _, _), group in lost.items()
    ]


def _lost(job: Job, run: int | None, group: list[Unloaded]) -> Finding:
    first, procs = group[0], [one.proc for one in group]
    who = f"{names_of(job, procs)} {'run' if len(procs) > 1 else 'runs'}"
    return new_finding(
        job,
        "PSM606",
        run=run,
        title=f"{who} later communicators without the net plugin {first.name}: the network was {first.before} and is {first.after}",
        confidence=0.9,
        explanation=(
            "NCCL unloaded the plugin when no communicator used it any more, and did not load it again: 2.28.3 to 2.29.7 forget the name that "
            "NCCL_NET_PLUGIN gives."
        ),
        next_step="Set NCCL_NET_PLUGIN_REF_COUNT=1, which keeps the plugin, or use NCCL 2.30.3 or newer.",
        refs=[line.ref for line in first.lines],
        procs=procs,
    )


def _finding(job: Job, run: int | None, group: list[Unused]) -> Finding:
    first = group[0]
    procs = [one.proc for one in group]
    runs_on = first.network if first.kind == "NET" and len({one.network for one in group}) == 1 else None
    if first.asked is not None:
        asked = f"NCCL_{first.kind}_PLUGIN asks for it."
    elif first.wanted:
        asked = "NCCL does not look for this name by default, so a setting asks for it."
    else:
        asked = "A library of the default name is installed."
    what = f"{first.kind.lower()} plugin {first.name}"
    effect = f"; the network is {runs_on}" if runs_on else ""
    slow = (
        " Data between hosts goes over TCP sockets, which are many times slower than RDMA."
        if runs_on == "Socket"
        else ""
    )
    return new_finding(
        job,
        "PSM606",
        run=run,
        title=f"{names_of(job, procs)} {'run' if len(procs) > 1 else 'runs'} without the {what}{effect}: {faults.body(job, first.lines[0])}",
        confidence=0.85 if first.wanted else 0.6,
        explanation=(f"{asked} NCCL could not load it and went on without it.{slow}"),
        refs=[
            first.lines[0].ref,
            first.asked.ref if first.asked is not None else None,
            *(e.ref for e in first.lines[1:3]),
        ],
        procs=procs,
    )
