"""Each test asserts something of its own, or calls a helper whose name says that it asserts: one that begins with expect, assert or check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
SAYING = ("assert", "check", "expect")


def asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name.startswith(SAYING) or name in ("fail", "raises", "warns")


def silent(text: str) -> Iterator[str]:
    """The tests of a file that assert nothing."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name.startswith("test_")
            and not any(map(asserts, ast.walk(node)))
        ):
            yield f"{node.lineno}: {node.name}"


def test_each_test_says_what_it_expects() -> None:
    paths = [path for path in TESTS.rglob("test_*.py") if "data" not in path.parts]
    assert len(paths) > 300
    assert not [f"{path.relative_to(TESTS)}:{found}" for path in paths for found in silent(path.read_text())]


def test_a_test_without_an_expectation_is_found() -> None:
    text = "def test_a(): run()\ndef test_b(): x.expect_y()\ndef test_c():\n    with raises(E): f()\ndef test_d(): assert a\ndef f(): g()\n"
    assert list(silent(text)) == ["1: test_a"]
