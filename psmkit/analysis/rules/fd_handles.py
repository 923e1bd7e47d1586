"""Descriptors of another handle than the one that a rank asked for.

The client names a handle after the exchange, the server when it reads the request and when it answers. The id of the exchange and the
thread of the client tie these lines together, so two handles in one exchange are no coincidence of addresses.
"""

from __future__ import annotations

from psmkit.analysis.facts.damage import lost_lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of_rank
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import FdExchange
from psmkit.model import Finding, Severity

__all__ = ["find"]


@rule(order=225)
def find(job: Job) -> list[Finding]:
    """PSM109, one for two exchanges that got each other's handle."""
    mixed = [fd for fd in job.scan.fds if fd.done is not None and _asked(fd) != _got(fd)]
    by_asked = {(job.run_of(fd.client) if fd.client is not None else None, fd.server, _asked(fd)): fd for fd in mixed}
    out, told = [], set()
    for fd in mixed:
        if fd.op in told:
            continue
        other = by_asked.get((job.run_of(fd.client) if fd.client is not None else None, fd.server, _got(fd)))
        swapped = other if other is not None and other is not fd and _got(other) == _asked(fd) else None
        told |= {fd.op} | ({swapped.op} if swapped is not None else set())
        out.append(_finding(job, fd, swapped))
    return out


def _asked(fd: FdExchange) -> int | None:
    return fd.wanted if fd.wanted is not None else fd.read


def _got(fd: FdExchange) -> int | None:
    """The handle that was answered. The server prints it twice, and either line may be lost."""
    return next((handle for handle in (fd.sent, fd.read) if handle is not None and handle != _asked(fd)), _asked(fd))


def _finding(job: Job, fd: FdExchange, other: FdExchange | None) -> Finding:
    client, server = _name(job, fd.client, fd.rank), _name(job, fd.server, fd.peer)
    asked, got = _asked(fd) or 0, _got(fd) or 0
    both = [fd, *([other] if other is not None else [])]
    procs = list(dict.fromkeys(p for x in both for p in (x.client, x.server) if p is not None))
    if other is not None:
        title = f"{client} and {_name(job, other.client, other.rank)} got each other's descriptor from {server}: handles 0x{asked:x} and 0x{got:x} are swapped"
    else:
        title = f"{client} asked {server} for handle 0x{asked:x} and got the descriptor of handle 0x{got:x}"
    server_did = other is not None or (fd.read is not None and fd.read == asked)
    rank = _server(job, fd)
    # a line that was glued to another one can show a wrong number
    damaged = lost_lines(job, procs) > 0
    return new_finding(
        job,
        "PSM109",
        run=job.run_of(procs[0]) if procs else None,
        title=title,
        severity=Severity.WARNING if damaged else Severity.ERROR,
        confidence=0.6 if damaged else 0.9,
        explanation="The lines of one exchange name two handles, so the client maps memory that is not the one of its connection.",
        refs=[r for x in both for r in (x.asked, x.received, x.answered, x.returned)],
        procs=procs,
        culprits=[rank] if rank is not None and server_did and not damaged else [],
        stage="fd answered",
    )


def _server(job: Job, fd: FdExchange) -> int | None:
    """The rank whose service answered: of a process with several, the one that the client asked."""
    if fd.server is None:
        return None
    rank = job.rank_of(fd.server)
    return fd.peer if rank is None and fd.peer in job.ranks_of(fd.server) else rank


def _name(job: Job, proc: int | None, rank: int | None) -> str:
    if proc is not None:
        return name_of_rank(job, proc, rank)
    return f"rank {rank}" if rank is not None else "an unknown rank"
