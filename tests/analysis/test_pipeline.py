"""What is said of inputs that hold nothing to analyse."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model.errors import NothingToAnalyse


def refused(path: Path) -> str:
    with pytest.raises(NothingToAnalyse) as error:
        psmkit.analyze([path])
    return str(error.value)


def test_log_of_another_kind_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("waiting for the proxy of rank 1\nstill waiting\n")
    told = refused(log)
    assert "no NCCL line in" in told and "PSM_RECORD_DIR" in told
    assert (
        "2 lines read, none of a kind that psmkit knows; the first says 'waiting for the proxy of rank 1'. Give" in told
    )


def test_long_first_line_is_cut_and_what_does_not_print_is_escaped(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\x1b[31mbinary" + b"x" * 500)
    told = refused(log)
    assert "\x1b" not in told and "1 line read" in told and "it says " in told
    assert len(told) < 500


def test_empty_log_is_called_empty(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("")
    assert "x.log: it is empty. Give" in refused(log)


def test_first_line_comes_from_the_first_file_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("")
    (tmp_path / "b.log").write_text("here\n")
    assert "it says 'here'" in refused(tmp_path)
