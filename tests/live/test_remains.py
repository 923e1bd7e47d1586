"""What jobs leave: an orphan is removed only with proof, and nothing else ever."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psmkit.live import holders, lease, remains
from psmkit.live.remains import Remain

SIZE = 4096 + 4


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /dev/shm, on the same file system."""
    folder = Path("/dev/shm") / f"test-remains-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    monkeypatch.setattr(remains, "MEMORY", folder)
    monkeypatch.setattr(remains, "TEMPORARY", tmp_path)
    yield folder
    shutil.rmtree(folder)


def orphan(path: Path, age: float = 3600.0) -> Path:
    """A file as NCCL makes it: all of it allocated, the number of ranks that have still to attach at the end."""
    path.write_bytes(bytes(SIZE - 4) + (1).to_bytes(4, "little"))
    path.chmod(0o600)
    os.utime(path, (0, time.time() - age))
    return path


@contextlib.contextmanager
def process(code: str, *args: object, wrapper: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``code``, says so, and stays."""
    code += "\nprint('ready', flush=True)\ninput()"
    command = [*wrapper, sys.executable, "-c", code, *map(str, args)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


OPEN = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDWR)"
MAPPED = f"""{OPEN}
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap(None, ctypes.c_size_t({SIZE}), 3, 1, fd, ctypes.c_long(0))
os.close(fd)"""


def one() -> Remain:
    (found,) = [r for r in remains.remains() if not r.path.startswith("@")]
    return found


def test_file_that_nobody_uses_is_a_proven_orphan_and_goes(memory: Path) -> None:
    path = orphan(memory / "nccl-a1B2c3")
    found = one()
    assert (found.kind, found.path, found.owner, found.safe) == ("NCCL memory", str(path), "dead", True)
    assert found.size == SIZE and found.age is not None and 3500 < found.age < 3700
    assert remains.reap([found]) == [found]
    assert not path.exists()


@pytest.mark.parametrize("code", [OPEN, MAPPED], ids=["an open descriptor only", "a mapping only"])
def test_file_of_a_living_process_stays_until_the_process_dies(memory: Path, code: str) -> None:
    path = orphan(memory / "nccl-a1B2c3")
    with process(code, path) as child:
        found = one()
        assert (found.owner, found.holders, found.safe) == ("alive", (child.pid,), False)
        assert remains.reap([found]) == []
        # One that was an orphan when it was listed, and that a process uses by now.
        was = Remain(**{**fields(found), "owner": "dead", "holders": (), "safe": True})
        assert remains.reap([was]) == []
        assert path.exists()
    assert one().owner == "dead"
    assert remains.reap([one()])


def fields(found: Remain) -> dict[str, object]:
    return {name: getattr(found, name) for name in Remain.__dataclass_fields__}


def test_name_that_another_file_took_meanwhile_stays(memory: Path) -> None:
    path = orphan(memory / "nccl-a1B2c3")
    found = one()
    path.rename(memory / "kept")
    orphan(path)
    assert remains.reap([found]) == [] and path.exists()
    path.unlink()
    path.symlink_to(memory / "kept")
    assert remains.reap([found]) == [] and path.is_symlink()
    path.unlink()
    os.mkfifo(path)
    assert remains.reap([found]) == [] and path.exists()
    assert remains.remains() == [] or all(r.path.startswith("@") for r in remains.remains())


def test_file_of_a_process_that_died_while_it_made_it_goes(memory: Path) -> None:
    path = orphan(memory / "nccl-a1B2c3")
    os.truncate(path, 0)
    os.utime(path, (0, 0))
    assert (one().owner, one().safe) == ("dead", True)
    assert remains.reap([one()]) and not path.exists()


def test_young_file_stays_for_a_minute(memory: Path) -> None:
    orphan(memory / "nccl-a1B2c3", age=5)
    found = one()
    assert (found.owner, found.safe) == ("dead", False) and "younger than 60 s" in found.why


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("nccl-config", b"a = 1\nb = 2\n" * 9, 0o600),
        ("nccl-a1B2c3", bytes(SIZE), 0o644),
        ("nccl-a1B2c3", b"\1\0\0", 0o600),
    ],
)
def test_file_that_only_has_such_a_name_stays(memory: Path, name: str, content: bytes, mode: int) -> None:
    path = memory / name
    path.write_bytes(content)
    path.chmod(mode)
    os.utime(path, (0, 0))
    assert (one().kind, one().safe) == ("other", False)
    assert remains.reap([one()]) == []


def test_files_of_neighbours_are_listed_and_stay(memory: Path) -> None:
    names = ["psm_0a1b2c3d", "sem.mine", "torch_123_456_7", "cuda.shm.0.1.2"]
    for name in [*names, "psm-0123456789abcdef", "unrelated"]:
        orphan(memory / name)
    found = [r for r in remains.remains() if not r.path.startswith("@")]
    assert {Path(r.path).name for r in found} == set(names)
    assert {r.kind for r in found} == {"other: Python", "other: semaphore", "other: PyTorch", "other: CUDA"}
    assert {r.owner for r in found} == {"unknown"} and not any(r.safe for r in found)
    assert remains.reap(found) == []
    assert all((memory / name).exists() for name in names)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_file_of_another_user_is_told_and_stays(memory: Path) -> None:
    path = orphan(memory / "nccl-a1B2c3")
    os.chown(path, 65534, 65534)
    os.utime(path, (0, 0))
    found = one()
    assert (found.owner, found.safe, found.uid) == ("dead", False, 65534) and "belongs to" in found.why
    assert remains.reap([found]) == [] and path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_user_that_may_not_open_a_file_does_not_call_it_dead(memory: Path) -> None:
    orphan(memory / "nccl-a1B2c3")
    memory.chmod(0o755)
    code = f"import os\nfrom pathlib import Path\nfrom psmkit.live import remains\nos.setuid(65534)\nremains.MEMORY = Path({str(memory)!r})\n"
    code += "r = [r for r in remains.remains() if r.path.startswith('/dev')][0]\nprint(r.owner, r.safe, r.why, remains.reap([r]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "unknown False it cannot be opened: Permission denied []\n"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs unshare")
def test_process_of_another_pid_namespace_counts(memory: Path) -> None:
    """From within a container: the process outside has the file open, and cannot be seen."""
    path = orphan(memory / "nccl-a1B2c3")
    code = f"from pathlib import Path\nfrom psmkit.live import remains\nremains.MEMORY = Path({str(memory)!r})\n"
    code += "r = [r for r in remains.remains() if r.path.startswith('/dev')][0]\nprint(r.owner, r.holders, r.why)"
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    with process(MAPPED, path):
        run = subprocess.run(inside, capture_output=True, text=True)
        if "unshare failed" in run.stderr or "Operation not permitted" in run.stderr:
            pytest.skip("unshare is not allowed")
        assert run.stdout == "alive () a process that is not visible from here has it open or mapped\n"
    # Nobody: the kernel's word counts in a container, too.
    run = subprocess.run(inside, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("dead () no process has it open")


# ---- without leases, all depends on what /proc shows ---------------------------------------------------------------


@pytest.fixture
def no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def refuse(_fd: int) -> Iterator[None]:
        raise lease.NoLease("Invalid argument")
        yield

    monkeypatch.setattr(remains, "lease", refuse)


def made_up(root: Path, *, namespace: Path | None = None, options: str = "rw") -> str:
    """A /proc without processes, of this pid namespace or of that of a file."""
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").symlink_to(namespace or "/proc/self/ns/pid")
    (root / "self/mounts").write_text(f"proc /proc proc {options} 0 0\n")
    return str(root)


def test_without_leases_an_orphan_needs_a_look_into_every_process(
    memory: Path, tmp_path: Path, no_leases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(memory / "nccl-a1B2c3")
    monkeypatch.setattr(holders, "_INITIAL_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)

    def owner(proc: str) -> tuple[str, bool, str]:
        found = next(r for r in remains.remains(proc) if r.path.startswith("/dev"))
        return found.owner, found.safe, found.why

    assert owner(made_up(tmp_path / "all"))[:2] == ("dead", True)
    other = tmp_path / "other"
    other.touch()
    assert owner(made_up(tmp_path / "container", namespace=other)) == (
        "unknown",
        False,
        "processes outside of this container (pid namespace) are not visible",
    )
    assert owner(made_up(tmp_path / "hidden", options="rw,hidepid=2"))[::2] == (
        "unknown",
        "/proc hides the processes of other users (hidepid)",
    )
    proc = Path(made_up(tmp_path / "unread"))
    (proc / "77").mkdir()
    (proc / "77/maps").symlink_to(proc / "77/maps")  # a loop cannot be read by anyone
    assert owner(str(proc))[::2] == ("unknown", "1 process could not be looked into")


def test_without_leases_the_removal_looks_again(memory: Path, no_leases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_INITIAL_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    path = orphan(memory / "nccl-a1B2c3")
    everything = remains.holders

    def readable(*args: Any) -> holders.Holders:
        found = everything(*args)
        found.unread.clear()  # the first process of a machine may be protected from all
        return found

    monkeypatch.setattr(remains, "holders", readable)
    found = one()
    with process(OPEN, path):
        assert remains.reap([found]) == [] and path.exists()
    assert remains.reap([found]) == [found] and not path.exists()


# ---- sockets -------------------------------------------------------------------------------------------------------


def test_sockets_are_told_with_their_owner(memory: Path, tmp_path: Path) -> None:
    path = tmp_path / "nccl-socket-3-1f"
    code = "import socket, sys\ns, t, u = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3))\n"
    code += (
        "name = '\\0tmp/nccl-socket-3-' + sys.argv[2]\ns.bind(name.ljust(108, '\\0'))\n"  # NCCL binds the whole array
    )
    code += "t.bind(sys.argv[1])\nu.bind('\\0psm-' + sys.argv[2].zfill(16))"
    with process(code, path, f"{os.getpid():x}") as child:
        found = {r.path: r for r in remains.remains() if child.pid in r.holders}
        assert {name: r.kind for name, r in found.items()} == {
            f"@tmp/nccl-socket-3-{os.getpid():x}": "NCCL socket",
            f"@psm-{os.getpid():016x}": "libpsm socket",
            str(path): "NCCL socket",
        }
        assert all(r.owner == "alive" and not r.safe for r in found.values())
    os.utime(path, (0, 0))
    assert (one().owner, one().safe) == ("dead", True)
    assert remains.reap([one()]) and not path.exists()


def test_socket_that_is_alive_again_stays(memory: Path, tmp_path: Path) -> None:
    path = tmp_path / "nccl-socket-3-1f"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(path))
        os.utime(path, (0, 0))
        found = one()
        assert (found.owner, found.holders) == ("alive", (os.getpid(),))
        assert remains.reap([Remain(**{**fields(found), "owner": "dead", "safe": True})]) == []
    assert path.exists()
