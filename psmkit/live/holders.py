"""Which processes hold a file or a socket: open, or mapped.

A file is identified by device and inode, because another container may see it under another name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from psmkit.live import procfs

__all__ = ["Holders", "UnixSocket", "blind", "holders", "unix_sockets"]

_INITIAL_NAMESPACE = 0xEFFFFFFC  # the inode of the pid namespace of the machine itself: a constant of the kernel
_MAPPED = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A Unix socket of this network namespace. ``name`` begins with ``@`` if it is abstract; the kernel shows a NUL as ``@``, too."""

    inode: int
    name: str


@dataclass(slots=True)
class Holders:
    """Processes by what they hold, and those that could not be looked into."""

    files: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # by device and inode
    sockets: dict[int, list[int]] = field(default_factory=dict)  # by inode
    unread: list[int] = field(default_factory=list)


def holders(
    files: Mapping[tuple[int, int], str] | None = None, sockets: Iterable[int] = (), proc: str = "/proc"
) -> Holders:
    """The processes that have any of these files open or mapped, or any of these sockets open.

    Args:
        files: device and inode of each, with its name. A descriptor counts if its file has both, so that no other file is asked for its
            inode: one on a file system that does not answer would block.
        sockets: the inode of each.
        proc: where /proc is mounted.
    """
    files = files or {}
    names = {os.path.basename(name) for name in files.values()}
    found = Holders({key: [] for key in files}, {inode: [] for inode in sockets})
    for pid in sorted(procfs.processes(proc)) if found.files or found.sockets else ():
        files_of, sockets_of = set[tuple[int, int]](), set[int]()
        try:
            _mapped(f"{proc}/{pid}/maps", files_of)
            _open(f"{proc}/{pid}/fd", names, files_of, sockets_of)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError:
            found.unread.append(pid)
        for key in files_of & found.files.keys():
            found.files[key].append(pid)
        for inode in sockets_of & found.sockets.keys():
            found.sockets[inode].append(pid)
    return found


def _mapped(path: str, files: set[tuple[int, int]]) -> None:
    with open(path, errors="replace") as maps:
        for line in maps:
            if (m := _MAPPED.match(line)) and m[3] != "0":
                files.add((os.makedev(int(m[1], 16), int(m[2], 16)), int(m[3])))


def _open(path: str, names: set[str], files: set[tuple[int, int]], sockets: set[int]) -> None:
    for link in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(link.path)
            if m := _SOCKET.fullmatch(target):
                sockets.add(int(m[1]))
            elif os.path.basename(target).removesuffix(" (deleted)") in names:
                st = os.stat(link.path)  # follows the link to the file itself, whatever its name is now
                files.add((st.st_dev, st.st_ino))


def blind(proc: str = "/proc") -> str:
    """Why this process does not see all others of the machine; empty: it does."""
    namespace = procfs.pid_namespace(proc)
    if not namespace:
        return "whether processes are hidden is unknown (no /proc/self/ns/pid)"
    if namespace != _INITIAL_NAMESPACE:
        return "processes outside of this container (pid namespace) are not visible"
    with contextlib.suppress(OSError), open(f"{proc}/self/mounts") as mounts:
        for line in mounts:
            kind, options = (line.split() + [""] * 4)[2:4]
            if kind == "proc" and re.search(r"\bhidepid=(?!0|off)", options):
                return "/proc hides the processes of other users (hidepid)"
    return ""


def unix_sockets(proc: str = "/proc") -> list[UnixSocket]:
    """The named Unix sockets of this network namespace."""
    found = []
    try:
        with open(f"{proc}/net/unix", "rb") as file:
            lines = file.read().decode("utf-8", "surrogateescape").split("\n")[1:]
    except OSError:
        return []
    for line in lines:
        words = line.split(None, 7)
        if len(words) == 8 and words[6].isdecimal() and words[6] != "0":  # 0: a connection that was not accepted yet
            found.append(UnixSocket(int(words[6]), words[7]))
    return found
