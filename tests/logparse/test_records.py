"""Record files read as data and as logs: whole ones, damaged ones, and those of the dead."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import psmkit
from psmkit.catalogue import load
from psmkit.logparse import discover, scan
from psmkit.logparse.inputs import Reader
from psmkit.logparse.recordfiles import default_directory, prune, record_names
from psmkit.logparse.records import RecordFile, open_record, process_alive
from psmkit.logparse.recordtext import render
from psmkit.model.errors import InputError
from tests.csrc.base import compiled
from tests.processes import start_time

LOGS = Path(__file__).parents[1] / "data" / "logs"
# Places in the header, for records of processes that the tests invent.
PID, RANK, START, NAMESPACE, STATE, BOOT, HOST = 32, 36, 40, 48, 80, 88, 128
Make = Callable[..., Path]


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The record of a process that was killed (see scene in the driver)."""
    folder = tmp_path_factory.mktemp("scene")
    program = compiled.compile_c(
        folder / "driver", [*sorted(compiled.BASE.glob("*.c")), compiled.HERE / "driver.c"], []
    )
    env = compiled.environment(PSM_RECORD_DIR=str(folder / "records"), PSM_RECORD_MAX="256k", PSM_RANK="3")
    done = subprocess.run([program, "scene", "kill"], env=env, capture_output=True, text=True, timeout=60)
    return Path(done.stdout.strip()).read_bytes()


@pytest.fixture
def make(scene: bytes, tmp_path: Path) -> Make:
    """That record with another owner or state in its header."""
    count = iter(range(100))

    def made(
        pid: int | None = None,
        start: int | None = None,
        state: int | None = None,
        boot: bytes | None = None,
        host: bytes | None = None,
        rank: int | None = None,
        folder: Path = tmp_path,
    ) -> Path:
        data = bytearray(scene)
        for at, form, value in (
            (PID, "=i", pid),
            (RANK, "=i", rank),
            (START, "=Q", start),
            (STATE, "=I", state),
            (BOOT, "40s", boot),
            (HOST, "64s", host),
        ):
            if value is not None:
                struct.pack_into(form, data, at, value)
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"psm-vm-{pid or 1}-{next(count):016x}.rec"
        path.write_bytes(data)
        path.chmod(0o600)
        return path

    return made


def text(path: Path) -> list[str]:
    return [line.decode() for line in open_record(str(path)).lines()]


def message(line: str) -> str:
    return line.split(" NCCL ", 1)[1].rstrip("\n")


def test_records_are_data(make: Make) -> None:
    found = open_record(str(make()))
    assert (found.rank, found.owner, found.command, found.notes) == (3, "dead", "driver", [])
    records = list(found.records())
    assert [(r.section, r.fields["what"], r.message) for r in records] == [
        ("test.ring", "first", "test.info"),
        ("test.ring", "tab\there NCCL x", "test.warn"),
        ("test.ring", "", None),  # the selector points beyond the messages
        ("test.table", "live", "test.info"),
    ]
    assert records[0].fields == {
        "handle": 0xABC0, "check": 2**64 - 1 - 0xABC0, "count": 0xABC0, "kind": 0, "what": "first"
    }  # fmt: skip
    assert all(r.tid == found.pid and r.device == 5 for r in records)
    assert [r.time for r in records] == sorted(r.time for r in records)
    assert abs(records[0].time - found.wall_ns / 1e9) < 60


def test_records_stand_for_log_lines(make: Make) -> None:
    path = make()
    found = open_record(str(path))
    lines = text(path)
    assert [message(line) for line in lines[1:-1]] == [
        "INFO event 0xabc0 count 43968 what first",
        r"WARN bad event abc1: tab\x09here \x4eCCL x",
        "INFO event 0xd001 count 77 what live",
    ]
    prefix = f" {found.host}:{found.pid}:{found.pid} "
    assert all(f"{prefix}[5] NCCL" in line for line in lines[1:-1])
    begun = message(lines[0])
    assert begun.startswith(f"INFO record of process {found.pid}, rank 3, command driver, begun 2")
    assert message(lines[-1]).startswith(
        f"WARN record of a process that ended without clean exit: process {found.pid}, rank 3, last record 2"
    )


@pytest.mark.parametrize("log_first", [True, False])
def test_last_line_of_a_process_is_one_of_its_log_if_it_has_one(make: Make, tmp_path: Path, log_first: bool) -> None:
    folder = tmp_path / "logs"
    record = make(pid=55, folder=folder)
    log = folder / ("a.log" if log_first else "z.log")
    host = open_record(str(record)).host
    log.write_text(f"{host}:55:55 [5] NCCL INFO Using network Socket\n" * 3)
    result = scan([folder])
    (process,) = result.processes
    assert (result.files[process.last.file].path, process.last.line) == (str(log), 3)
    assert process.lines > 3
    (alone,) = scan([record]).processes
    assert alone.lines > 1 and alone.last.line > 1


