"""Whether a process may be looked into, and what to do where it may not."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from psmkit.live.mapped import read_elf
from psmkit.model.errors import PsmkitError

__all__ = ["Refused", "check", "remedy_of_denial", "status_of", "tracer_of"]

_CAP_SYS_PTRACE = 19
_KTHREAD = 0x00200000  # PF_KTHREAD


class Refused(PsmkitError):  # noqa: N818 - the name says what happened
    """A process that cannot be inspected.

    Attributes:
        pid: the process.
        reason: what was seen.
        remedy: what to do.
    """

    def __init__(self, pid: int, reason: str, remedy: str) -> None:
        super().__init__(f"process {pid}: {reason}: {remedy}")
        self.pid, self.reason, self.remedy = pid, reason, remedy


def status_of(pid: int, proc: Path = Path("/proc")) -> Mapping[str, str]:
    """The fields of /proc/PID/status; empty: the process is gone."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def tracer_of(pid: int, proc: Path = Path("/proc")) -> int:
    """The process that traces a process, 0 if none does."""
    text = status_of(pid, proc).get("TracerPid", "0")
    return int(text) if text.isdecimal() else 0


def check(pid: int, proc: Path = Path("/proc")) -> None:
    """Find out whether a process may be traced; ``proc`` is where /proc is mounted.

    Raises:
        Refused: it may not; the text is one line with the remedy.
    """
    status = status_of(pid, proc)
    if not status:
        raise Refused(pid, *_missing(pid, proc))
    if status.get("State", "").startswith(("Z", "X")):
        raise Refused(pid, "it has ended, and its parent has not waited for it", "look at its log, or at its parent")
    if status.get("Tgid") not in (None, str(pid)):
        raise Refused(pid, f"this is a thread of process {status['Tgid']}", f"psmkit inspect {status['Tgid']}")
    if _is_kernel_thread(pid, proc):
        raise Refused(pid, "it is a thread of the kernel", "name a process of the job")
    capable = _capable(proc)
    owner = status.get("Uid", "").split()
    if not capable and owner and owner[0] != str(os.getuid()):
        raise Refused(pid, f"it belongs to {_user(int(owner[0]))}", f"run psmkit as that user, or {_more(proc)}")
    elf = read_elf(proc / str(pid) / "exe")
    if elf is not None and elf.bits == 32:
        raise Refused(pid, "it is a 32-bit program, and NCCL is 64-bit", "name a process of the job")
    tracer = status.get("TracerPid", "0")
    if tracer != "0":
        name = status_of(int(tracer), proc).get("Name", "another program")
        raise Refused(pid, f"{name} ({tracer}) traces it, and a process has one tracer at most", f"end {name} first")
    if not capable:
        _check_yama(pid, proc)
    try:
        (proc / str(pid) / "maps").read_bytes()
    except PermissionError:
        raise Refused(pid, *_forbidden(proc)) from None
    except OSError:
        raise Refused(pid, *_missing(pid, proc)) from None


def _missing(pid: int, proc: Path) -> tuple[str, str]:
    """Why there is no process of that number: it ended, or the number is of another pid namespace."""
    for entry in _pids(proc):
        inside = status_of(entry, proc).get("NSpid", "").split()
        if len(inside) > 1 and str(pid) in inside[1:]:
            return f"that is its number in a container; here it is {entry}", f"psmkit inspect {entry}"
    hidden = "if it runs in a container, take its number from outside (pgrep), or run psmkit inside"
    return "there is no such process", f"it has ended; {hidden}"


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError:
        return []


def _is_kernel_thread(pid: int, proc: Path) -> bool:
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return len(fields) > 6 and fields[6].isdecimal() and bool(int(fields[6]) & _KTHREAD)


def _capable(proc: Path) -> bool:
    """Whether this process has CAP_SYS_PTRACE."""
    try:
        text = status_of(os.getpid(), proc).get("CapEff", "0")
        return bool(int(text, 16) >> _CAP_SYS_PTRACE & 1)
    except ValueError:
        return False


def _check_yama(pid: int, proc: Path) -> None:
    scope = _scope(proc)
    if scope == 2:
        raise Refused(pid, "kernel.yama.ptrace_scope is 2: only CAP_SYS_PTRACE may trace", _more(proc))
    if scope == 3:
        raise Refused(
            pid, "kernel.yama.ptrace_scope is 3: nobody may trace until the next boot", "reboot with a lower one"
        )


def _scope(proc: Path) -> int:
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def remedy_of_denial(proc: Path = Path("/proc")) -> str:
    """What to do when the kernel did not let a tool attach. Yama's scope 1 allows descendants, and processes that allowed it by
    prctl(PR_SET_PTRACER), which /proc does not show: so it is known only afterwards."""
    if _scope(proc) == 1 and not _capable(proc):
        return f"kernel.yama.ptrace_scope is 1: {_more(proc)}, or allow it: sysctl kernel.yama.ptrace_scope=0"
    return _forbidden(proc)[1]


def _forbidden(proc: Path) -> tuple[str, str]:
    """The kernel does not say why: what remains by the rights of this process."""
    if _capable(proc):
        return (
            "the kernel forbids to trace it, although psmkit has CAP_SYS_PTRACE: perhaps it is of another user namespace, or a security module "
            "(AppArmor, SELinux, Landlock) protects it",
            "run psmkit outside of this container or sandbox, as root of the machine",
        )
    if _is_root(proc):
        return "the kernel forbids to trace it, as root lacks CAP_SYS_PTRACE here", _more(proc)
    return (
        "the kernel forbids to trace it (it changed its user, is not dumpable, or this container lacks CAP_SYS_PTRACE)",
        f"{_more(proc)}, or start the container with --cap-add=SYS_PTRACE",
    )


def _is_root(proc: Path) -> bool:
    return status_of(os.getpid(), proc).get("Uid", "").split()[1:2] == ["0"]


def _more(proc: Path) -> str:
    """How to get the right to trace. For root sudo changes nothing."""
    if _is_root(proc):
        return "start the container with --cap-add=SYS_PTRACE, which root lacks here"
    return "run psmkit by sudo"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
