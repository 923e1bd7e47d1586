"""Ends of a program in the words of others: libraries beside NCCL, exceptions, and the program itself.

They are weaker than NCCL's own lines and say more than nothing: they count only if no error of NCCL's and no watchdog explains the run, and
if nothing shows that the work continued after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psmkit.analysis.facts import endings, lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, names_of, ranks_text
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import rank_of_tag, ranks_in, without_tag
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.exceptions import named_by_engine, thrower, uncaught, unfinished
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES, Finding, Named, Severity
from psmkit.model.wording import counted

__all__ = ["find"]

_LONGEST = 60
_MOST = 2  # peers that a title names
_MOST_LISTED = 4096  # ranks of a block


@dataclass(frozen=True, slots=True)
class _Kind:
    """Messages of one library: how a title says it, and how sure it is that they ended the run."""

    name: str
    title: Callable[[Job, Sequence[Event]], str]
    confidence: float


@rule(order=63)
def find(job: Job) -> list[Finding]:
    """PSM401, PSM402, PSM403 and PSM406 for ends that only other libraries and the program report."""
    out: list[Finding] = []
    for run in endings.runs(job):
        if endings.gave_up(job, run) or any(c.fatal and not _passed_on(c) for c in faults.of_run(job, run)):
            continue
        # the first kind is the nearest to the cause
        found = [f for kind in _KINDS if (f := _library(job, run, kind)) is not None][:1]
        thrown = _exceptions(job, run)
        # who waits reports; who threw for a reason of its own is the cause
        if not found or (found[0].code == "PSM305" and any(f.culprits or f.named for f in thrown)):
            found = thrown or found
        out += found or _engines(job, run) or _program(job, run) or _cut(job, run) or _waits(job, run)
    return out


def _engines(job: Job, run: int | None) -> list[Finding]:
    """The finding that names a process, else the first one."""
    found = [f for kind in _ENGINES if (f := _library(job, run, kind)) is not None]
    return [f for f in (*found, *(_cut(job, run) if found else [])) if f.culprits or f.named][:1] or found[:1]


def _passed_on(cascade: faults.Cascade) -> bool:
    """Whether the first line of an error only says that a library failed in its own process: the library's line says why."""
    known = cascade.first.known
    return cascade.own is False and known is not None and known.blames == "self" and known.origin is False


def _library(job: Job, run: int | None, kind: _Kind) -> Finding | None:
    events = [e for e in job.events(kind.name, run=run) if not _continued(job, run, e) and not endings.stopped(job, e)]
    events.sort(key=lambda e: "missing" not in e.fields)  # the line that names a rank proves it
    entry = faults.message(job, kind.name)
    if not events or entry is None or entry.finding is None:
        return None
    procs, ranks = _procs(job, events), _ranks(job, events)
    own = entry.blames != "peer"
    return new_finding(
        job,
        entry.finding,
        run=run,
        title=kind.title(job, events),
        severity=Severity.ERROR,
        confidence=kind.confidence,
        explanation=entry.meaning,
        next_step=entry.next_step or CODES[entry.finding].next_step,
        refs=[e.ref for e in events[:6]],
        ranks=ranks if own else [],
        procs=procs if own else [],
        culprits=ranks if own and len(ranks) == 1 else [],
        named=_others(job, run, kind, events, own) if not own or not procs else [],
        stage="error",
    )


def _others(job: Job, run: int | None, kind: _Kind, events: Sequence[Event], own: bool) -> list[Named]:
    """The processes that the lines are about, or, where they are about the process that prints them, its tag."""
    if kind.name == "framework.engine_reports":
        return named_by_engine(job, run)
    return _absent(events) or _named(job, events) or (outside.tagged_process(job, events) if own else [])


def _absent(events: Sequence[Event]) -> list[Named]:
    """The rank for which several ranks wait in vain, if it is the only one, and waits for none itself."""
    waits: dict[int, set[int]] = {}
    reporters: set[int] = set()
    for event in events:
        rank, peer, value = (event.fields.get(name) for name in ("rank", "peer", "value"))  # a value is about any peer
        if isinstance(rank, int):
            reporters.add(rank)
            if isinstance(peer, int) and value is None:
                waits.setdefault(peer, set()).add(rank)
    late = [peer for peer in waits if peer not in reporters]
    if len(late) != 1 or len(reporters) < 2 or waits[late[0]] != reporters:
        return []
    return [Named(late[0], basis=f"{ASSUMED}rank of its group")]


