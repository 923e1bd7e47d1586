"""Pages show what their commands print: each command of a ``console`` block is run, or its page says why it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.sessions import PAGES, README, ROOT, SPEED, blocks, first, speed, stale, verdict, words

RUN = [page for page in PAGES if any(kind == "run" for kind, *_ in blocks(page.read_text("utf-8")))]
#: Pages whose examples have a test of their own, which makes what they need.
OWN = {"plugins_drive.md", "profiler_drive.md", "profiler_write.md"}


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    assert list(stale(page)) == [], f"run: .venv/bin/python scripts/sessions.py {page.relative_to(ROOT)}"


def test_each_page_of_a_case_and_each_guide_is_among_them() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in RUN}
    guides = ("quickstart", "runbook", "transport_guide", "plugin_guide", "telemetry")
    assert {"README.md", *(f"docs/{guide}.md" for guide in guides)} <= names
    assert {"README.zh.md", "docs/zh/quickstart.md", "docs/zh/runbook.md"} <= names
    cases = [path for path in (ROOT / "examples" / "cases").iterdir() if (path / "README.md").exists()]
    assert len(cases) >= 12
    assert {f"examples/cases/{case.name}/README.md" for case in cases} <= names


@pytest.mark.parametrize("name", ["quickstart", "runbook"])
def test_a_chinese_page_has_the_parts_and_the_commands_of_the_english_one(name: str) -> None:
    english, chinese = ((ROOT / "docs" / folder / f"{name}.md").read_text("utf-8") for folder in ("", "zh"))
    levels = [
        re.findall(r"^(#+) ", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
        for page in (english, chinese)
    ]
    assert levels[0] == levels[1]
    run = [[c for _, _, commands, _ in blocks(page) for c in commands] for page in (english, chinese)]
    assert run[0] == [command.removesuffix(" --lang zh") for command in run[1]]
    rows = [len(re.findall(r"^ *\|", page, re.MULTILINE)) for page in (english, chinese)]
    assert rows[0] == rows[1]


def test_what_is_not_run_says_why() -> None:
    silent = [
        f"{page.name}: {commands[0] if commands else shown}"
        for page in PAGES
        for kind, comment, commands, shown in blocks(page.read_text("utf-8"))
        if not (commands and kind == "run") and len(comment.split()) < 3
    ]
    assert silent == []


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    hidden = []
    for page in (page for page in PAGES if page.name not in OWN):
        text = re.sub(r"^```console\n.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        hidden += [f"{page.name}: {line}" for line in re.findall(r"^ *\$ .*", text, re.MULTILINE)]
    assert hidden == []


def test_numbers_and_line_breaks_are_no_words() -> None:
    assert words("rank 0 took 1.2 s at\n0x7f01 of psm-1234") == words("rank 3 took 900 ms\nat 0x0 of psm-9")
    assert words("rank 0 is stuck") != words("rank 0 is done")


def test_a_cut_marks_what_it_leaves_out() -> None:
    assert first(2)(["a", "b", "c"]) == ["a", "b", "..."] and first(2)(["a", "b"]) == ["a", "b"]
    assert verdict(["hung", "  who", "", "Ranks"]) == ["hung", "  who", "..."]


def test_the_speed_in_the_readme_is_that_of_the_last_benchmark() -> None:
    assert SPEED.findall(README.read_text("utf-8")) == [speed()]


def test_the_readme_has_at_most_120_lines() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 120
