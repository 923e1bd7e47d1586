"""The facts about NCCL's plugin ABIs: tables, their slots, and which release looks for which."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["KINDS", "Slot", "Table", "facts", "family", "nccl_releases", "symbols_of", "table_of", "tables"]

# In the order in which a reader wants them. CollNet tables live in the library of a net plugin.
KINDS = ("net", "collnet", "tuner", "profiler", "env", "gin", "rma")

# What NCCL checks before it calls, or calls only for what a plugin said that it has. All else must be there.
_MAY_BE_EMPTY: dict[str, dict[str, str]] = {
    "net": {
        "regMrDmaBuf": "needed where ptrSupport has NCCL_PTR_DMABUF",
        "iflush": "needed where ptrSupport has NCCL_PTR_CUDA",
        "flush": "needed where ptrSupport has NCCL_PTR_CUDA",
        "getDeviceMr": "needed where netDeviceType is NCCL_NET_DEVICE_UNPACK",
        "irecvConsumed": "needed where netDeviceType is NCCL_NET_DEVICE_UNPACK",
        "makeVDevice": "needed to merge devices",
        "setNetAttr": "",
    },
    "collnet": {
        "regMrDmaBuf": "needed where ptrSupport has NCCL_PTR_DMABUF",
        "iflush": "needed where ptrSupport has NCCL_PTR_CUDA",
        "flush": "needed where ptrSupport has NCCL_PTR_CUDA",
        "iallgather": "AllGather then goes another way",
        "ireducescatter": "ReduceScatter then goes another way",
        "makeVDevice": "needed to merge devices",
    },
    "tuner": {"getChunkSize": ""},
    "profiler": {},
    "env": {"finalize": "the library then stays loaded"},
    "gin": {
        "regMrSymDmaBuf": "needed where ptrSupport has NCCL_PTR_DMABUF",
        **dict.fromkeys(
            ("iput", "iputSignal", "iget", "iflush", "test", "ginProgress"),
            "needed where netDeviceType is NCCL_NET_DEVICE_GIN_PROXY",
        ),
    },
    "rma": {
        "regMrSymDmaBuf": "needed where ptrSupport has NCCL_PTR_DMABUF",
        "rmaProgress": "",
        "ginProgress": "",
    },
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A member of a table. ``when`` says for what NCCL needs one that may be empty."""

    name: str
    offset: int
    required: bool
    when: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that some release looks for. ``size`` is 0, and ``slots`` empty, where only its name is known."""

    kind: str
    version: int
    symbol: str
    size: int
    slots: tuple[Slot, ...]
    first: str | None  # releases that look for it; None: none that is known
    last: str | None
    dropped: str | None


@cache
def facts() -> dict[str, Any]:
    """The facts as they are in abi.json."""
    loaded: dict[str, Any] = json.loads(resources.files("psmkit.plugins").joinpath("abi.json").read_text("utf-8"))
    return loaded


def _slots(kind: str, struct: dict[str, Any]) -> tuple[Slot, ...]:
    lenient = _MAY_BE_EMPTY[kind]
    return tuple(
        Slot(name, offset, name not in lenient, lenient.get(name, "")) for name, offset, *_ in struct["members"]
    )


@cache
def tables() -> tuple[Table, ...]:
    """All tables that are known, by kind, the newest version first."""
    known = facts()
    found = []
    for kind in KINDS:
        for version, entry in known["tables"][kind].items():
            struct = known["structs"].get(entry["struct"]) if entry["struct"] else None
            first, last = entry["releases"]
            found.append(
                Table(
                    kind,
                    int(version),
                    entry["symbol"],
                    struct["size"] if struct else 0,
                    _slots(kind, struct) if struct else (),
                    first,
                    last,
                    entry["dropped"],
                )
            )
    return tuple(sorted(found, key=lambda table: (KINDS.index(table.kind), -table.version)))


@cache
def _by_symbol() -> dict[str, Table]:
    return {table.symbol: table for table in tables()}


def table_of(symbol: str) -> Table | None:
    """The table of a symbol."""
    return _by_symbol().get(symbol)


def family(kind: str, symbol: str) -> bool:
    """Whether a symbol is named as a table of this kind, of whatever version."""
    stem = {table.symbol.rpartition("_v")[0] for table in tables() if table.kind == kind}
    name, _, version = symbol.rpartition("_v")
    return name in stem and version.isdigit()


def _key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


@cache
def nccl_releases() -> tuple[str, ...]:
    """The releases of NCCL whose symbols are known, the oldest first."""
    return tuple(sorted(facts()["lookups"], key=_key))


def symbols_of(release: str) -> frozenset[str]:
    """The symbols that a known release of NCCL looks for."""
    return frozenset(facts()["lookups"][release])