def _continued(job: Job, run: int | None, event: Event) -> bool:
    """Whether the job worked or ended well after a line."""
    return endings.continued(job, run, event, outside.proc_of_event(job, event))


def _stalled(job: Job, events: Sequence[Event]) -> list[int]:
    """The ranks for which Horovod waits: in brackets, or one a line below ``Missing ranks:``."""
    out: set[int] = set()
    for event in events:
        out.update(ranks_in(event.fields.get("missing")))
        ref, text = _next(job, event.ref, event.tag)
        for _ in range(_MOST_LISTED if text == "Missing ranks:" else 0):
            ref, text = _next(job, ref, event.tag)
            rank, listed, _ = text.partition(": [")
            if not listed or not (found := ranks_in(rank.rstrip("!"))):
                break
            out.update(found)
    return sorted(out)


def _next(job: Job, ref: Ref | None, tag: str | None) -> tuple[Ref | None, str]:
    """The line below another, and its text without the tag."""
    below = lines.below(job, ref) if ref is not None else None
    return below, without_tag("".join(e.text for e in job.quotes.of(below)) if below is not None else "", tag)


def _named(job: Job, events: Sequence[Event]) -> list[Named]:
    """The processes that the lines name, or the peer if all of them name the same one."""
    missing = _stalled(job, [e for e in events if e.name == "horovod.stalled"])
    missing = missing or sorted({rank for e in events for rank in ranks_in(e.fields.get("missing"))})
    if missing:
        return [Named(rank) for rank in missing]
    peers = {str(e.fields["addr"]) for e in events if "addr" in e.fields}
    if peers:
        return [Named(host=next(iter(peers)))] if len(peers) == 1 else []
    found = {(e.fields.get("host"), pid): None for e in events if isinstance(pid := e.fields.get("pid"), int)}
    whole = {pid for host, pid in found if host is not None}
    return [
        Named(host=str(host) if host is not None else None, pid=pid)
        for host, pid in found
        if host is not None or pid not in whole
    ]


def _procs(job: Job, events: Sequence[Event]) -> list[int]:
    """The processes that the lines name. A stream with one process may hold lines of others."""
    found = (outside.proc_of_event(job, e) for e in events if isinstance(e.fields.get("pid"), int))
    return list(dict.fromkeys(p for p in found if p is not None))


def _ranks(job: Job, events: Sequence[Event]) -> list[int]:
    """The ranks in the tags of the lines, and those of the processes that they name."""
    tagged = {r for e in events if (r := rank_of_tag(e.tag)) is not None}
    return sorted(tagged | {r for p in _procs(job, events) if (r := job.rank_of(p)) is not None})


def _who(job: Job, events: Sequence[Event]) -> str:
    """The processes that print these lines, for a title."""
    if procs := _procs(job, events):
        return names_of(job, procs)
    if ranks := _ranks(job, events):
        return ranks_text(ranks)
    named = [n for n in _named(job, events) if n.pid is not None]
    hosts = {n.host for n in named}
    if not named:
        return "a process"
    if len(named) > 1:
        host = next(iter(hosts))
        return counted(len(named), "process", "processes") + (f" on {host}" if len(hosts) == 1 and host else "")
    return f"{named[0].host}:{named[0].pid}" if named[0].host else f"process {named[0].pid}"


def _said(event: Event) -> str:
    text = str(event.fields.get("what", "")).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _ofi(job: Job, events: Sequence[Event]) -> str:
    first = events[0]
    peers = sorted({str(e.fields["peer_id"]) for e in events if "peer_id" in e.fields})
    to = f" (peer {peers[0]})" if len(peers) == 1 else ""
    return f"libfabric failed in {_who(job, events)}{to}: {_said(first) or 'internal error'}"


def _ucx(job: Job, events: Sequence[Event]) -> str:
    return f"UCX failed in {_who(job, events)}: {_said(events[0])}"


