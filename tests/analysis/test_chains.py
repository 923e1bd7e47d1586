"""Lines that report errors, joined: processes that print alike share one result, and a line knows whether it belongs to some errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.chains import Kind, Others, Shape, is_step, keys, shapes
from psmkit.analysis.inference.reported_lines import Reported
from tests.analysis.texts import Rank, job_of, ranks

WARN = Kind("unmatched.warn", "WARN", None, False)
STEPS = {name: Kind("debug.chain", "INFO", None, True, file=name, code=3) for name in ("proxy.cc", "init.cc")}
KINDS = [WARN, *STEPS.values()]


def failing(log: Rank, *places: str) -> Rank:
    return log.warn("proxy.cc:12", "an error that no catalogue knows").chain(3, *places)


def joined(job: Job, others: Others | None = None) -> list[tuple[int, Shape]]:
    """The shapes of all warnings and steps of a job, with the process of each."""
    events = job.scan.events
    rows = events.rows(name for name in events.names if name == WARN.name or is_step(name))
    rows = rows[np.lexsort((events.first[rows], events.proc[rows]))]
    found = events.pick(rows)
    kind_of = [KINDS.index(STEPS[str(e.fields["file"])] if is_step(e.name) else WARN) for e in found]
    none = np.zeros(0, dtype=np.int64)
    made = shapes(events, rows, np.array(kind_of), KINDS, others or Others(none, none, frozenset()))
    return [(found[at].proc, shape) for at, shape in made]


def test_processes_that_print_alike_share_a_shape_and_others_do_not(tmp_path: Path) -> None:
    logs = [failing(log, "proxy.cc:40", "init.cc:90") for log in ranks(3)]
    failing(logs[2], "init.cc:91")
    one, two, three = (shape for _, shape in joined(job_of(tmp_path, logs)))
    assert one is two and one is not three
    assert (one.kinds, one.rows) == (KINDS, [0, 1, 2])
    assert (one.chain, one.code, one.reached_api, one.severity) == (True, 3, True, "unknown")
    assert three.rows == [0, 1, 2, 3, 4], "what follows in the same thread belongs to the chain"


def test_a_line_between_two_warnings_of_a_thread_parts_them(tmp_path: Path) -> None:
    logs = [failing(failing(log, "proxy.cc:40"), "proxy.cc:41") for log in ranks(1)]
    job = job_of(tmp_path, logs)
    events = job.scan.events
    at = int(events.first[events.rows(["unmatched.warn"])][1]) - 1
    thread = int(events.thread[events.rows(["unmatched.warn"])][0])
    between = Others(np.array([thread]), np.array([at]), frozenset({0}))
    assert [shape.rows for _, shape in joined(job)] == [[0, 1, 2, 3]]
    assert [shape.rows for _, shape in joined(job, between)] == [[0, 1], [2, 3]]


def test_no_line_makes_no_shape(tmp_path: Path) -> None:
    assert joined(job_of(tmp_path, ranks(2))) == []


def test_others_knows_what_a_thread_printed_before_and_after_a_place() -> None:
    others = Others(np.array([2, 5, 2]), np.array([10, 3, 40]), frozenset({1}))
    assert [others.after(2, 39), others.after(2, 40), others.after(5, 2), others.after(9, 0)] == [
        True,
        False,
        True,
        False,
    ]
    threads, places = np.array([2, 2, 2, 5, 9]), np.array([5, 11, 41, 3, 9])
    assert others.before(threads, places).tolist() == [-1, 10, 40, -1, -1]


def test_keys_sort_by_owner_then_by_place() -> None:
    owners, places = np.array([3, 1, 3, 1]), np.array([1, 1 << 39, 0, 7])
    assert np.argsort(keys(owners, places)).tolist() == [3, 1, 2, 0]


def test_reported_holds_each_line_of_its_errors_and_no_other(tmp_path: Path) -> None:
    logs = [failing(log.work(2), "proxy.cc:40", "init.cc:90") for log in ranks(3)]
    job = job_of(tmp_path, logs)
    first, *rest = faults.cascades(job)
    reported = Reported([first])
    assert len(first.faults) == 3 and all(fault.event in reported for fault in first.faults)
    assert not any(fault.event in reported for other in rest for fault in other.faults)
    lines = {fault.ref for fault in first.faults}
    assert not [e for e in job.scan.events if e in reported and e.ref not in lines]
    assert first.first.event not in Reported([])
    assert all(c.first.event in Reported(faults.cascades(job)) for c in faults.cascades(job))
