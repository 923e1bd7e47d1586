"""The protocol steps of a process, in tracks: what the comparison of two runs compares.

The threads of a process interleave freely, so two healthy runs of one program never print the same order of lines. The order within a
track is the same: init and topology, connections, proxy calls of the rank, fd exchanges, collectives. A step holds a message's name and the
fields that a rerun repeats, without addresses, ids, pids, sockets and times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import collectives
from psmkit.logparse.types import Call, Event, FdExchange, MessageCount, Ref, Value
from psmkit.model.late import dataclass, regex

__all__ = ["Step", "tracks"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a track. ``kind`` is its text without what distinguishes steps of one kind, and ``count`` the number of operations that it stands
    for. ``total``: it is a total, which has no position of its own."""

    text: str
    ref: Ref | None
    kind: str
    total: bool = False
    count: int = 1


#: Tracks in the order in which a process passes them, each with the name prefixes that belong to it.
_TRACKS = (
    ("init", ("init.", "bootstrap.", "graph.", "topo.", "tuning.")),
    ("connections", ("transport.", "net.channel.", "psm.")),
    ("errors", ("error.", "unmatched.", "warn.", "cuda.", "memory.shm.", "socket.")),
)
# Messages whose position or number varies between equal runs.
_UNSTEADY = frozenset(
    {"init.timings", "bootstrap.timings", "init.cuda_driver", "init.version", "init.version_line", "graph.system"}
)
_VOLATILE = frozenset(
    """op comm ptr handle pid addr conn fd commid hash pid_hash hostname stream sendbuff recvbuff seconds core mine peer_addr name
    req resp desc buffer magic time bus host file line code_line opcount respbuff dev_ptr total""".split()
)
# What varies between equal runs inside a text, such as a warning that the catalogue does not know: pointers, times, ids.
_VARIES = regex(
    r"0x[0-9a-fA-F]+|\b\d{4}-\d\d-\d\d[T ]?|\b\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|(?i:\b(?:pid|tid|thread|opid)[ =:]+)(?:[0-9a-fA-F]*\d[0-9a-fA-F]*)\b"
)
_BIG = 1 << 24  # an integer from here on counts as an address or a hash


def _words(name: str, fields: Mapping[str, Value]) -> str:
    kept = []
    for key, value in fields.items():
        if key in _VOLATILE or (isinstance(value, int) and not -_BIG < value < _BIG) or isinstance(value, float):
            continue
        if isinstance(value, str) and (value.startswith(("0x", "/dev/shm/", "/tmp/")) or "<" in value):
            continue
        kept.append(f"{key}={_VARIES.sub('*', value) if isinstance(value, str) else value}")
    return f"{name} {' '.join(kept)}".strip()


def tracks(job: Job, proc: int) -> dict[str, list[Step]]:
    """The tracks of a process of a scan with ``keep_calls=True``, in the order in which a process passes them."""
    out: dict[str, list[Step]] = {name: [] for name, _ in _TRACKS}
    for event in sorted(_events(job).get(proc, ()), key=lambda e: e.ref.seq):
        track = _track(event)
        if track is not None:
            out[track].append(Step(_words(event.name, event.fields), event.ref, event.name))
    out["proxy calls"] = _calls(job, proc)
    out["fd exchanges"] = _fds(job, proc)
    out["work"] = _work(job, proc)
    return out


@once
def _events(job: Job) -> dict[int | None, list[Event]]:
    return _by(job.scan.events, lambda event: event.proc)


@once
def _called(job: Job) -> dict[int | None, list[Call]]:
    return _by(job.scan.calls, lambda call: call.caller)


@once
def _asked(job: Job) -> dict[int | None, list[FdExchange]]:
    return _by((fd for fd in job.scan.fds if fd.done is None), lambda fd: fd.client)


@once
def _answered(job: Job) -> dict[int | None, list[MessageCount]]:
    return _by(job.scan.counts.of("proxy.fd.done"), lambda count: count.proc)


def _by(items: Iterable[_Item], proc: Callable[[_Item], int | None]) -> dict[int | None, list[_Item]]:
    out: dict[int | None, list[_Item]] = defaultdict(list)
    for item in items:
        out[proc(item)].append(item)
    return dict(out)


def _track(event: Event) -> str | None:
    if event.name in _UNSTEADY:
        return None
    for track, begins in _TRACKS:
        if event.name.startswith(begins):
            # the errors track holds only complaints
            return track if track != "errors" or event.level in ("WARN", "ABORT") else None
    return "errors" if event.level in ("WARN", "ABORT") else None


def _calls(job: Job, proc: int) -> list[Step]:
    """The calls of a process, thread by thread in the order of their responses; an open call comes last."""
    by_thread: dict[int, list[tuple[int, Step]]] = defaultdict(list)
    for call in _called(job).get(proc, ()):
        end = call.matched or call.received or call.served or call.begun
        if end is None:
            continue
        # the order in which peers are linked varies, but not whether a service is a peer's
        kind = f"proxy {call.stage or call.type}" + (" of a peer" if call.service not in (None, proc) else "")
        open_ = "" if call.state == "matched" else f", only {call.state}"
        text = kind + (f" ({call.resp_size} bytes)" if call.resp_size else "") + open_
        order = end.seq if call.state == "matched" else (1 << 60) + end.seq
        by_thread[call.caller_thread if call.caller_thread is not None else -1].append(
            (order, Step(text, end, kind + open_))
        )
    out: list[Step] = []
    for _, steps in sorted(by_thread.items(), key=lambda item: min(order for order, _ in item[1])):
        out.extend(step for _, step in sorted(steps, key=lambda item: item[0]))
    return out


def _fds(job: Job, proc: int) -> list[Step]:
    counted = _answered(job).get(proc, [])
    done = sum(c.count for c in counted)
    kind = "fd exchanges done"
    out = [Step(f"{done} {kind}", counted[0].last, kind, total=True, count=done)] if done else []
    for fd in _asked(job).get(proc, ()):
        last = fd.answered or fd.received or fd.asked
        out.append(Step(f"an fd exchange with rank {fd.peer} that is not done", last, "fd exchange that is not done"))
    return out


def _work(job: Job, proc: int) -> list[Step]:
    """The calls in each communicator, in order of creation: how many, and the last one."""
    out = []
    for instance in sorted(job.instances_of.get(proc, []), key=lambda i: i.start.seq if i.start is not None else 0):
        size, of = f"of {instance.nranks} as {instance.rank}", f"in a communicator of {instance.nranks}"
        for what, ref in (("Init START", instance.start), ("Init COMPLETE", instance.complete)):
            if ref is not None:
                out.append(Step(f"{what} {size}", ref, f"{what} {of}"))
        for what, number in (
            ("collectives", collectives(instance)),
            ("sends", instance.sends),
            ("recvs", instance.recvs),
        ):
            if number:
                out.append(Step(f"{number} {what} {size}", instance.last_op, f"{what} {of}", total=True, count=number))
        if instance.end is not None:
            out.append(Step(f"Destroy COMPLETE {size}", instance.end, f"Destroy COMPLETE {of}"))
    return out
