"""Segments between processes: made, attached, given up; killed owners; what is held afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
KINDS = pytest.mark.parametrize("kind", [ground.MEMFD, ground.POSIX], ids=["memfd", "posix"])


def names(tmp_path: Path) -> set[str]:
    return {p.name for p in (tmp_path / "shm").iterdir()}


@KINDS
@pytest.mark.parametrize("size", [1, 64, 4096, 4097, 1 << 20])
def test_what_one_writes_the_other_reads(start: Start, kind: int, size: int) -> None:
    owner, peer = start(), start()
    segment = owner.create(kind, size)
    slot = peer.attach(segment.share, segment.path)
    if size >= 64:
        owner.ask("store", segment.slot, 0, 2**64 - 1)
        assert peer.ask("load", slot, 0) == [str(2**64 - 1)]
        peer.ask("store", slot, (size // 64) - 1, 42)
        assert owner.ask("load", segment.slot, (size // 64) - 1) == ["42"]


def test_a_flag_is_taken_once(start: Start) -> None:
    owner, peer = start(), start()
    segment = owner.create(ground.MEMFD, 4096)
    slot = peer.attach(segment.share, segment.path)
    owner.ask("store", segment.slot, 3, 1)
    assert peer.ask("swap", slot, 3, 0) == ["1"]
    assert owner.ask("swap", segment.slot, 3, 0) == ["0"]


@KINDS
def test_nothing_is_held_when_all_have_closed(start: Start, tmp_path: Path, kind: int) -> None:
    owner, peer = start(), start()
    before = owner.held(), peer.held()
    for _ in range(20):
        segment = owner.create(kind, 8192)
        slot = peer.attach(segment.share, segment.path)
        peer.ask("close", slot)
        owner.ask("close", segment.slot)
    assert (owner.held(), peer.held()) == before
    assert names(tmp_path) == set()


def test_a_named_segment_is_unlinked_by_who_attaches(start: Start, tmp_path: Path) -> None:
    owner, peer = start(), start()
    segment = owner.create(ground.POSIX, 4096)
    (name,) = names(tmp_path)
    assert name == segment.name
    mode = (tmp_path / "shm" / name).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    slot = peer.attach(segment.share)
    assert names(tmp_path) == set()
    with pytest.raises(ground.GroundError) as error:
        start().attach(segment.share)
    assert error.value.status == "PSM_ERR_NOT_FOUND" and name in error.value.text
    owner.ask("store", segment.slot, 0, 5)
    assert peer.ask("load", slot, 0) == ["5"]


def test_a_named_segment_that_nobody_attached_goes_with_its_owner(start: Start, tmp_path: Path) -> None:
    owner = start()
    segment = owner.create(ground.POSIX, 4096)
    owner.ask("close", segment.slot)
    assert names(tmp_path) == set()


def test_a_child_of_fork_does_not_remove_its_parents_name(start: Start, tmp_path: Path) -> None:
    owner, peer = start(), start()
    segment = owner.create(ground.POSIX, 4096)
    assert owner.ask("close-in-child", segment.slot) == ["0"]
    assert names(tmp_path) == {segment.name}
    peer.attach(segment.share)


@KINDS
def test_the_memory_outlives_a_killed_owner(start: Start, tmp_path: Path, kind: int) -> None:
    owner, peer = start(), start()
    segment = owner.create(kind, 4096)
    slot = peer.attach(segment.share, segment.path)
    owner.ask("store", segment.slot, 1, 7)
    owner.kill()
    assert peer.ask("load", slot, 1) == ["7"]
    peer.ask("store", slot, 1, 8)
    peer.ask("close", slot)
    assert peer.held()[1] == 0 and names(tmp_path) == set()


@pytest.mark.parametrize("site", ["shm.create", "shm.reserve"])
def test_a_process_that_is_killed_while_it_makes_a_segment_leaves_nothing(
    start: Start, tmp_path: Path, site: str
) -> None:
    process = start(PSM_FAULTS=f"{site}:kill")
    process.may_die()
    with pytest.raises(AssertionError, match="the driver died"):
        process.create(ground.POSIX, 4096)
    assert names(tmp_path) == set()


def test_threads_make_attach_and_close_segments_at_once(tmp_path: Path) -> None:
    program = ground.build(tmp_path, ["-fsanitize=thread", "-Wno-tsan"])
    (tmp_path / "shm").mkdir()
    with ground.Ground(program, tmp_path / "log", PSM_SHM_DIR=str(tmp_path / "shm")) as process:
        before = process.held()
        process.ask("threads")
        assert process.held() == before
    assert names(tmp_path) == set()


@KINDS
def test_a_segment_of_the_own_process_is_not_mapped_again(start: Start, kind: int) -> None:
    owner = start()
    segment = owner.create(kind, 4096)
    held = owner.held()
    slots = [owner.attach(segment.share) for _ in range(3)]
    assert owner.held() == held
    owner.ask("store", slots[0], 0, 9)
    assert owner.ask("load", slots[1], 0) == ["9"]
    owner.ask("close", segment.slot)
    assert owner.ask("load", slots[2], 0) == ["9"], "the mapping stays until the last of them"
    for slot in slots:
        owner.ask("close", slot)
    assert owner.held()[1] == 0


def test_same_process_finds_by_id_and_says_when_it_does_not(start: Start) -> None:
    owner, other = start(), start()
    segment = owner.create(ground.MEMFD, 4096)
    share = b"\x01\x00" + segment.share[2:]
    owner.attach(share)
    with pytest.raises(ground.GroundError) as error:
        other.attach(share)
    assert error.value.status == "PSM_ERR_NOT_FOUND"
    assert f"{segment.id:x}" in error.value.text and str(other.pid) in error.value.text


def test_a_full_file_system_is_told_with_what_is_needed_and_left(start: Start) -> None:
    process = start(PSM_FAULTS="shm.reserve:error=ENOSPC,nth=2")
    process.create(ground.MEMFD, 64)
    with pytest.raises(ground.GroundError) as error:
        process.create(ground.MEMFD, 64)
    assert (error.value.status, error.value.errno) == ("PSM_ERR_NO_RESOURCE", 28)
    process.create(ground.MEMFD, 64)


def test_more_than_the_memory_there_is_cannot_be_made(start: Start, tmp_path: Path) -> None:
    fs = os.statvfs(tmp_path)
    size = fs.f_bavail * fs.f_frsize * 2
    if size >= 1 << 40:
        pytest.skip("the file system is larger than a segment may be")
    process = start()
    held = process.held()
    with pytest.raises(ground.GroundError) as error:
        process.create(ground.POSIX, size)
    assert (
        error.value.status == "PSM_ERR_NO_RESOURCE"
        and str(size + 4096) in error.value.text
        and "left" in error.value.text
    )
    assert process.held() == held and names(tmp_path) == set()


def test_a_fault_at_attach_leaves_nothing(start: Start, tmp_path: Path) -> None:
    owner, peer = start(), start(PSM_FAULTS="shm.attach:error=TIMEOUT")
    segment = owner.create(ground.POSIX, 4096)
    held = None
    for _ in range(3):
        with pytest.raises(ground.GroundError) as error:
            peer.attach(segment.share)
        assert error.value.status == "PSM_ERR_TIMEOUT" and "shm.attach" in error.value.text
        held = held or peer.held()  # the first fault opened the log
    assert peer.held() == held and names(tmp_path) == {segment.name}
    start().attach(segment.share)


def test_a_process_without_descriptors_fails_clean(start: Start, tmp_path: Path) -> None:
    import resource

    process = start()
    before = process.held()
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (before[0] - 1, limits[1]))
    for kind in (ground.MEMFD, ground.POSIX):
        with pytest.raises(ground.GroundError) as error:
            process.create(kind, 4096)
        assert (error.value.status, error.value.errno) == ("PSM_ERR_NO_RESOURCE", 24)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
    assert names(tmp_path) == set()
    process.create(ground.POSIX, 4096)


@pytest.mark.parametrize("size", [0, 2**40, 2**63, 2**64 - 1])
def test_sizes_out_of_range_are_refused(start: Start, size: int) -> None:
    with pytest.raises(ground.GroundError) as error:
        start().create(ground.MEMFD, size)
    assert error.value.status == "PSM_ERR_INVALID" and str(size) in error.value.text


def test_birth_use_and_end_are_logged_under_one_id(start: Start) -> None:
    env = {"PSM_DEBUG": "INFO", "PSM_DEBUG_SUBSYS": "SHM"}
    owner, peer = start(**env), start(**env)
    segment = owner.create(ground.MEMFD, 4096, "fifo")
    peer.ask("close", peer.attach(segment.share, segment.path))
    owner.ask("close", segment.slot)
    name = f"psm segment {segment.id:x} "
    assert f"{name}created: memfd, 4096 bytes for fifo" in owner.lines()
    assert f"{name}of process {owner.pid} attached: memfd, 4096 bytes" in peer.lines()
    assert f"{name}closed: detached" in peer.lines() and f"{name}closed: destroyed" in owner.lines()
