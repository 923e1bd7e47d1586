"""Logs and records that version 0.1 wrote get the verdict, the culprits and the codes that version 0.1 gave them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import psmkit

FOLDER = Path(__file__).parent / "data" / "v01"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())


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


def test_archive_holds_the_runs_that_are_listed(runs: Path) -> None:
    assert sorted(path.name for path in runs.iterdir()) == sorted(EXPECTED)