def test_first_and_last_lines_are_those_of_the_catalogue(make: Make, scene: bytes) -> None:
    damaged = make(folder=Path(make().parent / "damaged"))
    os.truncate(damaged, 8192)
    names = set()
    for path in (make(), make(boot=b"another"), damaged):
        for line in text(path):
            hit = load().match(message(line).split(" ", 1)[1])
            if hit is not None:
                names.add(hit[0].name)
    assert names == {"record.process", "record.died", "record.unclosed", "record.damaged"}


def test_lines_of_a_process_without_a_rank_name_none(make: Make) -> None:
    lines = text(make(rank=-1))
    assert "record of process " in lines[0] and "rank" not in lines[0]
    assert "without clean exit: process " in lines[-1] and "rank" not in lines[-1]
    names = [event.name for event in scan([make(rank=-1)]).events]
    assert {"record.process", "record.died"} <= set(names)


def test_owner_is_judged_by_pid_start_time_boot_and_namespace(make: Make) -> None:
    def owner(**changes: object) -> str:
        return open_record(str(make(**changes))).owner

    me, mine = os.getpid(), start_time(os.getpid())
    assert owner(pid=me, start=mine) == "alive"
    assert owner(pid=me, start=mine + 1) == "dead", "the pid was given to another process"
    assert owner(pid=me, start=mine, state=2) == "clean"
    assert owner(pid=me, start=mine, boot=b"another") == "unknown"
    assert owner(pid=2**22 + 5, start=1) == "dead"
    assert process_alive(me, 0) and not process_alive(-1, 0) and not process_alive(2**31 - 1, 0)


