"""What version 0.1 wrote is read: its logs and records get the verdict, the culprits and the codes that 0.1 gave them.

A program that reads 0.1's JSON reports reads those of today, too: no key is gone, and none has another type.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import psmkit
from psmkit.logparse.records import open_record
from psmkit.report import render
from psmkit.report.data import schema

FOLDER = Path(__file__).parent / "data" / "v01"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())


def open_ended(part: Any) -> Any:
    """A schema that allows more keys, as the page of the report says that there may be."""
    if isinstance(part, dict):
        return {key: open_ended(value) for key, value in part.items() if key != "additionalProperties"}
    return [open_ended(value) for value in part] if isinstance(part, list) else part


OLD: dict[str, Any] = json.loads((FOLDER / "report-schema.json").read_text())
#: Of a program that reads 0.1's reports.
READER = jsonschema.Draft202012Validator(open_ended(OLD))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("v01")
    with tarfile.open(FOLDER / "runs.tar.xz") as archive:
        # Debian 12's Python 3.11.2 has no filters; the archive is ours.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    yield folder


@pytest.mark.parametrize("name", EXPECTED)
def test_run_of_version_0_1_is_judged_as_by_version_0_1(runs: Path, name: str) -> None:
    report = psmkit.analyze([str(path) for path in sorted((runs / name).iterdir())])
    found = {
        "verdict": report.verdict.value,
        "culprits": [culprit.rank for culprit in report.culprits],
        "codes": sorted({f"{f.code} {f.severity.value}" for f in report.findings if f.severity.weight}),
    }
    expected = EXPECTED[name] | EXPECTED[name].get("today", {})
    assert found == {key: expected[key] for key in found}, report.reason
    document = json.loads(render(report, "json"))
    assert document["runs"] and document["ranks"]
    assert [(list(error.absolute_path), error.message) for error in READER.iter_errors(document)] == []


def test_a_report_without_a_key_of_version_0_1_is_told(runs: Path) -> None:
    """The check of each run can fail."""
    report = psmkit.analyze([str(path) for path in sorted((runs / min(EXPECTED)).iterdir())])
    document = json.loads(render(report, "json"))
    del document["findings"][0]["culprits"]
    assert [list(error.absolute_path) for error in READER.iter_errors(document)] == [["findings", 0]]


def keys(part: Any, at: str = "") -> set[str]:
    """The keys that each kind of object of a schema has."""
    if isinstance(part, list):
        return {key for value in part for key in keys(value, at)}
    if not isinstance(part, dict):
        return set()
    own = {f"{at}/{name}" for name in part.get("properties", ())}
    return own.union(
        *(keys(value, at if key in ("properties", "items") else f"{at}/{key}") for key, value in part.items())
    )


def test_the_schema_of_today_has_each_key_of_version_0_1() -> None:
    assert keys(OLD) and keys(OLD) <= keys(schema())


def test_records_of_version_0_1_are_read_whole(runs: Path) -> None:
    files = [path for path in sorted(runs.rglob("*")) if path.is_file() and path.read_bytes()[:8] == b"\x89PSMREC\n"]
    found = [open_record(str(path)) for path in files]
    assert len(files) > 100 and all(record.valid and not record.notes and record.sections for record in found)
    assert sum(1 for record in found for _ in record.records()) > 1000


def test_archive_holds_the_runs_that_are_listed(runs: Path) -> None:
    assert sorted(path.name for path in runs.iterdir()) == sorted(EXPECTED)
