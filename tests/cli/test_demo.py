"""``psmkit demo``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from psmkit.cli.config import examples, logs
from psmkit.lab import transfer


def test_demo_shows_each_command_and_keeps_what_it_is_asked_to(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "psmkit", "demo", "--out", str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("$ psmkit ")]
    assert shown == ["analyze", "analyze", "lab", "lab", "analyze", "conformance"]
    for words in (
        "hung: rank 1 ",
        "inconclusive: ",
        "good: 4 ranks",
        "not good: 4 ranks",
        "on stream 0x0",
        "conforms: ",
    ):
        assert words in done.stdout, words
    assert transfer.read(tmp_path / "kept" / "good").outcome.good


def test_folder_that_is_not_empty_is_refused(psmkit_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("mine")
    done = psmkit_cli("demo", "--out", str(tmp_path))
    assert done.status == 2 and "is not empty" in done.err and (tmp_path / "here").read_text() == "mine"


def test_config_prints_where_the_examples_are(psmkit_cli: Any) -> None:
    place = Path(psmkit_cli("config", "--examples").out.strip())
    assert place == examples() and (place / "plans" / "right.tasks").is_file()
    assert (logs() / "passsm-8gpu.log").is_file()
