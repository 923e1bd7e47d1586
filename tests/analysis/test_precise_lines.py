"""A line that says precisely what failed makes the headline, wherever it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.outside import nccl
from tests.analysis.test_network import retries
from tests.analysis.texts import Rank, analyzed, report_of

REFUSED = "Call to connect returned Connection refused, retrying"
WARNING = "Bootstrap : no socket interface found"
CREATE = "Failed to create NCCL communicator: INTERNAL: ncclCommInitRankConfig(...) failed:"
PLUGIN = "INFO: Function: ofi_init Line: 1102: NET/OFI Setting RDMAV_FORK_SAFE environment variable to 1.\n"
REASON = "WARN: Function: find_ofi_provider Line: 543: NET/OFI Couldn't find any optimal provider\n"
RESULT = "WARN: Function: main Line: 66: NET/OFI OFI NCCL failure: 2\n"


def test_attempts_to_connect_at_the_end_of_a_log_are_told_with_their_number(tmp_path: Path) -> None:
    logs = [Rank(r) for r in range(2)]
    for log in logs:
        for _ in range(5):
            log.line(REFUSED)
    report = report_of(tmp_path, logs)
    assert report.verdict == "inconclusive"
    (found,) = [f for f in report.findings if f.code == "PSM203"]
    assert found.severity is Severity.WARNING and not found.culprits
    assert "Connection refused (10 attempts)" in found.title


def test_attempts_that_name_the_address_tell_it(tmp_path: Path) -> None:
    logs = [retries(Rank(r).start(), 4) for r in range(3)]
    title = next(f.title for f in report_of(tmp_path, logs).findings if f.code == "PSM203")
    assert "10.0.0.7<45001>: Connection refused (attempt 4 of 34)" in title


def test_attempts_that_another_line_of_the_process_follows_are_normal(tmp_path: Path) -> None:
    logs = [retries(Rank(r).start(), 4).line("Using network Socket") for r in range(3)]
    assert not [f for f in report_of(tmp_path, logs).findings if f.code == "PSM203"]


@pytest.mark.parametrize(
    "text",
    [
        f"{CREATE}\ninvalid usage ... Last NCCL warning(error): '{WARNING}'\n",
        f"{CREATE} invalid usage. Last NCCL warning(error): '{WARNING}'\n",
        f"{CREATE}\ninvalid usage. Last NCCL warning(error) log entry (may be unrelated) '{WARNING}'.\n",
    ],
)
def test_the_warning_that_xla_quotes_makes_the_headline(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed" and report.reason.endswith(f": {WARNING}")
    assert report.findings[0].code == "PSM203"


@pytest.mark.parametrize(("before", "who"), [("10.0.4.66: ", "a process on 10.0.4.66"), ("", "a rank that its line")])
def test_a_plugin_test_that_ends_with_a_failure_fails_for_the_warning_before_it(
    before: str, who: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, "".join(before + line for line in (PLUGIN, REASON, RESULT)))
    assert report.verdict == "failed"
    assert report.reason.startswith(who)
    assert "Couldn't find any optimal provider, and then: NET/OFI OFI NCCL failure: 2" in report.reason


def test_a_warning_of_the_plugin_alone_is_no_failure(tmp_path: Path) -> None:
    assert analyzed(tmp_path, PLUGIN + REASON + PLUGIN).verdict == "inconclusive"


def test_a_process_of_jax_whose_agent_is_in_error_failed(tmp_path: Path) -> None:
    line = "E agent.cc:310] Coordination service agent in error status: DEADLINE_EXCEEDED: Barrier timed out. Id: x\n"
    report = analyzed(tmp_path, line)
    assert report.verdict == "failed"
    assert "DEADLINE_EXCEEDED" in report.reason
    # a service that goes away after the work is over ends nothing
    assert analyzed(tmp_path, nccl(0, 1, nranks=2, ended=True) + "Training completed\n" + line).verdict != "failed"
