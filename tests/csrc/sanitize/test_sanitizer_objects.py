"""The handle sanitizer's ledger against a plain model of it, and what its record holds then."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from tests.csrc.base.compiled import BASE, ROOT, compile_c, environment

SANITIZE = ROOT / "csrc" / "sanitize"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-O2"], id="plain"),
        pytest.param(["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], id="address"),
    ],
)
def test_ledger_is_as_its_model(tmp_path: Path, options: list[str]) -> None:
    sources = [*sorted(SANITIZE.glob("*.c")), *sorted(BASE.glob("*.c")), Path(__file__).with_name("objects.c")]
    program = compile_c(tmp_path / "objects", sources, [f"-I{SANITIZE}", *options, "-ldl"])
    records = tmp_path / "records"
    records.mkdir(mode=0o700)
    done = subprocess.run(
        [program],
        env=environment(PSM_RECORD_DIR=str(records), PSM_RECORD_KEEP="1", PSM_SANITIZE_SEGV="0"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
    assert "sanitizer report" not in done.stdout + done.stderr
    sections = {section.name: section for section in open_record(str(next(records.iterdir()))).sections}
    # slots that are set aside are neither rows nor rows that somebody was writing
    rows, objects = sections["test.rows"], sections["sanitizer.objects"]
    assert sorted(rows.values(i)["what"] for i in range(len(rows))) == list(range(1, 8))
    assert [objects.values(i)["value"] for i in range(len(objects))] == [0x77770]
    assert rows.torn == objects.torn == 0
