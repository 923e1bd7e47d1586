"""The handle sanitizer's tables under threads: no data race, nothing lost, nothing left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.csrc.base.compiled import BASE, ROOT, compile_c, environment

SANITIZE = ROOT / "csrc" / "sanitize"


@pytest.mark.parametrize("checked", ["thread", "address,undefined"])
def test_objects_under_reused_numbers_from_many_threads(tmp_path: Path, checked: str) -> None:
    options = [f"-I{SANITIZE}", f"-fsanitize={checked}", "-fno-sanitize-recover=all", "-ldl"]
    if checked == "thread":
        # The fences order what other processes see; between threads the sequence of a slot does it.
        options.append("-Wno-tsan")
    sources = [*sorted(SANITIZE.glob("*.c")), *sorted(BASE.glob("*.c")), Path(__file__).with_name("stress.c")]
    program = compile_c(tmp_path / "stress", sources, options)
    records = tmp_path / "records"
    records.mkdir(mode=0o700)
    done = subprocess.run(
        [program],
        env=environment(PSM_RECORD_DIR=str(records), PSM_SANITIZE_LEAKS="1", PSM_SANITIZE_SEGV="0"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
    assert "Sanitizer" not in done.stderr
    # every object that was made was ended: nothing of it remains
    assert "never ended" not in done.stdout
    # the owner of a number is never told of it; others may see it ended, or going
    reported = [line for line in done.stdout.splitlines() if "sanitizer report" in line and " at: " not in line]
    assert all(": use " in line for line in reported), reported
