"""The README shows what one sees, and is short."""

from __future__ import annotations

import re

import pytest

from scripts.refresh_readme import BLOCK, PAGE, SPEED, shown, speed

SHOWN: dict[str, str] = dict(BLOCK.findall(PAGE.read_text("utf-8")))
ANALYSES = [command for command in SHOWN if command.startswith("psmkit analyze")]
LABS = [command for command in SHOWN if command.startswith("psmkit lab")]


def test_the_readme_shows_an_analysis_and_a_run_of_the_lab() -> None:
    assert ANALYSES and LABS
    assert [*ANALYSES, *LABS] == list(SHOWN)


@pytest.mark.parametrize("command", ANALYSES)
def test_an_analysis_in_the_readme_is_what_the_command_prints(command: str) -> None:
    assert SHOWN[command] == shown(command), "run: .venv/bin/python scripts/refresh_readme.py"


@pytest.mark.parametrize("command", LABS)
def test_a_run_of_the_lab_in_the_readme_ends_with_the_words_that_are_shown(command: str) -> None:
    def words(text: str) -> str:
        # Seconds and ranks differ from run to run, and with them where a line breaks.
        return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())

    assert words(SHOWN[command]) == words(shown(command)), "run: .venv/bin/python scripts/refresh_readme.py"


def test_the_speed_in_the_readme_is_that_of_the_last_benchmark() -> None:
    assert SPEED.findall(PAGE.read_text("utf-8")) == [speed()]


def test_the_readme_has_at_most_120_lines() -> None:
    assert len(PAGE.read_text("utf-8").splitlines()) <= 120
