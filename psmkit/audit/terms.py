"""What is known of the code around a connection, from ``contract.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["Makes", "Message", "Mode", "Releases", "Terms", "terms"]


@dataclass(frozen=True, slots=True)
class Mode:
    """What decides what a connection makes: the answer of a function, a global, or a condition."""

    name: str
    call: str = ""
    variable: str = ""
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A function that sends a message to a proxy: numbers of its arguments. ``later``: another function takes the answer, by this argument."""

    name: str
    via: int
    message: int
    request: int
    request_size: int
    answer_size: int
    answer: int = -1
    later: int = -1


@dataclass(frozen=True, slots=True)
class Makes:
    """A function that makes a resource, and where it puts it. ``also``: arguments that get pointers to the same resource."""

    name: str
    kind: str
    at: int | None = None
    answer: bool = False
    but: str = ""
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Releases:
    """A function that releases a resource. ``kinds``: the only ones that it can release; empty: any."""

    name: str
    at: int
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """``assume``: pattern of a condition -> its value. ``tells``: function -> what it says to the caller, and to the proxy. ``states``: message ->
    state of the connection after it."""

    modes: tuple[Mode, ...]
    assume: tuple[tuple[re.Pattern[str], bool], ...]
    messages: tuple[tuple[re.Pattern[str], Message], ...]
    makes: tuple[tuple[re.Pattern[str], Makes], ...]
    releases: tuple[tuple[re.Pattern[str], Releases], ...]
    uses: re.Pattern[str]
    settings: re.Pattern[str]
    failing: re.Pattern[str]
    apart: re.Pattern[str]
    bases: re.Pattern[str]
    releasing: re.Pattern[str]
    success: frozenset[str]
    tells: Mapping[str, tuple[str, str]]
    state_field: str
    states: Mapping[str, int]


def _pairs(entries: list[dict[str, Any]], make: Any) -> Any:
    return tuple((re.compile(one["name"]), make(one)) for one in entries)


@functools.cache
def terms() -> Terms:
    """The contents of ``contract.toml``."""
    data = tomllib.loads(resources.files("psmkit.audit").joinpath("contract.toml").read_text("utf-8"))

    def makes(one: dict[str, Any]) -> Makes:
        rest = {key: value for key, value in one.items() if key not in ("not", "also")}
        return Makes(**rest, but=one.get("not", ""), also=tuple(one.get("also", ())))

    states = dict(data["states"])
    return Terms(
        tuple(Mode(**one) for one in data["mode"]),
        tuple((re.compile(one["condition"]), bool(one["value"])) for one in data["assume"]),
        _pairs(data["message"], lambda one: Message(**one)),
        _pairs(data["makes"], makes),
        _pairs(data["releases"], lambda one: Releases(one["name"], one["at"], tuple(one.get("kinds", ())))),
        re.compile("|".join(f"(?:{one})" for one in data["uses"]["names"])),
        re.compile(data["settings"]),
        re.compile(data["failing"]),
        re.compile(data["apart"]),
        re.compile(data["bases"]),
        re.compile(data["uses"]["releasing"]),
        frozenset(data["success"]),
        {one["name"]: (one["caller"], one["proxy"]) for one in data["tells"]},
        str(states.pop("field")),
        states,
    )