def test_zombie_is_dead(make: Make) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL)
    start = start_time(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert open_record(str(make(pid=child.pid, start=start))).owner == "dead"
    child.wait()


def test_last_line_says_how_the_process_ended(make: Make) -> None:
    assert "ended without clean exit" in text(make())[-1]
    assert "ended" not in text(make(state=2))[-1]
    unclosed = text(make(boot=b"another"))[-1]
    assert "was not closed: the process lived when this was read" in unclosed and "NCCL INFO" in unclosed


# ---- as input of an analysis ----


def test_analysis_reads_records_beside_logs(make: Make, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(LOGS / "ok_n4_psm_64K", logs)
    assert psmkit.analyze([logs]).verdict.value == "healthy"
    # Of a process that ended well, and whose records say nothing new.
    path = make(pid=6002, rank=1, host=b"vm", state=2, folder=logs)
    result = scan([logs])
    assert {p.pid for p in result.processes} == {6001, 6002, 6003, 6004}
    warned = next(s for s in result.shapes if s.first.file == [f.path for f in result.files].index(str(path)))
    assert result.text(warned.first) == text(path)[warned.first.line - 1].rstrip("\n")
    result.close()


def test_death_is_a_finding_with_the_place_in_the_record(make: Make, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(LOGS / "ok_n4_psm_64K", logs)
    for path in logs.iterdir():  # before the teardown
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: len(lines) // 2]))
    record = make(pid=6002, rank=1, host=b"vm", folder=logs)
    report = psmkit.analyze([logs])
    assert report.verdict.value != "healthy"
    found = [f for f in report.findings if f.code == "PSM402"]
    assert found and found[0].evidence[-1].file == str(record)
    assert found[0].evidence[-1].line == len(text(record))
    assert "ended without clean exit: process 6002" in found[0].evidence[-1].text


def test_record_files_are_found_in_folders_and_named(make: Make, tmp_path: Path) -> None:
    path = make()
    assert [(i.path, i.kind) for i in discover([tmp_path])] == [(str(path), "record")]
    assert [i.kind for i in discover([path])] == ["record"]


def test_bytes_come_in_any_portion(make: Make) -> None:
    path = make()
    whole = b"".join(open_record(str(path)).lines())
    for size in (1, 7, 100, 1 << 20):
        reader = Reader(discover([path])[0])
        data = b""
        while part := reader.read(size):
            assert len(part) <= size
            data += part
        reader.close()
        assert data == whole


# ---- damage ----


def expect_readable(path: Path) -> RecordFile:
    """Everything a reader does; nothing may raise."""
    found = open_record(str(path))
    lines = list(found.lines())
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert not any(c < 32 and c != 10 for line in lines for c in line)
    assert len(list(found.records())) == sum(map(len, found.sections))
    try:
        inputs_found = discover([path])
    except InputError:
        assert "not a record file" in found.notes  # without its magic number it is binary data
        return found
    for inputs in inputs_found:
        reader = Reader(inputs)
        while reader.read(1 << 16):
            pass
        assert (reader.note is not None) == bool(found.notes and inputs.kind == "record")
        reader.close()
    return found


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_damaged_bytes_break_nothing(
    scene: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.rec"
    used = 3 * 4096
    changed = bytearray(scene)
    for _ in range(data.draw(st.integers(1, 6))):
        # The header and the sections' beginnings matter most.
        at = data.draw(st.one_of(st.integers(0, 512), st.integers(4096, 4096 + 900), st.integers(0, used)))
        value = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\0\0\0\x7f", b'"', b"\x1b[2J", b"}]", b"\n"]),
            )
        )
        changed[at : at + len(value)] = value
    path.write_bytes(changed[: len(scene)])
    expect_readable(path)


@settings(deadline=None, max_examples=60)
@given(size=st.integers(0, 3 * 4096))
def test_cut_files_give_what_they_have(scene: bytes, tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.rec"
    path.write_bytes(scene[:size])
    found = expect_readable(path)
    assert found.notes
    assert found.valid == (size >= 4096)


def test_record_of_a_section_that_is_cut_is_read_up_to_there(make: Make) -> None:
    path = make()
    ring = open_record(str(path)).sections[0]
    assert len(ring) == 3
    data_at = struct.unpack_from("=Q", path.read_bytes(), 256 + 72)[0]
    os.truncate(path, data_at + 2 * ring.rows.dtype.itemsize + 5)
    found = open_record(str(path))
    assert [s.name for s in found.sections] == ["test.ring"]
    assert len(found.sections[0]) == 2
    assert any("2 of 8 slots are there" in note for note in found.notes)


def test_schema_that_nests_without_end_is_refused(make: Make) -> None:
    path = make()
    data = bytearray(path.read_bytes())
    size = struct.unpack_from("=I", data, 256 + 52)[0]
    data[4096 : 4096 + size] = b"[" * size
    path.write_bytes(data)
    found = expect_readable(path)
    assert any("section 0" in note for note in found.notes)


def test_records_at_a_wrong_place_are_left_out(make: Make) -> None:
    path = make()
    data = bytearray(path.read_bytes())
    data_at = struct.unpack_from("=Q", data, 256 + 72)[0]
    struct.pack_into("=Q", data, data_at, 2 * 5 + 2)  # ticket 5 in slot 0
    path.write_bytes(data)
    found = expect_readable(path)
    assert len(found.sections[0]) == 2
    assert any("1 records at a wrong place" in note for note in found.notes)


def test_a_huge_sparse_file_costs_no_memory(make: Make) -> None:
    path = make()
    data = bytearray(path.read_bytes())
    struct.pack_into("=Q", data, 256 + 80, 1 << 22)  # slots of the ring
    path.write_bytes(data)
    os.truncate(path, 1 << 29)
    code = (
        "import sys\nfrom psmkit.logparse.records import open_record\n"
        # not ru_maxrss: a process takes that over from the one that started it
        "def peak():\n"
        "    return int(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
        "before = peak()\n"
        "found = open_record(sys.argv[1])\n"
        "print(len(found.sections[0]), peak() - before)\n"
    )
    # A sanitizer keeps what was freed for a while: the chunks that were read would all count.
    options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=compiled.ROOT,
        env={**os.environ, "ASAN_OPTIONS": options},
    )
    rows, kilobytes = map(int, done.stdout.split())
    assert rows == 3 and kilobytes < 32 * 1024


# ---- text ----

_TEXT = st.lists(
    st.one_of(
        st.sampled_from([b"\n", b"\x1b[31m", b" ", b"\\", b": ", b"NCCL WARN ", b"\xff", b"ESC[0m", b"^[[1m", b" at "]),
        st.binary(max_size=6).map(lambda b: b.replace(b"\0", b"")),
    ),
    max_size=6,
).map(b"".join)


@settings(deadline=None, max_examples=150)
@given(_TEXT.filter(bool), _TEXT.filter(bool), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_rendered_messages_are_read_back(one: bytes, two: bytes, number: int, signed: int) -> None:
    cases = {
        "fault.fired": {"action": one, "site": two, "nth": number, "rank": signed},
        "record.unavailable": {"what": one, "reason": two},
    }
    for name, values in cases.items():
        line = render(load().by_name[name].patterns[0], values)
        hit = load().match(line)
        assert hit is not None and hit[0].name == name, line
        for key, value in hit[1].items():
            if isinstance(value, str):
                expected = values[key]
                assert isinstance(expected, bytes)
                assert _unescaped(value) == expected.decode("utf-8", "replace")
            else:
                assert value == values[key]


def _unescaped(value: str) -> str:
    import re

    return re.sub(r"\\x([0-9a-f]{2})", lambda m: chr(int(m[1], 16)), value)


# ---- folders, pruning, the command ----


def test_default_folder_follows_the_environment() -> None:
    own = f"psm-{os.geteuid()}"
    assert default_directory({"PSM_RECORD_DIR": "/x", "TMPDIR": "/y"}) == "/x"
    assert default_directory({"TMPDIR": "/y"}) == f"/y/{own}"
    for temp in ("", "relative", "/dev/shm", "/dev/shm/z"):
        assert default_directory({"TMPDIR": temp}) == f"/tmp/{own}"


def test_only_regular_files_of_this_user_are_records(make: Make, tmp_path: Path) -> None:
    path = make()
    (tmp_path / "link.rec").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.rec")
    (tmp_path / "folder.rec").mkdir()
    (tmp_path / "other.txt").write_text("")
    assert record_names(str(tmp_path)) == [str(path)]


def test_pruning_never_takes_the_file_of_a_live_owner(make: Make, tmp_path: Path) -> None:
    mine = start_time(os.getpid())
    alive, elsewhere = make(pid=os.getpid(), start=mine), make(boot=b"another")
    dead, clean = make(), make(pid=os.getpid(), start=mine, state=2)
    junk = tmp_path / "junk.rec"
    junk.write_bytes(b"x" * 5000)
    assert {f.path for f in prune(str(tmp_path), dry_run=True)} == {str(dead), str(clean)}
    assert dead.exists() and clean.exists()
    assert {f.path for f in prune(str(tmp_path))} == {str(dead), str(clean)}
    assert [p.exists() for p in (alive, elsewhere, dead, clean, junk)] == [True, True, False, False, True]
    prune(str(tmp_path), unknown=True)
    assert alive.exists() and not elsewhere.exists() and junk.exists()


def test_pruning_takes_what_was_never_finished(tmp_path: Path) -> None:
    old, new, other = (tmp_path / n for n in (".psm-vm-1-0.rec", ".psm-vm-2-0.rec", ".else.rec"))
    for path in (old, new, other):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    prune(str(tmp_path), dry_run=True)
    assert old.exists()
    prune(str(tmp_path))
    assert [p.exists() for p in (old, new, other)] == [False, True, True]


def psm(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "psmkit", "records", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=compiled.ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PSM_", "NCCL_"))} | env,
    )


def test_command_lists_shows_and_prunes(make: Make, tmp_path: Path) -> None:
    path = make(host=b"evil\x1b[2J\n")
    listed = psm("list", tmp_path)
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[1].split()[-4:] == ["3", "driver", "dead", "4"]
    assert "\x1b" not in listed.stdout
    data = json.loads(psm("list", "--format", "json", tmp_path).stdout)
    assert data[0]["path"] == str(path) and data[0]["owner"] == "dead" and data[0]["sections"][0]["torn"] == 1
    shown = psm("show", path)
    assert (
        "\x1b" not in shown.stdout
        and "     2  [" in shown.stdout
        and "test.table: 1 of 8 (table), 2 torn" in shown.stdout
    )
    fields = json.loads(psm("show", "--format", "json", tmp_path).stdout)[0]["records"][0]["fields"]
    assert fields["handle"] == 0xABC0
    assert path.name in psm("prune", "--dry-run", tmp_path).stdout and path.exists()
    assert path.name in psm("prune", tmp_path).stdout and not path.exists()
    assert "nothing to remove" in psm("prune", tmp_path).stdout


def test_command_takes_the_folder_of_the_environment(make: Make, tmp_path: Path) -> None:
    path = make()
    assert path.name in psm("list", PSM_RECORD_DIR=str(tmp_path)).stdout
    assert "no record files" in psm("list", PSM_RECORD_DIR=str(tmp_path / "none")).stdout
    missing = psm("list", tmp_path / "none")
    assert missing.returncode == 2 and "no such folder" in missing.stderr


def test_command_says_what_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_text("hello")
    done = psm("show", tmp_path / "x.rec")
    assert done.returncode == 2 and "not a record file" in done.stderr
