"""docs/plugins.md shows what is so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.cli.app import main
from tests.plugins.build import ROOT, build

PAGE = ROOT / "docs" / "plugins.md"


def block(name: str) -> str:
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w*\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None
    return found.group(1)


def shown(folder: Path, capture: Callable[[], str]) -> str:
    """The command and what it prints of the page's plugin."""
    library = build(folder, block("plugin.c"), "libnccl-net-example.so", head="")
    assert main(["plugin", "check", str(library)]) == 1
    return f"$ psmkit plugin check libnccl-net-example.so\n{capture()}"


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(tmp_path, lambda: capsys.readouterr().out)
    assert block("output") == printed, "put this into docs/plugins.md"
