"""The settings of NCCL and psmkit: variables and files, unknown names, and settings that contradict each other."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from psmkit.live.machine.check import Check
from psmkit.live.machine.facts import Machine
from psmkit.live.machine.values import number, trouble
from psmkit.model.wording import counted

__all__ = ["checks", "known_since", "settings", "variables"]

_AREA = "settings"
_FILES = (
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_CONF_FILE",
    "NCCL_TUNER_CONFIG_FILE",
    "PSM_TUNER_CONFIG",
    "PSM_TOPOLOGY",
)
_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
_OURS = ("NCCL_", "PSM_", "RCCL_")
_NEAR = 0.88


@functools.cache
def variables() -> dict[str, Any]:
    """The facts: ``psm``, ``others``, ``nccl``: name -> first and last release ("": the newest of ``releases``), and "number" if it is one."""
    return tomllib.loads((resources.files(__package__) / "variables.toml").read_text())


def known_since(name: str) -> tuple[str, str] | None:
    """The first and the last release of NCCL that reads a variable; "": the newest. None: no release does."""
    found = variables()["nccl"].get(name)
    return None if found is None else (found[0], found[1])


def settings(machine: Machine) -> dict[str, tuple[str, str]]:
    """The variables that NCCL sees, with what sets them: the environment wins, then the user's file, then /etc/nccl.conf."""
    found = {name: (value, "environment") for name, value in machine.environ.items() if name.startswith(_OURS)}
    for file in files(machine):
        for name, value in _read(machine, file).items():
            if name.startswith(_OURS):
                found.setdefault(name, (value, file))
    return dict(sorted(found.items()))


def files(machine: Machine) -> list[str]:
    """The files of settings that NCCL reads, if they exist."""
    home = machine.environ.get("HOME", "")
    own = machine.environ.get("NCCL_CONF_FILE", "") or (f"{home}/.nccl.conf" if home else "")
    return [name for name in (own, "/etc/nccl.conf") if name and machine.exists(name)]


def _read(machine: Machine, file: str) -> dict[str, str]:
    """As NCCL reads it: lines NAME=VALUE, each kept to the last character; the first of a name counts."""
    found: dict[str, str] = {}
    for line in machine.read(file).splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, value)
    return found


def checks(machine: Machine) -> Iterator[Check]:
    found = settings(machine)
    values = {name: value for name, (value, _) in found.items()}
    yield _listed(found)
    for file in files(machine):
        yield from _file(machine, file)
    for name, (value, where) in found.items():
        yield from _name(name, where)
        if value != value.strip() or (value[:1] in "\"'" and value[:1] == value[-1:] and len(value) > 1):
            why = "the white space or the quotes are part of the value"
            plain = value.strip(" \"'")
            yield Check(_AREA, name, "warning", f"{value!r} ({where})", why, f"export {name}={plain}")
        elif value and (wrong := trouble(name, value, is_number="number" in variables()["nccl"].get(name, ()))):
            yield Check(_AREA, name, "warning", f"{value} ({where})", *wrong)
    yield from _contradictions(machine, values)


def _listed(found: Mapping[str, tuple[str, str]]) -> Check:
    if not found:
        return Check(_AREA, "variables", "ok", "no NCCL_ or PSM_ variable is set")
    seen = ", ".join(f"{n}={v}" + ("" if w == "environment" else f" ({w})") for n, (v, w) in found.items())
    return Check(_AREA, "variables", "ok", seen)


def _file(machine: Machine, file: str) -> Iterator[Check]:
    there = _read(machine, file)
    beaten = [n for n, v in there.items() if machine.environ.get(n, v) != v]
    if beaten:
        why = f"the environment wins: {', '.join(f'{n}={machine.environ[n]}' for n in beaten)}"
        yield Check(_AREA, file, "note", f"{', '.join(f'{n}={there[n]}' for n in beaten)}", why)
    odd = [n for n in there if n != n.strip() or not n.startswith(_OURS)]
    if odd:
        why = "NCCL takes a name with its white space, and only what begins with NCCL_ is its own"
        yield Check(_AREA, file, "note", ", ".join(repr(n) for n in odd), why)
    if not (beaten or odd):
        yield Check(_AREA, file, "ok", counted(len(there), "setting"))


