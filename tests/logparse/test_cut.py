"""Warnings that are cut: what stands before the cut counts if it belongs to one message only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import psmkit
from psmkit.logparse import scan
from psmkit.logparse.types import Event

WARN = "node1:11:12 [0] transport/net_ib.cc:1238 NCCL WARN "
TEXT = "NET/IB : Got completion from peer node7<40112> with error 12, opcode 2, len 11, vendor err 129"


def events(tmp_path: Path, text: str) -> tuple[list[Event], int]:
    path = tmp_path / "job.log"
    path.write_text(text)
    with closing(scan([str(path)])) as found:
        return list(found.events), found.totals.torn


@pytest.mark.parametrize(
    ("end", "fields"),
    [
        (", len 11, ven", {"peer": "node7<40112>", "opcode": 2, "len": 11}),
        (", len 11,", {"peer": "node7<40112>", "opcode": 2, "len": 11}),
        (", opc", {"peer": "node7<40112>"}),
    ],
)
@pytest.mark.parametrize("line_end", ["", "\n"])
def test_a_cut_warning_keeps_what_stands_before_the_cut(
    end: str, fields: dict[str, object], line_end: str, tmp_path: Path
) -> None:
    text = TEXT[: TEXT.index(end) + len(end)]
    ((event,), torn) = events(tmp_path, WARN + text + line_end)
    assert (event.name, dict(event.fields), torn) == ("ib.completion.retry_exceeded", fields, 1)
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed" and "(the line is cut)" in report.reason


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEXT[: TEXT.index("node7") + 3], id="within the peer"),
        pytest.param(TEXT[: TEXT.index("error") + 5], id="before the error"),
        pytest.param(TEXT[:20], id="the start of several messages"),
    ],
)
def test_a_cut_that_hides_the_error_says_nothing(text: str, tmp_path: Path) -> None:
    assert events(tmp_path, WARN + text) == ([], 1)


def test_the_name_of_a_call_tells_the_warning_that_is_cut_behind_it(tmp_path: Path) -> None:
    ((event,), torn) = events(tmp_path, WARN + "Call to ibv_create_cq")
    assert (event.name, torn) == ("ib.verbs.resources", 1)
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed" and "Call to ibv_create_cq" in report.reason


def test_a_cut_line_that_is_no_warning_says_nothing(tmp_path: Path) -> None:
    info = WARN.replace("WARN", "INFO").replace("transport/net_ib.cc:1238 ", "")
    assert events(tmp_path, info + TEXT[: TEXT.index(", ven") + 4]) == ([], 1)


def test_a_whole_warning_is_not_called_cut(tmp_path: Path) -> None:
    ((event,), torn) = events(tmp_path, WARN + TEXT + "\n")
    assert (event.fields["vendor_err"], torn) == (129, 0)
    assert "cut" not in psmkit.analyze([str(tmp_path)]).reason
