"""Findings take the defaults of their codes, and an error needs a code that says what it does to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.inference.findings import new_finding
from psmkit.model import CODES, Severity
from tests.analysis.texts import job_of, ranks

QUIET = [code for code, entry in CODES.items() if not entry.breaks]


@pytest.mark.parametrize("code", QUIET)
def test_error_of_a_code_that_breaks_no_run_is_refused(code: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, ranks())
    with pytest.raises(ValueError, match=f"{code}: bad severity error, expected warning or info"):
        new_finding(job, code, run=0, severity=Severity.ERROR)
    assert new_finding(job, code, run=0).severity is CODES[code].severity


def test_error_of_a_code_that_fails_or_hangs_a_run_is_made(tmp_path: Path) -> None:
    job = job_of(tmp_path, ranks())
    assert new_finding(job, "PSM407", run=0, severity=Severity.ERROR).severity is Severity.ERROR
