"""Network interfaces and adapters as NCCL chooses them, and names and clocks that logs depend on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from psmkit.live.machine.check import Check
from psmkit.live.machine.facts import Interface, Machine

__all__ = ["checks", "chosen"]

_AREA = "network"
_MOST = 16  # interfaces that NCCL takes
# In the order of NCCL; before the second it looks for the subnet of NCCL_COMM_ID, which depends on another host.
_TRIES = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")


def checks(machine: Machine) -> Iterator[Check]:
    yield _interfaces(machine)
    yield from _adapters(machine)
    yield _host(machine)
    yield _clock(machine)


def chosen(interfaces: Sequence[Interface], setting: str = "", family: str = "") -> list[Interface]:
    """The interfaces that NCCL takes for sockets: the first is that of its bootstrap.

    Args:
        interfaces: of this machine.
        setting: NCCL_SOCKET_IFNAME.
        family: NCCL_SOCKET_FAMILY.
    """
    usable = [(i, f) for i in interfaces if i.running and (f := _families(i, family))]
    # The kernel lists all IPv4 addresses before the first of IPv6.
    order = [i for i, f in usable if 4 in f] + [i for i, f in usable if 4 not in f]
    for form in (setting,) if len(setting) > 1 else _TRIES:
        if found := [i for i in order if _matches(i.name, form)]:
            return found[:_MOST]
    return []


def _families(interface: Interface, family: str) -> set[int]:
    found = {4} if interface.ipv4 else set[int]()
    if any(address != "::1" for address in interface.ipv6):
        found.add(6)
    return found & {"AF_INET": {4}, "AF_INET6": {6}}.get(family, {4, 6})


def _matches(name: str, form: str) -> bool:
    """``^`` excludes, ``=`` wants the whole name; otherwise a name begins with one of the list."""
    negated, form = form.startswith("^"), form.removeprefix("^")
    whole, form = form.startswith("="), form.removeprefix("=")
    names = [part.partition(":")[0] for part in form.split(",")]
    names = [part for part in names if part]
    hit = not names or any(name == part if whole else name.startswith(part) for part in names)
    return hit != negated


def _interfaces(machine: Machine) -> Check:
    name = "interfaces"
    interfaces = machine.interfaces()
    if not interfaces:
        return Check(_AREA, name, "note", "not visible")
    setting, family = machine.environ.get("NCCL_SOCKET_IFNAME", ""), machine.environ.get("NCCL_SOCKET_FAMILY", "")
    taken = chosen(interfaces, setting, family)
    there = ", ".join(f"{i.name}{'' if i.running else ' (down)'}" for i in interfaces)
    if not taken:
        if len(setting) > 1:
            why = f"NCCL finds no interface for NCCL_SOCKET_IFNAME={setting} and fails at its start"
        else:
            why = "NCCL finds no interface that runs and has an address, and fails at its start"
        return Check(_AREA, name, "error", f"of {there} none", why, "ip addr" if len(setting) <= 1 else _unset(setting))
    by = f"by NCCL_SOCKET_IFNAME={setting}" if len(setting) > 1 else "by its own order"
    seen = f"NCCL takes {', '.join(_named(i) for i in taken)} {by}; there are {there}"
    if all(i.name.startswith(("lo", "docker", "virbr")) for i in taken):
        why = "other hosts cannot reach it: jobs on one host only"
        return Check(_AREA, name, "note", seen, why, "NCCL_SOCKET_IFNAME=NAME to choose another interface")
    if len(setting) <= 1 and len(taken) > 1 and len({i.name.rstrip("0123456789") for i in taken}) > 1:
        why = f"its bootstrap uses {taken[0].name}, its sockets all of them: each must reach the other hosts"
        return Check(_AREA, name, "note", seen, why, f"NCCL_SOCKET_IFNAME={taken[0].name} if only that one does")
    return Check(_AREA, name, "ok", seen)


def _unset(setting: str) -> str:
    return f"unset NCCL_SOCKET_IFNAME, or name an interface that runs (now: {setting})"


def _named(interface: Interface) -> str:
    address = interface.ipv4 or next((a for a in interface.ipv6 if a != "::1"), "")
    return f"{interface.name} ({address})"


def _adapters(machine: Machine) -> Iterator[Check]:
    """Adapters with verbs: InfiniBand, RoCE."""
    name = "InfiniBand, RoCE"
    folder = "/sys/class/infiniband"
    ports, active = [], 0
    for device in machine.names(folder):
        for port in machine.names(f"{folder}/{device}/ports"):
            read = [machine.read(f"{folder}/{device}/ports/{port}/{part}") for part in ("state", "rate", "link_layer")]
            state = read[0].partition(":")[2].strip() or read[0] or "state not visible"
            active += state == "ACTIVE"
            ports.append(f"{device}:{port} {state}, {read[1]}, {read[2]}")
    if not ports:
        yield Check(_AREA, name, "ok", "no adapter is visible; NCCL uses sockets, or a plugin for another network")
        return
    seen = "; ".join(ports)
    verbs = [n for n in machine.names("/dev/infiniband") if n.startswith("uverbs")]
    if not verbs:
        do = "docker run --device=/dev/infiniband ..." if machine.container else "sudo modprobe ib_uverbs"
        why = "NCCL cannot open an adapter without its device, and falls back to sockets"
        yield Check(_AREA, name, "warning", f"no /dev/infiniband/uverbs*; {seen}", why, do)
    elif closed := [n for n in verbs if not machine.opens(f"/dev/infiniband/{n}")]:
        why = "this user may not open the adapter"
        yield Check(_AREA, name, "warning", f"no access to {', '.join(closed)}; {seen}", why, "ls -l /dev/infiniband")
    elif active == 0:
        yield Check(_AREA, name, "warning", seen, "no port is active: NCCL falls back to sockets", "ibstat")
    elif active < len(ports):
        why = "NCCL leaves out ports that are not active"
        yield Check(_AREA, name, "note", seen, why, "ibstat")
    else:
        yield Check(_AREA, name, "ok", seen)
    if wanted := machine.environ.get("NCCL_IB_HCA", ""):
        taken = [p.partition(" ")[0] for p in ports if _matches(p.partition(":")[0], re.sub(r":\d+", "", wanted))]
        if not taken:
            why = "no adapter has that name: NCCL falls back to sockets"
            yield Check(_AREA, "NCCL_IB_HCA", "warning", f"{wanted}, of {len(ports)} none", why, "unset NCCL_IB_HCA")


def _host(machine: Machine) -> Check:
    """NCCL takes ranks for those of one host by host name and boot id; so does psmkit by the host name in logs."""
    name = "host name"
    host = machine.read("/proc/sys/kernel/hostname") or machine.read("/etc/hostname")
    if not host:
        return Check(_AREA, name, "note", "not visible")
    if host.partition(".")[0] in ("localhost", "(none)"):
        why = "other hosts may have the same name: in merged logs their ranks look like those of one host"
        return Check(
            _AREA, name, "warning", host, why, "sudo hostnamectl set-hostname NAME, or docker run --hostname NAME ..."
        )
    if "NCCL_HOSTID" in machine.environ:
        return Check(_AREA, name, "ok", f"{host}; NCCL_HOSTID={machine.environ['NCCL_HOSTID']}")
    if not machine.read("/proc/sys/kernel/random/boot_id"):
        why = "NCCL tells hosts of one name apart by it, and takes their ranks for ranks of one host otherwise"
        return Check(
            _AREA, name, "warning", f"{host}; the boot id is not visible", why, "NCCL_HOSTID=NAME for each host"
        )
    if machine.container and re.fullmatch(r"[0-9a-f]{12}", host):
        why = "it looks generated: NCCL takes ranks in several containers of this machine for ranks of several hosts, without P2P and SHM"
        return Check(_AREA, name, "note", host, why, "NCCL_HOSTID=NAME, the same in all containers of the machine")
    return Check(_AREA, name, "ok", host)


def _clock(machine: Machine) -> Check:
    if machine.synchronised() is False:
        why = "nothing keeps this clock right, says the kernel: time stamps of several hosts may not compare"
        return Check(_AREA, "clock", "note", "not synchronised (adjtimex)", why, "timedatectl, chronyc tracking")
    seen = "synchronised, says the kernel" if machine.synchronised() else "not visible"
    return Check(_AREA, "clock", "ok", seen)
