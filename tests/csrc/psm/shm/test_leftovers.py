"""The reaper: segments of dead owners are removed, and no others."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
ALIVE, DEAD, UNKNOWN = "1", "2", "3"
# Of struct psm_segment_header.
VERSION, SIZE, PID, START, NS, BOOT = 8, 16, 32, 40, 48, 56


def listed(process: ground.Ground) -> dict[str, str]:
    """Name and state of owner."""
    count, *rows = process.ask("list")
    assert int(count) == len(rows)
    return {row.split(",")[0]: row.split(",")[4] for row in rows}


def left_behind(start: Start) -> ground.Segment:
    owner = start()
    segment = owner.create(ground.POSIX, 4096)
    owner.kill()
    return segment


def test_a_killed_owners_segment_is_removed_and_a_living_ones_is_not(start: Start, tmp_path: Path) -> None:
    living, reaper = start(), start()
    kept = living.create(ground.POSIX, 4096)
    own = reaper.create(ground.POSIX, 4096)
    lost = left_behind(start)
    assert listed(reaper) == {kept.name: ALIVE, own.name: ALIVE, lost.name: DEAD}
    assert reaper.ask("prune") == ["1"]
    assert listed(reaper) == {kept.name: ALIVE, own.name: ALIVE}
    assert reaper.ask("prune") == ["0"]
    start().attach(kept.share)


def test_a_full_file_system_is_cleared_of_leftovers_first(start: Start) -> None:
    lost = left_behind(start)
    process = start(PSM_FAULTS="shm.reserve:error=ENOSPC,nth=1")
    made = process.create(ground.POSIX, 4096)
    assert listed(process) == {made.name: ALIVE} and lost.name != made.name


def test_a_full_file_system_without_leftovers_is_an_error(start: Start) -> None:
    process = start(PSM_FAULTS="shm.reserve:error=ENOSPC,nth=1")
    with pytest.raises(ground.GroundError) as error:
        process.create(ground.POSIX, 4096)
    assert (error.value.status, error.value.errno) == ("PSM_ERR_NO_RESOURCE", 28)
    assert "make it larger" in error.value.text and listed(process) == {}


def test_the_list_says_size_label_and_owner(start: Start) -> None:
    owner = start()
    segment = owner.create(ground.POSIX, 100, "fifo")
    assert owner.ask("list") == ["1", f"{segment.name},fifo,{100 + 4096},{owner.pid},{ALIVE}"]


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, struct.pack("<Q", 0)),
        (VERSION, struct.pack("<I", 2)),
        (SIZE, struct.pack("<Q", 1 << 30)),
        (PID, struct.pack("<I", 0)),
        (PID, struct.pack("<I", 2**32 - 1)),
        (START, struct.pack("<Q", 0)),
        (NS, struct.pack("<Q", 1)),
        (NS, struct.pack("<Q", 0)),
        (BOOT, b"another-boot\0"),
        (BOOT, b"\0" * 40),
    ],
    ids="magic version size no-pid huge-pid no-start other-namespace no-namespace other-boot no-boot".split(),
)
def test_what_cannot_be_judged_is_not_removed(start: Start, tmp_path: Path, offset: int, value: bytes) -> None:
    segment = left_behind(start)
    with (tmp_path / "shm" / segment.name).open("r+b") as file:
        file.seek(offset)
        file.write(value)
    reaper = start()
    assert listed(reaper) == {segment.name: UNKNOWN}
    assert reaper.ask("prune") == ["0"]
    assert listed(reaper) == {segment.name: UNKNOWN}


def test_a_pid_that_was_given_to_another_process_does_not_keep_a_segment(start: Start, tmp_path: Path) -> None:
    segment = left_behind(start)
    reaper = start()
    with (tmp_path / "shm" / segment.name).open("r+b") as file:
        file.seek(PID)
        file.write(struct.pack("<I", reaper.pid))
        # Both may have begun in the same tick of the clock: a pid is not given again that soon.
        file.seek(PID + 8)
        (begun,) = struct.unpack("<Q", file.read(8))
        file.seek(PID + 8)
        file.write(struct.pack("<Q", begun - 1))
    assert listed(reaper) == {segment.name: DEAD}


def test_other_files_are_passed_over(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "shm"
    (folder / "nccl-abcdef").write_bytes(b"x" * 8192)
    (folder / "psm-short").write_bytes(b"")
    (folder / "psm-0000000000000001").symlink_to("nccl-abcdef")
    os.mkfifo(folder / "psm-0000000000000002")
    (folder / "psm-0000000000000003").mkdir()
    before = {p.name for p in folder.iterdir()}
    reaper = start()
    assert listed(reaper) == {}
    assert reaper.ask("prune") == ["0"]
    assert {p.name for p in folder.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_other_users_segments_are_passed_over_and_refused(start: Start, tmp_path: Path) -> None:
    segment = left_behind(start)
    os.chown(tmp_path / "shm" / segment.name, 65534, -1)
    reaper = start()
    assert listed(reaper) == {}
    assert reaper.ask("prune") == ["0"]
    with pytest.raises(ground.GroundError) as error:
        reaper.attach(segment.share)
    assert error.value.status == "PSM_ERR_DENIED" and "65534" in error.value.text


def test_a_folder_that_is_not_there_is_an_error_that_names_it(start: Start, tmp_path: Path) -> None:
    process = start(PSM_SHM_DIR=str(tmp_path / "none"))
    for command in ("list", "prune"):
        with pytest.raises(ground.GroundError) as error:
            process.ask(command)
        assert error.value.status == "PSM_ERR_NOT_FOUND" and str(tmp_path / "none") in error.value.text


def test_nothing_is_held_after_a_look(start: Start) -> None:
    left_behind(start)
    reaper = start()
    before = reaper.held()
    for _ in range(5):
        listed(reaper)
        reaper.ask("prune")
    assert reaper.held() == before
