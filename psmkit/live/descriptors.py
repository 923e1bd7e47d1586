"""What a file descriptor of a process is, and who holds the other end, as far as /proc shows it."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Descriptors", "Opened"]

_INODE = re.compile(r"(socket|pipe):\[(\d+)\]\Z")
_LISTEN = 10
# netlink(7), sock_diag(7)
_SOCK_DIAG, _BY_FAMILY, _DUMP, _SHOW_PEER, _PEER = 4, 20, 0x301, 4, 2


@dataclass(frozen=True, slots=True)
class Opened:
    """A descriptor in words, and the processes at its other end."""

    text: str
    peers: tuple[int, ...] = ()


@dataclass(slots=True)
class _Socket:
    local: str
    remote: str
    state: int


@dataclass(slots=True)
class Descriptors:
    """The descriptors of one process. Tables of sockets and of their holders are read once, at the first need."""

    pid: int
    _tcp: dict[str, _Socket] | None = None
    _unix: dict[str, str] | None = None
    _pairs: dict[str, str] | None = None
    _holders: dict[str, list[int]] | None = None
    _known: dict[int, Opened] = field(default_factory=dict)

    def opened(self, fd: int) -> Opened:
        """What a descriptor is; its number alone if it is closed or not ours to see."""
        if fd not in self._known:
            self._known[fd] = self._read(fd)
        return self._known[fd]

    def _read(self, fd: int) -> Opened:
        try:
            target = os.readlink(f"/proc/{self.pid}/fd/{fd}")
        except OSError:
            return Opened(f"fd {fd}")
        match = _INODE.match(target)
        if match is None:
            name = target.removeprefix("anon_inode:").strip("[]")
            return Opened(f"fd {fd} ({name})")
        kind, inode = match.groups()
        if kind == "pipe":
            others = tuple(pid for pid in self._held().get(target, ()) if pid != self.pid)
            return Opened(f"fd {fd} (pipe{_with(others)})", others)
        return self._socket(fd, inode)

    def _socket(self, fd: int, inode: str) -> Opened:
        if self._tcp is None:
            self._tcp = _read_tcp(self.pid)
        found = self._tcp.get(inode)
        if found is None:
            if self._unix is None:
                self._unix = _read_unix(self.pid)
            path = self._unix.get(inode)
            if path is None:
                return Opened(f"fd {fd} (socket)")
            holders = self._held().get(f"socket:[{self._pair(inode)}]", ())
            peers = tuple(sorted(set(holders) - {self.pid}))
            return Opened(f"fd {fd} (Unix socket{' ' * bool(path)}{path}{_with(peers)})", peers)
        if found.state == _LISTEN:
            return Opened(f"fd {fd} (TCP socket that listens at {found.local})")
        others = [i for i, s in self._tcp.items() if s.local == found.remote and s.remote == found.local]
        peers = tuple(sorted({pid for other in others for pid in self._held().get(f"socket:[{other}]", ())}))
        return Opened(f"fd {fd} (TCP socket to {found.remote}{_with(peers, self.pid)})", peers)

    def _pair(self, inode: str) -> str:
        if self._pairs is None:
            self._pairs = _read_pairs()
        return self._pairs.get(inode, "")

    def _held(self) -> dict[str, list[int]]:
        if self._holders is None:
            self._holders = _holders()
        return self._holders


def _with(pids: Iterable[int], own: int = 0) -> str:
    named = ["this process" if pid == own else f"process {pid}" for pid in pids]
    return f", {' and '.join(named[:3])} at the other end" if named else ""


def _read_tcp(pid: int) -> dict[str, _Socket]:
    """The TCP sockets of the network namespace of a process, by inode."""
    found: dict[str, _Socket] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if len(parts) > 9:
                found[parts[9]] = _Socket(_address(parts[1]), _address(parts[2]), int(parts[3], 16))
    return found


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    name = socket.inet_ntop(socket.AF_INET6, raw)
    return (
        f"{name.removeprefix('::ffff:')}:{int(port, 16)}" if name.startswith("::ffff:") else f"[{name}]:{int(port, 16)}"
    )


def _read_unix(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return {}
    return {parts[6]: parts[7] if len(parts) > 7 else "" for line in lines if len(parts := line.split(None, 7)) > 6}


def _read_pairs() -> dict[str, str]:
    """The other end of each connected Unix socket in the network namespace of psmkit, by inode: sock_diag(7) knows it, /proc does not."""
    found: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
            diag.settimeout(1.0)
            ask = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0, 0)
            diag.send(struct.pack("=IHHII", 16 + len(ask), _BY_FAMILY, _DUMP, 1, 0) + ask)
            while _take_pairs(diag.recv(1 << 17), found):
                pass
    except OSError:
        pass
    return found


def _take_pairs(data: bytes, found: dict[str, str]) -> bool:
    """Whether more follows."""
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if kind != _BY_FAMILY or size < 32:
            return False  # the end, or an error
        (inode,) = struct.unpack_from("=I", data, at + 20)
        part = at + 32
        while part + 4 <= at + size:
            length, name = struct.unpack_from("=HH", data, part)
            if name == _PEER and length == 8:
                found[str(inode)] = str(struct.unpack_from("=I", data, part + 4)[0])
            part += max(length + 3 & ~3, 4)
        at += size + 3 & ~3
    return True


def _holders() -> dict[str, list[int]]:
    """The processes that hold each socket and pipe: those of this user, or all for root."""
    held: dict[str, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            links = list(os.scandir(f"/proc/{name}/fd"))
        except OSError:
            continue
        for link in links:
            try:
                target = os.readlink(link.path)
            except OSError:
                continue
            if target.startswith(("socket:", "pipe:")):
                mine = held.setdefault(target, [])
                if int(name) not in mine:
                    mine.append(int(name))
    return held
