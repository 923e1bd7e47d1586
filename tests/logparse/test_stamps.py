"""The time stamps of a process: its last one, its longest pause, and whether its clock ever goes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.logparse import scan
from psmkit.logparse.types import Stamps


@pytest.mark.parametrize(
    ("stamps", "found"),
    [
        (["[2026-11-21 02:35:22]", "[2026-11-21 02:35:32]", "[2026-11-21 02:35:33]"], (1795228533.0, 10.0, True, True)),
        (["2024-02-28T23:59:59.500Z", "2024-03-01T00:00:00.250Z"], (1709251200.25, 86400.75, True, True)),
        (["23:59:59", "00:00:04"], (4.0, 5.0, False, True)),
        (["12:00:00", "11:00:00"], (39600.0, 0.0, False, False)),
        (["12:00:00", "2026-11-21 12:00:00"], (1795262400.0, 0.0, True, False)),
        (["2026-13-21 12:00:00", "2026-11-21T12:00:00+09:00"], None),
    ],
)
def test_stamps_of_a_process(stamps: list[str], found: tuple[float, float, bool, bool] | None, tmp_path: Path) -> None:
    lines = [f"{stamp} n0:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n" for stamp in stamps]
    (tmp_path / "log").write_text("".join(lines))
    (process,) = scan(tmp_path / "log").processes
    if found is None:
        assert process.stamps is None
    else:
        last, pause, dated, steady = found
        assert process.stamps == Stamps(last, pause, process.last.seq, dated, steady)
