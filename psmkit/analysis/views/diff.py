"""The comparison of ``psmkit diff GOOD BAD``: the first differing protocol step of each rank, and other differences.

The threads of a process interleave freely, so two healthy runs of one program never print the same order of lines. The
comparison works on the order within a track: init and topology, connections, proxy calls of the rank, fd exchanges,
collectives. A step holds a message's name and the fields that a rerun repeats, without addresses, ids, pids, sockets and times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import collectives
from psmkit.logparse.types import Call, Event, FdExchange, MessageCount, Ref, Value
from psmkit.model import Evidence
from psmkit.model.errors import PsmkitError

__all__ = ["Difference", "SettingDifference", "StepDifference", "compare"]

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first differing protocol step of a rank. ``good`` and ``bad`` describe the step; None means that the log ends there.

    ``index`` counts steps of the track from 0; ``common`` steps before it are equal. ``good_at`` and ``bad_at`` are the lines.
    """

    rank: int | None
    process: str | None
    index: int
    common: int
    good: str | None
    bad: str | None
    good_at: Evidence | None
    bad_at: Evidence | None
    track: str = ""


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A differing setting or topology fact. ``kind`` is "setting", "version", "topology" or "network"; None means absent from that log."""

    kind: str
    name: str
    good: str | None
    bad: str | None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two jobs.

    ``missing`` and ``extra`` are ranks that only GOOD or only BAD has. ``not_compared`` names processes that have no rank in the job,
    each as ``GOOD host:pid`` or ``BAD host:pid``. ``unseen`` are ranks of the job without a log on either side.
    """

    steps: tuple[StepDifference, ...]
    settings: tuple[SettingDifference, ...]
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    equal_ranks: tuple[int, ...]
    not_compared: tuple[str, ...] = ()
    unseen: tuple[int, ...] = ()

    @property
    def compared(self) -> frozenset[int]:
        """The ranks that both sides have."""
        return frozenset(self.equal_ranks).union(step.rank for step in self.steps if step.rank is not None)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks of both jobs, with and without a log."""
        return self.compared.union(self.missing, self.extra, self.unseen)

    @property
    def differs(self) -> bool:
        """Whether something differs."""
        return bool(self.steps or self.settings or self.missing or self.extra)

    @property
    def same(self) -> bool:
        """Whether each process was compared and nothing differs."""
        return not self.differs and not self.not_compared


@dataclass(frozen=True, slots=True)
class _Step:
    text: str
    ref: Ref | None
    total: bool = False  # a total, which has no position of its own


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
_NAMED = 3  # files of a host that an error names
_BIG = 1 << 24  # an integer from here on counts as an address or a hash


def compare(good: Job, bad: Job) -> Difference:
    """Compare two jobs (scans made with ``keep_calls=True``), rank by rank.

    Raises:
        PsmkitError: a side holds more than one run, or no process with a known rank.
    """
    ours, theirs = _ranks(good, "GOOD"), _ranks(bad, "BAD")
    steps = []
    equal = []
    for rank in sorted(set(ours) & set(theirs)):
        found = _first(good, ours[rank], bad, theirs[rank], rank)
        if found is None:
            equal.append(rank)
        else:
            steps.append(found)
    return Difference(
        steps=tuple(steps),
        settings=tuple(_settings(good, ours, bad, theirs)),
        missing=tuple(sorted(set(ours) - set(theirs))),
        extra=tuple(sorted(set(theirs) - set(ours))),
        equal_ranks=tuple(equal),
        not_compared=tuple(
            f"{side} {job.process(proc).name}"
            for side, job, ranks in (("GOOD", good, ours), ("BAD", bad, theirs))
            for proc in _without_rank(job, ranks)
        ),
        unseen=tuple(sorted({r for job in (good, bad) for r in job.missing_ranks(0).listed} - set(ours) - set(theirs))),
    )


def _ranks(job: Job, side: str) -> dict[int, int]:
    """The processes of the only run, by rank."""
    if len(job.runs) > 1:
        names = "; ".join(_named(job, run.procs) for run in job.runs)
        raise PsmkitError(f"{side} holds {len(job.runs)} runs ({names}): give the logs of one job")
    procs = sorted(job.runs[0].procs) if job.runs else []
    apart = _apart(job, procs)
    if len(apart) > 1:
        names = "; ".join(_named(job, part) for part in apart)
        raise PsmkitError(
            f"{side} holds {len(apart)} runs, or groups of ranks that share no communicator ({names}): give the logs of one job"
        )
    out: dict[int, int] = {}
    for proc in procs:
        rank = job.rank_of(proc)
        if rank is None:
            continue
        if rank in out:
            names = "; ".join(_named(job, {p}) for p in (out[rank], proc))
            raise PsmkitError(f"{side} holds rank {rank} twice ({names}): give the logs of one job")
        out[rank] = proc
    if not out:
        raise PsmkitError(
            f"{side} holds no process with one known rank ({_named(job, procs)}): "
            "give logs that one process a rank wrote with NCCL_DEBUG=INFO, from their start"
        )
    return out


def _apart(job: Job, procs: Sequence[int]) -> list[set[int]]:
    """The processes with a communicator, in parts that share none: each part numbers its ranks from 0."""
    part_of: dict[int, int] = {}  # communicator -> part
    parts: dict[int, tuple[set[int], set[int]]] = {}  # communicators and processes, the part that grew last at the end
    for proc in procs:
        groups = {i.group for i in job.instances_of.get(proc, ())}
        if not groups:
            continue
        touched = sorted({part_of[g] for g in groups if g in part_of}, key=lambda part: -sum(map(len, parts[part])))
        # the smaller parts join the largest
        part = touched[0] if touched else proc
        known, members = parts.pop(part, (set(), set()))
        for more, others in ((groups, {proc}), *(parts.pop(other) for other in touched[1:])):
            known |= more
            members |= others
            part_of.update(dict.fromkeys(more, part))
        parts[part] = (known, members)
    return [members for _, members in parts.values()]


def _named(job: Job, procs: Iterable[int]) -> str:
    """Processes by host, each host with its files."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    for proc in sorted(procs):
        process = job.process(proc)
        hosts[process.host or "a host without a name"][job.scan.files[process.first.file].path] = None
    said = (f"{host} in {_few(list(files))}" for host, files in hosts.items())
    return " and ".join(said) or "processes without an NCCL line"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _without_rank(job: Job, ranks: Mapping[int, int]) -> list[int]:
    """The processes that are not compared; damaged prefixes are no processes."""
    return sorted(set(job.runs[0].procs) - set(ranks.values()) - job.phantoms)


