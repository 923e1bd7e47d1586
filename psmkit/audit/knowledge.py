"""What is known of types that cross a process boundary, from ``wire.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

__all__ = ["MARK", "Knowledge", "Sender", "Wire", "descriptor", "knowledge", "offset"]

#: Prefix of the typedefs that PSM_SHAREABLE makes (psm/psm.h): such a struct says itself that it crosses.
MARK = "psm_shareable_"
_DESCRIPTOR = re.compile(r"(^|_)(fd|FD)s?($|_)|[a-z]F[dD]s?($|[A-Z_])|[dD]escriptor")
_OFFSET = re.compile(r"off(set)?s?($|_)|[sS]ize|[oO]ffset")


@dataclass(frozen=True, slots=True)
class Wire:
    """A type that crosses. ``peer``: it always comes from another rank. ``answers``: the message that it answers."""

    name: str
    way: str
    file: str = ""
    peer: bool = False
    answers: str = ""
    basis: str = "its name"


@dataclass(frozen=True, slots=True)
class Sender:
    """A function of NCCL's or libpsm's that sends or receives what an argument points to: their numbers, -1 for none."""

    name: str
    way: str
    sends: int = -1
    receives: int = -1
    peer: bool = False


@dataclass(frozen=True, slots=True)
class Knowledge:
    """``local``: type -> (what it is, whether that is sure). ``harmless``: (struct, path) -> why. ``resources``: names of fields that hold what a
    process made for a connection. ``connect_info``: types that travel to the peer."""

    wires: tuple[Wire, ...]
    local: Mapping[str, tuple[str, bool]]
    harmless: Mapping[tuple[str, str], str]
    senders: tuple[Sender, ...]
    resources: frozenset[str]
    connect_info: frozenset[str]

    def wire(self, name: str) -> Wire | None:
        """What is known of the first type of a name, without ``struct``."""
        return next((one for one in self.wires if one.name == name), None)


@functools.cache
def knowledge() -> Knowledge:
    """The contents of ``wire.toml``."""
    data = tomllib.loads(resources.files("psmkit.audit").joinpath("wire.toml").read_text("utf-8"))
    local = {name: (str(one["kind"]), not one.get("unsure", False)) for one in data["local"] for name in one["types"]}
    harmless = {(str(one["struct"]), str(one["member"])): str(one["why"]) for one in data["harmless"]}
    return Knowledge(
        tuple(Wire(**one) for one in data["struct"]),
        local,
        harmless,
        tuple(Sender(**one) for one in data["call"]),
        frozenset(data["resources"]["fields"]),
        frozenset(data["resources"]["connect_info"]),
    )


def descriptor(name: str) -> bool:
    """Whether an integer of this name is a file descriptor."""
    return bool(_DESCRIPTOR.search(name))


def offset(name: str) -> bool:
    """Whether a uintptr_t of this name is a distance and no address."""
    return bool(_OFFSET.search(name))
