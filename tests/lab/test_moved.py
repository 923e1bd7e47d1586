"""The meter of a run: bytes by rank since the last look."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.lab import transfer
from psmkit.lab.emulation import Emulation
from psmkit.lab.moved import Meter, amount


def test_bytes_are_those_of_the_ends_that_are_open(tmp_path: Path) -> None:
    # Rank 1 dies when its connection has moved 20 of 37 steps; its record stays.
    case = transfer.Case(size=300_001, iters=1, steps=8, buffer_size=65536)
    lab = Emulation(tmp_path / "records", faults="p2p.recv.step:kill,rank=1,nth=20")
    transfer.start([case], 2, tmp_path / "run", emulation=lab, deadline=120, stacks=False)
    meter = Meter(tmp_path / "run" / "records")
    first = meter()
    assert set(first) == {1} and 15 * 8108 <= first[1] <= 2 * 300_001
    assert meter() == {1: 0}


def test_folder_without_records_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "broken.rec").write_bytes(b"no record")
    assert Meter(tmp_path)() == {} and Meter(tmp_path / "nothing")() == {}


def test_amounts_have_units() -> None:
    assert [amount(n) for n in (7, 2048, 3 << 20, 5 << 30)] == ["7 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_an_end_that_is_being_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (0, 1, 0, 0, "send"), (1, 0, 0, 0, "recv")
    looks = iter([{one: (5, 10), other: (5, 10)}, {one: (9, 10)}, {one: (9, 10), other: (9, 10)}])
    monkeypatch.setattr(Meter, "_ends", lambda _: next(looks))
    meter = Meter(tmp_path)
    assert meter() == {0: 50, 1: 50}
    assert meter() == {0: 40, 1: 40}
