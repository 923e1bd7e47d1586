"""Whether the proxy lines of a host account for each other, so that no line of a service is missing.

Each connection shows its opening, its Init at the service, and its end at the client. Each call shows its begin and its end at the service.
The table of owed messages knows the number of Setups and Connects. A line that is lost breaks one of these sums. Only losses that take all
lines of one connection, on both sides, keep them; its number is missing then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from psmkit.analysis.facts.damage import lost_lines
from psmkit.analysis.facts.handshake import Handshake, handshakes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.owed import TRANSPORTS
from psmkit.analysis.facts.places import absent, by_local_rank, procs_on
from psmkit.analysis.facts.printed import printed
from psmkit.analysis.facts.progress import torn_down
from psmkit.logparse.types import Ref, ServiceTally

__all__ = ["apart", "surplus", "whole"]

_INIT, _SHARED_INIT, _SETUP, _CONNECT = 1, 2, 3, 4
#: Transports whose table knows each Connect.
_KNOWN = frozenset(TRANSPORTS.index(name) for name in ("NET", "COLLNET", "PSM_NET"))


def whole(job: Job, proc: int, ref: Ref) -> bool:
    """Whether no line of any proxy service on the host of a process is missing before ``ref``, a line of the process."""
    run = job.run_of(proc)
    if run is None or absent(job, run):
        return False
    host = procs_on(job, run, job.process(proc).host)
    if not _whole(job)[run, job.process(proc).host] or lost_lines(job, host):
        return False
    # where all connections of a process are with its own service, both sides of a call are in one log, in order
    stream = job.scan.files[ref.file].stream
    return apart(job, proc) or all(torn_down(job, p) or _ends_after(job, p, stream, ref) for p in host)


def surplus(job: Job, proc: int) -> int:
    """How many more answers the processes of a host read than its services sent. Lines in another order do not change it."""
    run = job.run_of(proc)
    host = procs_on(job, run, job.process(proc).host) if run is not None else []
    sent = sum(sum(t.served.values()) for p in host for t in _tallies(job).get(p, ()))
    return sum(printed(job, p, "proxy.call.received") for p in host) - sent


def apart(job: Job, proc: int) -> bool:
    """Whether all connections of a process are with its own service."""
    shake = handshakes(job).get(proc)
    return shake is not None and sum(shake.opened.values()) == printed(job, proc, "proxy.conn.connected")


def _ends_after(job: Job, proc: int, stream: int, ref: Ref) -> bool:
    last = job.process(proc).last
    return job.scan.files[last.file].stream == stream and last.seq > ref.seq


@once
def _whole(job: Job) -> dict[tuple[int, str], bool]:
    out: dict[tuple[int, str], bool] = {}
    hosts = {(run.index, job.process(p).host) for run in job.runs for p in run.procs}
    for run, host in hosts:
        procs = [p for p in procs_on(job, run, host) if p not in job.phantoms]
        opened: Counter[int | None] = Counter()
        for p in procs:
            for tally in _tallies(job).get(p, ()):
                for (_, _, local), number in tally.opened.items():
                    opened[by_local_rank(job, p, local)] += number
        joined = Counter({p: printed(job, p, "proxy.conn.connected") for p in procs})
        out[run, host] = opened == joined and all(_balanced(job, p) for p in procs)
    return out


def _balanced(job: Job, proc: int) -> bool:
    """Whether the lines of the proxy service of a process account for each other."""
    tallies = _tallies(job).get(proc, [])
    served: Counter[int] = Counter()
    for tally in tallies:
        served.update(tally.served)
    if any(t.gaps for t in tallies):
        return False
    if sum(t.begun for t in tallies) != sum(served.values()) or set(served) - {_INIT, _SHARED_INIT, _SETUP, _CONNECT}:
        return False
    if sum(sum(t.opened.values()) for t in tallies) != served[_INIT]:
        return False
    shake = handshakes(job).get(proc)
    return shake is None or (shake.setup[0] == shake.setup[1] and _connects(shake))


def _connects(shake: Handshake) -> bool:
    """Whether the number of Connects fits: those that the table names, and in a mode that it does not name one for each connection of a role."""
    sides = Counter({"send": 0, "recv": 0})
    for (transport, role), number in shake.opened.items():
        if transport not in _KNOWN:
            sides[role] += number
    owed, served = shake.connect
    return served - owed in (0, sides["send"], sides["recv"], sides["send"] + sides["recv"]) or served in (
        sides["send"],
        sides["recv"],
        sides["send"] + sides["recv"],
    )


@once
def _tallies(job: Job) -> dict[int, Sequence[ServiceTally]]:
    out: dict[int, list[ServiceTally]] = defaultdict(list)
    for tally in job.scan.services:
        out[tally.proc].append(tally)
    return dict(out)
