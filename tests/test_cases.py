"""The case studies in examples/cases: psmkit's answer to each is the one that its page promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import psmkit
from examples.cases.story import tell
from psmkit.cli.app import main
from psmkit.report import render

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "examples" / "cases").glob("*/case.toml"))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case_gets_its_verdict_culprit_and_code(folder: Path, tmp_path: Path) -> None:
    expected = tomllib.loads((folder / "case.toml").read_text())
    (tmp_path / "job.log").write_text(tell(folder))
    report = psmkit.analyze([tmp_path / "job.log"])
    shown = render(report, "text")
    assert report.verdict in expected["verdicts"], shown
    blamed = {culprit.global_rank for culprit in report.culprits}
    assert blamed <= {*expected["culprits"], *expected.get("tolerated", [])}, shown
    assert blamed or not expected["culprits"], shown
    assert [suspect.rank for suspect in report.suspects] == expected.get("suspects", []), shown
    assert report.findings[report.causes[0].finding].code in expected["codes"], shown


LINTED = [
    (folder, arguments, answer)
    for folder in CASES
    for arguments, answer in tomllib.loads((folder / "case.toml").read_text()).get("lint", {}).items()
]


@pytest.mark.parametrize(("folder", "arguments", "answer"), LINTED, ids=lambda v: v.name if isinstance(v, Path) else v)
def test_a_group_of_a_case_gets_the_answer_of_the_lint(
    folder: Path, arguments: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", "lint", str(folder / "batch.tasks"), *arguments.split(), "--no-search"])
    assert capsys.readouterr().out.startswith(f"{answer}: ")


def test_each_case_has_its_page_and_its_row() -> None:
    rows = (CASES[0].parent / "README.md").read_text()
    assert len(CASES) >= 12
    for folder in CASES:
        assert f"]({folder.name}/)" in rows
        assert all(
            part in (folder / "README.md").read_text()
            for part in ("The story", "The maintainers' answer", "psmkit's answer")
        )
