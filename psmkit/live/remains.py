"""What NCCL and its neighbours leave behind: files of shared memory, sockets, and whether anybody still uses them.

A file of NCCL does not name its owner. It is *alive* if a process has it open or mapped, and *dead* only if that is proven: by the
kernel's word (:mod:`psmkit.live.lease`), or, where there is none, by a look into every process of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from psmkit.live.holders import Holders, blind, holders, unix_sockets
from psmkit.live.lease import InUse, NoLease, lease
from psmkit.model.wording import counted

__all__ = ["MEMORY", "TEMPORARY", "YOUNG", "Remain", "reap", "remains", "user"]

Owner = Literal["alive", "dead", "unknown"]

YOUNG = 60.0  # seconds: a younger file is not removed
MEMORY, TEMPORARY = Path("/dev/shm"), Path("/tmp")  # where NCCL makes them; it asks no variable
_NCCL_FILE = re.compile(r"nccl-(?:[A-Za-z0-9]{6}|shm-(?:send|recv)-[0-9a-f]+-\d+-\d+-\d+)")
_NCCL_SOCKET = re.compile(r"nccl-socket-\d+-[0-9a-f]+")
_ABSTRACT = (
    ("NCCL socket", re.compile(r"@tmp/nccl-socket-\d+-[0-9a-f]+")),  # the first byte of the path is the NUL
    ("libpsm socket", re.compile(r"@psm-[0-9a-f]{16}")),
    ("other: CUDA", re.compile(r"@cuda-uvmfd-\S*")),
)
# Files of neighbours. Python's names for shared memory begin with psm_, those of libpsm with psm-.
_OTHERS = (
    ("other: Python", re.compile(r"psm_[0-9a-f]{8}")),
    ("other: PyTorch", re.compile(r"torch_\d+_.*", re.DOTALL)),
    ("other: CUDA", re.compile(r"cuda.*", re.DOTALL)),
    ("other: semaphore", re.compile(r"sem\..*", re.DOTALL)),
)
_MOST_REFERENCES = 1 << 16
# Kinds of file systems whose files no other machine can use.
_LOCAL = {"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "zfs"}


@dataclass(frozen=True, slots=True)
class Remain:
    """A file or a socket.

    Attributes:
        kind: ``NCCL memory``, ``NCCL socket``, ``libpsm socket``, ``other: ...``.
        path: of the file; the name of an abstract socket, with ``@`` before it.
        why: what makes the owner alive, dead or unknown, or forbids the removal.
        age: in seconds since the last change; None for an abstract socket.
        holders: processes that use it, as far as they are visible.
        safe: it is an orphan, and ``reap`` may remove it.
    """

    kind: str
    path: str
    size: int
    age: float | None
    uid: int
    owner: Owner
    why: str
    holders: tuple[int, ...] = ()
    safe: bool = False
    device: int = 0
    inode: int = 0


def remains(proc: str = "/proc") -> list[Remain]:
    """All that is there now, NCCL's first. Nothing is changed."""
    files = [*_files(MEMORY), *_socket_files(TEMPORARY)]
    sockets = unix_sockets(proc)
    named = [(kind, s) for s in sockets for kind, form in _ABSTRACT if form.fullmatch(s.name.rstrip("@"))]
    paths = {s.name: s.inode for s in sockets if s.name.startswith("/")}
    seen = holders(
        {(f.device, f.inode): f.path for f in files},
        [*(s.inode for _, s in named), *paths.values()],
        proc,
    )
    hidden = blind(proc)
    out = []
    for file in files:
        if file.kind == "NCCL socket":
            out.append(_judged_socket(file, seen.sockets.get(paths.get(file.path, 0), [])))
        else:
            out.append(_judged(file, seen, hidden))
    # A connection that was accepted has the name of the socket that listens.
    owners: dict[tuple[str, str], set[int]] = {}
    for kind, s in named:
        owners.setdefault((kind, s.name.rstrip("@")), set()).update(seen.sockets[s.inode])
    for (kind, name), holding in owners.items():
        pids = tuple(sorted(holding))
        why = "ends with its owner" if pids else "a process that is not visible from here holds it; it ends with it"
        out.append(Remain(kind, name, 0, None, -1, "alive", why, pids))
    return sorted(out, key=lambda r: (r.kind.startswith("other"), r.kind, r.path))


def _files(folder: Path) -> Iterator[Remain]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            kind = "NCCL memory" if _NCCL_FILE.fullmatch(entry.name) else ""
            kind = kind or next((kind for kind, form in _OTHERS if form.fullmatch(entry.name)), "")
            with contextlib.suppress(OSError):
                if kind and stat.S_ISREG((st := entry.stat(follow_symlinks=False)).st_mode):
                    yield _remain(kind, entry.path, st)


