"""Findings from inputs that are not NCCL logs, and from proxy dumps in the middle of logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.rules.flight import Recorded, find_flight
from psmkit.analysis.rules.ras_answers import Answer, answers_in_logs, find_answers
from psmkit.analysis.rules.stacks import find_stacks
from psmkit.logparse.foreign import Loaded, ProxyOp, load, parse_op
from psmkit.logparse.foreign.proxydump import STATES
from psmkit.logparse.foreign.types import StackDump
from psmkit.logparse.types import Event
from psmkit.model import Evidence, Finding, Severity

__all__ = ["find"]

# Lines that prove that the job waited.
_LASTING = (
    "torch.watchdog.timeout",
    "torch.dump.timeout_signal",
    "torch.heartbeat.",
    "ras.keepalive.error",
    "ras.peer.declared_dead",
)
_MOST_OPS = 4


@dataclass(slots=True)
class _Dump:
    """One proxy dump: the lines from ``ACTIVE OPS`` to ``[X]``."""

    begin: Event
    ops: list[tuple[Event, ProxyOp]] = field(default_factory=list)
    ended: bool = False


def find(job: Job) -> list[Finding]:
    """What flight recorder dumps, RAS answers, stacks and proxy dumps show."""
    out: list[Finding] = []
    inputs = getattr(job.scan, "foreign", ())
    loaded = [load(str(i.path), str(i.kind)) for i in inputs]
    out.extend(_unread(job, loaded))
    run = _run(job)
    lasting = bool(job.events(*_LASTING))
    flights = [Recorded(item.path, dump) for item in loaded for dump in item.flights]
    if flights:
        out.extend(find_flight(job, flights, run, lasting))
    answers = answers_in_logs(job) + [Answer(item.path, report) for item in loaded for report in item.ras]
    if answers:
        answers.sort(key=lambda a: a.report.time or "")
        out.extend(find_answers(job, answers, run, lasting))
    stacks: list[tuple[str, StackDump]] = [(item.path, dump) for item in loaded for dump in item.stacks]
    if stacks:
        out.extend(find_stacks(job, stacks, run, lasting))
    out.extend(_proxy_dumps(job))
    return out


def _run(job: Job) -> int | None:
    """Foreign inputs are made while a job hangs, so they belong to its newest run."""
    return job.runs[-1].index if job.runs else None


def _unread(job: Job, loaded: Sequence[Loaded]) -> list[Finding]:
    out = []
    for item in loaded:
        holds = item.flights or item.ras or item.stacks
        if item.error is None and holds and not item.truncated:
            continue
        why = item.error or (
            "it is larger than what is read of one input" if item.truncated else "nothing in it could be read"
        )
        finding = job.finding(
            "PSM604",
            run=None,
            title=f"{item.path} ({item.kind}) was not read{' to its end' if item.truncated else ''}: {why}",
            next_step="Give the file again, whole; a flight recorder dump has to be exported as JSON.",
        )
        out.append(replace(finding, evidence=(Evidence(item.path, 1, ""),)))
    return out


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _dumps(job: Job) -> list[_Dump]:
    """The dumps in the order of each stream."""
    out: list[_Dump] = []
    current: dict[tuple[int, str | None], _Dump] = {}
    for event in job.events("proxydump."):
        key = (event.stream, event.tag)
        if event.name == "proxydump.begin":
            current[key] = _Dump(event)
            out.append(current[key])
        elif event.name == "proxydump.op" and key in current and not current[key].ended:
            pool, index, opcount = (_number(event.fields.get(n)) for n in ("pool", "index", "opcount"))
            op = parse_op(pool, index, opcount, str(event.fields.get("body", "")))
            if op is not None:
                current[key].ops.append((event, op))
        elif event.name == "proxydump.end" and key in current:
            current[key].ended = True
    return out


def _proxy_dumps(job: Job) -> list[Finding]:
    empty: dict[int | None, list[_Dump]] = {}
    # The same operations in the same states again replace the earlier dump: then they do not move.
    found: dict[tuple[object, ...], Finding] = {}
    for dump in _dumps(job):
        run = job.run_of_event(dump.begin)
        if not dump.ops:
            if dump.ended:
                empty.setdefault(run, []).append(dump)
            continue
        waits = [(event, op) for event, op in dump.ops if op.waiting]
        if not waits:
            continue
        state = tuple((op.pool, op.index, op.opcount, op.subs) for _, op in waits)
        key = (dump.begin.stream, dump.begin.tag, state)
        found[key] = _waits(job, run, dump, waits, again=key in found)
    out = list(found.values())
    for run, dumps in empty.items():
        out.append(_empty(job, run, dumps))
    return out


def _waits(job: Job, run: int | None, dump: _Dump, waits: Sequence[tuple[Event, ProxyOp]], again: bool) -> Finding:
    proc = outside.proc_of_event(job, dump.begin)
    who = job.who(proc) if proc is not None else "a proxy progress thread"
    kinds: Counter[tuple[str, str | None, int | None]] = Counter()
    for _, op in waits:
        for sub in op.waiting:
            kinds[(op.kind, sub.state, sub.peer)] += 1
    parts = []
    for (kind, state, peer), count in kinds.most_common(_MOST_OPS):
        times = f"{count} connections" if count > 1 else "one connection"
        with_peer = f" with rank {peer}" if peer is not None and peer >= 0 else ""
        parts.append(f"{kind}{with_peer}, {times}: {STATES.get(state or '', 'state not told')} ({state})")
    peers = sorted({p for _, state, p in kinds if p is not None and p >= 0 and state in ("R", "S")})
    rank = job.rank_of(proc) if proc is not None else None
    return job.finding(
        "PSM304",
        run=run,
        title=f"proxy dump of {who}: {parts[0]}" + (", unchanged since an earlier dump" if again else ""),
        severity=Severity.WARNING if again else Severity.INFO,
        confidence=0.75 if again else 0.5,
        explanation=f"{len(dump.ops)} operations, {len(waits)} of them under way. "
        + "; ".join(parts)
        + "."
        + ("" if again else " One dump is a moment: working operations look like this too."),
        next_step=f"Look at what {outside.ranks_text(peers)} {'does' if len(peers) == 1 else 'do'} with the other end."
        if peers
        else "The operation waits for this rank's own GPU: see what runs there.",
        refs=[dump.begin.ref, *(event.ref for event, _ in waits[:_MOST_OPS])],
        ranks=[rank] if rank is not None else [],
        procs=[proc] if proc is not None else [],
    )


def _empty(job: Job, run: int | None, dumps: Sequence[_Dump]) -> Finding:
    groups = len(job.runs[run].groups) if run is not None and run < len(job.runs) else 0
    many = f" although the job has {groups} communicators" if groups > 1 else ""
    return job.finding(
        "PSM604",
        run=run,
        title=f"{len(dumps)} proxy dump{'s' if len(dumps) > 1 else ''} show{'s' if len(dumps) == 1 else ''} no operation{many}: this is not idleness",
        explanation="The dump shows one proxy state of the process, that of the communicator made last; operations of the others are not in it. "
        "Transports without a proxy (P2P, SHM, NVLS) never show.",
        next_step="Read the states of all communicators with gdb, or take stacks of all proxy progress threads.",
        refs=[d.begin.ref for d in dumps[:3]],
        known_issue="NVIDIA/nccl#1930",
    )
