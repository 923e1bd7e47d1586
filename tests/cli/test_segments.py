"""``psmkit segments``: what dead processes left is shown and removed, what living ones have stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab import leftovers
from tests.cli.conftest import Result
from tests.processes import boot_id, start_time

HEADER = 4096
SIZE = HEADER + 64


def segment(folder: Path, number: int, pid: int, began: int) -> Path:
    """A file as libpsm makes it, of an owner that is named."""
    path = folder / f"psm-{number:016x}"
    namespace = os.stat("/proc/self/ns/pid").st_ino
    boot = boot_id()
    head = b"".join(
        [
            (0x50534D5345474D31).to_bytes(8, "little"),
            (1).to_bytes(4, "little"),
            HEADER.to_bytes(4, "little"),
            SIZE.to_bytes(8, "little"),
            (number + 1).to_bytes(8, "little"),
            pid.to_bytes(4, "little"),
            os.getuid().to_bytes(4, "little"),
            began.to_bytes(8, "little"),
            namespace.to_bytes(8, "little"),
            boot.ljust(40, b"\0"),
            b"control".ljust(24, b"\0"),
        ]
    )
    path.write_bytes(head.ljust(SIZE, b"\0"))
    path.chmod(0o600)
    return path


@pytest.fixture
def dead() -> tuple[int, int]:
    """Pid and start time of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = start_time(child.pid)
    child.communicate(b"\n")
    return child.pid, began


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, records = tmp_path / "shm", tmp_path / "records"
    folder.mkdir()
    records.mkdir(mode=0o700)
    monkeypatch.setenv("PSM_SHM_DIR", str(folder))
    monkeypatch.setenv("PSM_RECORD_DIR", str(records))
    return folder


def rows(result: Result, folder: Path) -> dict[str, dict[str, Any]]:
    """By name; those of other tests, which may run beside, are left out."""
    return {Path(r["path"]).name: r for r in json.loads(result.out) if r["path"].startswith(str(folder))}


def test_dead_owner_is_told_and_removed_and_living_one_stays(
    psmkit_cli: Callable[..., Result], shared: Path, dead: tuple[int, int]
) -> None:
    gone = segment(shared, 1, *dead)
    mine = segment(shared, 2, os.getpid(), start_time(os.getpid()))
    other = segment(shared, 3, *dead)
    other.write_bytes(other.read_bytes().replace(b"-", b"+"))  # of another boot
    result = psmkit_cli("segments", "--format", "json")
    found = rows(result, shared)
    assert result.status == 1
    assert {name: r["owner"] for name, r in found.items()} == {
        gone.name: "dead",
        mine.name: "alive",
        other.name: "unknown",
    }
    assert found[gone.name]["pid"] == dead[0] and found[gone.name]["what"] == "control"
    removed = psmkit_cli("segments", "--prune", "--format", "json")
    assert {name for name, r in rows(removed, shared).items() if r["removed"]} == {gone.name}
    assert not gone.exists() and mine.exists() and other.exists()


def test_record_of_a_dead_owner_is_told_and_removed(psmkit_cli: Callable[..., Result], shared: Path) -> None:
    from psmkit.lab.cuda import environment

    code = "import ctypes, os\nctypes.CDLL('libcudart.so.13').cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))\nos._exit(0)"
    env = environment({**os.environ, "PSM_HOSTCUDA_BANNER": "0"})
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    records = Path(os.environ["PSM_RECORD_DIR"])
    assert list(records.iterdir())
    found = rows(psmkit_cli("segments", "--dead", "--format", "json"), records)
    assert {r["kind"] for r in found.values()} == {"record"} and {r["owner"] for r in found.values()} == {"dead"}
    psmkit_cli("segments", "--prune")
    assert not list(records.iterdir())


def test_folder_of_a_run_tells_whether_its_runner_lives(tmp_path: Path, dead: tuple[int, int]) -> None:
    gone = tmp_path / f"psm-lab-{dead[0]}-{dead[1]}-abc"
    mine = tmp_path / f"{leftovers.run_folder()}abc"
    for folder in (gone, mine, tmp_path / "psm-lab-other"):
        folder.mkdir()
    assert leftovers.run_folders(tmp_path) == [
        (gone, dead[0], False),
        (mine, os.getpid(), True),
    ] or leftovers.run_folders(tmp_path) == [(mine, os.getpid(), True), (gone, dead[0], False)]
