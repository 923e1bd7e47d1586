"""Group the lines that report an error: a warning, the chain of returns below it, and what the process did next.

A failing call prints one WARN and then a line ``file.cc:NNN -> code`` for each function that it returns through; the last
of these shows how far the error travelled. A chain continues in another thread if an asynchronous job is joined there.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psmkit.analysis.facts import endings, lines
from psmkit.analysis.facts.aborts import aborted_before
from psmkit.analysis.facts.callers import callers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import chose_network, torn_down
from psmkit.analysis.inference import reports
from psmkit.analysis.inference.cascade import CALLS, Cascade, Fault, Lines
from psmkit.analysis.inference.chains import UNKNOWN, Kind, Others, is_step, shapes
from psmkit.catalogue import Message, Phrase
from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model import CODES
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass, regex

__all__ = [
    "Cascade",
    "Fault",
    "body",
    "brief",
    "cascades",
    "failed",
    "follows",
    "message",
    "of_proc",
    "of_run",
    "phrase",
    "place",
    "refs",
    "signature",
    "unknown",
]

Column = npt.NDArray[Any]

#: A network plugin fails to create its end of a connection. While it starts, NCCL takes another network.
_ENDPOINTS = frozenset({"plugin.ofi.endpoint"})
#: The line of the first rank of a host that goes on without CollNet; the others only print their steps.
_NO_COLLNET = "transport.collnet_failed"
#: The parts of the catalogue about networks, whose devices NCCL tries one by one while it starts.
_NETWORKS = frozenset({"ib", "plugins"})
#: The levels of lines that NCCL prints when it cannot go on.
_ALARMS = ("WARN", "ABORT")
#: Fields whose numbers say what failed.
_NUMBERS = ("code", "err", "errno", "error", "res", "status")
_SYSTEM_ERROR = 2  # ncclSystemError: of a call of this process. What follows from the abort of others is an internal or a remote error.
#: The end of a quoted line whose end is lost.
_CUT = "\N{HORIZONTAL ELLIPSIS} (the line is cut)"
#: The folder of the build, which hipified sources print.
_BUILD = regex(r"^/.*/(?:hipify/)?src/")


def message(job: Job, name: str) -> Message | None:
    """The catalogue entry of an event, including the user's own."""
    return lines.catalogue(job).by_name.get(name)


def phrase(job: Job, says: str, text: str) -> Phrase | None:
    """The catalogue's phrase with this meaning in a text, including the user's own; None if there is none."""
    return lines.catalogue(job).phrase(says, text)


def unknown(event: Event) -> bool:
    """Whether this is a WARN without a catalogue entry."""
    return event.name in UNKNOWN


def body(job: Job, event: Event, most: int = 160) -> str:
    """The text of a line without its prefix."""
    text = str(event.fields.get("text", "")) if event.name in UNKNOWN else ""
    if not text:
        text = lines.message_at(job, event.ref)
    cut = event.level == "WARN" and lines.catalogue(job).cut(text.strip())
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return text + _CUT if cut else text


_HEX = frozenset("0123456789abcdefABCDEF:.")


def brief(job: Job, event: Event, most: int = 90) -> str:
    """The text of a line for a title: without GIDs, and cut at a word. Of a line of libpsm, its status and reason."""
    report = reports.of(job, event)
    whole = body(job, event, 400)
    if report is not None and report.status:
        whole = f"{report.status}: {_without_arguments(report.reason)}"
        most += len(report.status)  # the reason matters more
    kept: list[str] = []
    for word in whole.removesuffix(_CUT).split():
        if word.count(":") > 1 and _HEX.issuperset(word.strip(",()")):
            if kept and kept[-1].lower().endswith(("gid", "gids")):
                kept.pop()
        else:
            kept.append(word)
    text = " ".join(kept)
    short = text if len(text) <= most else text[:most].rpartition(" ")[0] or text[:most]
    if whole.endswith(_CUT):
        return short + _CUT
    return short if short == text else short + "\N{HORIZONTAL ELLIPSIS}"


def _without_arguments(reason: str) -> str:
    """A reason of libpsm without the arguments of the call that failed: the error stands behind them."""
    call, end, error = reason.partition("): ")
    name, begin, _ = call.partition("(")
    return f"{name}: {error}" if end and begin and name.isidentifier() else reason


