"""The list of messages: what it names gets a function, what it cannot mean is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.csrc.base import compiled

CATALOGUE = """
[[message]]
name = "a.one"
pattern = "one {x:int}"
level = "TRACE"

[[message]]
name = "a.two"
patterns = ["two {x:ptr}", "zwei {x:ptr}"]
level = "WARN"

[[message]]
name = "a.three"
pattern = "three {x:addr}"
"""


def made(folder: Path, names: str) -> subprocess.CompletedProcess[str]:
    (folder / "x.toml").write_text(CATALOGUE)
    (folder / "messages.list").write_text(names)
    command = [
        sys.executable,
        compiled.BASE / "messages.py",
        "--list",
        folder / "messages.list",
        folder,
        folder / "out.h",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_functions_are_made_of_what_is_named_and_of_nothing_else(tmp_path: Path) -> None:
    done = made(tmp_path, "# of x\n\nx.toml a.one P2P\nx.toml a.two#2 PROXY|P2P\n")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.h").read_text()
    assert "void psm_msg_a_one(int64_t x)" in text and "psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_P2P)" in text
    assert "void psm_msg_a_two_2(uint64_t x)" in text and "PSM_SUB_PROXY | PSM_SUB_P2P" in text
    assert "psm_msg_a_two(" not in text and "three" not in text


def test_a_star_names_several_and_all_their_patterns(tmp_path: Path) -> None:
    assert made(tmp_path, "x.toml a.t[w]* P2P\n").returncode == 0
    text = (tmp_path / "out.h").read_text()
    assert "psm_msg_a_two(" in text and "psm_msg_a_two_2(" in text and "psm_msg_a_one(" not in text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("x.toml a.one", "expected FILE NAME"),
        ("x.toml a.none P2P", "x.toml has no a.none"),
        ("x.toml a.two#3 P2P", "x.toml has no a.two#3"),
        ("x.toml a.three P2P", "cannot print such a field"),
        ("x.toml a.two#x P2P", "#x"),
        ("x.toml a.one SOMETHING", "SOMETHING"),
        ("y.toml a.one P2P", "y.toml"),
        ("x.toml a.one P2P\nx.toml a.* P2P", "a second time"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(tmp_path: Path, line: str, complaint: str) -> None:
    done = made(tmp_path, line + "\n")
    assert done.returncode != 0
    assert f"messages.list:{line.count(chr(10)) + 1}" in done.stderr and complaint in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