def _nixl(job: Job, events: Sequence[Event]) -> str:
    return f"NIXL failed in {_who(job, events)}: {_said(events[0])}"


def _gloo(job: Job, events: Sequence[Event]) -> str:
    peers = sorted({str(e.fields.get("addr")) for e in events})
    more = f" and {len(peers) - _MOST} more" if len(peers) > _MOST else ""
    return f"{_who(job, events)} lost the gloo connection to {joined(peers[:_MOST])}{more}"


def _gloo_timeout(job: Job, events: Sequence[Event]) -> str:
    ms = events[0].fields.get("ms")
    after = f" after {ms // 1000} s" if isinstance(ms, int) else ""
    return f"{_who(job, events)} gave up{after} in a gloo {events[0].fields.get('what')}: another process did not come"


def _deepep(job: Job, events: Sequence[Event]) -> str:
    late = sorted(
        {
            p
            for e in events
            if isinstance(v := e.fields.get("value"), int) and v > 0 and isinstance(p := e.fields.get("peer"), int)
        }
    )
    ranks = sorted({r for e in events if isinstance(r := e.fields.get("rank"), int)})
    if not ranks:
        return f"DeepEP gave up in {str(events[0].fields.get('what', 'a kernel'))[:_LONGEST]}: what it waited for did not arrive"
    wait = f"{ranks_text(ranks)} of {'its' if len(ranks) == 1 else 'their'} group gave up in a barrier of DeepEP"
    return f"{wait}: {ranks_text(late)} did not come" if 0 < len(late) <= _MOST else wait


def _xla(job: Job, events: Sequence[Event]) -> str:
    told = str(events[0].fields.get("what", ""))[:_LONGEST]
    return f"XLA ended {_who(job, events)} after {events[0].fields.get('seconds')} s of waiting for `{told}`"


def _jax(job: Job, events: Sequence[Event]) -> str:
    return f"JAX ended {_who(job, events)} because another process of the job died"


def _engine(job: Job, events: Sequence[Event]) -> str:
    worker = _said(events[0]).strip() if "what" in events[0].fields else ""
    name = f" ({worker})" if worker and " " not in worker else ""
    tagged = outside.tagged_process(job, events)
    which = f"process {tagged[0].pid}" if tagged else "one of its processes"
    return f"the inference engine reports that {which} failed{name}"


def _report(job: Job, events: Sequence[Event]) -> str:
    ranks = sorted({rank for e in events if isinstance(rank := e.fields.get("rank"), int)})
    names = [_said(e) for e in events if "what" in e.fields]
    one = f"one of its processes failed{f' ({names[0]})' if names else ''}"
    return f"the inference engine reports that {f'{ranks_text(ranks)} failed' if ranks else one}"


def _rpc(job: Job, events: Sequence[Event]) -> str:
    return f"vLLM's engine gave up in {_said(events[0])}: a worker did not answer"


def _trtllm(job: Job, events: Sequence[Event]) -> str:
    ranks = sorted({rank for e in events if isinstance(rank := e.fields.get("rank"), int)})
    return f"TensorRT-LLM's watchdog gave up on {ranks_text(ranks)}: the loop of its executor made no progress"


def _lost(job: Job, events: Sequence[Event]) -> str:
    return f"SGLang lost the prefill instance at {joined(sorted({str(e.fields['addr']) for e in events})[:_MOST])}"


def _transfer(job: Job, events: Sequence[Event]) -> str:
    return f"a transfer between a prefill and a decode instance failed: {_said(events[0])}"


def _agent(job: Job, events: Sequence[Event]) -> str:
    return f"{_who(job, events)} lost the NIXL agent of another instance: {_said(events[0])}"


def _mooncake(job: Job, events: Sequence[Event]) -> str:
    peers = sorted({peer for e in events if isinstance(peer := e.fields.get("peer"), int)})
    ranks = sorted({rank for e in events if isinstance(rank := e.fields.get("rank"), int)})
    return f"{ranks_text(ranks)} got no answer from {ranks_text(peers)} in Mooncake's process group"


def _nvshmem(job: Job, events: Sequence[Event]) -> str:
    return f"NVSHMEM failed in {_who(job, events)}: {_said(events[0]) or 'it ended the process'}"


