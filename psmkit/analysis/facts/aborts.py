"""Where each process was aborted. What it prints afterwards follows from the abort, unless it works again."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import CommInstance, Ref, Value
from psmkit.model.arrays import np

__all__ = ["abort_ends", "aborted", "aborted_before"]

#: Lines of a process that is being aborted, as far as they do not name the communicator.
_MARKS = ("bootstrap.abort", "socket.abort", "proxy.accept_aborted", "proxy.recv_type_aborted", "libpsm.proxy.aborted")
#: Lines that name the communicator that is aborted.
_OF_COMM = ("comm.abort.start", "comm.end.abort", "comm.revoke.start")


def aborted(job: Job, proc: int | None) -> bool:
    """Whether a process aborted a communicator: that does not show that its work was done."""
    ours = job.instances_of.get(proc, ()) if proc is not None else ()
    return any(i.end in abort_ends(job) for i in ours)


def aborted_before(job: Job, proc: int, ref: Ref) -> Ref | None:
    """The line before ``ref`` that shows the abort of a process; None if there is none, or if the process worked after it.

    The abort of one of several communicators counts if none of the others is open at ``ref``.
    """
    known = _marks(job).get(proc)
    if known is None:
        return None
    stream = _stream(job, ref)
    marks = [mark for mark in known if _before(job, mark[0], ref, stream)]
    if not marks:
        return None
    ours = [i for i in job.instances_of.get(proc, ()) if i.start is None or _before(job, i.start, ref, stream)]
    steps = [r for i in ours for r in (i.start, i.complete, i.last_op) if r is not None]
    again = max((r.seq for r in steps if _before(job, r, ref, stream)), default=-1)
    for mark, comm in marks:
        if again < mark.seq:
            others = [i for i in ours if i.comm != comm] if comm is not None else []
            if not any(_open(job, i, ref, stream) for i in others):
                return mark
    return None


def _open(job: Job, instance: CommInstance, ref: Ref, stream: int) -> bool:
    gone = [instance.end, *(m for m, comm in _marks(job).get(instance.proc, ()) if comm == instance.comm)]
    return not any(r is not None and _before(job, r, ref, stream) for r in gone)


def _before(job: Job, one: Ref, other: Ref, stream: int) -> bool:
    return _stream(job, one) == stream and one.seq < other.seq


def _stream(job: Job, ref: Ref) -> int:
    return job.scan.files[ref.file].stream


@once
def abort_ends(job: Job) -> frozenset[Ref]:
    """The lines that end a communicator by an abort."""
    return frozenset(job.scan.events.refs(job.rows("comm.end.abort")))


@once
def _marks(job: Job) -> dict[int, list[tuple[Ref, int | None]]]:
    """The lines of each process, with the pointer of the communicator that they name."""
    found: dict[int, list[tuple[Ref, int | None]]] = defaultdict(list)
    events, rows = job.scan.events, job.rows(*_MARKS, *_OF_COMM)
    rows = rows[events.proc[rows] >= 0]
    rows = rows[np.lexsort((events.first[rows], events.stream[rows]))]
    comms: dict[int, Value | None] = {}
    for name in (*_MARKS, *_OF_COMM):
        named = job.rows(name)
        comms.update(zip(named.tolist(), events.values(name, "comm", named), strict=True))
    repeated = rows[events.last[rows] != events.first[rows]]
    lasts = {row: event.last for row, event in zip(repeated.tolist(), events.make(repeated), strict=True)}
    for row, proc, ref in zip(rows.tolist(), events.proc[rows].tolist(), events.refs(rows), strict=True):
        comm, last = comms[row], lasts.get(row)
        found[proc] += [(r, comm if isinstance(comm, int) else None) for r in (ref, last) if r is not None]
    return found
