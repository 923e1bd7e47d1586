"""The stacks of births and ends: what a thread keeps of them is never taken for another one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.csrc.base.compiled import BASE, ROOT, compile_c, environment

SANITIZE = ROOT / "csrc" / "sanitize"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-O2", "-fomit-frame-pointer"], id="stack-pointer"),
        pytest.param(["-O2", "-fno-omit-frame-pointer"], id="frame-pointer"),
        pytest.param(["-O0"], id="unoptimized"),
        pytest.param(["-O1", "-fsanitize=thread", "-Wno-tsan"], id="thread"),
        pytest.param(["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], id="address"),
    ],
)
def test_every_stack_is_the_one_that_is_there(tmp_path: Path, options: list[str]) -> None:
    checked = any(option.startswith("-fsanitize") for option in options)
    sources = [*sorted(SANITIZE.glob("*.c")), *sorted(BASE.glob("*.c")), Path(__file__).with_name("stacks.c")]
    program = compile_c(
        tmp_path / "stacks", sources, [f"-I{SANITIZE}", "-fno-optimize-sibling-calls", *options, "-ldl"]
    )
    records = tmp_path / "records"
    records.mkdir(mode=0o700)
    done = subprocess.run(
        [program, *(["checked"] if checked else [])],
        env=environment(PSM_RECORD_DIR=str(records), PSM_SANITIZE_SEGV="0"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
    assert "Sanitizer" not in done.stderr
