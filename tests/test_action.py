"""The GitHub Action: its schema, and its steps run as scripts. GitHub itself does not take part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
ACTION = ROOT / "action.yml"
LOGS = ROOT / "tests" / "data" / "logs"


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(ACTION.read_text())
    return loaded


def run_step(step: str, folder: Path, settings: dict[str, str], path: str | None = None) -> tuple[int, str]:
    """Run the script of a step as GitHub's runner does: bash with -e and pipefail."""
    (found,) = [one for one in action()["runs"]["steps"] if one["id"] == step]
    assert set(settings) == set(found["env"])
    files = {name: str(folder / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_PATH")}
    for file in files.values():
        Path(file).touch()
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        **files,
        **settings,
        "RUNNER_TEMP": str(folder),
        "PATH": path or f"{bin_folder}:{os.environ['PATH']}",
    }
    (folder / "step.sh").write_text(found["run"])
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(folder / "step.sh")]
    done = subprocess.run(
        command, env=environment, cwd=folder, text=True, capture_output=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_action_has_the_schema_of_github() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_input_becomes_part_of_a_script() -> None:
    for step in action()["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert all(re.fullmatch(r"\$\{\{ [\w.| -]+ \}\}", value) for value in step["env"].values())


def test_logs_of_a_failed_job_fail_the_step_with_annotations(tmp_path: Path) -> None:
    logs = LOGS / "fault_e1_n4_rank1_cumem_import_oom"
    settings = {"PATHS": f"\n  {logs}/nccl.*.log\n\n", "FAIL_ON": "error", "REPORT": "out; touch bad"}
    status, text = run_step("analyze", tmp_path, settings)
    assert status == 1 and text.startswith("::error file=")
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "verdict=failed\n"
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("## failed: ")
    names = {"report.json", "report.md", "report.sarif", "report.xml"}
    assert {file.name for file in (tmp_path / "out; touch bad").iterdir()} == names
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(("paths", "status"), [(str(LOGS / "ok_n4_psm_64K"), 0), ("$(touch bad)", 2)])
def test_healthy_logs_pass_and_wrong_paths_say_so(tmp_path: Path, paths: str, status: int) -> None:
    got, text = run_step("analyze", tmp_path, {"PATHS": paths, "FAIL_ON": "error", "REPORT": ""})
    assert got == status, text
    assert not (tmp_path / "bad").exists()
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == ("verdict=healthy\n" if status == 0 else "")
    assert ("no such file or folder" in text) == (status == 2)


def test_a_psmkit_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    status, text = run_step("install", tmp_path, {"PACKAGE": "/no/such/package"})
    assert (status, text, (tmp_path / "GITHUB_PATH").read_text()) == (0, "", "")