def _socket_files(folder: Path) -> Iterator[Remain]:
    """With NCCL_IPC_USE_ABSTRACT_SOCKET=0 the sockets of NCCL are files, which stay after a death."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _NCCL_SOCKET.fullmatch(entry.name):
                    st = entry.stat(follow_symlinks=False)
                    if stat.S_ISSOCK(st.st_mode):
                        yield _remain("NCCL socket", entry.path, st)


def _remain(kind: str, path: str, st: os.stat_result) -> Remain:
    age = max(time.time() - st.st_mtime, 0.0)
    return Remain(kind, path, st.st_size, age, st.st_uid, "unknown", "", device=st.st_dev, inode=st.st_ino)


def _judged(file: Remain, seen: Holders, hidden: str) -> Remain:
    """A file with its owner."""
    pids = tuple(seen.files.get((file.device, file.inode), ()))
    if pids:
        return replace(file, owner="alive", why="open or mapped", holders=pids)
    if file.kind.startswith("other"):  # it may be kept for a process that opens it later
        return replace(file, why="no visible process has it open; it is not NCCL's")
    try:
        with _opened(file.path, file) as fd:
            ours = _is_ncclish(fd)
            with lease(fd):
                return _orphan(file, "no process has it open or mapped, says the kernel", ours)
    except InUse:
        return replace(file, owner="alive", why="a process that is not visible from here has it open or mapped")
    except OSError as error:
        return replace(file, why=f"it cannot be opened: {error.strerror}")
    except NoLease:
        if why := hidden or _not_seen(seen):
            return replace(file, why=why)
        return _orphan(file, "no process of this machine has it open or mapped", ours)


def _not_seen(seen: Holders) -> str:
    n = len(seen.unread)
    return f"{counted(n, 'process', 'processes')} could not be looked into" if n else ""


def _orphan(file: Remain, why: str, ours: bool) -> Remain:
    """An orphan, and whether it may be removed."""
    if not ours:
        return replace(file, kind="other", why="its name is like one of NCCL's, its content is not")
    file = replace(file, owner="dead", why=why)
    if file.uid != os.geteuid():
        return replace(file, why=f"{file.why}; it belongs to {user(file.uid)}, who can remove it")
    if not _local(file.path):
        return replace(file, owner="unknown", why="another machine may use this file system")
    if file.age is not None and file.age < YOUNG:
        return replace(file, why=f"{file.why}; it is younger than {YOUNG:.0f} s")
    return replace(file, safe=True)


def user(uid: int) -> str:
    """The name of a user, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@contextlib.contextmanager
def _opened(name: str, file: Remain, folder: int | None = None) -> Iterator[int]:
    """A descriptor of the very file that was listed.

    Raises:
        OSError: it cannot be opened, or the name is another file's now.
    """
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):  # to open a pipe would wake its writer
        raise FileNotFoundError(errno.ENOENT, "another file has its name now")
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        _check_same(os.fstat(fd), file)
        yield fd
    finally:
        os.close(fd)


def _check_same(st: os.stat_result, file: Remain) -> None:
    if (st.st_dev, st.st_ino, st.st_uid) != (file.device, file.inode, file.uid):
        raise FileNotFoundError(errno.ENOENT, "another file has its name now")


def _is_ncclish(fd: int) -> bool:
    """NCCL makes its files with mode 0600, and ends them with a count of the ranks that have still to attach.

    One of a process that died between the two calls that make it is empty.
    """
    st = os.fstat(fd)
    if stat.S_IMODE(st.st_mode) != 0o600 or 0 < st.st_size <= 4:
        return False
    return st.st_size == 0 or int.from_bytes(os.pread(fd, 4, st.st_size - 4), "little") < _MOST_REFERENCES


def _local(path: str) -> bool:
    """Whether the file system is one that only this machine uses."""
    device = os.stat(os.path.dirname(path)).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0] in _LOCAL
    return False


def _judged_socket(file: Remain, pids: Sequence[int]) -> Remain:
    """A socket that has a file: a connection is refused only if no process has it open, whatever its user or namespace."""
    if pids:
        return replace(file, owner="alive", why="open", holders=tuple(pids))
    try:
        answered = _answers(file)
    except OSError as error:
        return replace(file, why=f"no connection could be tried: {error.strerror}")
    if answered:
        return replace(file, owner="alive", why="a process that is not visible from here has it open")
    return _orphan(file, "nobody has it open: a connection is refused", True)


def _answers(file: Remain) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        _check_same(os.stat(file.path, follow_symlinks=False), file)
        try:
            probe.connect(file.path)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:  # a socket of another type answers, too
                raise
    return True


def reap(found: Sequence[Remain]) -> list[Remain]:
    """Remove the orphans of ``found`` that are safe to remove, each after another look at it, and return those that are gone now."""
    removed = []
    for file in found:
        if not file.safe:
            continue
        folder, name = os.path.split(file.path)
        with contextlib.suppress(OSError, InUse):
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if file.kind == "NCCL socket":
                    if not _answers(file):
                        _unlink(name, file, at)
                        removed.append(file)
                    continue
                with _opened(name, file, at) as fd:
                    try:
                        with lease(fd):  # from here on nobody can open it before the name is gone
                            _unlink(name, file, at)
                    except NoLease:
                        again = holders({(file.device, file.inode): file.path})
                        if again.files[file.device, file.inode] not in ([], [os.getpid()]) or again.unread or blind():
                            continue
                        _unlink(name, file, at)
                    removed.append(file)
            finally:
                os.close(at)
    return removed


def _unlink(name: str, file: Remain, folder: int) -> None:
    _check_same(os.stat(name, dir_fd=folder, follow_symlinks=False), file)
    os.unlink(name, dir_fd=folder)
