"""The table of ``psmkit ops``: one row for each matched proxy call and fd exchange."""

from __future__ import annotations

from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.missing import LISTED
from psmkit.logparse.types import Ref
from psmkit.model.late import dataclass

__all__ = ["OpRow", "ranks", "rows"]

_CALL_STAGES = ("begun", "served", "received", "matched")
_FD_STAGES = ("asked", "received", "answered", "done")


@dataclass(frozen=True, slots=True)
class OpRow:
    """One proxy call or fd exchange.

    ``kind`` is "call" or "fd". ``rank`` is the global rank of the caller, ``process`` its ``host:pid``; ``peer_rank`` and
    ``peer_process`` belong to the serving process. ``type`` is Init, Setup, ..., GetFd. ``stage`` is the last one reached.
    ``refs`` are (stage, line) in order.
    """

    kind: str
    run: int | None
    rank: int | None
    process: str | None
    peer_rank: int | None
    peer_process: str | None
    op: int
    generation: int
    type: str | None
    stage: str
    complete: bool
    size: int | None
    refs: tuple[tuple[str, Ref], ...]


def rows(job: Job) -> list[OpRow]:
    """All calls and exchanges of a scan made with ``keep_calls=True`` (else only incomplete ones), in order of their first lines."""
    scan = job.scan

    def name(proc: int | None) -> str | None:
        return None if proc is None else job.process(proc).name

    def rank(proc: int | None) -> int | None:
        return None if proc is None else job.rank_of(proc)

    out: list[OpRow] = []
    for call in scan.calls:
        refs = tuple(
            (s, r)
            for s, r in zip(_CALL_STAGES, (call.begun, call.served, call.received, call.matched), strict=True)
            if r is not None
        )
        kind = call.stage or (f"type {call.type}" if call.type is not None else None)
        out.append(
            OpRow(
                kind="call",
                run=_run(job, call.caller, call.service),
                rank=rank(call.caller),
                process=name(call.caller),
                peer_rank=rank(call.service),
                peer_process=name(call.service),
                op=call.op,
                generation=call.generation,
                type=kind,
                stage=call.state,
                complete=call.state == "matched",
                size=call.resp_size,
                refs=refs,
            )
        )
    for fd in scan.fds:
        refs = tuple(
            (s, r)
            for s, r in zip(_FD_STAGES, (fd.asked, fd.received, fd.answered, fd.done), strict=True)
            if r is not None
        )
        out.append(
            OpRow(
                kind="fd",
                run=_run(job, fd.client, fd.server),
                rank=rank(fd.client) if fd.client is not None else fd.rank,
                process=name(fd.client),
                peer_rank=rank(fd.server) if fd.server is not None else fd.peer,
                peer_process=name(fd.server),
                op=fd.op,
                generation=1,
                type="GetFd",
                stage=refs[-1][0] if refs else "unknown",
                complete=fd.done is not None,
                size=None,
                refs=refs,
            )
        )
    out.sort(key=lambda row: min((ref.seq, ref) for _, ref in row.refs) if row.refs else (1 << 62, Ref(0, 0, 0)))
    return out


def ranks(job: Job, rows: Iterable[OpRow]) -> frozenset[int]:
    """The ranks that a job or its rows have, with and without a log."""
    known = {rank for run in job.runs for rank in range(min(run.nranks or 0, LISTED))} | set(job.rank_by_proc.values())
    return frozenset(known.union(rank for row in rows for rank in (row.rank, row.peer_rank) if rank is not None))


def _run(job: Job, *procs: int | None) -> int | None:
    for proc in procs:
        if proc is not None:
            return job.run_of(proc)
    return None
