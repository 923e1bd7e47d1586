"""Shared memory, limits, core files, huge pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

from psmkit.live.machine.check import Check, Level
from psmkit.live.machine.facts import Machine, Space
from psmkit.model.wording import counted

__all__ = ["checks", "ranks_per_node"]

_AREA = "memory"
_MIB = 1 << 20
# Measured: a process that sends over the network or copies by its proxy makes one file for the proxy's operations (NCCL 2.26; 7 MiB in
# 2.21). A connection of the SHM transport has a buffer for each protocol and channel at the receiver, with a peer in a ring and a tree of 2
# channels 4 a rank. NCCL removes the names once all have attached, but the memory stays until the processes end.
_POOL = 37_749_124
_BUFFER = 9_637_892
_BUFFERS = 4
_LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def ranks_per_node(machine: Machine, asked: int = 0) -> tuple[int, str]:
    """How many ranks a job has on this machine, and what says so."""
    if asked:
        return asked, "--ranks"
    for name in _LOCAL:
        if (value := machine.environ.get(name, "")).isdecimal() and 0 < int(value) <= 1024:
            return int(value), f"{name}={value}"
    from psmkit.live.machine.gpus import devices

    if n := len(devices(machine)):
        return n, f"{counted(n, 'GPU')} in /dev"
    return 2, "assumed, as no GPU is visible; --ranks N says it"


def checks(machine: Machine, ranks: int = 0) -> Iterator[Check]:
    yield _shared(machine, *ranks_per_node(machine, ranks))
    yield from _limits(machine)
    yield _core(machine)
    yield _huge(machine)


def _shared(machine: Machine, ranks: int, source: str) -> Check:
    name = "/dev/shm"
    need = ranks * (_POOL + (_BUFFERS * _BUFFER if ranks > 1 else 0))
    if not os.path.isdir(machine.path(name)):
        why = "NCCL asks for it at the start of each communicator, and fails without it"
        return Check(_AREA, name, "error", "no such folder", why, _mounted(need))
    mount, space = machine.mount(name), machine.space(name)
    kind = mount.kind if mount else "not a mount of its own"
    if space is None:
        return Check(_AREA, name, "note", f"{kind}; its size is not visible", "it must hold NCCL's shared memory")
    seen = f"{kind}, {_mib(space.size)}{_left(space)}"
    facts = (
        f"{counted(ranks, 'rank')} ({source}) may need {_mib(need)}: each 36 MiB for the proxy's operations and {_BUFFERS} x 9.2 MiB for "
        "connections over shared memory, as measured with 2 channels and without P2P"
    )
    if space.size < need:
        return Check(_AREA, name, "warning", seen, f"{facts}; more with more channels", _larger(machine, need))
    if space.free is not None and space.free < need:
        return Check(_AREA, name, "warning", seen, f"{facts}, and that is not free", "psmkit segments --reap")
    if space.inodes and space.free_inodes < 64 * ranks:
        return Check(_AREA, name, "warning", seen, "it has no room for more files", "psmkit segments --reap")
    if kind not in ("tmpfs", "ramfs"):
        why = "NCCL's shared memory is then pages of files that are written to a disk"
        return Check(_AREA, name, "warning", seen, why, _mounted(need))
    return Check(_AREA, name, "ok", f"{seen}; {counted(ranks, 'rank')} may need {_mib(need)} ({source})")


def _gib(need: int, least: int) -> int:
    """A size that holds the need and leaves a quarter for more channels, in whole GiB."""
    return max(least, -(-need * 5 // 4 // (1 << 30)))


def _mounted(need: int) -> str:
    return f"mount -t tmpfs -o size={_gib(need, 8)}g tmpfs /dev/shm"


def _larger(machine: Machine, need: int) -> str:
    if machine.container:
        return f"docker run --shm-size={_gib(need, 4)}g ... (Kubernetes: an emptyDir with medium: Memory at /dev/shm)"
    return f"sudo mount -o remount,size={_gib(need, 8)}g /dev/shm"


def _left(space: Space) -> str:
    free = "" if space.free is None else f", {_mib(space.free)} free"
    return f"{free}, {space.free_inodes:,} of {space.inodes:,} inodes free" if space.inodes else free


def _mib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / _MIB:.0f} MiB"


def _limits(machine: Machine) -> Iterator[Check]:
    limits = machine.limits()
    for key, name, least, why, option in (
        ("Max locked memory", "ulimit -l", 1 << 30, "IB registers buffers by locking them in memory", "memlock=-1"),
        ("Max open files", "ulimit -n", 4096, "each connection of NCCL takes sockets and descriptors", "nofile=65536"),
        ("Max processes", "ulimit -u", 4096, "each rank starts several threads, and threads count", "nproc=65536"),
    ):
        if key not in limits:
            yield Check(_AREA, name, "note", "not visible")
            continue
        soft, hard = limits[key]
        seen = _limit(key, soft) if soft == hard else f"{_limit(key, soft)} (hard limit {_limit(key, hard)})"
        if soft is None or soft >= least:
            yield Check(_AREA, name, "ok", seen)
            continue
        # Without IB devices nothing needs locked memory. A soft limit can be raised by whoever starts the job.
        needless = key == "Max locked memory" and not machine.names("/sys/class/infiniband")
        level: Level = (
            "note" if needless or (key != "Max locked memory" and (hard is None or hard >= least)) else "warning"
        )
        value = "unlimited" if option.endswith("-1") else option.partition("=")[2]
        enough = hard is None or (value != "unlimited" and hard >= int(value))
        do = f"{name} {value}" if enough else f"docker run --ulimit {option} ..."
        if not enough and not machine.container:
            do = f"raise {option.partition('=')[0]} in /etc/security/limits.conf (of a service: Limit{option.partition('=')[0].upper()})"
        yield Check(_AREA, name, level, seen, why, do)


def _limit(key: str, value: int | None) -> str:
    if value is None:
        return "unlimited"
    return f"{value // 1024:,} KiB" if "memory" in key else f"{value:,}"


def _core(machine: Machine) -> Check:
    pattern = machine.read("/proc/sys/kernel/core_pattern")
    soft, _ = machine.limits().get("Max core file size", (None, None))
    if not pattern:
        return Check(_AREA, "core files", "note", "core_pattern is not visible")
    where = (
        f"piped to {(pattern[1:].split() or ['nothing'])[0]}" if pattern.startswith("|") else f"written to {pattern}"
    )
    if pattern.startswith("|") and machine.container:
        where += ", which runs outside of this container"
    if soft == 0 and not pattern.startswith("|"):  # a program gets a core whatever the limit is
        why = "a rank that crashes leaves no core file, whose stacks would say where"
        return Check(_AREA, "core files", "note", f"off (ulimit -c 0); else {where}", why, "ulimit -c unlimited")
    return Check(_AREA, "core files", "ok", where)


def _huge(machine: Machine) -> Check:
    """Of interest to some net plugins only: NCCL itself needs none."""
    facts = {}
    for line in machine.read("/proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        facts[key] = value.strip()
    total, size = facts.get("HugePages_Total"), facts.get("Hugepagesize", "?")
    setting = machine.read("/sys/kernel/mm/transparent_hugepage/enabled")
    transparent = setting.partition("[")[2].partition("]")[0] or "not visible"
    reserved = f"{total} of {size} reserved" if total else "not visible"
    return Check(_AREA, "huge pages", "ok", f"{reserved}; transparent: {transparent}")
