"""What is claimed about ranks that are not in view: only a view of all ranks, with their numbers, allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Verdict
from tests.analysis.texts import Rank, find, of, ranks, report_of, watchdog

_LAG = "no rank lags behind"


def _called(rank: int, n: int = 2) -> Rank:
    """A rank whose log begins after its init: its calls name no rank."""
    return Rank(rank, n).work(2)


def test_rank_that_only_its_teardown_names_is_not_missing(tmp_path: Path) -> None:
    report = report_of(tmp_path, [_called(r).destroy() for r in range(2)])
    assert report.verdict is Verdict.HEALTHY
    assert not of(report.findings, "PSM702") and not report.coverage.missing_ranks
    assert [row.rank for row in report.ranks] == [0, 1]


def test_processes_without_a_rank_may_be_the_ranks_that_seem_to_be_missing(tmp_path: Path) -> None:
    report = report_of(tmp_path, [_called(0).destroy(), _called(1)])
    assert report.verdict is Verdict.INCONCLUSIVE and "are missing" not in report.reason
    assert "the log names 1 of 2 ranks; node0:7101 may be the other" in report.reason
    assert not of(report.findings, "PSM702") and not report.coverage.missing_ranks
    assert all(row.state != "missing" for row in report.ranks)


def test_rank_without_any_line_is_missing(tmp_path: Path) -> None:
    report = report_of(tmp_path, ranks(4)[:3])
    assert report.reason == "the log of rank 3 of 4 is missing"
    assert of(report.findings, "PSM702") and report.coverage.missing_ranks == (3,)


def _lost(log: Rank) -> Rank:
    log.warn("proxy.cc:1527", "[Service thread] Could not receive type from localRank 3, res=3, closed=1", "service")
    return log.chain(3, "proxy.cc:1530", thread="service").fail(3)


def test_log_of_a_process_whose_rank_is_unknown_is_not_said_to_be_missing(tmp_path: Path) -> None:
    logs = [_lost(log) for log in ranks(4)[:3]]
    silent = Rank(3, 4).born()
    titles = [f.title for f in report_of(tmp_path, [*logs, silent]).findings]
    assert not any("not given" in title for title in titles)


def test_log_of_a_rank_without_a_line_was_not_given(tmp_path: Path) -> None:
    (found,) = of(find("blame", tmp_path, [_lost(log) for log in ranks(4)[:3]]), "PSM403")
    assert "lost its connection to ranks 0, 1 and 2" in found.title and "its log was not given" in found.title


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (
            "NET/PSM : socket connection 7 send, rank 0 device 0: peer rank 3 at 10.0.0.3<4711> closed; 2 requests are open",
            True,
        ),
        ("ncclProxyClientGetFd call to tpRank 3 handle 0x7fcc180052b0 failed : 3", False),
        ("Proxy Call to rank 3 failed (Connect)", False),
    ],
)
def test_rank_is_gone_only_if_a_connection_to_it_broke(text: str, gone: bool, tmp_path: Path) -> None:
    logs = ranks(4)
    for log in logs[:3]:
        log.warn("proxy.cc:1223", text, "async").fail(3)
    for found in of(find("blame", tmp_path, logs), "PSM403"):
        assert ("lost its connection" in found.title) is gone
        assert (found.stage == "lost") is gone
        assert "killed" not in found.title + found.explanation  # no line shows that
        assert found.culprits == (3,)


def test_no_rank_lags_is_said_of_all_ranks_only(tmp_path: Path) -> None:
    report = report_of(tmp_path, [Rank(5, 8).ready().work(2)], watchdog(5))
    assert report.verdict is Verdict.HUNG
    assert (
        _LAG not in report.reason
        and "on rank 5; the log holds only the watchdog report of rank 5, of 8 ranks" in report.reason
    )


def test_number_of_ranks_that_nothing_shows_is_not_assumed(tmp_path: Path) -> None:
    report = report_of(tmp_path, [], watchdog(0, 1, 2, 3))
    assert _LAG not in report.reason and "the log holds no report of another rank" in report.reason


@pytest.mark.parametrize("reporters", [(0, 1, 2, 3), (1,)])
def test_ranks_that_all_made_the_same_calls_do_not_lag(reporters: tuple[int, ...], tmp_path: Path) -> None:
    report = report_of(tmp_path, [log.work(3) for log in ranks(4)], watchdog(*reporters))
    assert report.verdict is Verdict.HUNG and _LAG in report.reason


def test_rank_without_any_line_is_a_suspect_only_where_its_report_would_be(tmp_path: Path) -> None:
    logs = [log.work(2) for log in ranks(4)[:3]]
    for log in logs:
        log.lines.append(watchdog(log.rank).strip())
    apart = report_of(tmp_path, logs)
    assert not apart.culprits and not apart.suspects
    (tmp_path / "again").mkdir()
    shared = report_of(tmp_path / "again", [log.work(2) for log in ranks(4)[:3]], watchdog(0, 1, 2))
    assert not shared.culprits and [s.rank for s in shared.suspects] == [3]
    assert "rank 3 of 4 does not report it" in shared.reason
    (tmp_path / "prints").mkdir()
    prints = "[rank3]:[W1101 10:00:00.000000000 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 3] using GPU 3 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang.\n"
    shown = report_of(tmp_path / "prints", [log.work(2) for log in ranks(4)[:3]], prints + watchdog(0, 1, 2))
    assert [c.rank for c in shown.culprits] == [3]


def test_devices_of_one_process_are_ranks_in_view(tmp_path: Path) -> None:
    logs = [_called(r).destroy() for r in range(2)]
    for log in logs:
        log.lines = [line.replace(":7101:7101 ", ":7001:7001 ") for line in log.lines]
    logs[0].lines, logs[1].lines = [*logs[0].lines[:2], *logs[1].lines[:2], logs[0].lines[2], logs[1].lines[2]], []
    report = report_of(tmp_path, logs[:1])
    assert "missing" not in report.reason and not of(report.findings, "PSM702")
    assert not report.coverage.missing_ranks