def _horovod(job: Job, events: Sequence[Event]) -> str:
    missing = [n.rank for n in _named(job, events) if n.rank is not None]
    seconds = next((s for e in events if isinstance(s := e.fields.get("seconds"), int)), None)
    after = f" for more than {seconds} s" if seconds is not None else ""
    who = ranks_text(missing) if missing else "a rank"
    return f"{who} did not submit tensors for which Horovod's other ranks wait{after}"


def _sglang(job: Job, events: Sequence[Event]) -> str:
    ranks = sorted({r for e in events if (r := outside.global_rank(job, e)) is not None})
    who = ranks_text(ranks) if ranks else "a scheduler"
    return (
        f"SGLang's watchdog gave up after {events[0].fields.get('seconds'):g} s on {who}: a forward pass did not finish"
    )


def _late(job: Job, events: Sequence[Event]) -> str:
    ranks = sorted({r for e in events if isinstance(r := e.fields.get("rank"), int)})
    return f"ft_launcher's monitor saw no progress of {ranks_text(ranks)} for {events[0].fields.get('seconds')} s"


def _no_nccl(job: Job, events: Sequence[Event]) -> str:
    return f"XLA could not load NCCL's library in {_who(job, events)}"


def _task(job: Job, events: Sequence[Event]) -> str:
    tasks = joined(str(n.rank) for n in _named(job, events))
    return f"JAX's coordination service lost the heartbeat of task {tasks}"


def _nccl_1(job: Job, events: Sequence[Event]) -> str:
    return f"a CUDA call failed in NCCL 1: {_said(events[0])}"


def _desync(job: Job, events: Sequence[Event]) -> str:
    return "an operation timed out, and torch could not write its report about the ranks that lag"


_KINDS = (
    _Kind("deepep.timeout", _deepep, 0.7),
    _Kind("horovod.stalled", _horovod, 0.7),
    _Kind("launch.monitor.late", _late, 0.7),
    _Kind("torch.desync.failed", _desync, 0.7),
    _Kind("nccl1.cuda_failed", _nccl_1, 0.7),
    _Kind("mooncake.peer_failed", _mooncake, 0.7),
    _Kind("serving.peer_lost", _lost, 0.6),
    _Kind("serving.agent_lost", _agent, 0.6),
    _Kind("framework.sglang_watchdog", _sglang, 0.7),
    _Kind("framework.trtllm_hang", _trtllm, 0.7),
    _Kind("framework.rpc_timeout", _rpc, 0.65),
    _Kind("jax.task.lost", _task, 0.7),
    _Kind("xla.no_nccl", _no_nccl, 0.9),
    _Kind("xla.rendezvous.exits", _xla, 0.7),
    _Kind("ofi.error", _ofi, 0.65),
    _Kind("ucx.error", _ucx, 0.65),
    _Kind("nixl.error", _nixl, 0.6),
    _Kind("nvshmem.error", _nvshmem, 0.6),
    _Kind("serving.transfer_failed", _transfer, 0.55),
    _Kind("gloo.closed", _gloo, 0.6),
    _Kind("gloo.timeout", _gloo_timeout, 0.6),
    _Kind("jax.service.fatal", _jax, 0.6),
)
#: An engine wraps the exceptions of its workers, which say more.
_ENGINES = (
    _Kind("framework.engine_failed", _engine, 0.6),
    _Kind("framework.engine_reports", _report, 0.6),
    _Kind("framework.engine_core_failed", _engine, 0.6),
)


def _exceptions(job: Job, run: int | None) -> list[Finding]:
    """Exceptions that name no cause, at the end of what their process prints."""
    items = [i for i in uncaught(job, run) if not _continued(job, run, i.event) and _last_words(job, i.event)]
    if not items:
        return []
    # an exception about others only passes on what another process did
    items = [i for i in items if not faults.phrase(job, "the others are named", i.text)] or items
    passed_on = faults.phrase(job, "the others are named", items[0].text) is not None
    ranks = sorted({i.rank for i in items if i.rank is not None})
    own = len(ranks) == 1 and not passed_on
    process = [] if ranks or passed_on else thrower(job, run, [i.event for i in items])
    who = ranks_text(ranks) if ranks else f"process {process[0].pid}" if process and process[0].rank is None else ""
    who = who or (ranks_text([process[0].rank]) if process and process[0].rank is not None else "a process")
    own = own or bool(process)
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"{who} ended by an uncaught exception: {items[0].text[:_LONGEST]}",
            confidence=0.55,
            explanation="The exception ended the program."
            + ("" if own else " Its text does not show which rank is the cause."),
            next_step="Read the traceback, and give the output of all ranks: the first exception that is about no other rank is the cause.",
            refs=[i.event.ref for i in items[:4]],
            ranks=ranks,
            culprits=ranks if own else [],
            named=process,
            stage="error",
        )
    ]


