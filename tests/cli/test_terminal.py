"""What the command does on a real terminal: colour, progress, Ctrl-C, narrow windows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

STUB = str(Path(__file__).with_name("stub.py"))
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TIMEOUT = 60


def environment(**extra: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE")}
    return {**clean, "TERM": "xterm-256color", "LANG": "C.UTF-8", **extra}


def terminal(*args: str, columns: int = 100, **extra: str) -> pexpect.spawn:
    return pexpect.spawn(
        sys.executable,
        [STUB, *args],
        env=environment(**extra),
        dimensions=(50, columns),
        encoding="utf-8",
        timeout=TIMEOUT,
    )


def finish(child: pexpect.spawn) -> tuple[str, int | None]:
    child.expect(pexpect.EOF)
    child.close()
    return str(child.before).replace("\r\n", "\n"), child.exitstatus


def test_a_terminal_gets_colour_and_the_same_words_as_a_pipe() -> None:
    shown, status = finish(terminal("analyze", "hung"))
    assert status == 1
    assert shown.startswith("\x1b[1;31mhung")
    piped = subprocess.run(
        [sys.executable, STUB, "analyze", "hung"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=TIMEOUT,
    )
    assert piped.returncode == 1
    assert "\x1b" not in piped.stdout
    assert [line.rstrip() for line in ESCAPE.sub("", shown).splitlines()] == piped.stdout.splitlines()


@pytest.mark.parametrize("extra", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_refused(extra: dict[str, str]) -> None:
    shown, _ = finish(terminal("analyze", "hung", **extra))
    assert "\x1b" not in shown
    assert shown.startswith("hung: ")


def test_a_hostile_log_cannot_write_to_the_terminal() -> None:
    shown, _ = finish(terminal("analyze", "failed", "-v"))
    left = ESCAPE.sub("", shown)  # what remains after the styles that are ours
    assert all(char == "\n" or char.isprintable() for char in left)
    assert "\\x1b[31mred\\x1b]0;title\\x07 [bold]x[/bold]" in left
    assert "\x1b[31mred" not in shown


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_a_table_fits_the_window(columns: int) -> None:
    shown, _ = finish(terminal("analyze", "many", columns=columns, NO_COLOR="1"))
    table = [line for line in shown.splitlines() if re.match(r"(rank|\d+(-\d+)?[, ]) ", line)]
    assert len(table) == 8
    assert max(map(len, table)) <= columns


def test_a_slow_read_shows_progress_and_removes_it() -> None:
    child = terminal("analyze", "slow")
    child.expect("reading")
    shown, status = finish(child)
    assert status == 1
    assert "hung" in shown
    assert "\x1b[?25h" in shown  # the cursor is back
    assert "30.0/30.0 kB" not in shown.split("rank 3 never answered")[1]


def test_a_fast_read_shows_none() -> None:
    shown, _ = finish(terminal("analyze", "hung"))
    assert "reading" not in shown


def test_ctrl_c_is_quiet() -> None:
    child = terminal("analyze", "stuck")
    child.expect("reading")
    child.sendintr()
    shown, status = finish(child)
    assert status == 130
    assert "Traceback" not in shown
    assert "Abort" not in shown
    assert "\x1b[?25h" in shown


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} {STUB} analyze many many -v | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(STUB_PIPE="1"),
        timeout=TIMEOUT,
    )
    assert done.stderr == ""
    first, status = done.stdout.splitlines()
    assert first == "hung: ranks 9 and 40 never answered Setup"
    assert status in ("1", "141")  # 1 when all of it fitted into the pipe


def test_output_that_nobody_reads_at_all() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, STUB, "analyze", "many", "-v"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(STUB_PIPE="1"),
        timeout=TIMEOUT,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_unicode() -> None:
    done = subprocess.run(
        [sys.executable, STUB, "analyze", "hung"],
        capture_output=True,
        check=False,
        env=environment(PYTHONIOENCODING="ascii"),
        timeout=TIMEOUT,
    )
    assert done.returncode == 1
    assert done.stderr == b""
    assert done.stdout.isascii()


def test_long_run_of_the_lab_shows_on_one_line_what_moves(tmp_path: Path) -> None:
    words = ["lab", "run", "--size", "1M", "--iters", "1000000", "--deadline", "6", "--out", str(tmp_path / "out")]
    child = pexpect.spawn(
        sys.executable, ["-m", "psmkit", *words], env=environment(), dimensions=(50, 100), encoding="utf-8", timeout=120
    )
    child.expect(r"\r\d+ s of 6 s; ranks: 2 in move; [\d.]+ [KMG]iB/s *\r")
    shown, status = finish(child)
    assert status == 1 and "psmkit lab: running" not in shown
