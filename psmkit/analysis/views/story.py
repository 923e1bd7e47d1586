"""A job as a story: its report, its timeline, and the tables of waits, debts, connections and handles that a page shows."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.debts import debts
from psmkit.analysis.inference.waits import waits
from psmkit.analysis.views.lines import Lines, gather
from psmkit.analysis.views.timeline import FIELDS, timeline
from psmkit.logparse import ScanResult
from psmkit.logparse.batches import EventBatch
from psmkit.logparse.types import Ref
from psmkit.model import Report
from psmkit.model.arrays.whole import np
from psmkit.model.story import Debtor, Excerpt, Held, Link, Story, Waiting

__all__ = ["tell"]

_CHANNELS = {
    "transport.channel": ("src", "dst", "via"),
    "net.channel.send": ("from_rank", "to_rank", "net"),
    "net.channel.recv": ("from_rank", "to_rank", "net"),
}
#: A page holds whole logs up to so many bytes; of longer ones the lines around those that something refers to.
_WHOLE = 24 << 20
_AROUND = 4


def tell(job: Job, scan: ScanResult, report: Report, batches: Iterable[EventBatch]) -> Story:
    """The story of a job that was scanned with ``keep_calls=True``; ``batches`` are all lines of the same inputs."""
    lines = gather(batches, {**FIELDS, **_CHANNELS})
    messages = scan.catalogue.compiled if scan.catalogue is not None else ()
    records = {at for at, item in enumerate(scan.inputs) if item.kind == "record"}
    return Story(
        report=report,
        timeline=timeline(job, lines, messages, report.ranks, records),
        waits=_waits(job),
        debtors=_debtors(job),
        links=_links(job, lines),
        held=_held(job),
        texts=_texts(scan, report),
        title=_title(scan),
    )


def _place(job: Job, ref: Ref | None) -> str:
    return "" if ref is None else f"{job.scan.files[ref.file].path}:{ref.line}"


def _title(scan: ScanResult) -> str:
    names = [file.path for file in scan.files] or [item.path for item in scan.foreign]
    if len(names) == 1:
        return os.path.basename(names[0])
    folder = os.path.commonpath(names) if names and len({name.startswith("/") for name in names}) == 1 else ""
    return os.path.basename(folder) or f"{len(names)} files"


def _waits(job: Job) -> list[Waiting]:
    out = []
    for wait in waits(job):
        if wait.run is None or (wait.waiter is None and wait.target is None):
            continue
        ends = []
        for proc, rank in ((wait.waiter, wait.rank), (wait.target, wait.target_rank)):
            found = job.rank_of(proc) if proc is not None and wait.group is not None else rank
            name = "" if proc is None else job.process(proc).name
            ends.append((name, found if found is not None else rank))
        (waiter, rank), (target, target_rank) = ends
        place = _place(job, wait.refs[-1] if wait.refs else None)
        # without the log of the target, its answer may be there
        proven = wait.proven and wait.target is not None
        out.append(Waiting(wait.run, wait.kind, wait.stage, waiter, target, proven, rank, target_rank, place))
    return out


def _debtors(job: Job) -> list[Debtor]:
    found = [
        Debtor(job.run_of(proc) or 0, job.rank_of(proc), job.process(proc).name, debt.step, debt.stage)
        for proc, debt in debts(job).items()
    ]
    return sorted(found, key=lambda d: (d.run, d.rank is None, d.rank or 0, d.process))


def _links(job: Job, lines: Lines) -> list[Link]:
    """The channels between ranks of a run. Each end of a connection over a network prints a line: channels count the larger number."""
    counts: dict[tuple[int, int, int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, (source, target, via) in _CHANNELS.items():
        rows, columns = lines.values.get(name, (np.zeros(0, np.int64), {}))
        for at, row in enumerate(rows.tolist()):
            proc = int(lines.proc[row])
            run = job.run_of(proc) if proc >= 0 else None
            if run is None:
                continue
            ends = [_global(job, proc, int(columns[end][at])) for end in (source, target)]
            text = str(columns[via][at]).split(" comm ")[0].strip()
            counts[run, ends[0], ends[1], f"NET/{text}" if name.startswith("net.") else text][name].append(row)
    return [
        Link(run, source, target, via, max(map(len, by_end.values())), _of(job, lines, min(map(min, by_end.values()))))
        for (run, source, target, via), by_end in sorted(counts.items())
    ]


def _of(job: Job, lines: Lines, row: int) -> str:
    return f"{job.scan.files[int(lines.file[row])].path}:{int(lines.line[row])}"


def _global(job: Job, proc: int, rank: int) -> int:
    """The global rank of a rank of the only communicator of a process; in several communicators the line does not say which one it counts in."""
    ours = job.instances_of.get(proc, ())
    if len(ours) != 1:
        return rank
    other = job.proc_in(ours[0].group, rank)
    found = job.rank_of(other) if other is not None else None
    return rank if found is None else found


def _held(job: Job) -> list[Held]:
    out = []
    for entry in job.scan.ledger:
        key = " ".join(f"{part:#x}" if isinstance(part, int) and part > 1 << 16 else str(part) for part in entry.key)
        places = [_place(job, ref) for ref in (entry.opened, entry.closed, entry.imported)]
        name = job.process(entry.proc).name if entry.proc >= 0 else ""
        out.append(Held(name, entry.ledger, key, entry.opens, entry.closes, entry.imports, *places))
    return out


def _texts(scan: ScanResult, report: Report) -> dict[str, list[Excerpt]]:
    """The lines of all files if they are short, else those around the lines that the report refers to."""
    whole = sum(file.bytes for file in scan.files) <= _WHOLE
    wanted: dict[int, set[int]] = defaultdict(set)
    if not whole:
        number = {file.path: at for at, file in enumerate(scan.files)}
        places = [(item.file, item.line) for finding in report.findings for item in finding.evidence]
        places += [
            (name, int(line)) for row in report.ranks if row.last for name, _, line in [row.last.rpartition(":")]
        ]
        for name, line in places:
            if name in number:
                wanted[number[name]].update(range(max(line - _AROUND, 1), line + _AROUND + 1))
    out: dict[str, list[Excerpt]] = {}
    for at, file in enumerate(scan.files):
        if not whole and at not in wanted:
            continue
        parts: list[tuple[int, list[str]]] = []
        for line, text in scan.lines_of(at, None if whole else wanted[at]):
            if parts and parts[-1][0] + len(parts[-1][1]) == line:
                parts[-1][1].append(text)
            else:
                parts.append((line, [text]))
        out[file.path] = [Excerpt(first, texts) for first, texts in parts]
    return out
