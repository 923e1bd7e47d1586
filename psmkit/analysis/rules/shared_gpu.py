"""Two ranks of a communicator on one GPU, by the lines of Init START: NCCL refuses that unless a setting allows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.progress import STAGES, furthest_stage
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import CommInstance
from psmkit.model import Finding, Severity

__all__ = ["find"]

#: NCCL reads this setting since 2.30. Before, it refuses two ranks on one GPU in any case.
_ALLOWS = "NCCL_MULTI_RANK_GPU_ENABLE"
#: Lines with which NCCL itself reports ranks that share a GPU; each has a finding of its own, or allows it.
_REPORTED = ("init.duplicate_gpu", "init.shared_gpu", "graph.multirank")


@rule(order=292)
def find(job: Job) -> list[Finding]:
    """PSM202 for ranks that share a GPU and did not finish init."""
    out: list[Finding] = []
    for run in job.runs:
        if not _allowed(job, run):
            out.extend(_shared(job, run))
    return out


def _allowed(job: Job, run: RunInfo) -> bool:
    """Whether a setting or a line of NCCL allows it or reports it already."""
    if job.events(*_REPORTED, run=run.index):
        return True
    return any(
        e.fields.get("name") == _ALLOWS and str(e.fields.get("value", "")).strip().rstrip(".") not in ("", "0")
        for e in job.events("param.env", run=run.index)
    )


def _shared(job: Job, run: RunInfo) -> Iterator[Finding]:
    for group in sorted(run.groups):
        members = job.members.get(group, [])
        if any(i.complete is not None or _past(job, i.proc) for i in members):
            continue  # NCCL compares the GPUs of all ranks before it looks at the topology
        places: dict[tuple[str, str], list[CommInstance]] = defaultdict(list)
        for i in members:
            if i.start is not None and i.bus is not None and i.rank >= 0:
                places[job.process(i.proc).host, i.bus].append(i)
        for (host, bus), sharing in places.items():
            if len({i.rank for i in sharing}) > 1:
                yield _finding(job, run, group, host, bus, sharing)


def _past(job: Job, proc: int) -> bool:
    return STAGES.index(furthest_stage(job, proc)) >= STAGES.index("topology")


def _finding(job: Job, run: RunInfo, group: int, host: str, bus: str, sharing: Sequence[CommInstance]) -> Finding:
    ranks = sorted({i.rank for i in sharing})
    return new_finding(
        job,
        "PSM202",
        run=run.index,
        title=f"{ranks_text(ranks)} of {comm_name(job, group)} use one GPU (busId {bus} on {host}), and no rank finished init",
        severity=Severity.WARNING,
        confidence=0.75,
        explanation=(
            f"NCCL refuses two ranks of a communicator on one GPU with an error (invalid usage), unless {_ALLOWS}=1 allows it (since 2.30). "
            "The log does not show that error. Two hosts of the same name can have the same bus id, too."
        ),
        next_step="Let every rank select its own device by its local rank (cudaSetDevice; in PyTorch torch.cuda.set_device), or set CUDA_VISIBLE_DEVICES, and check that two containers do not have one host name.",
        refs=[i.start for i in sharing[:4]],
        comm=comm_name(job, group),
        ranks=ranks,
        procs=sorted({i.proc for i in sharing}),
        stage="init",
    )
