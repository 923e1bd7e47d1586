"""Proxy dumps inside logs: which operations wait, and for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign import ProxyOp, parse_op
from psmkit.logparse.foreign.proxydump import STATES
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

_MOST_OPS = 4


@dataclass(slots=True)
class _Dump:
    """One proxy dump: the lines from ``ACTIVE OPS`` to ``[X]``."""

    begin: Event
    ops: list[tuple[Event, ProxyOp]] = field(default_factory=list)
    ended: bool = False


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _dumps(job: Job) -> list[_Dump]:
    """The dumps, in the order of each stream."""
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


@rule(order=350)
def find(job: Job) -> list[Finding]:
    """PSM304 for waiting operations, PSM604 for dumps without any."""
    empty: dict[int | None, list[_Dump]] = {}
    # A dump with the same operations in the same states replaces the earlier one: they do not move.
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
    who = name_of(job, proc) if proc is not None else "a proxy progress thread"
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
    return new_finding(
        job,
        "PSM304",
        run=run,
        title=f"proxy dump of {who}: {parts[0]}" + (", unchanged since an earlier dump" if again else ""),
        severity=Severity.WARNING if again else Severity.INFO,
        confidence=0.75 if again else 0.5,
        explanation=f"{counted(len(dump.ops), 'operation')}, {len(waits):,} of them in progress. "
        + "; ".join(parts)
        + "."
        + ("" if again else " One dump shows one moment: operations that make progress look the same."),
        next_step=f"Look at what {ranks_text(peers)} {'does' if len(peers) == 1 else 'do'} with the other end."
        if peers
        else "The operation waits for this rank's own GPU. Find out what runs there.",
        refs=[dump.begin.ref, *(event.ref for event, _ in waits[:_MOST_OPS])],
        ranks=[rank] if rank is not None else [],
        procs=[proc] if proc is not None else [],
    )


def _empty(job: Job, run: int | None, dumps: Sequence[_Dump]) -> Finding:
    groups = len(job.runs[run].groups) if run is not None and run < len(job.runs) else 0
    many = f" although the job has {groups} communicators" if groups > 1 else ""
    return new_finding(
        job,
        "PSM604",
        run=run,
        title=f"{counted(len(dumps), 'proxy dump')} {plural(len(dumps), 'shows', 'show')} no operation{many}, which does not prove that the job is idle",
        explanation="A dump shows only the proxy state of the communicator that was created last, not the operations of the others. "
        "Transports without a proxy (P2P, SHM, NVLS) do not appear in it.",
        next_step="Read the states of all communicators with gdb, or take stacks of all proxy progress threads.",
        refs=[d.begin.ref for d in dumps[:3]],
        known_issue="NVIDIA/nccl#1930",
    )
