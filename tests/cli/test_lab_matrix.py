"""``psmkit lab matrix`` over libraries of ours with NCCL's public API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab.cuda import LIBRARIES, folder
from tests.lab.test_nccl import compile_library

ARGUMENTS = ("--pattern", "ring,allreduce", "--type", "uint32", "--size", "4K", "--deadline", "90")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two releases; reductions of the later one are wrong, and it has a message that the catalogue does not know."""
    place = tmp_path_factory.mktemp("releases")
    runtime = str(folder() / LIBRARIES["cudart12"])
    old, new = place / "old", place / "new"
    for path, more in ((old, ()), (new, ('-DSTANDIN_VERSION="2.99.1"', "-DSTANDIN_NEW"))):
        path.mkdir()
        compile_library(path / "libnccl.so.2", "12.8", runtime, *more)
    return old, new


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["lab", "matrix", *arguments])
    out, err = capsys.readouterr()
    assert status != 2, err
    return status, out


def test_releases_are_compared_by_what_works_their_steps_and_unknown_messages(
    libraries: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = map(str, libraries)
    out = tmp_path / "out"
    status, text = run(capsys, "--nccl", old, new, *ARGUMENTS, "--runs", "2", "--out", str(out), "--format", "json")
    result: dict[str, Any] = json.loads(text)
    assert status == 1
    assert [each["name"] for each in result["libraries"]] == ["2.26.6", "2.99.1"]
    assert [each["name"] for each in result["scenarios"]] == ["ring, 2 ranks", "allreduce, 2 ranks"]
    cells = {(cell["scenario"].split(",")[0], cell["library"]): cell for cell in result["cells"]}
    assert {key: [one["outcome"] for one in cell["runs"]] for key, cell in cells.items()} == {
        ("ring", "2.26.6"): ["works", "works"],
        ("ring", "2.99.1"): ["works", "works"],
        ("allreduce", "2.26.6"): ["works", "works"],
        ("allreduce", "2.99.1"): ["fails", "fails"],
    }
    assert cells["allreduce", "2.26.6"]["steps"] is None  # nothing to compare the first library with
    assert cells["ring", "2.99.1"]["steps"]["steps"] == []
    versions = [s for s in cells["ring", "2.99.1"]["steps"]["settings"] if s["kind"] == "version"]
    assert [(s["good"], s["bad"]) for s in versions][:1] == [("2.26.6+cuda12.8", "2.99.1+cuda12.8")], versions
    shapes = [shape["shape"] for shape in cells["allreduce", "2.99.1"]["runs"][0]["unknown"]]
    assert any("a message of a later release" in shape for shape in shapes)
    assert cells["allreduce", "2.99.1"]["as_first"] == pytest.approx(1 / 3)
    for one in cells["allreduce", "2.99.1"]["runs"]:
        assert (Path(one["folder"]) / "result.json").exists() and "byte" in one["why"]


def test_the_page_names_libraries_reasons_and_unknown_messages(
    libraries: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = map(str, libraries)
    status, text = run(capsys, "--nccl", old, new, *ARGUMENTS, "--out", str(tmp_path / "out"))
    assert status == 1
    said = " ".join(text.split())
    assert said.startswith("4 runs: 3 works, 1 fails 2.26.6: ")
    assert "allreduce, 2 ranks, 2.99.1: 1 fails: " in said
    assert "1 of 1 runs hang or fail, and 0 of 1 with 2.26.6" in said
    assert "not in the catalogue, 4 times: Standin: a message of a later release" in said


def test_one_library_that_works_is_a_table_of_markdown(
    libraries: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(libraries[0])
    arguments = ("--pattern", "pair", "--ranks", "2,3", "--deadline", "90", "--format", "markdown")
    status, text = run(capsys, "--nccl", place, place, *arguments, "--out", str(tmp_path / "out"))
    assert status == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[0][:3] == ["scenario", "NCCL", "works"]
    assert [row[:6] for row in rows[2:]] == [
        [f"pair, {ranks} ranks", f"2.26.6 ({number})", "1", "0", "0", "0"] for ranks in (2, 3) for number in (1, 2)
    ]
    assert [row[7] for row in rows[2:]] == ["-", "as before"] * 2


def test_ranks_must_be_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["lab", "matrix", "--nccl", str(tmp_path), "--ranks", "2,x", "--out", str(tmp_path / "out")])
    assert status == 2
    assert "expected numbers of ranks from 1 to 64" in capsys.readouterr().err
