"""The lines that tests of aws-ofi-nccl print: the plugin's messages without a prefix of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.logparse import ScanResult, scan


def scanned(tmp_path: Path, text: str) -> ScanResult:
    path = tmp_path / "job.log"
    path.write_text(text)
    return scan([str(path)])


@pytest.mark.parametrize("function", ["main", "int main(int, char**)"])
def test_the_function_may_have_blanks(function: str, tmp_path: Path) -> None:
    text = f"[1,3]<stdout>:WARN: Function: {function} Line: 34: NET/OFI Couldn't open CQ. RC: -22, ERROR: Invalid argument\n"
    (event,) = scanned(tmp_path, text).events
    assert (event.name, event.level, event.proc) == ("plugin.ofi.endpoint", "WARN", -1)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert report.verdict == "inconclusive"
    assert [(f.code, f.ranks) for f in report.findings if f.severity == "warning"] == [("PSM401", (3,))]


def test_a_failed_request_of_the_test_fails_the_run(tmp_path: Path) -> None:
    text = (
        "INFO: Function: ofi_init Line: 686: NET/OFI Selected Provider is efa\n"
        "WARN: Function: ofi_process_cq Line: 91: NET/OFI Request completed with error. RC: 21. Error: unknown error\n"
    )
    scanned(tmp_path, text)
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "failed"


def test_progress_of_the_test_is_no_trouble(tmp_path: Path) -> None:
    text = "".join(
        f"INFO: Function: main Line: {n}: NET/OFI {what}\n"
        for n, what in enumerate(
            ["Received 2 network devices", "Server: Listening on dev 0", "Sent 16 requests to rank 1"]
        )
    )
    found = scanned(tmp_path, text)
    assert (found.totals.unmatched, found.totals.matched) == (0, 3)
    assert not psmkit.analyze([str(tmp_path / "job.log")]).findings


@pytest.mark.parametrize(
    "text",
    [
        "WARN: Function: main Line: 34: something else",
        "WARN: Function: main Line: x: NET/OFI Couldn't open CQ",
        "HINT: Function: main Line: 34: NET/OFI Couldn't open CQ",
        "INFO: Function: ",
    ],
)
def test_other_programs_print_other_lines(text: str, tmp_path: Path) -> None:
    assert not scanned(tmp_path, text + "\n").totals.matched
