"""Whether processes can be looked into: debuggers, and what the kernel allows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from psmkit.live.machine.check import Check
from psmkit.live.machine.facts import Machine

__all__ = ["checks", "install"]

_AREA = "debugging"
_MANAGERS = (
    (("debian", "ubuntu"), "apt-get install"),
    (("fedora", "rhel", "centos", "rocky", "almalinux", "amzn"), "dnf install"),
    (("suse", "sles", "opensuse"), "zypper install"),
    (("alpine",), "apk add"),
    (("arch",), "pacman -S"),
)
_ALL_USERS = ["0", "0", "4294967295"]  # the map of the machine's own user namespace
_INSPECT = "psmkit looks into processes that hang"


def install(machine: Machine, package: str) -> str:
    """The command that installs a package of the system."""
    release = machine.read("/etc/os-release")
    ids = set(" ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', release, re.MULTILINE)).split())
    how = next((command for names, command in _MANAGERS if ids & set(names)), "apt-get install")
    return f"{how} {package}" if machine.is_root else f"sudo {how} {package}"


def checks(machine: Machine) -> Iterator[Check]:
    yield from _programs(machine)
    yield _tracing(machine)
    if machine.container:
        seen = f"{machine.container}{'' if machine.sees_less else ', though the pid namespace is that of the machine'}"
        why = "what the machine and its other containers run, have open or limit may not be visible from here"
        yield Check(_AREA, "container", "note", seen, why)
    else:
        yield Check(_AREA, "container", "ok", "nothing shows one")


def _programs(machine: Machine) -> Iterator[Check]:
    gdb = machine.program("gdb")
    if gdb:
        yield Check(_AREA, "gdb", "ok", _version(machine.says(gdb, "--version"), gdb))
    else:
        why = f"{_INSPECT} by the stacks that gdb takes"
        yield Check(_AREA, "gdb", "warning", "not on the PATH", why, install(machine, "gdb"))
    if stack := machine.program("eu-stack"):
        yield Check(_AREA, "eu-stack", "ok", _version(machine.says(stack, "--version"), stack))
    else:
        why = "takes native stacks where there is no gdb, and stops a process for a shorter time"
        yield Check(_AREA, "eu-stack", "note", "not on the PATH", why, install(machine, "elfutils"))
    spy = machine.program("py-spy")
    if spy or (version := machine.package("py-spy")):
        yield Check(_AREA, "py-spy", "ok", _version(machine.says(spy, "--version"), spy) if spy else version)
    else:
        why = "shows which line of Python each thread executes"
        yield Check(_AREA, "py-spy", "note", "not on the PATH", why, "pip install py-spy")
    if version := machine.package("drgn"):
        yield Check(_AREA, "drgn", "ok", version)
    else:
        why = "reads NCCL's state out of the memory of a process, without stopping it"
        yield Check(_AREA, "drgn", "note", "not installed in this Python", why, "pip install drgn")


def _version(said: str, path: str) -> str:
    found = re.search(r"\d+(?:\.\d+)+\S*$|\d+(?:\.\d+)+", said)
    return f"{found[0]} ({path})" if found else path


def _tracing(machine: Machine) -> Check:
    """What the kernel allows a debugger."""
    name = "permission to trace"
    scope = machine.read("/proc/sys/kernel/yama/ptrace_scope")
    capable = "has CAP_SYS_PTRACE" if machine.may_trace else "no CAP_SYS_PTRACE"
    yama = f"ptrace_scope {scope}" if scope else "no Yama"
    seen = f"{yama}, {capable}"
    inside = "docker run --cap-add SYS_PTRACE ... (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
    refused = machine.tracing()
    if refused:
        why = f"the kernel refuses to trace even a child of this process, so {_INSPECT} in vain"
        do = inside if machine.container else "look for a seccomp filter or a security module: dmesg | tail"
        return Check(_AREA, name, "warning", f"{refused}; {seen}", why, do)
    if scope == "3":
        why = "no process may be traced by anyone, until the machine is restarted with another value"
        return Check(_AREA, name, "warning", seen, why, "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d, and restart")
    if machine.may_trace:
        where = "" if machine.read("/proc/self/uid_map").split() == _ALL_USERS else " of this user namespace"
        what = f"processes of other users{where}, too, unless a security module protects one, which is not visible"
        return Check(_AREA, name, "ok", f"{seen}: {what}")
    if scope in ("1", "2"):
        whom = "only children of the debugger may be traced" if scope == "1" else "only CAP_SYS_PTRACE may trace"
        do = inside if machine.container else "sudo sysctl kernel.yama.ptrace_scope=0"
        why = f"{whom}: {_INSPECT} that it did not start"
        return Check(_AREA, name, "warning", seen, why, do)
    if machine.container and machine.status.get("Seccomp") == "2" and refused is None:
        why = "the container has a seccomp filter, which may forbid ptrace"
        return Check(_AREA, name, "warning", seen, why, inside)
    return Check(_AREA, name, "ok", f"{seen}: your own processes")
