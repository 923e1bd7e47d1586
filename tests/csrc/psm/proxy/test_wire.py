"""The decoder of messages between proxies against damaged ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.psm.ground import PSM, ROOT

FUZZ = ROOT / "csrc" / "fuzz"


def test_damaged_messages_are_refused_and_right_ones_come_out_as_they_were(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_wire"
    sources = [PSM / "proxy" / "wire.c", FUZZ / "fuzz_wire.c"]
    flags = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        f"-I{PSM}",
        f"-I{PSM / 'include'}",
        f"-I{FUZZ}",
    ]
    subprocess.run([compiled.compiler(), *compiled.WARNINGS, *flags, *sources, "-o", program], check=True, timeout=300)
    done = subprocess.run(
        [program, "200000", "7"], capture_output=True, text=True, env=compiled.environment(), timeout=300
    )
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout.split()[2])
    assert 50000 < taken < 200000
