"""Machines that are made up: a folder with a /proc, a /sys, a /dev and an /etc."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from psmkit.live.machine import Check, Interface, Machine
from psmkit.live.machine.facts import Space

GIB = 1 << 30
INITIAL = 0xEFFFFFFC
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max core file size        {core:<20} unlimited            bytes
Max processes             {nproc:<20} {nproc:<20} processes
Max open files            {nofile:<20} {nofile:<20} files
Max locked memory         {memlock:<20} {memlock:<20} bytes
"""


class MadeUp(Machine):
    """A machine in a folder. The running kernel is not asked; what it would say is given."""

    ports: tuple[Interface, ...] = (
        Interface("lo", True, "127.0.0.1", ("::1",)),
        Interface("eth0", True, "10.0.0.5", ("fe80::1",)),
    )
    room: Space | None = None
    refused: str | None = None

    def interfaces(self) -> list[Interface]:
        return list(self.ports)

    def space(self, folder: str) -> Space | None:
        return self.room or super().space(folder)

    def tracing(self) -> str | None:
        return self.refused


def machine(
    root: Path, files: Mapping[str, str | bytes | None] | None = None, environ: Mapping[str, str] | None = None
) -> MadeUp:
    """A bare machine with a debugger, without a GPU, to which files are added; None removes one."""
    limits = LIMITS.format(core="unlimited", nproc=96000, nofile=1048576, memlock="unlimited")
    every: dict[str, str | bytes | None] = {
        "/proc/self/status": "Name:\tpsmkit\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nSeccomp:\t0\n",
        "/proc/self/limits": limits,
        "/proc/self/mounts": "proc /proc proc rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev,size=33554432k 0 0\n",
        "/proc/sys/kernel/yama/ptrace_scope": "0\n",
        "/proc/sys/kernel/core_pattern": "core.%p\n",
        "/proc/sys/kernel/hostname": "node7\n",
        "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "/proc/sys/kernel/random/boot_id": "0a1b2c3d-0000-4000-8000-000000000000\n",
        "/proc/meminfo": "MemTotal: 1000 kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/dev/shm/.keep": "",
        "/etc/os-release": 'ID=ubuntu\nID_LIKE="debian"\n',
        "/usr/bin/gdb": "",
        **(files or {}),
    }
    for name, content in every.items():
        if content is None:
            continue
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return MadeUp(root, {"PATH": "/usr/bin", "HOME": "/home/me", **(environ or {})}, [root / "python"])


def cache(entries: Mapping[str, str]) -> bytes:
    """The file /etc/ld.so.cache."""
    head = 48 + 24 * len(entries)
    texts, rows = b"", b""
    for name, path in entries.items():
        rows += struct.pack("=i2IIQ", 0x303, head + len(texts), head + len(texts) + len(name) + 1, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    return struct.pack("=20s2I20x", b"glibc-ld.so.cache1.1", len(entries), len(texts)) + rows + texts


def nccl(version: str) -> bytes:
    """What stands for a NCCL library: the text with its version."""
    return (
        b"\x7fELF" + bytes(100) + b"\nNCCL version %d.%d" + bytes(20) + f"NCCL version {version}\0".encode() + bytes(50)
    )


def of(found: list[Check], name: str) -> Check:
    """The one check of this name."""
    (only,) = [c for c in found if c.name == name]
    return only


def bad(found: list[Check]) -> dict[str, str]:
    """Warnings and errors by name."""
    return {c.name: c.level for c in found if c.level in ("warning", "error")}
