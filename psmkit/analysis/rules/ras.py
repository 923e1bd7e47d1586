"""Ranks that the RAS network misses. Its lines name a socket address, which lines about RAS peers connect to a process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import by_socket, missing_at, no_log
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.waits import waits_for
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import plural

__all__ = ["find"]

#: A complaint about a long wait (20 s or more), or that RAS gave up on the peer.
_LASTING = (
    "ras.keepalive.error",
    "ras.peer.declared_dead",
    "ras.send.stuck",
    "ras.init.timeout",
    "ras.connect.retry_timeout",
)
#: A first sign: 5 s without a response, or a reconnect attempt.
_EARLY = ("ras.keepalive.warning", "ras.connect.warning", "ras.reconnect", "ras.peer.dead", "ras.peer.dead_notice")
_CLOSED = ("ras.closed_on_receive", "ras.closed_on_send")


@dataclass(slots=True)
class _Missed:
    """The reports about one address."""

    addr: str
    proc: int | None
    lasting: list[Event] = field(default_factory=list)
    early: list[Event] = field(default_factory=list)
    closed: list[Event] = field(default_factory=list)
    recovered: set[int] = field(default_factory=set)

    def complainers(self) -> set[int]:
        return {e.proc for e in (*self.lasting, *self.early)} - self.recovered

    def events(self) -> list[Event]:
        return [e for e in (*self.lasting, *self.early) if e.proc not in self.recovered]


def _missed(job: Job, run: int) -> list[_Missed]:
    found: dict[str, _Missed] = {}
    for names, kind in ((_LASTING, "lasting"), (_EARLY, "early"), (_CLOSED, "closed")):
        for event in job.events(*names, run=run):
            addr = str(event.fields.get("addr", ""))
            # the RAS thread prints these lines, so their device means nothing, but their process does
            if not addr or torn_down(job, event.proc):
                continue
            entry = found.setdefault(addr, _Missed(addr, by_socket(job, addr, run)))
            getattr(entry, kind).append(event)
    last: dict[tuple[int, str], int] = defaultdict(int)
    for entry in found.values():
        for event in entry.events():
            last[(event.proc, entry.addr)] = max(last[(event.proc, entry.addr)], event.ref.seq)
    for event in job.events("ras.established", run=run):
        addr = str(event.fields.get("addr", ""))
        newest = event.last.seq if event.last is not None else event.ref.seq
        if addr in found and (event.proc, addr) in last and newest > last[(event.proc, addr)]:
            found[addr].recovered.add(event.proc)
    return [entry for entry in found.values() if entry.complainers()]


@rule(order=90)
def find(job: Job) -> list[Finding]:
    """PSM407: a process that its peers on the RAS network miss; an error if it stays missing, a warning if that only began."""
    out: list[Finding] = []
    for info in job.runs:
        missed = [m for m in _missed(job, info.index) if m.proc is None or not torn_down(job, m.proc)]
        if not missed:
            continue
        broken = any(c.fatal for c in faults.of_run(job, info.index))
        # a process that complains is alive; the silent process that most miss comes first
        speakers = {p for m in missed for p in m.complainers()}
        missed.sort(key=lambda m: (m.proc in speakers, not _lasts(m), -len(m.complainers()), m.addr))
        for at, entry in enumerate(missed):
            out.append(_finding(job, info.index, entry, broken, suspect=at == 0 or entry.proc not in speakers))
    return out


def _lasts(entry: _Missed) -> bool:
    return any(e.proc not in entry.recovered for e in entry.lasting)


def _finding(job: Job, run: int, entry: _Missed, broken: bool, suspect: bool) -> Finding:
    complainers = sorted(entry.complainers())
    lasting = _lasts(entry)
    gone = bool(entry.closed) and not any(e.name == "ras.keepalive.error" for e in entry.lasting)
    # a peer whose connection closed has ended, which another rule reports; after an error silence is expected
    error = lasting and suspect and not gone and not broken
    rank = job.rank_of(entry.proc) if entry.proc is not None else missing_at(job, entry.addr, run)
    name = f"the process at {entry.addr}" if rank is None else f"rank {rank} ({entry.addr}, {no_log(job, run)})"
    name = name_of(job, entry.proc) if entry.proc is not None else name
    secs = max((v for e in entry.events() if isinstance(v := e.fields.get("secs"), int | float)), default=0)
    how = f"has not answered for {secs:g} s" if secs else "does not answer"
    if gone:
        how = "closed its connection, and its peers cannot reach it again"
    stage = stage_of(job, entry.proc) if entry.proc is not None else None
    where = f"; its last stage is {stage}" if stage else ""
    said = [*(e for e in entry.lasting if e.proc not in entry.recovered), *entry.early]
    refs = [*(e.ref for e in said[:4]), _peer_line(job, run, entry)]
    if entry.proc is not None:
        refs.append(job.process(entry.proc).last)
    # 5 s without an answer also happen on a loaded machine or under a debugger, so any proof of another kind comes first
    confidence = 0.6 if lasting else 0.4
    if error:
        confidence = 0.9 if len(complainers) > 1 else 0.85
        if entry.proc is None:
            confidence = 0.7
    return new_finding(
        job,
        "PSM407",
        run=run,
        title=f"{name} {how} on the RAS network{where}",
        severity=Severity.ERROR if error else Severity.INFO if broken and gone else Severity.WARNING,
        confidence=confidence,
        explanation=(
            f"{names_of(job, complainers)} {plural(len(complainers), 'gets', 'get')} no answer from the RAS thread at {entry.addr}. "
            + (
                f"The RAS peer lines show that this is {job.process(entry.proc).name if entry.proc is not None else f'rank {rank}'}."
                if entry.proc is not None or rank is not None
                else "No RAS peer line shows which rank this is."
            )
            + " A RAS thread answers whatever the application does, so this process is stopped, starved or dead, or its network is down."
            + (
                f" Its peers wait for it: {words(_waiting(job, entry.proc), 3)}."
                if entry.proc is not None and _waiting(job, entry.proc)
                else ""
            )
        ),
        next_step=f"Check {name}: is it stopped (state T in ps), under a debugger or swapped out, or is its host lost? Take its stacks with gdb or py-spy.",
        refs=refs,
        ranks=[rank] if rank is not None else (),
        procs=[p for p in (entry.proc, *complainers) if p is not None]
        if rank is not None or entry.proc is None
        else [entry.proc],
        culprits=[rank] if rank is not None and (error or (suspect and not broken and not gone)) else (),
        stage=stage,
    )


def _peer_line(job: Job, run: int, entry: _Missed) -> Ref | None:
    """The line that connects the address to a process."""
    return _peer_lines(job).get((run, entry.addr))


@once
def _peer_lines(job: Job) -> dict[tuple[int | None, Value | None], Ref]:
    out: dict[tuple[int | None, Value | None], Ref] = {}
    for event in job.events("ras.peer", "ras.peer.multi", "ras.listen"):
        out.setdefault((job.run_of_event(event), event.fields.get("addr")), event.ref)
    return out


def _waiting(job: Job, proc: int | None) -> list[str]:
    return [f"{name_of(job, w.waiter)} for {w.stage}" for w in waits_for(job, proc) if w.waiter not in (None, proc)]
