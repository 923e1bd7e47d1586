"""The page about queries: its example runs, and the log that it uses is as it is made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.query.schema import TABLES
from tests.query import made

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "query.md"
BLOCK = re.compile(r"```console\n\$ (psmkit query [^\n]*)\n(.*?)```", re.DOTALL)
QUESTIONS: dict[str, str] = dict(BLOCK.findall(PAGE.read_text("utf-8")))


def test_the_page_has_ten_questions() -> None:
    assert len(QUESTIONS) == 10
    assert re.findall(r"^\*\*(\d+)\. ", PAGE.read_text("utf-8"), re.MULTILINE) == [str(n) for n in range(1, 11)]


def test_the_example_in_python_runs_as_it_stands() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hung\n")


def test_the_log_of_the_page_is_as_it_is_made() -> None:
    assert made.LOG.read_text() == made.text(), "run python -m tests.query.made"


@pytest.mark.parametrize("command", ["query", "export"])
def test_help_names_every_table(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in TABLES if name not in shown] == []
