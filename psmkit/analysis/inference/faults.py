"""Group the lines that report an error: a warning, the chain of returns below it, and what the process did next.

A failing call prints one WARN and then a line ``file.cc:NNN -> code`` for each function that it returns through; the last
of these shows how far the error travelled. A chain continues in another thread if an asynchronous job is joined there.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.aborts import aborted_before
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import reports
from psmkit.catalogue import Message, Phrase
from psmkit.catalogue.reasons import OTHER
from psmkit.logparse.types import Event, Ref

__all__ = ["Cascade", "Fault", "body", "cascades", "follows", "message", "phrase", "place", "refs", "unknown"]

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
    def code(self) -> int | None:
        """The ``ncclResult_t`` of a step of a chain."""
        value = self.event.fields.get("code")
        return value if self.chain and isinstance(value, int) else None


@dataclass(slots=True)
class Cascade:
    """The errors of one process that belong together: the first line is the origin in this process."""

    proc: int
    faults: list[Fault]
    survived: bool = False  # work or init continued after it
    destroyed: bool = False  # the process had an orderly teardown later
    last_words: bool = False  # its thread printed nothing after it
    aftermath: bool = False  # its process had been aborted before
    bare: bool = False  # the log holds warnings only, so it cannot show chains
    threads: set[int] = field(default_factory=set)

    @property
    def first(self) -> Fault:
        return self.faults[0]

    @property
    def last(self) -> Fault:
        return self.faults[-1]

    @property
    def chain(self) -> list[Fault]:
        return [f for f in self.faults if f.chain]

    @property
    def severity(self) -> str:
        """``error``, ``warning``, ``info`` or ``harmless``, from the catalogue entry of the first line; ``unknown`` if there is none."""
        if self.first.chain or self.first.known is None or self.first.event.name in _UNKNOWN:
            return "unknown"
        return self.first.known.severity or "unknown"

    @property
    def code(self) -> int | None:
        """The code that was returned last."""
        return next((f.code for f in reversed(self.faults) if f.code is not None), None)

    @property
    def reached_api(self) -> bool:
        """Whether the error was returned to the application or stored as the communicator's asynchronous error."""
        return any(_api(f.event) for f in self.chain)

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
        if self.severity == "error":
            return not (self.destroyed and not self.reached_api)
        if self.reached_api:
            return not (self.destroyed and self.severity == "warning")
        # an unknown line with nothing after it: its thread may have died
        unknown_warn = self.severity == "unknown" and not self.first.chain
        return unknown_warn and self.last_words and bool(self.chain) and not self.destroyed

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
        if self.severity in ("harmless", "info"):
            return True  # what elsewhere means nothing was returned to the application here
        if known.origin is False:
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
    name = name.rsplit("src/", 1)[-1]
    return name in _API


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
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def place(event: Event) -> str | None:
    """The ``file.cc:NNN`` of a line, if any."""
    if event.where:
        return _BUILD.sub("", event.where)
    name, line = event.fields.get("file"), event.fields.get("line")
    return f"{name}:{line}" if name is not None and line is not None else None


def follows(job: Job, event: Event) -> bool:
    """Whether the text of an unknown line says that something else came first."""
    return phrase(job, "something came first", body(job, event)) is not None


def _faults(job: Job) -> tuple[dict[int, list[Fault]], dict[int, list[int]]]:
    """The errors of each process, and the places where each thread printed something else."""
    found: dict[int, list[Fault]] = defaultdict(list)
    other: dict[int, list[int]] = defaultdict(list)
    entries: dict[str, Message | None] = {}
    for event in job.scan.events:
        if event.proc < 0:
            continue
        if event.name not in entries:
            entries[event.name] = message(job, event.name)
        known = entries[event.name]
        chain = _step(event)
        if chain or _reports(event, known):
            reason = " ".join(str(v) for v in event.fields.values()) if event.name in _CALLS else ""
            other_end = bool(reason) and phrase(job, "the other end did it", reason) is not None
            found[event.proc].append(Fault(event, known, chain, other_end, reports.of(job, event)))
            continue
        # lines of the RAS thread and counted repetitions are no evidence about the failed thread
        other[event.thread].append(event.ref.seq)
        if event.last is not None:
            other[event.thread].append(event.last.seq)
    for faults in found.values():
        faults.sort(key=lambda f: f.ref.seq)
    for seqs in other.values():
        seqs.sort()
    return found, other


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


