"""docs/plugins.md shows what is so."""

from __future__ import annotations

import os
import re
import subprocess
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


def test_the_headers_are_where_the_page_looks_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--cflags"]) == 0
    flags = capsys.readouterr().out.split()
    source = tmp_path / "plugin.c"
    source.write_text(block("plugin.c"))
    strict = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", *strict, *flags, str(source), "-o", str(tmp_path / "libnccl-net-mine.so")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def shown(folder: Path, capture: Callable[[], str]) -> str:
    """The command and what it prints of the page's plugin."""
    library = build(folder, block("plugin.c"), "libnccl-net-example.so", head="")
    assert main(["plugin", "check", str(library)]) == 1
    return f"$ psmkit plugin check libnccl-net-example.so\n{capture()}"


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(tmp_path, lambda: capsys.readouterr().out)
    if os.environ.get("PSMKIT_UPDATE_GOLDEN"):
        PAGE.write_text(PAGE.read_text().replace(block("output"), printed))
    assert block("output") == printed, "to renew it, run this test with PSMKIT_UPDATE_GOLDEN=1"
