"""How a run ended in the lines of frameworks and launchers: who gave up, and from which line on the others were stopped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from psmkit.analysis.facts import program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.stalls import open_stalls
from psmkit.logparse.types import Event

__all__ = [
    "STOPS",
    "WENT_ON",
    "all_below",
    "by_time",
    "continued",
    "done",
    "ended_between",
    "gave_up",
    "runs",
    "stopped",
    "timed_out",
    "trapped",
    "warned",
    "went_on",
    "worked_on",
]

# After these a process deliberately ends itself with SIGABRT or an exit code.
_GIVES_UP = (
    "torch.watchdog.timeout",
    "torch.watchdog.terminated",
    "torch.watchdog.cuda_error",
    "torch.failed_or_timed_out",
    "torch.taking_down",
    "torch.heartbeat.",
    "torch.nccl_error",
    "framework.nccl_error",
    "torch.async_error",
    "torch.store.timeout",
    "torch.barrier.",
    "torch.fingerprint.mismatch",
    "nccltests.failure",
    "ompi.mtl_aborts",
)
#: Those of them that are about time.
_WAITED = (
    "torch.watchdog.timeout",
    "torch.heartbeat.",
    "torch.store.timeout",
    "torch.barrier.",
)
#: From these on a launcher, or a person, ends the ranks that are left.
STOPS = (
    "launch.elastic.sigterm",
    "launch.elastic.failed",
    "launch.elastic.root_cause",
    "launch.elastic.death_signal",
    "launch.spawn.exited",
    "launch.mpi.",
    "launch.slurm.",
    "launch.deepspeed.",
    "launch.ended.",
    "launch.sglang.",
    "sys.python.interrupt",
    "launch.interrupted",
)
_OWN_TRACEBACK = "launch.ended.spawn.raised"
# Lines of frameworks, launchers, kernels and libraries beside NCCL.
_OUTSIDE = (
    *("launch.", "sys.", "torch.", "framework.", "nccltests.", "python."),
    *(
        "gloo.",
        "ofi.",
        "ucx.",
        "nixl.",
        "ompi.",
        "psm3.",
        "deepep.",
        "xla.",
        "jax.",
        "horovod.",
        "nccl1.",
        "program.failed",
        "serving.",
        "mooncake.",
        "nvshmem.",
        "other.error",
        "other.failed",
    ),
)
# This many lines of a process after an exception show that it continued.
WENT_ON = 20


def runs(job: Job) -> list[int | None]:
    """The runs that lines of frameworks, launchers and kernels are about."""
    return list(_runs(job))


@once
def _runs(job: Job) -> Sequence[int | None]:
    return sorted(job.runs_of(*_OUTSIDE), key=lambda r: (r is None, r or 0))


def done(job: Job, run: int | None) -> bool:
    """Whether all processes of the run had an orderly teardown."""
    return run in _done(job)


@once
def _done(job: Job) -> set[int | None]:
    return {run.index for run in job.runs if run.procs and all(torn_down(job, p) for p in run.procs)}


def gave_up(job: Job, run: int | None) -> list[Event]:
    """The lines of ranks that end themselves after a failed collective."""
    return _quitters(job).get(run, [])


@once
def _quitters(job: Job) -> dict[int | None, list[Event]]:
    out: dict[int | None, list[Event]] = {}
    for event in job.events(*_GIVES_UP):
        out.setdefault(job.run_of_event(event), []).append(event)
    return out


def by_time(event: Event) -> bool:
    """Whether a line of a rank that gives up says that it waited too long."""
    return event.name.startswith(_WAITED)


def all_below(event: Event, others: Iterable[Event]) -> bool:
    """Whether all other lines are of the same stream and stand below a line."""
    return all(e.stream == event.stream and e.ref.seq > event.ref.seq for e in others)


@once
def warned(job: Job) -> set[int | None]:
    """The runs with a warning of NCCL's own."""
    events = job.scan.events
    return {job.run_of(proc) for proc in set(events.proc[events.of_level("WARN") & (events.proc >= 0)].tolist())}


def stopped(job: Job, event: Event) -> bool:
    """Whether ranks had given up, stood in a stall or were being ended before this line of the same stream: it may be a consequence."""
    return _first(_first_stops(job), job, event)


def timed_out(job: Job, event: Event) -> bool:
    """Whether a watchdog had given up on a collective before this line of the same stream."""
    return _first(_first_timeouts(job), job, event)


