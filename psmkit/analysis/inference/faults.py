"""Group the lines that report an error: a warning, the chain of returns below it, and what the process did next.

A failing call prints one WARN and then a line ``file.cc:NNN -> code`` for each function that it returns through; the last
of these shows how far the error travelled. A chain continues in another thread if an asynchronous job is joined there.
"""

from __future__ import annotations

import bisect
import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.aborts import aborted_before
from psmkit.analysis.facts.callers import callers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import reports
from psmkit.catalogue import Message, Phrase
from psmkit.catalogue.reasons import OTHER
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES

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
    "unknown",
]

#: The names of WARN lines that match no entry.
_UNKNOWN = frozenset({"unmatched.warn"})
#: The last step of a chain in a progress thread, which stores it as the communicator's asynchronous error.
_THREAD_ENDS = frozenset({"proxy.thread_result", "gin.progress.failed", "rma.progress.failed"})
#: Files of functions that the user calls: an error that returns through them has reached the application.
_API = frozenset(
    {"group.cc", "enqueue.cc", "init.cc", "collectives.cc", "register/register.cc", "dev_runtime.cc", "init_nvtx.cc"}
)
#: Failed system calls of any kind; the reason decides whose fault they are.
_CALLS = frozenset({"debug.syscall_failed", "sys.call.failed"})
#: The levels of lines that NCCL prints when it cannot go on.
_ALARMS = ("WARN", "ABORT")
#: The folder of the build, which hipified sources print.
_BUILD = re.compile(r"^/.*/(?:hipify/)?src/")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line that reports an error. ``known`` is its catalogue entry, or None; ``report`` is libpsm's, with cause and rank."""

    event: Event
    known: Message | None
    chain: bool
    other_end: bool = False  # a failed system call that was caused at the other end of a connection
    report: reports.Report | None = None

    @property
    def ref(self) -> Ref:
        return self.event.ref

    @property
    def tolerated(self) -> bool:
        """Whether NCCL printed this failure below the level of a warning: its caller goes on without the operation."""
        return (
            self.known is not None and self.known.level in _ALARMS and self.event.level in ("INFO", "TRACE", "VERSION")
        )

    @property
    def code(self) -> int | None:
        """The ``ncclResult_t`` of a step of a chain."""
        value = self.event.fields.get("code")
        return value if self.chain and isinstance(value, int) else None


@dataclass(slots=True)
class Cascade:
    """The errors of one process that belong together: the first line is the origin in this process."""

    proc: int
    faults: list[Fault]
    survived: bool = False  # its init completed, its communicator went on, or NCCL repaired it
    repaired: bool = False  # NCCL retried or replaced the failed operation, and that completed
    stalled: bool = False  # NCCL tries to repair such a failure, did not, and a watchdog fired
    destroyed: bool = False  # the process had an orderly teardown later
    last_words: bool = False  # its thread printed nothing after it
    aftermath: bool = False  # its process had been aborted before
    bare: bool = False  # the log holds warnings only, so it cannot show chains
    threads: set[int] = field(default_factory=set)
    severity: str = "unknown"
    reached_api: bool = (
        False  # the error was returned to the application or stored as the communicator's asynchronous error
    )

    def add(self, fault: Fault) -> None:
        """Append the next line of this process."""
        self.faults.append(fault)
        self.threads.add(fault.event.thread)
        if len(self.faults) == 1:
            self.severity = self._severity()
        self.reached_api = self.reached_api or (fault.chain and _api(fault.event))

    @property
    def first(self) -> Fault:
        return self.faults[0]

    @property
    def last(self) -> Fault:
        return self.faults[-1]

    @property
    def chain(self) -> list[Fault]:
        return [f for f in self.faults if f.chain]

    def _severity(self) -> str:
        """``error``, ``warning``, ``info`` or ``harmless``, from the catalogue entry of the first line; ``unknown`` if there is none.

        A failure that NCCL printed at INFO is no more than ``info``, whatever it means at WARN.
        """
        if self.first.chain or self.first.known is None or self.first.event.name in _UNKNOWN:
            return "unknown"
        if self.first.tolerated and self.first.known.severity in ("error", "warning"):
            return "info"
        return self.first.known.severity or "unknown"

    @property
    def code(self) -> int | None:
        """The code that was returned last."""
        return next((f.code for f in reversed(self.faults) if f.code is not None), None)

    @property
    def fatal(self) -> bool:
        """Whether this ended the job, as far as one process can show."""
        if (
            self.survived
            or self.aftermath
            or (self.severity in ("harmless", "info") and (self.destroyed or not self.reached_api))
        ):
            return False
        if self.own is False and not self.chain and not self.bare and self.first.report is None:
            # a peer disconnected, as at the end of many jobs, and no call returned an error because of it
            return False
        if self.severity == "error" or self.stalled:
            return not (self.destroyed and not self.reached_api)
        if self.reached_api:
            return not (self.destroyed and self.severity == "warning")
        # an unknown line with nothing after it: its thread may have died
        unknown_warn = self.severity == "unknown" and not self.first.chain
        return unknown_warn and self.last_words and bool(self.chain) and not self.destroyed

    @property
    def settled(self) -> bool:
        """Whether the work went on after it: NCCL repaired it, a communicator progressed, or the process was torn down in order."""
        return self.survived or self.destroyed

    @property
    def noted(self) -> bool:
        """Whether the first line means a failure, at whatever level NCCL printed it."""
        known = self.first.known
        return known is not None and known.severity in ("error", "warning")

    @property
    def own(self) -> bool | None:
        """Whether this process caused it: True, False (another process did), or None if the line does not show it."""
        first = self.first
        if self.aftermath:
            return False
        if first.chain:
            if str(first.event.fields.get("file", "")).endswith("group.cc") and first.code not in (4, 5):
                return False  # only the end of a chain, which does not show a cause
            return {1: True, 4: True, 5: True, 6: False}.get(first.code or 0)
        known, report = first.known, first.report
        if known is None or first.event.name in _UNKNOWN:
            return None
        if report is not None and (report.cause != OTHER or report.elsewhere):
            return not report.elsewhere
        if known.severity in ("harmless", "info"):
            return True  # what elsewhere means nothing was returned to the application here
        if known.origin is False and not (report is not None and report.begins):
            return False
        # a failed system call may be caused by this process or by the other end
        if known.name in _CALLS and first.other_end:
            return False
        # a refused connection may be the origin (a firewall) or follow from a death
        if known.blames in ("peer", "unknown"):
            return None
        return True if known.origin is True or known.blames == "self" else None


