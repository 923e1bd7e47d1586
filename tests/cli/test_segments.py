"""``psmkit segments``: what dead processes left is shown and removed, what living ones have stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab import leftovers, transfer
from psmkit.live import procfs, remains
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
    monkeypatch.setattr(remains, "MEMORY", folder)  # other tests have files in the real ones
    monkeypatch.setattr(remains, "TEMPORARY", folder)
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
    gone = tmp_path / f"psm-lab-{dead[0]}-{dead[1]}-{procfs.pid_namespace()}-abc"
    mine = tmp_path / f"{leftovers.run_folder()}abc"
    for folder in (gone, mine, tmp_path / "psm-lab-other"):
        folder.mkdir()
    assert leftovers.run_folders(tmp_path) == [
        (gone, dead[0], False),
        (mine, os.getpid(), True),
    ] or leftovers.run_folders(tmp_path) == [(mine, os.getpid(), True), (gone, dead[0], False)]


def test_a_run_removes_what_killed_runners_left_and_nobody_uses(
    tmp_path: Path, dead: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"psm-lab-{dead[0]}-{dead[1]}-{procfs.pid_namespace()}-"
    gone, used, mine = tmp_path / f"{name}gone", tmp_path / f"{name}used", tmp_path / f"{leftovers.run_folder()}abc"
    for folder in (gone, used, mine):
        folder.mkdir()
        (folder / "psm-1").write_bytes(b"x")
    monkeypatch.setattr(leftovers, "_SHM", tmp_path)
    with (used / "psm-1").open("rb"), transfer.own_memory():
        assert [folder.exists() for folder in (gone, used, mine)] == [False, True, True]
    with transfer.own_memory():
        assert not used.exists()


def test_runner_of_another_pid_namespace_is_not_dead(tmp_path: Path, dead: tuple[int, int]) -> None:
    for namespace in (f"{procfs.pid_namespace() + 1}-", ""):
        folder = tmp_path / f"psm-lab-{dead[0]}-{dead[1]}-{namespace}abc"
        folder.mkdir()
        assert leftovers.run_folders(tmp_path) == [(folder, dead[0], None)]
        folder.rmdir()


def nccl_file(folder: Path, name: str) -> Path:
    """A file that NCCL left an hour ago."""
    path = folder / name
    path.write_bytes(bytes(4096) + (1).to_bytes(4, "little"))
    path.chmod(0o600)
    os.utime(path, (0, time.time() - 3600))
    return path


def test_orphan_of_nccl_is_told_with_the_way_to_remove_it(psmkit_cli: Callable[..., Result], shared: Path) -> None:
    path = nccl_file(shared, "nccl-a1B2c3")
    told = psmkit_cli("segments", "--dead")
    assert told.status == 1 and str(path) in told.out and "1 h" in told.out
    assert "psmkit segments --reap removes 1 of them, 4 KiB in all" in told.out
    removed = psmkit_cli("segments", "--reap", "--format", "json")
    assert removed.status == 0 and rows(removed, shared)[path.name]["removed"]
    assert not path.exists()


def test_owner_of_a_file_of_nccl_is_told_with_its_job(psmkit_cli: Callable[..., Result], shared: Path) -> None:
    path = nccl_file(shared, "nccl-a1B2c3")
    command = [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(flush=True); input()", str(path)]
    env = {**os.environ, "SLURM_JOB_ID": "4711", "RANK": "3"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = rows(psmkit_cli("segments", "--format", "json"), shared)[path.name]
        assert not rows(psmkit_cli("segments", "--reap", "--format", "json"), shared)
        child.kill()
    assert (found["owner"], found["pid"], found["job"]) == ("alive", child.pid, "slurm 4711 rank 3")
    assert found["command"] == " ".join(command) and not found["safe"]
    assert path.exists()


def test_hostile_name_is_shown_escaped(psmkit_cli: Callable[..., Result], shared: Path) -> None:
    for name in ("torch_1_\x1b[31mred\n", "torch_1_\udcff"):
        nccl_file(shared, name)
    text = psmkit_cli("segments")
    assert "torch_1_\\x1b[31mred\\x0a" in text.out and "\x1b" not in text.out and "torch_1_\\xff" in text.out
    json.loads(psmkit_cli("segments", "--format", "json").out)