def trapped(job: Job, event: Event) -> bool:
    """Whether DeepEP had given up because it waited in vain, before this line of the same stream: the device or the process then reports an error."""
    return _first(_first_traps(job), job, event)


@once
def _first_traps(job: Job) -> dict[tuple[int | None, int], int]:
    return _firsts(job, job.events("deepep.timeout"))


def _first(firsts: dict[tuple[int | None, int], int], job: Job, event: Event) -> bool:
    first = firsts.get((job.run_of_event(event), event.stream))
    return first is not None and first < event.ref.seq


@once
def _first_stops(job: Job) -> dict[tuple[int | None, int], int]:
    # what stands below the head of a spawned process's own traceback is no consequence
    told = (e for e in job.events(*_GIVES_UP, *STOPS) if e.name != _OWN_TRACEBACK)
    return _firsts(job, [*told, *open_stalls(job)])


@once
def _first_timeouts(job: Job) -> dict[tuple[int | None, int], int]:
    return _firsts(job, job.events("torch.watchdog.timeout"))


def _firsts(job: Job, events: Iterable[Event]) -> dict[tuple[int | None, int], int]:
    out: dict[tuple[int | None, int], int] = {}
    for event in events:
        key = (job.run_of_event(event), event.stream)
        out[key] = min(out.get(key, event.ref.seq), event.ref.seq)
    return out


def went_on(job: Job, event: Event, proc: int | None, run: int | None) -> bool:
    """Whether the process that printed this line lived on, so that the exception was caught."""
    if program.came_after(job, event):
        return True
    if proc is None:
        return done(job, run)
    if torn_down(job, proc):
        return True
    process = job.process(proc)
    return process.stream == event.stream and process.last.seq > event.ref.seq + WENT_ON


def worked_on(job: Job, run: int | None, stream: int, seq: int) -> bool:
    """Whether the program went on with its steps behind a place of a stream, and no rank gave up and no launcher ended the job there.

    Steps behind such an end can be those of a job that was started again.
    """
    if not program.worked_after(job, run, stream, seq):
        return False
    later = (e for e in _ends(job).get((run, stream), ()) if e.ref.seq > seq)
    return all(not e.name.startswith(STOPS) and program.came_after(job, e) for e in later)


@once
def _ends(job: Job) -> dict[tuple[int | None, int], list[Event]]:
    out: dict[tuple[int | None, int], list[Event]] = {}
    for event in job.events(*_GIVES_UP, *STOPS):
        out.setdefault((job.run_of_event(event), event.stream), []).append(event)
    return out


def ended_between(job: Job, one: Event, other: Event) -> bool:
    """Whether a rank gave up to wait, or a launcher ended the job, between two lines of a stream, by lines of another kind than these."""
    for run in {job.run_of_event(one), job.run_of_event(other)}:
        for name, places in _places(job).get((run, one.stream), {}).items():
            at = bisect_right(places, one.ref.seq)
            if name not in (one.name, other.name) and at < len(places) and places[at] < other.ref.seq:
                return True
    return False


@once
def _places(job: Job) -> dict[tuple[int | None, int], dict[str, list[int]]]:
    """Where ranks gave up to wait and launchers ended a job, by run and stream and then by message."""
    out: dict[tuple[int | None, int], dict[str, list[int]]] = {}
    for event in sorted(job.events(*_WAITED, *STOPS), key=lambda e: e.ref.seq):
        key = (job.run_of_event(event), event.stream)
        out.setdefault(key, {}).setdefault(event.name, []).append(event.ref.seq)
    return out


def continued(job: Job, run: int | None, event: Event, proc: int | None) -> bool:
    """Whether the process ``proc`` or its job worked or ended well after a line that this process printed."""
    return went_on(job, event, proc, run) or _latest_work(job).get((run, event.stream), -1) > event.ref.seq


@once
def _latest_work(job: Job) -> dict[tuple[int | None, int], int]:
    """The last line of each run and stream that shows work or a good end."""
    out: dict[tuple[int | None, int], int] = {}
    for event in job.events("nccltests.ok", "program.done", "launch.well."):
        key = (job.run_of_event(event), event.stream)
        out[key] = max(out.get(key, -1), (event.last or event.ref).seq)
    for run in job.runs:
        for proc in run.procs:
            key = (run.index, job.process(proc).stream)
            for instance in job.instances_of.get(proc, ()):
                for ref in (instance.complete, instance.last_op):
                    if ref is not None:
                        out[key] = max(out.get(key, -1), ref.seq)
    return out