def _last_words(job: Job, event: Event) -> bool:
    """Whether no process of the stream prints much after it."""
    return not any(
        p.stream == event.stream and p.last.seq > event.ref.seq + endings.WENT_ON for p in job.scan.processes
    )


def _program(job: Job, run: int | None) -> list[Finding]:
    """The program's own statement that it failed."""
    events = [
        e
        for e in job.events("program.failed", run=run)
        if not _continued(job, run, e) and not endings.stopped(job, e) and _last_words(job, e)
    ]
    if not events:
        return []
    reason = _said(events[0]) or _below(job, events[0])
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"the program says that its training failed{f': {reason}' if reason else ''}",
            confidence=0.55,
            explanation="The program reports a failure. The log does not show which rank is the cause.",
            next_step="Read the lines of the same rank around this one, and give the output of all ranks.",
            refs=[e.ref for e in events[:4]],
            ranks=sorted({r for e in events if (r := outside.global_rank(job, e)) is not None}),
            stage="error",
        )
    ]


def _cut(job: Job, run: int | None) -> list[Finding]:
    """A warning about a traceback whose exception is not in the log."""
    heads = [e for e in unfinished(job, run) if not _continued(job, run, e)]
    if not heads:
        return []
    # a part of a program that reports its exception in this way ends with it, as SGLang's scheduler does
    last = [e for e in heads if "part" in e.fields]
    heads = last or heads
    ranks = sorted({*_ranks(job, heads), *(r for e in last if (r := outside.global_rank(job, e)) is not None)})
    who = ranks_text(ranks) if ranks else "a process"
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"the {str(last[0].fields['part']).lower()} of {who} hit an exception, which the log does not show"
            if last
            else f"{who} printed a Python traceback at the end of the log, which is cut before its exception",
            severity=Severity.ERROR if last else Severity.WARNING,
            confidence=0.7 if last else 0.5,
            explanation="The line that names the exception is not in the log. An exception that nothing catches ends the process.",
            culprits=ranks if len(last) == 1 else [],
            next_step="Give the rest of the log: the line below the stack names the exception.",
            refs=[e.ref for e in heads[:4]],
            ranks=ranks,
            stage="error",
        )
    ]


def _waits(job: Job, run: int | None) -> list[Finding]:
    """A warning about a wait of XLA or vLLM that is open when the log ends."""
    ended = {e.stream: (e.last or e.ref).seq for e in job.events("xla.rendezvous.unstuck", run=run)}
    names = ("xla.rendezvous.waits", "framework.engine_waits")
    events = [
        e
        for e in job.events(*names, run=run)
        if not _continued(job, run, e) and (e.last or e.ref).seq > ended.get(e.stream, -1)
    ]
    entry = faults.message(job, events[0].name) if events else None
    if entry is None:
        return []
    what, seconds = str(events[0].fields.get("what", "")), events[0].fields.get("seconds")
    title = f"XLA waits for `{what[:_LONGEST]}`" if what else "vLLM waits for its workers"
    return [
        new_finding(
            job,
            "PSM305",
            run=run,
            title=f"{title} for {seconds} s when the log ends: it is slow or it hangs",
            severity=Severity.WARNING,
            confidence=0.5,
            explanation=entry.meaning,
            next_step=entry.next_step,
            refs=[e.ref for e in events[-4:]],
            stage="error",
        )
    ]


def _below(job: Job, event: Event) -> str:
    ref = lines.below(job, event.ref)
    text = " ".join("".join(e.text for e in job.quotes.of(ref)).split()) if ref is not None else ""
    return text[:_LONGEST]