def place(event: Event) -> str | None:
    """The ``file.cc:NNN`` of a line, if any."""
    if event.where:
        return _BUILD.sub("", event.where)
    name, line = event.fields.get("file"), event.fields.get("line")
    return f"{_BUILD.sub('', str(name))}:{line}" if name is not None and line is not None else None


def follows(job: Job, event: Event) -> bool:
    """Whether the text of an unknown line says that something else came first."""
    return phrase(job, "something came first", body(job, event)) is not None


def _faults(job: Job) -> tuple[Column, Column, list[Kind], Others]:
    """The rows of events that report errors, by process and place, their kinds, and what each thread printed besides."""
    events = job.scan.events
    alarms = events.of_level(*_ALARMS)
    numbers: dict[Kind, int] = {}
    kind_of = np.full(len(events), -1, dtype=np.int32)
    for name in events.names:
        known, rows = message(job, name), events.rows([name])
        # few messages report errors
        if _may_report(name, known) or alarms[rows].any():
            rows = rows[events.proc[rows] >= 0]
            kinds, kind_at = _kinds(job, name, known, rows)
            found = [-1 if kind is None else numbers.setdefault(kind, len(numbers)) for kind in kinds]
            kind_of[rows] = np.array(found, dtype=np.int32)[kind_at]
    rows = np.flatnonzero(kind_of >= 0)
    rows = rows[np.lexsort((events.first[rows], events.proc[rows]))]
    # lines of the RAS thread and counted repetitions are no evidence about the failed thread
    plain = (kind_of < 0) & (events.proc >= 0)
    repeated = plain & (events.last != events.first)
    threads = np.concatenate([events.thread[plain], events.thread[repeated]])
    speaking = frozenset(np.flatnonzero(np.bincount(events.proc[plain & (events.thread >= 0)])).tolist())
    others = Others(threads, np.concatenate([events.first[plain], events.last[repeated]]), speaking)
    return rows, kind_of[rows], list(numbers), others


def _kinds(job: Job, name: str, known: Message | None, rows: Column) -> tuple[list[Kind | None], Column]:
    """The kinds of the rows of a message, None for lines that report no error, and the place of each row's kind among them."""
    events = job.scan.events
    chain = is_step(name)
    levels: list[int] = events.level[rows].tolist()
    none: list[Value | None] = [None] * len(rows)
    keys: list[tuple[int, bool | None, Value | None, Value | None]]
    if name in CALLS:
        keys = []
        for level, event in zip(levels, events.pick(rows), strict=True):
            reason = " ".join(str(v) for v in event.fields.values())
            # RAS serves queries only. If its sockets fail, for example because its port is taken, work continues without it
            served = not (event.where or "").startswith("ras/")
            broke = phrase(job, "the other end did it", reason) is not None
            keys.append((level, broke if served else None, None, None))
    else:
        files, codes = (events.values(name, field, rows) if chain else none for field in ("file", "code"))
        keys = list(zip(levels, itertools.repeat(False), files, codes))
    # a flood has hundreds of thousands of a few kinds
    places = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    kinds: list[Kind | None] = []
    for level_at, other_end, file, code in places:
        of_level, shown = LEVELS[level_at], code if chain and isinstance(code, int) else None
        reports_error = other_end is not None and (chain or _reports(name, of_level, known))
        of = Kind(name, of_level, known, chain, bool(other_end), str(file or ""), shown)
        kinds.append(of if reports_error else None)
    return kinds, np.fromiter(map(places.__getitem__, keys), dtype=np.intp, count=len(keys))


def _may_report(name: str, known: Message | None) -> bool:
    """Whether a line of this message can report an error below the level of a warning."""
    if name in UNKNOWN or is_step(name):
        return True
    return known is not None and known.severity == "error" and known.origin is True


def _reports(name: str, level: str, known: Message | None) -> bool:
    if name in UNKNOWN:
        return True
    if name.startswith("ras."):
        return level == "WARN" and known is not None and known.severity == "error"
    if known is None:
        return level in _ALARMS
    if level in _ALARMS:
        return known.severity in ("error", "warning", "harmless", None)
    return known.severity == "error" and known.origin is True


