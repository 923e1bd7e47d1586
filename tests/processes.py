"""What the kernel says of a process and of this boot."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
