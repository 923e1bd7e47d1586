"""Facts about NCCL's plugin ABIs: tables, their slots, and the releases that look for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = [
    "KINDS",
    "Slot",
    "Table",
    "facts",
    "family",
    "nccl_releases",
    "release_number",
    "spoken",
    "symbols_of",
    "table_of",
    "tables",
]

# In reading order. CollNet tables are in the library of a net plugin.
KINDS = ("net", "collnet", "tuner", "profiler", "env", "gin", "rma")


@dataclass(frozen=True, slots=True)
class Slot:
    """A member of a table. ``when`` says when NCCL needs a member that may otherwise be empty."""

    name: str
    offset: int
    required: bool
    when: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that some release looks for. If only its name is known, ``size`` is 0 and ``slots`` is empty."""

    kind: str
    version: int
    symbol: str
    size: int
    slots: tuple[Slot, ...]
    first: str | None  # releases that look for it; None: no known release
    last: str | None
    dropped: str | None
    coming: bool = False  # NCCL's development branch looks for it


@cache
def facts() -> dict[str, Any]:
    """The facts from abi.json."""
    loaded: dict[str, Any] = json.loads(resources.files("psmkit.plugins").joinpath("abi.json").read_text("utf-8"))
    return loaded


def _slots(kind: str, version: int, struct: dict[str, Any]) -> tuple[Slot, ...]:
    # Slots that NCCL checks before it calls them, or calls only if the plugin announced them. All others are required.
    early = facts()["optional_until"].get(kind, {})  # up to a version: NCCL's own proxy took their place
    lenient = {
        **facts()["optional"][kind],
        **{name: "needed if netDeviceType is NCCL_NET_DEVICE_GIN_GDAKI" for name in early if version <= early[name]},
    }
    return tuple(
        Slot(name, offset, name not in lenient, lenient.get(name, "")) for name, offset, *_ in struct["members"]
    )


@cache
def tables() -> tuple[Table, ...]:
    """All known tables by kind, newest version first."""
    known = facts()
    found = []
    for kind in KINDS:
        for version, entry in known["tables"][kind].items():
            struct = known["structs"].get(entry["struct"]) if entry["struct"] else None
            looked = [at for at, release in enumerate(nccl_releases()) if entry["symbol"] in symbols_of(release)]
            names = [*nccl_releases(), None]
            found.append(
                Table(
                    kind,
                    int(version),
                    entry["symbol"],
                    struct["size"] if struct else 0,
                    _slots(kind, int(version), struct) if struct else (),
                    names[looked[0]] if looked else None,
                    names[looked[-1]] if looked else None,
                    names[looked[-1] + 1] if looked else None,
                    entry.get("coming", False),
                )
            )
    return tuple(sorted(found, key=lambda table: (KINDS.index(table.kind), -table.version)))


@cache
def spoken(kind: str) -> tuple[int, ...]:
    """The versions that psmkit's own plugins and drivers speak, newest first: those of which the layout is known."""
    oldest = facts()["oldest"].get(kind, 0)
    return tuple(table.version for table in tables() if table.kind == kind and table.size and table.version >= oldest)


@cache
def _by_symbol() -> dict[str, Table]:
    return {table.symbol: table for table in tables()}


def table_of(symbol: str) -> Table | None:
    """The table of a symbol."""
    return _by_symbol().get(symbol)


def family(kind: str, symbol: str) -> bool:
    """Whether a symbol has the name of a table of this kind, in any version."""
    stem = {table.symbol.rpartition("_v")[0] for table in tables() if table.kind == kind}
    name, _, version = symbol.rpartition("_v")
    return name in stem and version.isdigit()


def release_number(release: str) -> tuple[int, ...]:
    """A release of NCCL, for comparisons."""
    return tuple(int(part) for part in release.split("."))


@cache
def nccl_releases() -> tuple[str, ...]:
    """The releases of NCCL whose symbols are known, oldest first."""
    return tuple(sorted(facts()["lookups"], key=release_number))


def symbols_of(release: str) -> frozenset[str]:
    """The symbols that a known release of NCCL looks for."""
    return frozenset(facts()["lookups"][release])
