"""The record container on its C side: rings, tables, fork, exit, other processes, and whom to trust."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from tests.csrc.base import compiled


@contextmanager
def process(
    driver: Path, folder: Path | None, *arguments: str, **env: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A driver that has made its record, and the record."""
    settings = compiled.environment(**({"PSM_RECORD_DIR": str(folder)} if folder else {}), **env)
    with subprocess.Popen(
        [driver, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        try:
            yield child, Path(child.stdout.readline().strip())
        finally:
            if not child.stdin.closed:
                child.stdin.close()
            child.stdout.read()
            child.wait(timeout=60)


def run(driver: Path, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return compiled.run(driver, *arguments, env=compiled.environment(PSM_RECORD_DIR=str(folder), **env))


@pytest.fixture(scope="session")
def racing_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under TSan."""
    return compiled.driver(tmp_path_factory.mktemp("tsan"), "thread")


def test_writers_of_a_ring_do_not_race(racing_driver: Path, tmp_path: Path) -> None:
    with process(racing_driver, tmp_path, "ring", "64", "4", "5000") as (child, path):
        found = open_record(str(path))
        child.stdin.close()  # type: ignore[union-attr]
        lost = int(child.stdout.read().split()[1])  # type: ignore[union-attr]
    assert child.returncode == 0
    (section,) = found.sections
    assert section.lost == lost and section.torn == 0
    rows = [section.values(i) for i in range(len(section))]
    assert len(rows) >= 60, "the last ones are there, but for those whose slot was being written"
    assert all(r["handle"] ^ r["check"] == 2**64 - 1 for r in rows)


def test_writers_of_a_table_do_not_race(racing_driver: Path, tmp_path: Path) -> None:
    with process(racing_driver, tmp_path, "table", "4") as (_, path):
        found = open_record(str(path))
    (section,) = found.sections
    handles = sorted(section.values(i)["handle"] for i in range(len(section)))
    assert handles == [t << 32 | i for t in range(4) for i in range(19993, 20000)]
    assert section.lost == section.torn == 0


def test_a_slot_that_is_set_aside_stays_its_owners(racing_driver: Path, tmp_path: Path) -> None:
    with process(racing_driver, tmp_path, "aside", "4") as (child, path):
        found = open_record(str(path))
        child.stdin.close()  # type: ignore[union-attr]
        assert child.stdout.read() == "strangers 0\n"  # type: ignore[union-attr]
    assert child.returncode == 0
    (section,) = found.sections
    handles = sorted(section.values(i)["handle"] for i in range(len(section)))
    assert handles == [t << 32 | 20000 for t in range(4)]
    assert section.torn == 0


def test_what_is_set_aside_is_hidden_until_it_is_taken_back(driver: Path, tmp_path: Path) -> None:
    def handles(path: Path) -> list[object]:
        (section,) = open_record(str(path)).sections
        assert section.torn == 0
        return sorted(section.values(i)["handle"] for i in range(len(section)))

    with process(driver, tmp_path, "hidden") as (child, path):
        assert child.stdin is not None and child.stdout is not None
        assert handles(path) == [0xBEEF]
        child.stdin.write("x")
        child.stdin.flush()
        assert child.stdout.readline() == "1 0\n", "the other slot was given away, and then there was none"
        assert child.stdout.readline() == "1\n", "it is as it was"
        assert handles(path) == [0xBEEF, 0xA51DE]


def test_reader_beside_writers_sees_whole_records_only(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "ring", "256", "3", "0") as (child, path):
        seen = 0
        while seen < 2000:
            (section,) = open_record(str(path)).sections
            rows = [section.values(i) for i in range(len(section))]
            assert all(r["handle"] ^ r["check"] == 2**64 - 1 for r in rows)
            seen += len(rows)
        os.kill(child.pid, signal.SIGKILL)
    (section,) = open_record(str(path)).sections
    rows = [section.values(i) for i in range(len(section))]
    assert all(r["handle"] ^ r["check"] == 2**64 - 1 for r in rows)
    assert len(rows) + section.torn == 256


def test_full_table_refuses_counts_and_recovers(driver: Path, tmp_path: Path) -> None:
    assert run(driver, tmp_path, "full").stdout == "1 1 0 lost 1\n1\n"


def test_file_is_private_telling_and_gone_after_a_clean_exit(driver: Path, tmp_path: Path) -> None:
    folder = tmp_path / "records"
    with process(driver, folder, "scene", "wait", PSM_RANK="3") as (child, path):
        assert path.parent == folder
        assert re.fullmatch(rf"psm-[A-Za-z0-9_-]+-{child.pid}-[0-9a-f]{{16}}\.rec", path.name)
        assert path.stat().st_mode & 0o7777 == 0o600
        assert folder.stat().st_mode & 0o7777 == 0o700
        found = open_record(str(path))
        assert (found.pid, found.rank, found.owner, found.uid) == (child.pid, 3, "alive", os.geteuid())
        assert found.tag and found.command == "driver" and not found.notes
        assert path.stat().st_blocks * 512 < 1 << 20, "what is not used takes no room"
    assert child.returncode == 0
    assert not list(folder.iterdir())


def test_a_kept_record_says_that_the_exit_was_clean(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "wait", PSM_RECORD_KEEP="1") as (_, path):
        pass
    assert open_record(str(path)).owner == "clean"


@pytest.mark.parametrize("how", ["kill", "_exit"])
def test_a_death_leaves_the_record(driver: Path, tmp_path: Path, how: str) -> None:
    with process(driver, tmp_path, "scene", how) as (_, path):
        pass
    found = open_record(str(path))
    ring, table = found.sections
    assert found.owner == "dead" and not found.notes
    assert (ring.kind, ring.version, len(ring), ring.torn) == ("ring", 3, 3, 1)
    assert [ring.values(i)["what"] for i in range(3)] == ["first", "tab\there NCCL x", ""]
    # One is live, one is updated; the released one is gone, and those that were being written are torn.
    assert (table.kind, len(table), table.torn) == ("table", 1, 2)
    assert table.values(0) == {"handle": 0xD001, "check": 2**64 - 1 - 0xD001, "count": 77, "kind": 0, "what": "live"}


def test_child_of_fork_writes_to_its_own_file(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "forked") as (child, path):
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n", "the parent's section takes nothing from the child"
        assert child.stdout.readline() == "1 1 1\n"
        other = Path(child.stdout.readline().strip())
        assert other != path
        mine, its = open_record(str(path)), open_record(str(other))
    assert [r.fields["what"] for r in mine.records()] == ["parent"]
    assert [r.fields["what"] for r in its.records()] == ["child"]
    assert mine.pid != its.pid and mine.tag != its.tag


def test_a_process_sees_the_tables_of_others(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "kill", PSM_RANK="1") as (dead, dead_path):
        pass
    with process(driver, tmp_path, "scene", "wait", RANK="2") as (living, living_path):
        lines = run(driver, tmp_path, "views").stdout.splitlines()
    expected = {
        f"{dead_path.name} pid {dead.pid} rank 1 dead 0",
        f"{living_path.name} pid {living.pid} rank 2 alive 0",
    }
    assert {line for line in lines if not line.startswith(" ")} == expected
    assert [line for line in lines if line.startswith(" ")] == ["  d001 77 live"] * 2


def test_files_that_are_not_ours_or_no_records_are_passed_over(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "kill") as (_, path):
        pass
    good = path.read_bytes()
    assert run(driver, tmp_path, "views").stdout
    path.chmod(0o640)
    assert not run(driver, tmp_path, "views").stdout
    path.unlink()
    os.mkfifo(tmp_path / "psm-a-1-0.rec")
    (tmp_path / "psm-b-1-0.rec").symlink_to(tmp_path / "c")
    (tmp_path / "c").write_bytes(good)
    (tmp_path / "c").chmod(0o600)
    (tmp_path / "psm-d-1-0.rec").mkdir()
    for name, data in (("e", b""), ("f", good[:4095]), ("g", b"x" + good[1:]), ("h", good[:12] + b"\x09" + good[13:])):
        file = tmp_path / f"psm-{name}-1-0.rec"
        file.write_bytes(data)
        file.chmod(0o600)
    assert not run(driver, tmp_path, "views").stdout


def test_damaged_headers_and_sections_lead_nowhere_else(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path / "good", "scene", "kill") as (_, path):
        pass
    good = path.read_bytes()[: 1 << 16]
    folder = tmp_path / "damaged"
    folder.mkdir(mode=0o700)
    values = (b"\xff\xff\xff\xff", b"\0\0\0\x7f", b"\x01\0\0\0", b"\0\0\0\0")
    # Each word of the header and of both sections, with values that a reader could believe; one run of it reads them all.
    for at in (*range(8, 128, 4), *range(256, 512, 4)):
        for number, value in enumerate(values):
            damaged = folder / f"psm-x-1-{at:04}{number}.rec"
            damaged.write_bytes(good[:at] + value + good[at + 4 :])
            damaged.chmod(0o600)
            open_record(str(damaged))
    lines = run(driver, folder, "views").stdout.splitlines()
    assert len([line for line in lines if not line.startswith(" ")]) > 200
    assert {line for line in lines if line.startswith(" ")} == {"  d001 77 live"}


def test_a_file_that_is_cut_below_the_reader_is_survived(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "kill") as (_, path):
        pass
    for size in (4096, 4097, 8192, 8300, 9000):
        os.truncate(path, size)
        run(driver, tmp_path, "views")
        assert open_record(str(path)).notes


def test_pruning_takes_the_dead_only(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "wait") as (_, living):
        with process(driver, tmp_path, "scene", "kill") as (_, dead):
            pass
        (tmp_path / "psm-x-1-0.rec").write_bytes(b"no record")
        assert run(driver, tmp_path, "prune").stdout == "1\n"
        assert living.exists() and not dead.exists()
        assert (tmp_path / "psm-x-1-0.rec").exists()


# ---- further records ----


def rows_of(path: Path) -> list[object]:
    (section,) = open_record(str(path)).sections
    return [section.values(i)["handle"] for i in range(len(section))]


def test_a_further_record_takes_blocks_as_they_are_wanted(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "more", "16000000", "wait") as (child, path):
        assert child.stdout is not None and child.stdout.readline() == "0 0 1\n"
        assert re.fullmatch(rf"psm-[A-Za-z0-9_-]+-{child.pid}-[0-9a-f]{{16}}\.rec", path.name)
        assert path.stat().st_blocks * 512 < 1 << 18 < path.stat().st_size
        assert rows_of(path) == [1, 2]
        found = open_record(str(path))
        assert found.owner == "alive" and not found.notes and found.sections[0].torn == 0
        assert f"{path.name} pid {child.pid}" in run(driver, tmp_path, "views").stdout
        assert "  1 1 row\n  2 2 row\n" in run(driver, tmp_path, "views").stdout
    assert not path.exists(), "a clean exit removes it"


def test_a_further_record_stays_where_a_reader_will_come(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "more", "16000000", "keep") as (_, path):
        pass
    assert open_record(str(path)).owner == "clean" and rows_of(path) == [1, 2]
    assert run(driver, tmp_path, "prune").stdout == "1\n" and not path.exists()


def test_a_further_record_outlives_a_death(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "more", "16000000", "wait") as (child, path):
        os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=60)
        assert open_record(str(path)).owner == "dead" and rows_of(path) == [1, 2]


def test_a_record_that_ended_is_gone_and_the_next_is_clean(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "more", "16000000", "end", "again", "wait") as (child, path):
        assert child.stdout is not None and child.stdout.readline()
        next_path, took = child.stdout.readline().split()
        assert took == "0" and next_path != str(path) and not path.exists()
        assert rows_of(Path(next_path)) == [3], "nothing of the first is in the second"


def test_child_of_fork_leaves_a_further_record_alone(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "more", "16000000", "fork", "wait") as (child, path):
        assert child.stdout is not None and child.stdout.readline()
        # What the child printed comes first: the parent prints nothing before it waits.
        assert child.stdout.readline() == "1\n", "no blocks of the parent's file for the child"
        own = Path(child.stdout.readline().strip())
        assert own.exists() and own != path
        assert rows_of(path) == [1, 2]


def test_a_limit_of_file_sizes_is_no_death(driver: Path, tmp_path: Path) -> None:
    env = compiled.environment(PSM_RECORD_DIR=str(tmp_path))
    command = ["sh", "-c", 'ulimit -f 64; exec "$0" more 16000000', str(driver)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "(null)" in done.stdout and "File too large" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
    assert run(driver, tmp_path, "more", "16000000", PSM_RECORD_MAX="0").stdout.startswith("(null)\n")


# ---- where records may lie ----


def refusal(driver: Path, **env: str) -> str:
    done = compiled.run(driver, "scene", "no", env=compiled.environment(**env))
    assert done.stdout.rstrip().endswith("(null)"), done.stdout
    return " ".join(done.stdout.split())


def test_default_folder_is_made_for_this_user_alone(driver: Path, tmp_path: Path) -> None:
    with process(driver, None, "scene", "wait", TMPDIR=str(tmp_path)) as (_, path):
        folder = tmp_path / f"psm-{os.geteuid()}"
        assert path.parent == folder
        assert folder.stat().st_mode & 0o7777 == 0o700


def test_default_folder_that_others_could_have_made_is_refused(driver: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"psm-{os.geteuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert "other users can open it" in refusal(driver, TMPDIR=str(tmp_path))
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in refusal(driver, TMPDIR=str(tmp_path))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_chosen_folder_must_not_be_writable_by_others(driver: Path, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert "other users can write to it" in refusal(driver, PSM_RECORD_DIR=str(folder))
    assert not list(folder.iterdir())
    assert "No such file" in refusal(driver, PSM_RECORD_DIR=str(tmp_path / "a" / "b"))
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refusal(driver, PSM_RECORD_DIR=str(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(driver: Path, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    assert "owned by another user" in refusal(driver, PSM_RECORD_DIR=str(tmp_path))


def test_shared_memory_is_no_place_for_records(driver: Path, tmp_path: Path) -> None:
    assert "records are not written to /dev/shm" in refusal(driver, PSM_RECORD_DIR="/dev/shm/psm-test-records")
    assert not Path("/dev/shm/psm-test-records").exists()
    if os.access("/dev/shm", os.W_OK):
        (tmp_path / "link").symlink_to("/dev/shm")
        assert "is kept" in refusal(driver, PSM_RECORD_DIR=str(tmp_path / "link"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "psm-test", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_full_disk_is_named_with_the_file(driver: Path, small_disk: Path) -> None:
    done = run(driver, small_disk, "ring", "65536", "1", "1")
    assert re.search(
        rf"goes on without test\.ring: {re.escape(str(small_disk))}/psm-\S+\.rec: No space left on device", done.stdout
    ), done.stdout


def test_size_is_bounded_and_can_be_nothing(driver: Path, tmp_path: Path) -> None:
    with process(driver, tmp_path, "scene", "wait", PSM_RECORD_MAX="1MiB") as (_, path):
        assert path.stat().st_size == 1 << 20
    assert run(driver, tmp_path, "scene", "no", PSM_RECORD_MAX="0").stdout == "(null)\n"
    assert "PSM_RECORD_MAX: not a size" in refusal(driver, PSM_RECORD_DIR=str(tmp_path), PSM_RECORD_MAX="1 parsec")
    small = run(driver, tmp_path, "ring", "4096", "1", "1", PSM_RECORD_MAX="4096")
    assert "has no room for test.ring" in small.stdout
    assert not list(tmp_path.iterdir())
