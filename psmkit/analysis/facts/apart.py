"""Files of several jobs in one input: which of them belong together.

Files are of several jobs if one job cannot print what they say: one rank, or one task of Slurm, is another process in each, or each is the output
of another Slurm job by its name. Then only files that something ties together are read as one job: the name of a job's standard output and error, a
process that both name, or the folder, if nothing in it contradicts. Without such a contradiction all files are of one job.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from psmkit.logparse.tables import ScanData
from psmkit.model.late import regex

__all__ = ["jobs_of_streams", "labels"]

#: torchrun's summary: the rank stands above its process.
_RANK, _CODE = "launch.elastic.rank", "launch.elastic.exitcode"
_TASK = "launch.slurm.task"
#: The name that Slurm gives to the output of a job, or of an element of an array of jobs.
_SLURM = regex(r"^slurm-(\d+(?:_\d+)?)\.(?:out|err|log)")
_ENDS = (".gz", ".zst", ".bz2", ".xz", ".lz4")

_Claims = dict[Hashable, Hashable]


class _Jobs:
    """Streams that are joined as far as their claims allow."""

    def __init__(self, claims: Mapping[int, _Claims], streams: Iterable[int]) -> None:
        self._job = {stream: stream for stream in streams}
        self._streams = {stream: [stream] for stream in self._job}
        self._claims: dict[int, _Claims] = {stream: dict(claims.get(stream, {})) for stream in self._job}

    def join(self, streams: Sequence[int]) -> None:
        """Make one job of these streams, unless they contradict each other."""
        jobs = list(dict.fromkeys(self._job[stream] for stream in streams))
        together: _Claims = {}
        for job in jobs:
            for what, who in self._claims[job].items():
                if together.setdefault(what, who) != who:
                    return
        for job in jobs[1:]:
            for stream in self._streams.pop(job):
                self._job[stream] = jobs[0]
                self._streams[jobs[0]].append(stream)
            del self._claims[job]
        if jobs:
            self._claims[jobs[0]] = together

    def all(self) -> list[list[int]]:
        return sorted((sorted(streams) for streams in self._streams.values()), key=lambda streams: streams[0])


def jobs_of_streams(scan: ScanData, run_of: Mapping[int, int]) -> list[tuple[list[int], int | None]]:
    """The streams without a process of NCCL's, in jobs, each with the run of NCCL's that it is about; empty if all are of one job.

    Args:
        run_of: the run of each process.
    """
    jobs = _joined(scan)
    if jobs is None:
        return []
    named = {process.stream for process in scan.processes}
    loose = [file.stream for file in scan.files if file.lines and file.stream not in named]
    runs = _named_runs(scan, run_of)
    for same in _by([s for s in loose if s in runs], lambda stream: runs[stream]):
        jobs.join(same)
    shared: dict[int, set[int]] = defaultdict(set)
    for process in scan.processes:
        if process.index in run_of:
            shared[process.stream].add(run_of[process.index])
    out = []
    free = set(loose)
    for streams in jobs.all():
        ours = [s for s in streams if s in free]
        about = {runs[s] for s in ours if s in runs}.union(*(shared[s] for s in streams if s in shared))
        if ours:
            out.append((ours, next(iter(about)) if len(about) == 1 else None))
    return out


def labels(scan: ScanData) -> dict[int, int]:
    """A number of the job of each stream, as far as names and folders tell; empty if all are of one job."""
    jobs = _joined(scan)
    return {stream: at for at, streams in enumerate(jobs.all()) for stream in streams} if jobs is not None else {}


def _joined(scan: ScanData) -> _Jobs | None:
    """The streams in jobs by their names and folders; None if nothing shows that they are of several jobs."""
    if len(scan.files) < 2:
        return None
    claims = _claims(scan)
    seen: _Claims = {}
    if all(seen.setdefault(what, who) == who for ours in claims.values() for what, who in ours.items()):
        return None
    names: dict[int, str] = {}
    for file in scan.files:
        names.setdefault(file.stream, file.path)
    jobs = _Jobs(claims, names)
    for same in [*_by(names, lambda stream: _stem(names[stream])), *_by(names, lambda s: os.path.dirname(names[s]))]:
        jobs.join(same)
    return jobs


def _claims(scan: ScanData) -> dict[int, _Claims]:
    """What each stream says of ranks, tasks and the job."""
    out: dict[int, _Claims] = defaultdict(dict)
    rank: dict[int, object] = {}
    for event in scan.events.of(_RANK, _CODE, _TASK):
        fields, ours = event.fields, out[event.stream]
        if event.name == _RANK:
            rank[event.stream] = fields.get("rank")
        elif event.name == _TASK and str(fields.get("tasks")).isdigit() and "host" in fields:
            ours.setdefault(("task", str(fields["tasks"])), str(fields["host"]))
        elif event.name == _CODE and (told := rank.pop(event.stream, None)) is not None:
            ours.setdefault(("rank", told), fields.get("pid"))
    for file in scan.files:
        if file.lines and (found := _SLURM.match(os.path.basename(file.path))) is not None:
            out[file.stream]["job"] = found[1]
    return out


def _named_runs(scan: ScanData, run_of: Mapping[int, int]) -> dict[int, int]:
    """The run of the processes that a stream names by number, where it is one."""
    pids: dict[object, set[int]] = defaultdict(set)
    for index, run in run_of.items():
        pids[scan.processes[index].pid].add(run)
    found: dict[int, set[int]] = defaultdict(set)
    for event in scan.events.of(*(name for name in scan.events.names if name.startswith(("launch.", "sys.")))):
        runs = pids.get(event.fields.get("pid"), ()) if event.proc < 0 else ()
        if len(runs) == 1:
            found[event.stream].update(runs)
    return {stream: next(iter(runs)) for stream, runs in found.items() if len(runs) == 1}


def _stem(path: str) -> str:
    for end in _ENDS:
        path = path.removesuffix(end)
    return os.path.splitext(path)[0]


def _by(streams: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    out: dict[Hashable, list[int]] = defaultdict(list)
    for stream in streams:
        out[key(stream)].append(stream)
    return [same for same in out.values() if len(same) > 1]