def _between(seqs: Sequence[int], low: int, high: int) -> bool:
    at = bisect.bisect_right(seqs, low)
    return at < len(seqs) and seqs[at] < high


def _build(faults: Sequence[Fault], other: dict[int, list[int]]) -> list[Cascade]:
    done: list[Cascade] = []
    current: dict[int, Cascade] = {}  # by thread
    newest: Cascade | None = None
    for fault in faults:
        thread = fault.event.thread
        cascade = current.get(thread)
        if (
            cascade is not None
            and _between(other.get(thread, ()), cascade.last.ref.seq, fault.ref.seq)
            and (not fault.chain or (cascade.severity == "harmless" and cascade.code != fault.code))
        ):
            cascade = None  # the thread did something else in between, so this is a new error
        if cascade is not None and not fault.chain and not _leads(cascade, fault):
            cascade = None
        if cascade is None and fault.chain and newest is not None and _joins(newest, fault):
            cascade = newest
        if cascade is None:
            cascade = Cascade(fault.event.proc, [])
            done.append(cascade)
        cascade.faults.append(fault)
        cascade.threads.add(thread)
        current[thread] = newest = cascade
    return done


def _leads(cascade: Cascade, fault: Fault) -> bool:
    """Whether another warning of the same thread can follow from this cascade."""
    if cascade.severity == "harmless":
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


def _judge(job: Job, cascade: Cascade, other: dict[int, list[int]], speaking: set[int]) -> None:
    first, last = cascade.first.ref.seq, cascade.last.ref.seq
    went_on = any(_between(other.get(t, ()), last, 1 << 62) for t in cascade.threads)
    cascade.last_words = not went_on
    cascade.bare = cascade.proc not in speaking
    cascade.aftermath = aborted_before(job, cascade.proc, cascade.first.ref) is not None
    for instance in job.instances_of.get(cascade.proc, ()):
        if (
            instance.complete is not None
            and instance.start is not None
            and instance.start.seq < first
            and instance.complete.seq > last
        ):
            cascade.survived = True
        if (
            instance.start is None
            and instance.complete is not None
            and instance.complete.seq > last
            and not cascade.reached_api
        ):
            cascade.survived = True
        if instance.last_op is not None and instance.last_op.seq > last and went_on:
            cascade.survived = True
    ends = [i.end for i in job.instances_of.get(cascade.proc, ()) if i.end is not None and i.end.seq > last]
    aborted = any(
        e.proc == cascade.proc and e.ref.seq > first
        for e in job.events("comm.end.abort", "comm.abort.start", "comm.revoke.")
    )
    cascade.destroyed = bool(ends) and not aborted and torn_down(job, cascade.proc)


@once
def cascades(job: Job) -> list[Cascade]:
    """All cascades of a job, process by process in reading order."""
    found, other = _faults(job)
    out: list[Cascade] = []
    for proc in sorted(found):
        out.extend(_build(found[proc], other))
    speaking = {job.scan.threads[thread].proc for thread in other if thread >= 0}
    for cascade in out:
        _judge(job, cascade, other, speaking)
    return out


def refs(items: Iterable[Cascade], most: int = 6) -> list[Ref]:
    """Evidence of several cascades: the first line of each, then the end of the first one's chain."""
    chosen = list(items)
    out = [c.first.ref for c in chosen]
    if chosen:
        out += [f.ref for f in chosen[0].chain[-1:]]
    return out[:most]
