"""Calls that differ between ranks of a run that ended in order: the data is wrong, unless the bytes are the same or a line is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.texts import Rank, job_of, of, ranks

HALF = {"count": 2048, "datatype": 6}
FLOAT = {"count": 1024, "datatype": 7}


def call(log: Rank, coll: str, **fields: Any) -> Rank:
    values = {"opcount": 0, "count": 1024, "datatype": 7, "op": 0, "root": 0, **fields}
    return log.line(
        f"{coll}: opCount {values['opcount']:x} sendbuff 0x7f1000000000 recvbuff 0x7f1000400000 count {values['count']} "
        f"datatype {values['datatype']} op {values['op']} root {values['root']} comm {log.comm} [nranks={log.nranks}] "
        "stream 0x55d0d0000000"
    )


def run(
    tmp_path: Path, coll: str, one: dict[str, Any], other: dict[str, Any], *, n: int = 2, numbered: bool = False
) -> Report:
    """All ranks make seven calls and are torn down. The last rank makes the fourth call otherwise."""
    logs = ranks(n)
    for log in logs:
        for at in range(7):
            number = {"opcount": at} if numbered else {}
            if at == 3:
                call(log, coll, **(other if log.rank == n - 1 else one), **number)
            else:
                call(log, "AllReduce", **number)
        log.destroy()
    return analyse_job(job_of(tmp_path, logs))


def mismatch(report: Report) -> Finding:
    (found,) = of(report.findings, "PSM301")
    return found


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(
    ("coll", "one", "other"),
    [
        ("AllReduce", HALF, FLOAT),
        ("Reduce", HALF, FLOAT),
        ("ReduceScatter", {**FLOAT, "datatype": 2}, FLOAT),
        ("AllReduce", {"op": 0}, {"op": 2}),
        ("Reduce", {"op": 0}, {"op": 3}),
        ("ReduceScatter", {"op": 0}, {"op": 4}),
        ("Broadcast", {"root": 0}, {"root": 1}),
        ("Reduce", {"root": 0}, {"root": 1}),
        ("Gather", {"root": 0}, {"root": 1}),
    ],
)
def test_other_type_op_or_root_fails_a_run_that_ended(
    coll: str, one: dict[str, Any], other: dict[str, Any], numbered: bool, tmp_path: Path
) -> None:
    report = run(tmp_path, coll, one, other, numbered=numbered)
    assert report.verdict is Verdict.FAILED, report.reason
    found = mismatch(report)
    assert found.severity is Severity.ERROR and "at call 4" in found.title
    assert "torn down normally" in found.explanation


def test_the_rank_that_differs_from_all_others_is_the_culprit(tmp_path: Path) -> None:
    report = run(tmp_path, "AllReduce", HALF, FLOAT, n=4)
    assert [c.rank for c in report.culprits] == [3]


@pytest.mark.parametrize("coll", ["AllGather", "Broadcast", "AlltoAll", "Gather", "Scatter"])
def test_other_type_of_equal_bytes_is_a_note_where_bytes_are_moved(coll: str, tmp_path: Path) -> None:
    report = run(tmp_path, coll, HALF, FLOAT)
    assert report.verdict is Verdict.HEALTHY, report.reason
    found = mismatch(report)
    assert found.severity is Severity.INFO
    assert "half" in found.title and "float" in found.title


@pytest.mark.parametrize("coll", ["AllGather", "Broadcast"])
def test_other_number_of_bytes_is_an_error_where_bytes_are_moved(coll: str, tmp_path: Path) -> None:
    report = run(tmp_path, coll, {**HALF, "count": 1024}, FLOAT)
    assert report.verdict is Verdict.FAILED and mismatch(report).severity is Severity.ERROR


def test_note_about_types_does_not_hide_a_later_mismatch(tmp_path: Path) -> None:
    logs = ranks(2)
    for log in logs:
        call(log, "AllGather", **(HALF if log.rank else FLOAT))
        call(log, "AllReduce", op=2 * log.rank).destroy()
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.FAILED and "at call 2" in mismatch(report).title


def test_user_operations_have_a_number_of_their_own_on_each_rank(tmp_path: Path) -> None:
    assert run(tmp_path, "AllReduce", {"op": 5}, {"op": 1234}).verdict is Verdict.HEALTHY


def mixed(log: Rank, numbered: bool = False) -> Rank:
    for at in range(12):
        call(log, "AllReduce", **(HALF if at % 3 else FLOAT), **({"opcount": at} if numbered else {}))
    return log.destroy()


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("lose", [{1: (4,)}, {0: (2,), 1: (2, 5)}])
def test_lost_line_is_no_mismatch(lose: dict[int, tuple[int, ...]], numbered: bool, tmp_path: Path) -> None:
    logs = [mixed(log, numbered) for log in ranks(2)]
    for rank, places in lose.items():
        calls = [at for at, line in enumerate(logs[rank].lines) if "opCount" in line]
        for place in reversed(places):
            del logs[rank].lines[calls[place]]
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.HEALTHY, report.reason
    assert not of(report.findings, "PSM301")


def test_numbers_of_calls_show_that_each_rank_lost_another_line(tmp_path: Path) -> None:
    logs = [mixed(log, numbered=True) for log in ranks(2)]
    for log, place in zip(logs, (2, 6), strict=True):
        del log.lines[[at for at, line in enumerate(log.lines) if "opCount" in line][place]]
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.HEALTHY and not of(report.findings, "PSM301")


@pytest.mark.parametrize("glue", [False, True])
def test_torn_or_glued_lines_are_no_mismatch(glue: bool, tmp_path: Path) -> None:
    logs = [mixed(log) for log in ranks(2)]
    calls = [at for at, line in enumerate(logs[0].lines) if "opCount" in line]
    if glue:
        logs[0].lines[calls[2]] += logs[0].lines.pop(calls[3])
        logs[0].lines[calls[4]] = logs[0].lines[calls[4]].replace("count 2048 datatype 6", "count 1024 datatype 7")
    else:
        logs[0].lines[calls[2]] = logs[0].lines[calls[2]][:90]
        call(logs[0], "AllReduce", **FLOAT)
    report = analyse_job(job_of(tmp_path, logs))
    assert not [f for f in of(report.findings, "PSM301") if f.severity is Severity.ERROR]
    assert report.verdict is not Verdict.FAILED


def test_communicators_that_share_an_id_are_not_compared(tmp_path: Path) -> None:
    logs = ranks(2)
    for log in logs:
        call(log, "AllReduce").destroy().complete()
        call(log, "AllReduce", op=2).destroy()
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.HEALTHY and not of(report.findings, "PSM301")


def test_call_that_is_missing_in_the_log_of_a_rank_that_is_missing_proves_nothing(tmp_path: Path) -> None:
    logs = ranks(3)
    for log in logs:
        call(log, "AllReduce", op=2 * (log.rank == 1)).destroy()
    assert not of(analyse_job(job_of(tmp_path, logs[:2])).findings, "PSM301")
