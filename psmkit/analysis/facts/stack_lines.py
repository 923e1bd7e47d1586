"""Stacks that a program or a person wrote into a log, between its other lines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.foreign.stacks import parse_stacks
from psmkit.logparse.foreign.types import StackDump
from psmkit.logparse.types import Event, Ref

__all__ = ["in_logs"]

#: So many heads of threads are looked at, and lines below all of them are read.
_MOST_HEADS, _MOST_LINES = 20_000, 100_000
# So many lines of others may stand among the lines of a stack.
_BETWEEN = 40
# A dump that begins so many lines below the message of a crash belongs to it: nobody stands there any more.
_OF_A_CRASH = 6
_HEADS = ("Thread ", "Current thread ", "PID ", "TID ")


@once
def in_logs(job: Job) -> tuple[tuple[str, StackDump], ...]:
    """The stacks between the lines of logs, each with its file."""
    by_file: dict[int, list[Event]] = defaultdict(list)
    for event in job.events("stack.")[:_MOST_HEADS]:
        by_file[event.ref.file].append(event)
    crashes: dict[int, list[int]] = defaultdict(list)
    for event in job.events("sys.python.fatal") if by_file else ():
        crashes[event.ref.file].append(event.ref.line)
    out: list[tuple[str, StackDump]] = []
    left = _MOST_LINES
    for file, heads in by_file.items():
        heads.sort(key=lambda e: e.ref.line)
        at = 0
        while at < len(heads) and left > 0:
            first = heads[at]
            numbered = _region(job, first, left)
            left -= len(numbered)
            last = numbered[-1][0]
            ours = [e for e in heads[at:] if e.ref.line <= last]
            at += max(len(ours), 1)
            if not any(0 <= first.ref.line - line <= _OF_A_CRASH for line in crashes[file]):
                out += [(job.scan.files[file].path, dump) for dump in _dumps(job, first, numbered)]
    return tuple(out)


def _region(job: Job, first: Event, most: int) -> list[tuple[int, str]]:
    """The lines from the head of a thread to the last line that can be of a stack, with their numbers."""
    out: list[tuple[int, str]] = []
    ref: Ref | None = first.ref
    end = others = 0
    while ref is not None and len(out) < most and others <= _BETWEEN:
        text = "".join(e.text for e in job.quotes.of(ref))
        out.append((ref.line, text))
        if _of_a_stack(text):
            end, others = len(out), 0
        elif text.strip():
            others += 1
        ref = lines.below(job, ref)
    return out[: max(end, 1)]


def _of_a_stack(text: str) -> bool:
    """Whether a line looks like a head or a frame, behind any tag."""
    plain = text[:400].rstrip()
    return (
        (plain.endswith(")") and " (" in plain and "NCCL" not in plain)
        or ("#" in plain and " in " in plain)
        or 'File "' in plain
        or any(head in plain for head in _HEADS)
    )


def _dumps(job: Job, first: Event, numbered: list[tuple[int, str]]) -> list[StackDump]:
    head = numbered[0][1]
    begin = min((at for word in _HEADS if (at := head.find(word)) >= 0), default=0)
    prefix = head[:begin]
    text = "\n".join(line.removeprefix(prefix) for _, line in numbered)
    found = parse_stacks(text, "gdb")
    rank = outside.global_rank(job, first)
    proc = outside.proc_of_event(job, first)
    pid = job.process(proc).pid if proc is not None and len(found) == 1 else None
    out = []
    for dump in found:
        threads = tuple(replace(t, line=numbered[min(max(t.line, 1), len(numbered)) - 1][0]) for t in dump.threads)
        own = dump.rank if dump.rank is not None or len(found) > 1 else rank
        out.append(replace(dump, threads=threads, rank=own, pid=dump.pid if dump.pid is not None else pid))
    return [dump for dump in out if any(t.frames for t in dump.threads)]