@dataclass(frozen=True, slots=True)
class _Later:
    """What a process printed that decides whether an earlier failure ended its work."""

    other: Others
    speaking: frozenset[int]  # processes whose log holds more than failures
    connecting: frozenset[int]  # threads that connect their rank over a network
    aborts: Mapping[int, int]  # process -> its last line about an abort
    repairs: Mapping[
        tuple[int, str], list[Event]
    ]  # (process, message) -> lines that say that such a failure is repaired
    repairable: frozenset[str]  # messages about failures that NCCL repairs by itself
    watched: frozenset[int]  # runs in which a watchdog fired
    latest: Mapping[int, int]  # process -> its last line that reports no error
    past_init: frozenset[int | None]  # runs of which a rank finished its init
    collnet: frozenset[int | None]  # runs that go on without CollNet


def _later(job: Job, other: Others) -> _Later:
    aborts: dict[int, int] = {}
    events, rows = job.scan.events, job.rows("comm.end.abort", "comm.abort.start", "comm.revoke.")
    for proc, seq in zip(events.proc[rows].tolist(), events.first[rows].tolist(), strict=True):
        aborts[proc] = max(seq, aborts.get(proc, 0))
    repairs: dict[tuple[int, str], list[Event]] = defaultdict(list)
    repairable: set[str] = set()
    for entry in lines.catalogue(job).messages:
        repairable.update(entry.repairs)
        for event in job.events(entry.name) if entry.repairs else ():
            for name in entry.repairs:
                repairs[(event.proc, name)].append(event)
    watched: set[int] = set()
    for name in job.names:
        known = message(job, name)
        if known is not None and known.finding is not None and CODES[known.finding].reported_by_watchdog:
            watched.update(run for e in job.events(name) if (run := job.run_of_event(e)) is not None)
    connecting = frozenset(e.thread for e in job.events("net.channel."))
    latest: dict[int, int] = {}
    for at, proc in enumerate(job.scan.threads.proc.tolist()):
        latest[proc] = max(other.latest(at), latest.get(proc, -1))
    past_init = frozenset(job.run_of(i.proc) for i in job.scan.instances if i.complete is not None)
    collnet = frozenset(job.run_of_event(e) for e in job.events(_NO_COLLNET))
    return _Later(
        other,
        other.procs,
        connecting,
        aborts,
        repairs,
        frozenset(repairable),
        frozenset(watched),
        latest,
        past_init,
        collnet,
    )


def _judge(job: Job, cascade: Cascade, later: _Later) -> None:
    last = cascade.end
    cascade.last_words = not any(later.other.after(t, last) for t in cascade.threads)
    cascade.bare = cascade.proc not in later.speaking
    cascade.torn = cascade.first.chain and job.process(cascade.proc).first.seq == cascade.begin
    run = job.run_of(cascade.proc)
    watched = run in later.watched
    cascade.ends_log = later.latest.get(cascade.proc, -1) < last and run not in later.past_init
    cascade.repaired = _repaired(cascade, later) or (run in later.collnet and cascade.shape.tries_collnet)
    cascade.survived = cascade.repaired or _progressed(job, cascade, watched)
    cascade.stalled = watched and not cascade.survived and cascade.first.event.name in later.repairable
    cascade.aftermath = aborted_before(job, cascade.proc, cascade.first.ref) is not None
    cascade.began = reports.began(job).get(cascade.proc, -1) > cascade.begin
    ends = [i.end for i in job.instances_of.get(cascade.proc, ()) if i.end is not None and i.end.seq > last]
    aborted = later.aborts.get(cascade.proc, -1) > cascade.begin
    cascade.destroyed = bool(ends) and not aborted and torn_down(job, cascade.proc)
    cascade.chosen = cascade.first.event.name in _ENDPOINTS and bool(cascade.threads & later.connecting)
    cascade.own = cascade.whose()
    cascade.fatal = cascade.ends_job()


def _repaired(cascade: Cascade, later: _Later) -> bool:
    """Whether NCCL says that it repaired what failed: for each connection that the failures name, after the last of them."""
    if cascade.first.chain:
        return False
    told = later.repairs.get((cascade.proc, cascade.first.event.name), [])
    told = [e for e in told if (e.last or e.ref).seq > cascade.end]
    if not told:
        return False
    wanted = {f.event.fields["comm"] for f in cascade.faults if "comm" in f.event.fields}
    return wanted <= {e.fields.get("comm") for e in told}