def _step(event: Event) -> bool:
    """Whether this is a step of a chain of returns, ``file.cc:NNN -> code``."""
    return event.name in _THREAD_ENDS or event.name.startswith("debug.chain")


def _api(event: Event) -> bool:
    if event.name in _THREAD_ENDS:
        return True
    name = str(event.fields.get("file", ""))
    # hipified sources print the path of the build
    return name in _API or name.rsplit("src/", 1)[-1] in _API


def message(job: Job, name: str) -> Message | None:
    """The catalogue entry of an event, including the user's own."""
    return lines.catalogue(job).by_name.get(name)


def phrase(job: Job, says: str, text: str) -> Phrase | None:
    """The catalogue's phrase with this meaning in a text, including the user's own; None if there is none."""
    return lines.catalogue(job).phrase(says, text)


def unknown(event: Event) -> bool:
    """Whether this is a WARN without a catalogue entry."""
    return event.name in _UNKNOWN


def body(job: Job, event: Event, most: int = 160) -> str:
    """The text of a line without its prefix."""
    text = str(event.fields.get("text", "")) if event.name in _UNKNOWN else ""
    if not text:
        text = lines.message_at(job, event.ref)
    cut = event.level == "WARN" and lines.catalogue(job).cut(text.strip())
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{text}\N{HORIZONTAL ELLIPSIS} (the line is cut)" if cut else text


_HEX = frozenset("0123456789abcdefABCDEF:.")


def brief(job: Job, event: Event, most: int = 90) -> str:
    """The text of a line for a title: without GIDs, and cut at a word."""
    kept: list[str] = []
    for word in body(job, event, 400).split():
        if word.count(":") > 1 and _HEX.issuperset(word.strip(",()")):
            if kept and kept[-1].lower().endswith(("gid", "gids")):
                kept.pop()
        else:
            kept.append(word)
    text = " ".join(kept)
    return text if len(text) <= most else (text[:most].rpartition(" ")[0] or text[:most]) + "\N{HORIZONTAL ELLIPSIS}"


def place(event: Event) -> str | None:
    """The ``file.cc:NNN`` of a line, if any."""
    if event.where:
        return _BUILD.sub("", event.where)
    name, line = event.fields.get("file"), event.fields.get("line")
    return f"{name}:{line}" if name is not None and line is not None else None


def follows(job: Job, event: Event) -> bool:
    """Whether the text of an unknown line says that something else came first."""
    return phrase(job, "something came first", body(job, event)) is not None


