"""The targets that the daily loop, continuous integration and the documentation name exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from scripts.nightly import STEPS, page, row, rows_of

ROOT = Path(__file__).parents[1]


def named() -> set[str]:
    pages = [ROOT / name for name in (".ci/run", "CONTRIBUTING.md", "README.md")]
    found = {
        target for path in pages for target in re.findall(r"(?:step |`| {4})make ([a-z][a-z-]*)", path.read_text())
    }
    help_text = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return found | set(re.findall(r"^make ([a-z-]+)", help_text, re.MULTILINE)) | {a[0] for a, _ in STEPS.values()}


@pytest.mark.parametrize("target", sorted(named()))
def test_target_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty tree whose cmake and python print what they are called with, and fail if STATUS is not 0."""
    for program in ("bin/cmake", ".venv/bin/python"):
        path = tmp_path / program
        path.parent.mkdir(parents=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} says: $*"\nexit ${{STATUS:-0}}\n')
        path.chmod(0o755)
    for name in ("pyproject.toml", "scripts/requirements.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def setup(tree: Path, *words: str, status: int = 0) -> tuple[int, str]:
    path = f"{tree / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "setup", *words],
        cwd=tree,
        env={**os.environ, "PATH": path, "STATUS": str(status), "MAKEFLAGS": "", "MAKELEVEL": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_setup_says_what_it_does_and_how_to_go_on_and_no_more(tree: Path) -> None:
    status, shown = setup(tree)
    assert status == 0, shown
    assert "cmake says" not in shown
    assert shown.count("--quiet --quiet") == shown.count("pip install") == 3
    assert ".venv/bin/psmkit" in shown.splitlines()[-1]


def test_setup_with_v_1_shows_all_output(tree: Path) -> None:
    status, shown = setup(tree, "V=1")
    assert status == 0, shown
    assert "cmake says: --build" in shown and "pip install" in shown and "--quiet" not in shown


@pytest.mark.parametrize("words", [(), ("V=1",)])
def test_setup_shows_the_output_of_a_build_that_fails(words: tuple[str, ...], tree: Path) -> None:
    (tree / ".venv" / ".base").touch()
    (tree / ".venv" / ".tools").touch()
    status, shown = setup(tree, *words, status=3)
    assert status != 0 and "cmake says: -S ." in shown and "psmkit is built" not in shown


def test_quick_and_ci_name_tests_that_exist() -> None:
    text = (
        (ROOT / "Makefile").read_text()
        + (ROOT / ".ci" / "run").read_text()
        + (ROOT / "scripts/sanitize.sh").read_text()
    )
    found = re.findall(r"\btests/[\w/.]+", text)
    assert len(found) > 15
    assert [path for path in found if not (ROOT / path.rstrip(".")).exists()] == []


def test_nightly_page_names_the_commit_of_each_step_and_keeps_steps_that_did_not_run_again() -> None:
    rows = {
        "fuzz": row("fuzz", True, 120, "3 decoders", "0123abc"),
        "asan": row("asan", False, 60, "1 failed, 2 passed", "0123abc"),
    }
    older = page(rows)
    assert "| asan | `make sanitize SANITIZE=test` | **failed** | 1.0 | 0123abc | 1 failed, 2 passed |" in older
    assert rows_of(older) == rows
    newer = page({**rows_of(older), "asan": row("asan", True, 60, "3 passed", "4567def")})
    assert "| passed | 1.0 | 4567def | 3 passed |" in newer and "| passed | 2.0 | 0123abc | 3 decoders |" in newer
    assert "failed" not in newer
