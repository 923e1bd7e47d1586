"""Rules that count or compare what ranks printed, on lines that are glued, torn or without their process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyze
from psmkit.model import Report, Severity, Verdict
from tests.analysis.texts import Rank, of, ranks, watchdog

_CALLS = 40


def _logs() -> list[Rank]:
    logs = ranks()
    for log in logs:
        for n in range(_CALLS):
            coll = ("AllReduce", "AllGather")[n % 2]
            log.line(
                f"{coll}: opCount 0 sendbuff 0x7f1000000000 recvbuff 0x7f1000400000 count {1024 + n} datatype 7 op 0 root 0 "
                f"comm {log.comm} [nranks={log.nranks}] stream 0x55d0d0000000"
            )
    return logs


def _merged(tmp_path: Path, logs: list[Rank], harm: Callable[[str], str], launcher: str = "") -> Report:
    """All ranks in one file, line by line, with one call of rank 2 harmed."""
    lines = [line for row in zip(*(log.lines for log in logs), strict=True) for line in row]
    at = next(i for i, line in enumerate(lines) if ":7201:" in line and "count 1040" in line)
    lines[at] = harm(lines[at])
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n" + launcher)
    return analyze([tmp_path / "job.log"])


def _ghost(line: str) -> str:
    return "0m" + line


def _headless(line: str) -> str:
    return line[line.index("[2]") :]


def _torn(line: str) -> str:
    return line[: line.index("AllReduce") + 30]


@pytest.mark.parametrize("launcher", ["", watchdog(0, 1, 2, 3, seq=_CALLS + 1)])
@pytest.mark.parametrize("harm", [_ghost, _headless, _torn])
def test_damaged_line_is_no_mismatch(harm: Callable[[str], str], launcher: str, tmp_path: Path) -> None:
    report = _merged(tmp_path, _logs(), harm, launcher)
    assert report.verdict is (Verdict.HUNG if launcher else Verdict.INCONCLUSIVE)
    assert not report.culprits and "different calls" not in report.reason
    assert all(f.severity is not Severity.ERROR for f in of(report.findings, "PSM301"))


def test_glued_host_is_understood_as_the_host(tmp_path: Path) -> None:
    report = _merged(tmp_path, _logs(), _ghost)
    assert {row.host for row in report.ranks} == {"node0"}
    assert not of(report.findings, "PSM301") and not of(report.findings, "PSM302")
    assert report.matching.collectives.matched == _CALLS


def test_line_that_vanished_from_a_shared_stream_is_no_proof_of_a_mismatch(tmp_path: Path) -> None:
    report = _merged(tmp_path, _logs(), lambda line: "")
    assert report.verdict is Verdict.INCONCLUSIVE and not report.culprits


@pytest.mark.parametrize("harm", [str, lambda line: line.replace("AllReduce", "AllGather", 1)])
def test_different_call_in_an_undamaged_line_is_a_mismatch(harm: Callable[[str], str], tmp_path: Path) -> None:
    report = _merged(tmp_path, _logs(), harm)
    changed = harm is not str
    assert (report.verdict is Verdict.HUNG) is changed
    assert [c.rank for c in report.culprits] == ([2] if changed else [])


def test_torn_line_of_another_kind_does_not_hide_a_mismatch(tmp_path: Path) -> None:
    logs = _logs()
    for log in logs:
        log.lines.insert(4, "")
    logs[0].lines[4] = "node0:7001:7001 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f1000"
    report = _merged(tmp_path, logs, lambda line: line.replace("AllReduce", "AllGather", 1))
    assert report.coverage.torn == 1
    assert report.verdict is Verdict.HUNG and [c.rank for c in report.culprits] == [2]