class _Other:
    """The places where each thread printed something that reports no error."""

    def __init__(self, threads: npt.NDArray[Any], seqs: npt.NDArray[Any]) -> None:
        order = np.lexsort((seqs, threads))
        found, starts = np.unique(threads[order], return_index=True)
        self._seqs = array("q", seqs[order].astype(np.int64).tobytes())
        ends = [*starts.tolist(), len(order)][1:]
        self._parts = dict(zip(found.tolist(), zip(starts.tolist(), ends, strict=True), strict=True))
        self.threads: Collection[int] = self._parts.keys()

    def between(self, thread: int, low: int, high: int = 1 << 62) -> bool:
        """Whether a thread printed such a line between two places."""
        start, end = self._parts.get(thread, (0, 0))
        at = bisect.bisect_right(self._seqs, low, start, end)
        return at < end and self._seqs[at] < high


def _faults(job: Job) -> tuple[dict[int, list[Fault]], _Other]:
    """The errors of each process, and the places where each thread printed something else."""
    found: dict[int, list[Fault]] = defaultdict(list)
    events = job.scan.events
    alarms = events.of_level(*_ALARMS)
    entries = {name: message(job, name) for name in events.names}
    likely = [name for name, known in entries.items() if _may_report(name, known) or alarms[events.rows([name])].any()]
    # few messages report errors, so the lines of all others stay columns
    plain = np.isin(events.message, [at for at, kind in enumerate(events.kinds) if kind not in likely])
    plain &= events.proc >= 0
    repeated = plain & (events.last != events.first)
    more: list[tuple[int, int]] = []
    for event in events.of(*likely):
        if event.proc < 0:
            continue
        known = entries[event.name]
        chain = _step(event)
        if chain or _reports(event, known):
            reason = " ".join(str(v) for v in event.fields.values()) if event.name in _CALLS else ""
            other_end = bool(reason) and phrase(job, "the other end did it", reason) is not None
            found[event.proc].append(Fault(event, known, chain, other_end, reports.of(job, event)))
            continue
        # lines of the RAS thread and counted repetitions are no evidence about the failed thread
        more += [(event.thread, ref.seq) for ref in (event.ref, event.last) if ref is not None]
    for faults in found.values():
        faults.sort(key=lambda f: f.ref.seq)
    rest = np.array(more, dtype=np.int64).reshape(-1, 2)
    threads = np.concatenate([events.thread[plain], events.thread[repeated], rest[:, 0]])
    return found, _Other(threads, np.concatenate([events.first[plain], events.last[repeated], rest[:, 1]]))


def _may_report(name: str, known: Message | None) -> bool:
    """Whether a line of this message can report an error below the level of a warning."""
    if name in _UNKNOWN or name in _THREAD_ENDS or name.startswith("debug.chain"):
        return True
    return known is not None and known.severity == "error" and known.origin is True


def _reports(event: Event, known: Message | None) -> bool:
    if event.name in _CALLS and (event.where or "").startswith("ras/"):
        # RAS serves queries only. If its sockets fail, for example because its port is taken, work continues without it
        return False
    if event.name in _UNKNOWN:
        return True
    if event.name.startswith("ras."):
        return event.level == "WARN" and known is not None and known.severity == "error"
    if known is None:
        return event.level in ("WARN", "ABORT")
    if event.level in ("WARN", "ABORT"):
        return known.severity in ("error", "warning", "harmless", None)
    return known.severity == "error" and known.origin is True


def _build(faults: Sequence[Fault], other: _Other) -> list[Cascade]:
    done: list[Cascade] = []
    current: dict[int, Cascade] = {}  # by thread
    newest: Cascade | None = None
    for fault in faults:
        thread = fault.event.thread
        cascade = current.get(thread)
        if (
            cascade is not None
            and other.between(thread, cascade.last.ref.seq, fault.ref.seq)
            and (not fault.chain or (cascade.severity in ("harmless", "info") and cascade.code != fault.code))
        ):
            cascade = None  # the thread did something else in between, so this is a new error
        if cascade is not None and not fault.chain and not _leads(cascade, fault):
            cascade = None
        if cascade is None and fault.chain and newest is not None and _joins(newest, fault):
            cascade = newest
        if cascade is None:
            cascade = Cascade(fault.event.proc, [])
            done.append(cascade)
        cascade.add(fault)
        current[thread] = newest = cascade
    return done


def _leads(cascade: Cascade, fault: Fault) -> bool:
    """Whether another warning of the same thread can follow from this cascade."""
    if cascade.severity in ("harmless", "info"):
        return False
    if fault.event.name in ("libpsm.p2p.refused", "libpsm.p2p.failed", "libpsm.net.refused", "libpsm.net.failed"):
        return False  # libpsm's response to its caller: it says what failed, whoever is blamed above it
    if cascade.last.event.name.startswith("plugin.") and fault.event.name.startswith("plugin."):
        return True  # a plugin warns in each of its functions, and returns through none of NCCL's
    return bool(cascade.chain) or cascade.severity == "error"


