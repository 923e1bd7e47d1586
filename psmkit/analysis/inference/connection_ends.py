"""The processes at the two ends of a connection that failed, as far as the lines of an error name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from psmkit.analysis.facts import deaths
from psmkit.analysis.facts.aborts import aborted_before
from psmkit.analysis.facts.death import FAULTS, KILLED
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import blame, faults
from psmkit.analysis.inference.faults import Cascade
from psmkit.logparse.types import Event
from psmkit.model import CODES, Named

__all__ = ["ends_of", "host_down", "links_down", "peer_in_text", "reports_of_devices"]


def ends_of(job: Job, group: Sequence[Cascade], code: str, local_address: bool) -> list[Named]:
    """The peer that a line blames or that several ranks name; else the ends of the only connection that failed, as far as the lines name them.

    Only an address that no process of the input has counts. ``local_address``: the address made the connect fail, so no process is to blame.
    """
    first = group[0].first
    peers = blame.addressed(c.first.event for c in group)
    if local_address or first.known is None or faults.unknown(first.event):
        return []
    peers = [replace(peer, host=blame.host_at(job, peer.host) or peer.host) for peer in peers]
    if CODES[code].two_ends and (at := host_down(job, job.run_of(group[0].proc))) is not None:
        return [Named(host=at)]
    if not peers:
        return _near_ends(job, group, code)
    if down := links_down(job, job.run_of(group[0].proc)):
        # the other end reported an error of its own device; does a line show that it has this address?
        there = job.process(down[0]).host
        if len(down) > 1 or down[0] == group[0].proc or not CODES[code].two_ends or there in {p.host for p in peers}:
            return []
        return _either(_end(job, down[0]), _end(job, group[0].proc, first.event))
    if not CODES[code].two_ends:
        return peers if first.known.blames == "peer" else []
    # a peer that closed its end is gone, and what several ranks cannot reach is at the other end
    broke = faults.phrase(job, "a connection broke", faults.body(job, first.event)) is not None
    if broke or len({c.proc for c in group}) > 1:
        return peers
    return _either(_end(job, group[0].proc, first.event), *peers)


def peer_in_text(job: Job, cascade: Cascade) -> list[Named]:
    """The peer that the first line of an error names by an address; both ends where no entry knows that line and it says of no connection that it broke."""
    event = cascade.first.event
    peers = blame.addressed([event])
    broke = faults.phrase(job, "a connection broke", faults.body(job, event)) is not None
    if not peers and broke and blame.same_host(job, event) and (host := job.process(cascade.proc).host):
        return [Named(host=host)]  # another process of this host, or another thread of this process
    if not peers or broke or not faults.unknown(event):
        return peers
    return _either(_end(job, cascade.proc, event), *peers)


def _either(*ends: Named, peer_unnamed: bool = False) -> list[Named]:
    """Ends of a connection that failed, where no line shows which end broke it."""
    return [replace(end, either=True, peer_unnamed=peer_unnamed) for end in ends]


def _near_ends(job: Job, group: Sequence[Cascade], code: str) -> list[Named]:
    """The reporters of a failed network operation whose lines name no peer: each is one end. Of more than two, the first by the clock.

    Nobody, if an abort came before it, or if a process died that can be the peer.
    """
    known, run = group[0].first.known, job.run_of(group[0].proc)
    if known is None or known.blames != "peer" or not CODES[code].two_ends or run is None:
        return []
    if any(blame.target(job, c.first.event) or blame.addressed([c.first.event]) for c in group):
        return []
    ours = {c.proc for c in group}
    if any(d.proc not in ours and (d.oom or d.signal in (KILLED, *FAULTS)) for d in deaths.collect(job, run)):
        return []
    if any(aborted_before(job, proc, group[0].first.ref) for proc in job.runs[run].procs):
        return []
    if len(group) > 2:
        times = sorted((c.first.event.time or "", at) for at, c in enumerate(group))
        if not times[0][0] or times[0][0] == times[1][0]:
            return []
        group = [group[times[0][1]]]
    ends = [_end(job, c.proc, c.first.event) for c in group]
    both = len(ours) == 2 == job.runs[run].nranks  # a connection of two ranks has no other end
    return _either(*ends, peer_unnamed=not both)


def _end(job: Job, proc: int, event: Event | None = None) -> Named:
    """A process at one end of a connection; ``event`` is a line of the thread that failed."""
    process = job.process(proc)
    rank = job.rank_of_thread(event) if event is not None else job.rank_of(proc)
    return Named(rank, process.host, process.pid, device=job.device_at(event) if event is not None else None)


def links_down(job: Job, run: int | None) -> list[int]:
    """Processes whose own network device reported an error: the errors of their peers follow from it."""
    return _all_links_down(job).get(run, [])


def reports_of_devices(job: Job, run: int | None) -> list[Cascade]:
    """The lines in which processes of a run report an error of their own network device."""
    return _all_reports(job).get(run, [])


def host_down(job: Job, run: int | None) -> str | None:
    """The only host of which several processes report an error of the same network device: it is the device's error, and of no process."""
    found = reports_of_devices(job, run)
    places = {(job.process(c.proc).host, c.first.event.fields.get("dev")) for c in found}
    return next(iter(places))[0] or None if len(places) == 1 and len({c.proc for c in found}) > 1 else None


@once
def _all_links_down(job: Job) -> dict[int | None, list[int]]:
    return {run: sorted({c.proc for c in found}) for run, found in _all_reports(job).items()}


@once
def _all_reports(job: Job) -> dict[int | None, list[Cascade]]:
    out: dict[int | None, list[Cascade]] = defaultdict(list)
    for c in faults.cascades(job):
        known = c.first.known
        own = known is not None and known.finding == "PSM406" and known.blames == "self"
        if own and c.severity in ("warning", "error") and not torn_down(job, c.proc):
            out[job.run_of(c.proc)].append(c)
    return dict(out)