def _progressed(job: Job, cascade: Cascade, watched: bool) -> bool:
    """Whether a communicator of the process finished its init or went on with work after these failures, or the program did.

    A call is posted, not completed, when NCCL prints it. After a watchdog, calls do not show that a background thread recovered.
    """
    first, last = cascade.begin, cascade.end
    known = cascade.first.known
    starts = known is not None and known.subsystem in _NETWORKS and not cascade.returned
    if starts and chose_network(job).get(cascade.proc, -1) > last:
        return True
    if not watched and endings.worked_on(job, job.run_of(cascade.proc), job.process(cascade.proc).stream, last):
        return True
    for instance in job.instances_of.get(cascade.proc, ()):
        if instance.complete is not None and instance.complete.seq > last:
            begun = instance.start.seq < first if instance.start is not None else not cascade.reached_api
            if begun:
                return True
        posted = instance.last_op is not None and instance.last_op.seq > last and not cascade.last_words
        if posted and not (watched and cascade.threads.isdisjoint(callers(job).get(cascade.proc, set()))):
            return True
    return False


@once
def cascades(job: Job) -> list[Cascade]:
    """All cascades of a job, process by process in reading order."""
    rows, kind_of, kinds, other = _faults(job)
    lines_ = Lines(job, rows)
    found = list(shapes(job.scan.events, rows, kind_of, kinds, other))
    events = job.scan.events.pick(rows[[at + shape.rows[0] for at, shape in found]])
    seqs = job.scan.events.first[rows[[at + shape.rows[-1] for at, shape in found]]].tolist()
    out: list[Cascade] = []
    for (at, shape), event, end in zip(found, events, seqs, strict=True):
        threads = frozenset(lines_.threads[[at + row for row in shape.threads.values()]].tolist())
        out.append(Cascade(event.proc, shape, lines_.fault(event, shape.kinds[0]), end, threads, lines_, at))
    later = _later(job, other)
    for cascade in out:
        _judge(job, cascade, later)
    _led(job, out)
    return out


def _led(job: Job, items: Sequence[Cascade]) -> None:
    """Mark the processes whose system error stands above the first loss of a peer, in the same stream: they follow from none."""
    lost: dict[int, int] = {}
    for cascade in items:
        if not cascade.first.chain and cascade.own is False:
            stream = job.process(cascade.proc).stream
            lost[stream] = min(cascade.begin, lost.get(stream, cascade.begin))
    for cascade in items:
        if cascade.torn and cascade.first.code == _SYSTEM_ERROR:
            cascade.led = cascade.begin < lost.get(job.process(cascade.proc).stream, -1)
            cascade.own = cascade.whose()


@once
def _by_run(job: Job) -> dict[int | None, list[Cascade]]:
    out: dict[int | None, list[Cascade]] = defaultdict(list)
    for cascade in cascades(job):
        out[job.run_of(cascade.proc)].append(cascade)
    return dict(out)


def of_run(job: Job, run: int | None) -> list[Cascade]:
    """The cascades of a run."""
    return _by_run(job).get(run, [])


@once
def _by_proc(job: Job) -> dict[int, list[Cascade]]:
    out: dict[int, list[Cascade]] = defaultdict(list)
    for cascade in cascades(job):
        out[cascade.proc].append(cascade)
    return dict(out)


def of_proc(job: Job, proc: int) -> list[Cascade]:
    """The cascades of a process."""
    return _by_proc(job).get(proc, [])


@once
def failed(job: Job) -> frozenset[int]:
    """The processes with an error that ended the job."""
    return frozenset(c.proc for c in cascades(job) if c.fatal)


def refs(items: Iterable[Cascade], most: int = 6) -> list[Ref]:
    """Evidence of several cascades: the first line of each, then the end of the first one's chain."""
    chosen = list(items)
    out = [c.first.ref for c in chosen]
    if chosen:
        out += [f.ref for f in chosen[0].chain[-1:]]
    return out[:most]


def signature(job: Job, cascade: Cascade) -> tuple[object, ...]:
    """A key that is equal for ranks with the same failure: the message without its numbers and names."""
    if cascade.first.report is not None and cascade.first.report.cause == reports.MISMATCH:
        return (reports.MISMATCH,)  # both ends report it, each with its own side of it
    # A bus id is printed in brackets, without 0x.
    text = re.sub(r"0x[0-9a-f]+|\[[0-9a-f]+\]|\d+", "#", body(job, cascade.first.event))
    codes = (cascade.first.event.fields.get(name) for name in _NUMBERS)
    return (cascade.first.event.name, text, *(code for code in codes if isinstance(code, int)))