def _words(name: str, fields: Mapping[str, Value]) -> str:
    kept = []
    for key, value in fields.items():
        if key in _VOLATILE or (isinstance(value, int) and not -_BIG < value < _BIG) or isinstance(value, float):
            continue
        if isinstance(value, str) and (value.startswith(("0x", "/dev/shm/", "/tmp/")) or "<" in value):
            continue
        kept.append(f"{key}={value}")
    return f"{name} {' '.join(kept)}".strip()


def _tracks(job: Job, proc: int) -> dict[str, list[_Step]]:
    out: dict[str, list[_Step]] = {name: [] for name, _ in _TRACKS}
    for event in sorted(_events(job).get(proc, ()), key=lambda e: e.ref.seq):
        track = _track(event)
        if track is not None:
            out[track].append(_Step(_words(event.name, event.fields), event.ref))
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


def _calls(job: Job, proc: int) -> list[_Step]:
    """The calls of a process, thread by thread in the order of their responses; an open call comes last."""
    by_thread: dict[int, list[tuple[int, _Step]]] = defaultdict(list)
    for call in _called(job).get(proc, ()):
        end = call.matched or call.received or call.served or call.begun
        if end is None:
            continue
        # the order in which peers are linked varies, but not whether a service is a peer's
        text = f"proxy {call.stage or call.type}" + (" of a peer" if call.service not in (None, proc) else "")
        if call.resp_size:
            text += f" ({call.resp_size} bytes)"
        if call.state != "matched":
            text += f", only {call.state}"
        order = end.seq if call.state == "matched" else (1 << 60) + end.seq
        by_thread[call.caller_thread if call.caller_thread is not None else -1].append((order, _Step(text, end)))
    out: list[_Step] = []
    for _, steps in sorted(by_thread.items(), key=lambda item: min(order for order, _ in item[1])):
        out.extend(step for _, step in sorted(steps, key=lambda item: item[0]))
    return out


def _fds(job: Job, proc: int) -> list[_Step]:
    counted = _answered(job).get(proc, [])
    done = sum(c.count for c in counted)
    out = [_Step(f"{done} fd exchanges done", counted[0].last, total=True)] if done else []
    for fd in _asked(job).get(proc, ()):
        last = fd.answered or fd.received or fd.asked
        out.append(_Step(f"an fd exchange with rank {fd.peer} that is not done", last))
    return out