def _joins(cascade: Cascade, step: Fault) -> bool:
    """Whether a step of a chain continues the errors of another thread: an asynchronous job that was joined."""
    if not cascade.chain or cascade.code != step.code or cascade.severity == "harmless":
        return False
    # or the rank's own call to its proxy service, which returns the error
    return _api(step.event) or (_transport(cascade.chain[-1].event) and _transport(step.event))


def _transport(event: Event) -> bool:
    """Whether a step of a chain is in a transport or in the proxy."""
    name = str(event.fields.get("file", "")).rsplit("src/", 1)[-1]
    return name.startswith(("transport/", "transport.cc", "proxy.cc"))


@dataclass(frozen=True, slots=True)
class _Later:
    """What a process printed that decides whether an earlier failure ended its work."""

    other: _Other
    speaking: frozenset[int]  # processes whose log holds more than failures
    aborts: Mapping[int, int]  # process -> its last line about an abort
    repairs: Mapping[
        tuple[int, str], list[Event]
    ]  # (process, message) -> lines that say that such a failure is repaired
    repairable: frozenset[str]  # messages about failures that NCCL repairs by itself
    watched: frozenset[int]  # runs in which a watchdog fired


def _later(job: Job, other: _Other) -> _Later:
    aborts: dict[int, int] = {}
    for event in job.events("comm.end.abort", "comm.abort.start", "comm.revoke."):
        aborts[event.proc] = max(event.ref.seq, aborts.get(event.proc, 0))
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
    speaking = frozenset(job.scan.threads[thread].proc for thread in other.threads if thread >= 0)
    return _Later(other, speaking, aborts, repairs, frozenset(repairable), frozenset(watched))


def _judge(job: Job, cascade: Cascade, later: _Later) -> None:
    last = cascade.last.ref.seq
    cascade.last_words = not any(later.other.between(t, last) for t in cascade.threads)
    cascade.bare = cascade.proc not in later.speaking
    watched = job.run_of(cascade.proc) in later.watched
    cascade.repaired = _repaired(cascade, later)
    cascade.survived = cascade.repaired or _progressed(job, cascade, watched)
    cascade.stalled = watched and not cascade.survived and cascade.first.event.name in later.repairable
    cascade.aftermath = aborted_before(job, cascade.proc, cascade.first.ref) is not None
    ends = [i.end for i in job.instances_of.get(cascade.proc, ()) if i.end is not None and i.end.seq > last]
    aborted = later.aborts.get(cascade.proc, -1) > cascade.first.ref.seq
    cascade.destroyed = bool(ends) and not aborted and torn_down(job, cascade.proc)


def _repaired(cascade: Cascade, later: _Later) -> bool:
    """Whether NCCL says that it repaired what failed: for each connection that the failures name, after the last of them."""
    if cascade.first.chain:
        return False
    told = later.repairs.get((cascade.proc, cascade.first.event.name), [])
    told = [e for e in told if (e.last or e.ref).seq > cascade.last.ref.seq]
    wanted = {f.event.fields["comm"] for f in cascade.faults if "comm" in f.event.fields}
    return bool(told) and wanted <= {e.fields.get("comm") for e in told}


def _progressed(job: Job, cascade: Cascade, watched: bool) -> bool:
    """Whether a communicator of the process finished its init or went on with work after these failures.

    A call is posted, not completed, when NCCL prints it. After a watchdog, calls do not show that a background thread recovered.
    """
    first, last = cascade.first.ref.seq, cascade.last.ref.seq
    background = cascade.threads.isdisjoint(callers(job).get(cascade.proc, set()))
    for instance in job.instances_of.get(cascade.proc, ()):
        if instance.complete is not None and instance.complete.seq > last:
            begun = instance.start.seq < first if instance.start is not None else not cascade.reached_api
            if begun:
                return True
        posted = instance.last_op is not None and instance.last_op.seq > last and not cascade.last_words
        if posted and not (watched and background):
            return True
    return False


@once
def cascades(job: Job) -> list[Cascade]:
    """All cascades of a job, process by process in reading order."""
    found, other = _faults(job)
    out: list[Cascade] = []
    for proc in sorted(found):
        out.extend(_build(found[proc], other))
    later = _later(job, other)
    for cascade in out:
        _judge(job, cascade, later)
    return out


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
