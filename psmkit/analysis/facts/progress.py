"""The progress of each process, from its communicators and its lines."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import counts, printed
from psmkit.logparse.types import CommInstance
from psmkit.model.arrays import np

__all__ = ["STAGES", "chose_network", "collectives", "furthest_stage", "progress_of", "stage_of_message", "torn_down"]

# The stages of a process, in order; the first if no line proves one.
STAGES = ("-", "started", "bootstrap", "init", "topology", "connect", "ready", "working", "teardown", "done")

_INIT, _READY, _WORKING, _TEARDOWN = map(STAGES.index, ("init", "ready", "working", "teardown"))

# The stage that a message proves, by the longest of these prefixes of its name. Messages that a process may print at
# any time (settings that it reads late, RAS, memory, errors, its progress and service threads) are missing here.
_STAGE_OF_NAME = (
    ("init.version", "started"),
    ("init.git_version", "started"),
    ("init.rccl_build", "started"),
    ("init.cuda_driver", "started"),
    ("init.kernel", "started"),
    ("plugin.", "started"),
    ("plugin.closing", "-"),
    ("plugin.net.unloaded", "-"),
    ("net.using", "bootstrap"),  # each release prints it below the line about the interface of the bootstrap
    ("bootstrap.", "bootstrap"),
    ("bootstrap.abort", "-"),
    ("bootstrap.allocator", "-"),
    ("comm.shape", "init"),
    ("init.rank", "init"),
    ("topo.", "topology"),
    ("graph.", "topology"),
    ("tuning.", "topology"),
    ("proxy.call.", "connect"),
    ("proxy.conn.", "connect"),
    ("proxy.fd.", "connect"),
    ("proxy.op_unclear", "connect"),
    ("transport.", "connect"),
    ("net.channel.", "connect"),
    ("net.connect.", "connect"),
    ("init.connected_", "connect"),
    ("init.thread_thresholds", "connect"),
    ("init.channels", "connect"),
    ("p2p.", "connect"),
    ("psm.", "connect"),
    ("shm.", "connect"),
    ("init.timings", "ready"),
)


def furthest_stage(job: Job, proc: int) -> str:
    """The furthest of :data:`STAGES` that the lines of a process prove."""
    return STAGES[_stages(job).get(proc, 0)]


@once
def _stages(job: Job) -> dict[int, int]:
    out: dict[int, int] = defaultdict(int)

    told = counts(job)
    stages = np.array([stage_of_message(name) for name in told.names], dtype=np.int64)
    procs, starts = np.unique(told.proc, return_index=True)
    if len(procs):
        out.update(zip(procs.tolist(), np.maximum.reduceat(stages[told.kind], starts).tolist(), strict=True))
    for instance in job.scan.instances:
        stage = _INIT if instance.start is not None else 0
        if instance.complete is not None:
            stage = _READY
        if instance.ops or instance.sends or instance.recvs:
            stage = _WORKING
        # teardown lines do not name their communicator, so they count only if there is exactly one
        alone = len(job.instances_of.get(instance.proc, [])) == 1
        if instance.end is not None or (alone and printed(job, instance.proc, "proxy.uds.exit")):
            stage = _TEARDOWN
        out[instance.proc] = max(out[instance.proc], stage)
    out.update(dict.fromkeys(_torn_down(job) - job.printers("comm.end.abort"), STAGES.index("done")))
    return out


@cache
def stage_of_message(name: str) -> int:
    """The place in :data:`STAGES` of the stage that a message proves; 0 if it proves none."""
    found = max(((len(begin), stage) for begin, stage in _STAGE_OF_NAME if name.startswith(begin)), default=(0, "-"))
    return STAGES.index(found[1])


@once
def chose_network(job: Job) -> dict[int, int]:
    """Where each process first says which devices or which network it uses: what it could not open before that, it does without."""
    out: dict[int, int] = {}
    events, rows = job.scan.events, job.rows("ib.using", "net.using")
    for proc, seq in zip(events.proc[rows].tolist(), events.first[rows].tolist(), strict=True):
        out[proc] = min(seq, out.get(proc, seq))
    return out


def progress_of(job: Job, proc: int) -> tuple[int, ...]:
    """A comparable measure of logical progress: stage, collectives, sends and recvs. Lines and times do not count."""
    ours = job.instances_of.get(proc, [])
    return (
        _stages(job).get(proc, 0),
        sum(collectives(i) for i in ours),
        sum(i.sends + i.recvs for i in ours),
        sum(1 for i in ours if i.end is not None),
    )


def torn_down(job: Job, proc: int) -> bool:
    """Whether all communicators of a process were destroyed."""
    return proc in _torn_down(job)


@once
def _torn_down(job: Job) -> frozenset[int]:
    return frozenset(proc for proc, ours in job.instances_of.items() if all(i.end is not None for i in ours))


def collectives(instance: CommInstance) -> int:
    """How many collectives a member called; its ``ops`` also count sends and recvs."""
    return max(instance.ops - instance.sends - instance.recvs, 0)