def _work(job: Job, proc: int) -> list[_Step]:
    """The calls in each communicator, in order of creation: how many, and the last one."""
    out = []
    for instance in sorted(job.instances_of.get(proc, []), key=lambda i: i.start.seq if i.start is not None else 0):
        size = f"of {instance.nranks} as {instance.rank}"
        for what, ref in (("Init START", instance.start), ("Init COMPLETE", instance.complete)):
            if ref is not None:
                out.append(_Step(f"{what} {size}", ref))
        for what, number in (
            ("collectives", collectives(instance)),
            ("sends", instance.sends),
            ("recvs", instance.recvs),
        ):
            if number:
                out.append(_Step(f"{number} {what} {size}", instance.last_op, total=True))
        if instance.end is not None:
            out.append(_Step(f"Destroy COMPLETE {size}", instance.end))
    return out


def _first(good: Job, ours: int, bad: Job, theirs: int, rank: int) -> StepDifference | None:
    """The first difference over all tracks: a differing step in the bad log, else a missing step, else a differing total."""
    one, other = _tracks(good, ours), _tracks(bad, theirs)
    found: list[tuple[tuple[int, int], StepDifference]] = []
    for place, track in enumerate(one):
        a, b = one[track], other[track]
        common = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x.text != y.text), min(len(a), len(b)))
        if common == len(a) == len(b):
            continue
        left = a[common] if common < len(a) else None
        right = b[common] if common < len(b) else None
        if right is not None and right.ref is not None:
            at = right.ref.seq
        else:
            # of the steps that the bad log lacks, the first one of the good log
            at = (1 << 60) + (left.ref.seq if left is not None and left.ref is not None else 0)
        if any(step is not None and step.total for step in (left, right)):
            at = 1 << 61
        found.append(
            (
                (at, place),
                StepDifference(
                    rank=rank,
                    process=bad.process(theirs).name,
                    index=common,
                    common=common,
                    good=left.text if left is not None else None,
                    bad=right.text if right is not None else None,
                    good_at=_line(good, left),
                    bad_at=_line(bad, right),
                    track=track,
                ),
            )
        )
    return min(found, key=lambda item: item[0])[1] if found else None


def _line(job: Job, step: _Step | None) -> Evidence | None:
    found = job.quotes.of(step.ref) if step is not None else ()
    return found[0] if found else None


# Facts to compare: kind, message, field that names it (None: the message does), fields that hold its value.
_FACTS: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("setting", "param.env", "name", ("value",)),
    ("version", "init.version", None, ("version",)),
    ("version", "init.cuda_driver", None, ("driver",)),
    ("network", "net.using", None, ("net", "name", "network", "value")),
    ("topology", "comm.shape", None, ("nranks", "nodes", "local_ranks", "mnnvl")),
    ("topology", "graph.pattern", "pattern", ("channels", "bw_intra", "bw_inter", "type_intra", "type_inter")),
    ("topology", "init.channels", None, ("coll", "collnet", "nvls", "p2p", "p2p_peer")),
    ("topology", "init.p2p_chunk", None, ("chunk",)),
    ("topology", "transport.p2p.type", None, ("direct", "direct_mode", "cuda")),
)


def _facts(job: Job, ranks: Mapping[int, int]) -> dict[tuple[str, str], dict[int, str]]:
    procs = {proc: rank for rank, proc in ranks.items()}
    out: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for kind, message, naming, fields in _FACTS:
        for event in job.events(message):
            rank = procs.get(event.proc)
            if rank is None:
                continue
            name = str(event.fields.get(naming, message)) if naming is not None else message
            if kind == "topology" and naming is not None:
                name = f"{message} {name}"
            value = " ".join(
                f"{f}={event.fields[f]}" if len(fields) > 1 else str(event.fields[f])
                for f in fields
                if f in event.fields
            )
            out[(kind, name)].setdefault(rank, value.rstrip("."))
    return out


def _settings(good: Job, ours: Mapping[int, int], bad: Job, theirs: Mapping[int, int]) -> list[SettingDifference]:
    one, other = _facts(good, ours), _facts(bad, theirs)
    both = sorted(set(ours) & set(theirs))
    out = []
    for kind, name in sorted(set(one) | set(other)):
        a, b = one.get((kind, name), {}), other.get((kind, name), {})
        by_values: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for rank in both:
            if a.get(rank) != b.get(rank):
                by_values[(a.get(rank), b.get(rank))].append(rank)
        for (left, right), ranks in by_values.items():
            out.append(SettingDifference(kind, name, left, right, tuple(ranks)))
    return out
