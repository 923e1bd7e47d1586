"""Which processes can be read, and what is said of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from psmkit.live import state
from psmkit.live.state import elf
from psmkit.live.state.samples import merged
from psmkit.model.errors import PsmkitError
from psmkit.model.inspection import StateObject, Value
from tests.live.state.conftest import look


def test_a_process_that_is_gone_is_an_error_of_one_line() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    end = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
    with pytest.raises(PsmkitError, match=f"process {process.pid} has ended"):
        state.read(process.pid, deadline=10)
    process.wait()
    with pytest.raises(PsmkitError, match=f"there is no process {process.pid}"):
        state.read(process.pid, deadline=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_an_error_with_the_remedy(start) -> None:  # type: ignore[no-untyped-def]
    process = start("listed")
    code = f"""
import os, sys
from psmkit.live import state
os.setgid(65534); os.setuid(65534)
try:
    state.read({process.pid}, deadline=10)
except state.StateError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "may not be read" in done.stdout and "as that user or as root" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


def test_a_thread_of_the_kernel_is_an_error_of_one_line() -> None:
    found = [int(one.name) for one in Path("/proc").glob("[0-9]*") if not (one / "maps").exists() or not _maps(one)]
    if not found:
        pytest.skip("no thread of the kernel is seen here")
    with pytest.raises(PsmkitError, match=r"has no memory of its own|may not be read|has ended"):
        state.read(found[0], deadline=10)


def _maps(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except ProcessLookupError:
        return ""
    except OSError:
        return "?"


def test_without_drgn_a_note_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    objects, libraries, (note,) = state.read(os.getpid(), deadline=10)
    assert (objects, libraries) == ([], [])
    assert "psmkit[live]" in note.remedy


def test_a_reader_that_takes_too_long_is_a_note(start, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(state, "_SLACK", 0.0)
    seen = look(start("listed").pid, deadline=0.01)
    assert "was not read within" in seen.said


def test_a_program_that_was_replaced_is_read_by_the_file_that_it_runs(start, program: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "standin"
    shutil.copy(program, copy)
    process = start("listed", file=copy)
    copy.unlink()
    assert len(look(process.pid).all("communicator")) == 1


def test_only_this_room_imports_drgn_and_only_in_the_child() -> None:
    room = Path(state.__file__).parent
    users = [path for path in room.parents[1].rglob("*.py") if "import drgn" in path.read_text()]
    child = room.parents[1] / "audit" / "reader.py"  # of the audits, by the same pattern
    assert users and all(path.parent == room or path == child for path in users)
    done = subprocess.run(
        [sys.executable, "-c", "import psmkit.live.state, sys; print('drgn' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False"


def test_a_process_without_nccl_and_libpsm_has_no_state() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        seen = look(process.pid)
        process.kill()
    assert seen.objects == []


def test_a_32_bit_program_is_known_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(80))
    found = elf.look(file)
    assert found is not None and found.bits == 32
    file.write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 80)
    assert elf.look(file) in (None, elf.Elf("none", 0, None, 64))
    assert elf.look(tmp_path / "none") is None


def test_two_samples_become_one_in_which_changes_are_marked() -> None:
    def op(done: int, address: int = 16) -> StateObject:
        return StateObject("op", "op", address, values=(Value("done", done), Value("age_ms", done)))

    (comm,) = merged(
        [StateObject("comm", "comm", 8, parts=(op(1), op(7, 48)))],
        [StateObject("comm", "comm", 8, parts=(op(2), op(3, 32)))],
    )
    known, new = comm.parts
    assert known.values == (Value("done", 2, True, 1), Value("age_ms", 2))
    assert new.values[-1] == Value("sample", "only in the second", True)


def test_a_file_with_offsets_that_no_file_has_is_none_that_can_be_read(tmp_path: Path) -> None:
    damaged = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    damaged[0x28:0x30] = b"\xff" * 8
    (tmp_path / "damaged").write_bytes(damaged)
    assert elf.look(tmp_path / "damaged") is None
