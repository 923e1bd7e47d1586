"""Runs and ranks of all lines of a batch, as columns."""

from __future__ import annotations

from typing import Any

from psmkit.analysis.facts.job import Job
from psmkit.logparse.batches import EventBatch
from psmkit.model.arrays.whole import np, npt

__all__ = ["NONE", "of_processes", "ranks", "runs"]

#: A run or a rank that is not known.
NONE = -1

_Numbers = npt.NDArray[np.int32]


def of_processes(job: Job) -> tuple[_Numbers, _Numbers]:
    """The run and the global rank of each process; the last element is :data:`NONE`, for lines of no process."""
    procs = range(len(job.scan.processes))
    found = ([_known(of(proc)) for proc in procs] for of in (job.run_of, job.rank_of))
    run, rank = (np.array([*column, NONE], dtype=np.int32) for column in found)
    return run, rank


def _known(number: int | None) -> int:
    return NONE if number is None else number


def runs(job: Job, batch: EventBatch, of_process: _Numbers) -> _Numbers:
    """The run of each line, as :meth:`Job.run_of_event` says."""
    if len(job.runs) == 1:
        return np.zeros(len(batch), dtype=np.int32)
    out = of_process[batch.proc]
    loose = np.flatnonzero(batch.proc < 0)
    out[loose] = [_known(job.run_of_event(event)) for event in batch.events_of(loose)]
    return out


def ranks(job: Job, batch: EventBatch, of_process: _Numbers) -> _Numbers:
    """The rank of each line's thread, as :meth:`Job.rank_of_thread` says."""
    out = of_process[batch.proc]
    by_device = job.numbering.by_device
    shared = {proc for proc, _ in by_device if job.rank_of(proc) is None}
    if not shared:
        return out
    rows = np.flatnonzero(np.isin(batch.proc, list(shared)))
    helpers = np.array([name in job.numbering.helpers for name in batch.names])
    device, placed = batch.device[rows], batch.packed_where[rows] != 0
    plain = (device > 0) | ((device == 0) & ~placed & ~helpers[batch.message[rows]])
    for key in np.unique(_key(batch, rows[plain])).tolist():
        rank = by_device.get((key >> 32, key & 0xFFFFFFFF))
        if rank is not None:
            at = rows[plain]
            out[at[_key(batch, at) == key]] = rank
    # the place in NCCL's code, or what the thread did, decides
    asked = rows[~plain & (placed | np.isin(batch.thread[rows], list(job.progress_threads)))]
    out[asked] = [_known(job.rank_of_thread(event)) for event in batch.events_of(asked)]
    return out


def _key(batch: EventBatch, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    key: npt.NDArray[np.int64] = batch.proc[rows].astype(np.int64) << 32 | batch.device[rows]
    return key
