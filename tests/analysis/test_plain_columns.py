"""An analysis says the same with numpy and without it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import psmkit
from psmkit.logparse.records import open_record
from psmkit.model import arrays
from psmkit.report import render

DATA = Path(__file__).parents[1] / "data"
INPUTS = sorted(p for room in ("logs", "nccl") for p in (DATA / room).iterdir() if p.suffix not in (".toml", ".md"))


def said(monkeypatch: pytest.MonkeyPatch, path: Path) -> tuple[str, str]:
    """The JSON report by numpy's columns, and by plain ones."""
    found = []
    for numpy in (True, False):
        with monkeypatch.context() as chosen:
            chosen.setattr(arrays, "_numpy", None)
            chosen.setattr(arrays, "prepare", lambda _, numpy=numpy: arrays.need() if numpy else None)
            found.append(render(psmkit.analyze(str(path)), "json"))
            assert arrays.using_numpy() is numpy
    return found[0], found[1]


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_a_report_does_not_depend_on_numpy(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    one, other = said(monkeypatch, path)
    assert one == other


def test_records_are_read_without_numpy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with tarfile.open(DATA / "v01" / "runs.tar.xz") as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:8] == b"\x89PSMREC\n")
    assert files
    known = 0
    for path in files:
        found = []
        for numpy in (True, False):
            with monkeypatch.context() as chosen:
                chosen.setattr(arrays, "_numpy", None)
                if numpy:
                    arrays.need()
                record = open_record(str(path))
                found.append(
                    (list(record.records()), list(record.lines()), record.notes, [s.torn for s in record.sections])
                )
        assert found[0] == found[1]
        known += len(found[0][0])
    assert known
    for folder in sorted(tmp_path.iterdir())[:6]:
        one, other = said(monkeypatch, folder)
        assert one == other