def _name(name: str, where: str) -> Iterator[Check]:
    """A name that nobody reads."""
    facts = variables()
    if name.startswith("PSM_"):
        if name not in facts["psm"]:
            near = difflib.get_close_matches(name, facts["psm"], 1, _NEAR)
            why = f"psmkit reads no such variable{f'; did you mean {near[0]}?' if near else ''}"
            yield Check(
                _AREA, name, "warning" if near else "note", f"unknown ({where})", why, f"unset {name}" if near else ""
            )
        return
    if not name.startswith("NCCL_") or name in facts["nccl"]:
        return
    near = difflib.get_close_matches(name, facts["nccl"], 1, _NEAR)
    who = next((o["who"] for o in facts["others"] if re.fullmatch(o["pattern"], name)), "")
    if near and not who.startswith(("PyTorch", "builds", "forks", "releases")):
        why = f"no release of NCCL reads it; did you mean {near[0]}?"
        yield Check(_AREA, name, "warning", f"unknown ({where})", why, f"unset {name}")
    elif who:
        yield Check(_AREA, name, "ok", f"not NCCL's: of {who}")
    else:
        why = f"no release of NCCL from 2.8 to {facts['releases']['newest']} reads it; a plugin, a fork or a newer release may"
        yield Check(_AREA, name, "note", f"unknown ({where})", why)


def _contradictions(machine: Machine, values: Mapping[str, str]) -> Iterator[Check]:
    level = values.get("NCCL_DEBUG", "").strip(" \"'")  # another check reports quotes
    idle = [n for n in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE") if values.get(n)]
    if idle and level.upper() not in ("INFO", "TRACE", "ABORT"):
        what = "warnings only" if level.upper() == "WARN" else "nothing"
        why = f"NCCL logs {what} while NCCL_DEBUG is {level or 'not set'}"
        yield Check(_AREA, idle[0], "warning", values[idle[0]], why, "export NCCL_DEBUG=INFO")
    file = values.get("NCCL_DEBUG_FILE", "")
    if file and "%p" not in file and not file.startswith("/dev/"):
        why = "all processes write into one file, over each other; %h is the host, %p the process"
        yield Check(_AREA, "NCCL_DEBUG_FILE", "warning", file, why, f"export NCCL_DEBUG_FILE={file}.%h.%p")
    off = [name for name in _SWITCHES if number(values.get(name, ""))]
    if {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"} <= set(off):
        why = "ranks of one host then reach each other through the network only"
        yield Check(_AREA, "NCCL_P2P_DISABLE", "warning", "set with NCCL_SHM_DISABLE", why, "unset NCCL_SHM_DISABLE")
    if "NCCL_IB_DISABLE" in off:
        if values.get("NCCL_NET", "").upper() == "IB":
            why = "NCCL finds no network with these two and fails"
            yield Check(_AREA, "NCCL_IB_DISABLE", "warning", "set with NCCL_NET=IB", why, "unset NCCL_IB_DISABLE")
        elif machine.names("/sys/class/infiniband"):
            why = "the machine has adapters for InfiniBand or RoCE, and NCCL does not use them"
            yield Check(_AREA, "NCCL_IB_DISABLE", "warning", values["NCCL_IB_DISABLE"], why, "unset NCCL_IB_DISABLE")
    for name in _FILES:
        if (path := values.get(name, "")) and path.startswith("/") and not machine.exists(path):
            yield Check(_AREA, name, "warning", f"{path}: no such file", "the setting has no effect", f"ls -l {path}")
