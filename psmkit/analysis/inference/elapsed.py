"""Time stamps as a proof of waiting: how long the processes of a stream were silent before a launcher ended the job.

A healthy job at its time limit ends with the same line as a hung one. The silence before the line tells them apart, if it is long by
the log's own pace. It is measured only on one clock: the clocks of two hosts differ, and so do those of NCCL and of a launcher
unless somebody else stamps the lines of both.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import clock, endings
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event, Process, Ref, Stamps
from psmkit.model.late import dataclass

__all__ = ["Silence", "silence"]

#: A silence is long from here on. torch gives up a collective after as much; NCCL's own retries end within a few minutes.
_LEAST = 600.0
#: And if it is longer than this many times the longest pause before it, which may be a checkpoint.
_FACTOR = 4
#: Threads print in another order than they take the time.
_SLACK = 2.0
#: Clocks change to daylight saving time before this hour of the day.
_HOUR, _CHANGES, _DAY = 3600.0, 4 * 3600.0, 86400.0
_DIGITS = str.maketrans("123456789", "000000000")


@dataclass(frozen=True, slots=True)
class Silence:
    """``seconds`` without a line of a run's processes in a stream, from ``last`` on to the line ``end``; ``pause`` is the longest before."""

    seconds: float
    pause: float
    last: Ref
    end: Ref


def silence(job: Job, proc: int) -> Silence | None:
    """The silence at the end of the stream of a process, if it is long and the time stamps prove it."""
    return _silences(job).get((job.run_of(proc), job.process(proc).stream))


@once
def _silences(job: Job) -> dict[tuple[int | None, int], Silence]:
    ends = [e for e in job.events(*endings.STOPS) if e.time is not None]
    if not ends:
        return {}
    crowds: dict[int, dict[int | None, list[Process]]] = defaultdict(lambda: defaultdict(list))
    for process in job.scan.processes:
        if process.index not in job.phantoms:
            crowds[process.stream][job.run_of(process.index)].append(process)
    out: dict[tuple[int | None, int], Silence] = {}
    for event in sorted(ends, key=lambda e: e.ref.seq):
        runs, run = crowds[event.stream], job.run_of_event(event)
        if (run, event.stream) in out or run not in runs:
            continue
        last = max(runs[run], key=lambda p: p.last.seq)
        # a stream that holds several runs was put together from several logs
        if len(runs) == 1 and last.last.seq < event.ref.seq and not _program_went_on(job, event, last.last):
            found = _between(job, runs[run], last, event)
            if found is not None:
                out[run, event.stream] = found
    return out


def _program_went_on(job: Job, end: Event, last: Ref) -> bool:
    events = (e for e in job.events("program.") if e.stream == end.stream)
    return any((e.last or e.ref).seq > last.seq for e in events)


def _between(job: Job, procs: list[Process], last: Process, end: Event) -> Silence | None:
    stamps = _one_clock(procs)
    ours, at = last.stamps, clock.seconds(end.time)
    if not stamps or ours is None or at is None or at[1] != ours.dated or not _same_form(job, last.last, ours, end):
        return None
    latest = max(s.last for s in stamps)
    seconds = at[0] - latest
    if seconds < 0 and not ours.dated:
        seconds += _DAY  # past midnight
    if latest % _DAY < _CHANGES or latest % _DAY + seconds >= _DAY:
        seconds -= _HOUR
    pause = max(s.pause for s in stamps)
    if seconds < max(_LEAST, _FACTOR * pause) or (not ours.dated and seconds > _DAY / 2):
        return None
    return Silence(seconds, pause, last.last, end.ref)


def _one_clock(procs: list[Process]) -> list[Stamps]:
    """The stamps of these processes, if the last line of each has one and all fit the order of the lines; else none."""
    latest = None
    out: list[Stamps] = []
    for process in sorted(procs, key=lambda p: p.last.seq):
        ours = process.stamps
        if ours is None or ours.seq != process.last.seq or not ours.steady:
            return []
        if latest is not None and (ours.dated != latest.dated or ours.last < latest.last - _SLACK):
            return []
        out.append(ours)
        latest = ours
    return out


def _same_form(job: Job, last: Ref, stamps: Stamps, end: Event) -> bool:
    """Whether a line of NCCL and that of the launcher have stamps of the same form at the same place, as one writer makes them."""
    first, second = ("".join(e.text for e in job.quotes.of(ref)) for ref in (last, end.ref))
    shown = end.time or ""
    at, size = second.find(shown), len(shown)
    before, form = second[max(at - 1, 0) : at], shown.translate(_DIGITS)
    masked = first.translate(_DIGITS)
    place = masked.find(form)
    while at >= 0 and place >= 0:
        found = clock.seconds(first[place : place + size])
        if found is not None and abs(found[0] - stamps.last) < 1e-3 and first[max(place - 1, 0) : place] == before:
            return True
        place = masked.find(form, place + 1)
    return False
