"""Whose is a line that has no NCCL prefix? Launcher tags, ranks that torch prints, process ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.tags import rank_in_line, rank_of_tag
from psmkit.logparse.types import Event, Ref, Value

__all__ = ["global_rank", "joined", "proc_of_event", "proc_of_pid", "ranks_text", "runs_of"]

_MOST_LINES = 4000
_LINE_RANKS: WeakKeyDictionary[Job, dict[Ref, int]] = WeakKeyDictionary()


def is_default_group(fields: Mapping[str, Value]) -> bool:
    """Whether torch's line is about the default process group, whose ranks are the global ones, or tells no group."""
    group = fields.get("group")
    return group is None or str(group).startswith("0") or "default_pg" in str(group)


def global_rank(job: Job, event: Event) -> int | None:
    """The global rank of who printed a line: by its process, its launcher tag, the rank in torch's default group, or its stream."""
    if event.proc >= 0:
        return job.rank_of(event.proc)
    tagged = rank_of_tag(event.tag)
    if tagged is not None:
        return tagged
    told = _line_rank(job, event)
    if told is not None:
        return told
    rank = event.fields.get("rank")
    if isinstance(rank, int) and event.name.startswith("torch.") and is_default_group(event.fields):
        return rank
    if isinstance(rank, int) and event.name.startswith(("launch.elastic.", "launch.mpi.")):
        return rank
    alone = _only_process(job, event)
    return job.rank_of(alone) if alone is not None else None


def _line_rank(job: Job, event: Event) -> int | None:
    if job not in _LINE_RANKS:
        _LINE_RANKS[job] = _read_ranks(job)
    return _LINE_RANKS[job].get(event.ref)


def _read_ranks(job: Job) -> dict[Ref, int]:
    """The ranks that stand in the lines themselves, read in one pass: a compressed input is slow to go back in."""
    events = [e for e in job.events("torch.", "sys.") if e.proc < 0 and rank_of_tag(e.tag) is None][:_MOST_LINES]
    lines.prefetch(job, (e.ref for e in events))
    out: dict[Ref, int] = {}
    for event in events:
        text = "".join(e.text for e in job.evidence(event.ref))
        rank = rank_in_line(text)
        if rank is not None:
            out[event.ref] = rank
    return out


def _only_process(job: Job, event: Event) -> int | None:
    found = [p.index for p in job.scan.processes if p.stream == event.stream]
    return found[0] if len(found) == 1 else None


def proc_of_event(job: Job, event: Event) -> int | None:
    """The process that printed a line, None where it cannot be told."""
    if event.proc >= 0:
        return event.proc
    run = job.run_of_event(event)
    pid = event.fields.get("pid")
    if run is not None and isinstance(pid, int) and pid > 0:
        host = event.fields.get("host")
        found = proc_of_pid(job, run, pid, str(host) if host is not None else None)
        if found is not None:
            return found
    rank = global_rank(job, event)
    if run is not None and rank is not None:
        return job.proc_of(run, rank)
    return _only_process(job, event)


def proc_of_pid(job: Job, run: int, pid: int, host: str | None = None) -> int | None:
    """The process of a run with this process or thread id, when there is one only."""
    if run >= len(job.runs):
        return None
    ours = [job.process(p) for p in job.runs[run].procs]
    found = [p.index for p in ours if p.pid == pid and (host is None or _same_host(host, p.host))]
    if not found:
        tids = {t.proc for t in job.scan.threads if t.tid == pid and job.run_of(t.proc) == run}
        found = [p for p in tids if host is None or _same_host(host, job.process(p).host)]
    return found[0] if len(found) == 1 else None


def _same_host(one: str, other: str) -> bool:
    return one.split(".", 1)[0] == other.split(".", 1)[0]


def runs_of(job: Job, *names: str) -> dict[int | None, list[Event]]:
    """The events of these names by run, in order of reading."""
    out: dict[int | None, list[Event]] = {}
    for event in job.events(*names):
        out.setdefault(job.run_of_event(event), []).append(event)
    return out


def joined(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    texts = list(parts)
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """``rank 3``, ``ranks 1 and 2``, ``ranks 0, 1, 2 and 13 more``."""
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = [str(n) for n in numbers[:most]]
    if len(numbers) > most:
        shown.append(f"{len(numbers) - most} more")
    return "ranks " + joined(shown)
