"""The plugin of docs/plugin_guide.md compiles without a warning."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from psmkit.cli.app import main
from tests.plugins.build import ROOT

PAGE = ROOT / "docs" / "plugin_guide.md"


def test_the_headers_are_where_the_page_looks_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--cflags"]) == 0
    flags = capsys.readouterr().out.split()
    found = re.search(r"<!-- file: plugin.c -->\n```c\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    source = tmp_path / "plugin.c"
    source.write_text(found[1])
    strict = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", *strict, *flags, str(source), "-o", str(tmp_path / "libnccl-net-mine.so")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
