"""Runs of real NCCL libraries on emulated CUDA, whole and faulty: what an analysis finds with all that a run left, and with
the ranks' logs alone. The logs are our own runs' (psmkit lab nccl); truth.toml has what was done to each."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import psmkit

RUNS = Path(__file__).parent / "data" / "nccl"
TRUTH: dict[str, dict[str, Any]] = tomllib.loads((RUNS / "truth.toml").read_text())
# What only the lab says: that it has made a fault, and what the sanitizer saw.
OF_THE_LAB = re.compile(rb"PSM_FAULTS|NCCL (WARN|INFO) sanitizer")


def told(report: Any) -> str:
    return "\n".join(
        [f"{report.verdict}: {report.reason}", *(f"{f.code} {f.severity} {f.title}" for f in report.findings)]
    )


@pytest.mark.parametrize("name", TRUTH)
def test_a_run_gets_its_verdict_and_its_culprit(name: str) -> None:
    report = psmkit.analyze([str(RUNS / name)])
    assert report.verdict in TRUTH[name]["verdicts"], told(report)
    if "culprits" in TRUTH[name]:
        assert [c.global_rank for c in report.culprits] == TRUTH[name]["culprits"], told(report)


@pytest.mark.parametrize("name", TRUTH)
def test_the_ranks_logs_alone_mislead_nobody(name: str, tmp_path: Path) -> None:
    for packed in (RUNS / name).glob("rank-*.gz"):
        lines = gzip.decompress(packed.read_bytes()).split(b"\n")
        (tmp_path / packed.stem).write_bytes(b"\n".join(line for line in lines if not OF_THE_LAB.search(line)))
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict in TRUTH[name]["logs_verdicts"], told(report)
    if "logs_culprits" in TRUTH[name]:
        assert [c.global_rank for c in report.culprits] == TRUTH[name]["logs_culprits"], told(report)


def test_every_run_has_its_truth() -> None:
    assert {folder.name for folder in RUNS.iterdir() if folder.is_dir()} == set(TRUTH)
