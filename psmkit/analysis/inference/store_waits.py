"""Ranks that waited at torch's store without success: who did not come, as far as their lines show it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import rank_in_line, rank_of_tag
from psmkit.analysis.inference import faults, store
from psmkit.analysis.inference.findings import new_finding
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named
from psmkit.model.wording import RAISED

__all__ = ["findings"]

_SHOWN = 4
#: The most lines of a stack between its head and its exception.
_STACK = 200


def findings(job: Job) -> list[Finding]:
    """One finding for each wait, and one for all ranks of a group that waited for the same rank."""
    return [_finding(job, events) for events in _together(job)]


def _together(job: Job) -> list[list[Event]]:
    """The lines, with those of different ranks of a group that waited in vain for the same rank in one list.

    Lines that name one rank twice are of several groups, or of several attempts: they stay apart.
    """
    out: dict[object, list[Event]] = {}
    for event in job.events("torch.store.timeout"):
        fields, error = event.fields, str(event.fields.get("error", ""))
        source = fields.get("from_rank")
        key: object = event.ref
        if isinstance(source, int) and "timeout" in error.lower():
            key = job.run_of_event(event), source, fields.get("key"), error
        out.setdefault(key, []).append(event)
    parts: list[list[Event]] = []
    for events in out.values():
        whole = len({e.fields.get("rank") for e in events}) == len(events)
        parts += [events] if whole else [[e] for e in events]
    return sorted(parts, key=lambda events: events[0].ref.seq)


def _as_in_the_job(job: Job, events: Sequence[Event]) -> bool:
    """Whether the tags of several lines show that the ranks of the group have the same numbers in the job."""
    return len(events) > 1 and all(_printer(job, e) == e.fields.get("rank") for e in events)


def _printer(job: Job, event: Event) -> int | None:
    """The rank of the process that printed a line, by a tag or by the head of its traceback: the number in the text is that in the group."""
    told = rank_of_tag(event.tag)
    if told is None:
        told = rank_in_line("".join(e.text for e in job.quotes.of(event.ref)))
    if told is not None:
        return told
    heads = _heads(job).get(event.stream, [])
    at = bisect.bisect_left(heads, event.ref.seq, key=lambda head: head.ref.seq)
    near = at > 0 and event.ref.seq - heads[at - 1].ref.seq <= _STACK
    return outside.global_rank(job, heads[at - 1]) if near else None


@once
def _heads(job: Job) -> dict[int, list[Event]]:
    """The heads of tracebacks in each stream."""
    out: dict[int, list[Event]] = {}
    for event in job.events("sys.python.traceback"):
        out.setdefault(event.stream, []).append(event)
    return {stream: sorted(events, key=lambda e: e.ref.seq) for stream, events in out.items()}


def _finding(job: Job, events: Sequence[Event]) -> Finding:
    """A rank that waited at the store without success, or several that waited for the same one."""
    event, run = events[0], job.run_of_event(events[0])
    came, total, address = (event.fields.get(name) for name in ("joined", "total", "address"))
    source = event.fields.get("from_rank")
    step = store.advice(address)
    if isinstance(came, int) and isinstance(total, int):
        title, step = _at_barrier(came, total)
    elif isinstance(source, int):
        asked = spans_text(spans_of({r for e in events if isinstance(r := e.fields.get("rank"), int)}))
        their = "its" if len(events) == 1 else "their"
        title = f"{asked} never got the communicator id from rank {source} of {their} group"
    elif (address := event.fields.get("address")) is not None:
        title = f"a process could not connect to torch's store at {address}"
    elif isinstance(rank := event.fields.get("rank"), int):
        title, step = f"rank {rank} waited in vain in the barrier of torch's store: not all ranks came to it", _LATE
    else:
        title = "a process waited in vain for torch's store"
    # The ranks in this line are those of the group, which equal the job's only in the default group. Only a time limit shows that the
    # source did not come: other errors are about the process that hosts the store.
    error = str(event.fields.get("error", ""))
    late = isinstance(source, int) and "timeout" in error.lower()
    ranks = (
        [source]
        if late and isinstance(source, int) and ("/default_pg/" in error or _as_in_the_job(job, events))
        else []
    )
    broken = isinstance(source, int) and faults.phrase(job, "a connection broke", error) is not None
    # a tag says which process tried
    here = (store.host(address) or "").startswith(("127.", "localhost", "::1"))  # both ends are on one host
    alone = outside.global_rank(job, event) is None and event.tag is None and not here
    ends = [Named(host=host, either=True, peer_unnamed=alone)] if (host := store.tried(job, run, address)) else []
    if broken and source == 0:
        # rank 0 hosts the store, unless the launcher does: the line blames it with "possible"
        asks = event.fields.get("rank")
        ends = [Named(rank, either=True) for rank in (0, asks) if isinstance(rank, int)]
        title = f"rank {event.fields.get('rank')} lost torch's store while it asked for the communicator id of rank 0"
    elif late and isinstance(source, int) and ("keys: /" not in error or len(events) > 1):
        ends = [Named(source, comm="its process group")]
    return new_finding(
        job,
        "PSM201",
        run=run,
        title=title,
        confidence=0.75,
        explanation=store.SILENT if late else store.UNREACHED,
        next_step=_SOURCE if late else step,
        refs=[e.ref for e in events[:_SHOWN]],
        ranks=ranks,
        procs=job.procs_of(run, ranks),
        culprits=ranks,
        stage=RAISED if broken or address is not None else None,  # it gave up, where others wait for a rank
        named=ends,
    )


#: What to do about ranks that did not come to a barrier.
_LATE = "Find the ranks that did not come: read the last lines of each, see whether their hosts started them, and compare the number of processes with the world size."
_SOURCE = "Read the output of that rank: did its process start, does it run, and what did it do instead of its first operation in this group? All ranks must use a group in the same order."
_SHARED = "Give this job a store of its own: end the processes of earlier starts, and use another --rdzv_id, MASTER_PORT or file for each job."


def _at_barrier(came: int, total: int) -> tuple[str, str]:
    """What a barrier of torch's store shows that counts the processes that came, and what to do."""
    if came > total:
        return (
            f"{came} processes were counted in a barrier of torch's store for {total}: its counter has those of another start or job, too",
            _SHARED,
        )
    if came == total:
        return f"all {total} processes came to the barrier of torch's store, and one timed out in it", _LATE
    return f"{total - came} of {total} processes never came to the barrier of torch's store", _LATE
