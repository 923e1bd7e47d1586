"""What the number means that srun or mpirun puts before a line: the rank that prints it, or the task that started several ranks.

With a launcher such as torchrun in each task, the label is the number of that launcher, and a line names its rank behind the label.
"""

from __future__ import annotations

from collections import Counter

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import label_of_tag, rank_in_line, rank_of_tag
from psmkit.logparse.types import Event

__all__ = ["of_tasks", "rank_by_tag"]

#: What shows the rank of a process: its own lines, and the reports of a launcher about it.
_LINES = ("torch.", "sys.", "framework.")
_REPORTS = ("launch.elastic.rank", "launch.elastic.failed")
#: torchrun itself begins behind the label.
_AGENT = "start.agent"
#: So many lines of each label are read.
_MOST = 4


def rank_by_tag(job: Job, event: Event) -> int | None:
    """The job's rank in the tag of a line; None if the tag has none, or if it is the number of a task that started several ranks."""
    rank = rank_of_tag(event.tag)
    return None if rank is None or (label_of_tag(event.tag) is not None and event.stream in of_tasks(job)) else rank


@once
def of_tasks(job: Job) -> frozenset[int]:
    """The streams whose labels are those of tasks: a launcher prints behind one, or a line names another rank there."""
    out = {
        e.stream
        for e in job.events(*_REPORTS)
        if (label := label_of_tag(e.tag)) is not None
        and isinstance(rank := e.fields.get("rank"), int)
        and rank != label
    }
    out |= {e.stream for e in job.events(_AGENT) if label_of_tag(e.tag) is not None}
    read: Counter[tuple[int, str | None]] = Counter()
    few: list[Event] = []
    for event in job.events(*_LINES):
        place = event.stream, event.tag
        if event.proc < 0 and event.stream not in out and read[place] < _MOST and label_of_tag(event.tag) is not None:
            read[place] += 1
            few.append(event)
    lines.prefetch(job, (e.ref for e in few))
    for event in few:
        rank = rank_in_line("".join(e.text for e in job.quotes.of(event.ref)))
        if rank is not None and rank != label_of_tag(event.tag):
            out.add(event.stream)
    return frozenset(out)
