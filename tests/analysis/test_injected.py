"""Faults on purpose, told by the process that they struck."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import find, job_of, ranks

HANG = "PSM_FAULTS: hang at cudaMemcpyAsync, call 70, rank 1"


def injected(tmp_path: Path, *texts: str) -> list[Finding]:
    logs = ranks()
    for text in texts:
        logs[1].warn("", text)
    return find("injected", tmp_path, logs)


def test_fault_is_told_with_rank_site_and_call(tmp_path: Path) -> None:
    (found,) = injected(tmp_path, HANG)
    assert (found.code, found.severity, found.ranks) == ("PSM605", Severity.WARNING, (1,))
    assert found.title == "rank 1 (node0:7101): PSM_FAULTS made cudaMemcpyAsync hang (call 70)"
    assert HANG in found.evidence[0].text


def test_fault_that_strikes_often_is_one_finding(tmp_path: Path) -> None:
    (found,) = injected(tmp_path, *(f"PSM_FAULTS: error at cudaFree, call {n}, rank 1" for n in (2, 3, 9)))
    assert found.title.endswith("PSM_FAULTS made cudaFree fail (3 calls, the first is call 2)")


@pytest.mark.parametrize("action", ["slow", "late"])
def test_delay_is_a_remark(tmp_path: Path, action: str) -> None:
    (found,) = injected(tmp_path, HANG.replace("hang", action))
    assert found.severity is Severity.INFO


def test_end_of_a_hang_is_evidence_too(tmp_path: Path) -> None:
    (found,) = injected(tmp_path, HANG, "PSM_FAULTS: the hang at cudaMemcpyAsync was ended by an abort")
    assert len(found.evidence) == 2


def test_fault_that_was_the_whole_story_is_what_the_verdict_names(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("", HANG)
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "look first at this: rank 1 (node0:7101): PSM_FAULTS made cudaMemcpyAsync hang" in report.reason


def test_fault_in_a_log_without_any_other_line_is_named_too(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("node0:7101:7101 [0] NCCL WARN PSM_FAULTS: hang at cudaMemset, call 3\n")
    report = psmkit.analyze([log])
    assert "look first at this: node0:7101: PSM_FAULTS made cudaMemset hang" in report.reason


def test_rank_of_a_process_without_lines_of_nccl_comes_from_the_fault_or_the_banner(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    banner = "NCCL INFO hostcuda: CUDA 13.5 is emulated on host memory for rank 4: 8 devices, strict, topology default"
    log.write_text(
        f"node0:71:71 [0] NCCL WARN {HANG}\nnode0:72:72 [0] {banner}\nnode0:72:72 [0] NCCL WARN PSM_FAULTS: error at cudaFree, call 1\n"
    )
    assert sorted(f.ranks for f in psmkit.analyze([log]).findings if f.code == "PSM605") == [(1,), (4,)]
