"""The facts of psmkit/plugins/abi.json as types with members, for the generators in this folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

Facts = dict[str, Any]


@dataclass
class Member:
    """A member of a struct or union. ``type`` is as in C, without the name; a struct or union has ``members``."""

    name: str
    type: str
    plain: str  # type without typedefs
    parameters: list[str]  # the names of a function's
    note: str = ""
    dimensions: tuple[str, ...] = ()  # names for the numbers of an array
    members: list[Member] = field(default_factory=list)


@dataclass(frozen=True)
class Type:
    """A type with a version in its name. ``same`` is the type that it is another name of."""

    name: str
    version: int
    kind: str
    note: str
    same: str = ""


def newest(history: list[Any]) -> Any:
    """What the newest release says."""
    return history[-1][2]


def numbered(name: str) -> tuple[str, int]:
    """The stem and the version of a type or symbol: ncclNet_v4_t is (ncclNet, 4). No version: 0."""
    found = re.fullmatch(r"(\w+?)_v(\d+)(?:_t)?", name)
    return (found[1], int(found[2])) if found else (name, 0)


def _range(text: str) -> range:
    first, _, last = text.strip().partition("-")
    return range(int(first or 0), int(last or 1 << 20) + 1)


def known_versions(facts: Facts, kind: str, some: str = "") -> list[int]:
    """The versions of a table whose layout is known, in a range such as ``4-``."""
    wanted = _range(some)
    return sorted(int(v) for v, entry in facts["tables"][kind].items() if entry["struct"] and int(v) in wanted)


def types(facts: Facts, words: str) -> list[Type]:
    """The types of some stems (``ncclNet 4-, ncclNetAttr``) by version; a name of another type comes after that.

    Raises:
        ValueError: no type has such a name.
    """
    wanted = {}
    for part in words.split(","):
        stem, _, some = part.strip().partition(" ")
        wanted[stem] = _range(some)
    found = []
    for name, struct in facts["structs"].items():
        stem, version = numbered(name)
        if version in wanted.get(stem, ()):
            found.append(Type(name, version, struct["kind"], struct.get("note", ""), struct.get("same", "")))
    for name, history in facts["typedefs"].items():
        stem, version = numbered(name)
        if version in wanted.get(stem, ()) and name not in facts["structs"]:
            found.append(Type(name, version, "typedef", facts["notes"].get(name, ""), newest(history)))
    missing = set(wanted) - {numbered(kind.name)[0] for kind in found}
    if missing:
        raise ValueError(f"no type {missing.pop()}_vN_t")

    # By version; within one, first other names of older types, then structs as in the facts, then other names of these.
    def place(kind: Type) -> tuple[int, int]:
        target = numbered(kind.same)[1]
        return max(kind.version, target), 1 if not kind.same else 2 if target >= kind.version else 0

    found.sort(key=place)
    return found


def record(facts: Facts, name: str) -> str:
    """The record that a versioned type is another name of, or itself."""
    while name not in facts["structs"] and numbered(name)[1]:
        name = newest(facts["typedefs"][name])
    return name


def parents_of(kind: dict[str, Any], version: int) -> list[str]:
    """The kinds that may be the parent of a profiler's kind, in a version."""
    since = [int(first) for first in kind["parents"] if int(first) <= version]
    found: list[str] = kind["parents"][str(max(since))] if since else []
    return found


def number(release: str) -> tuple[int, ...]:
    """A release, for comparisons."""
    return tuple(int(part) for part in release.split("."))


def looked_for(facts: Facts, symbol: str) -> list[str]:
    """The releases that look for a symbol, oldest first."""
    return sorted((release for release, some in facts["lookups"].items() if symbol in some), key=number)


def function(text: str) -> tuple[str | None, list[str]]:
    """What a pointer to a function returns, and the types of its parameters; None: the type is not one."""
    found = re.fullmatch(r"(.*?) ?\(\*\)\((.*)\)", text)
    if not found:
        return None, []
    return found[1], [] if found[2] == "void" else found[2].split(", ")


def members(facts: Facts, name: str) -> list[Member]:
    """The members of a type, nested as in C.

    Raises:
        ValueError: a function has no names for its parameters.
    """
    name = record(facts, name)
    names: dict[str, list[str]] = {}
    stem = numbered(name)[0]
    # A function that states no names has those of the version before.
    for other, struct in facts["structs"].items():
        for row in struct["members"] if numbered(other)[0] == stem else ():
            names[row[0]] = row[5].get("parameters", names.get(row[0], [])) if len(row) > 5 else names.get(row[0], [])
        if other == name:
            break
    top: list[Member] = []
    inside: list[tuple[str, int, list[Member]]] = [("", 1 << 30, top)]  # prefix, end, members
    for path, offset, size, kind, plain, *rest in facts["structs"][name]["members"]:
        more = rest[0] if rest else {}
        while not (path.startswith(inside[-1][0]) and offset + size <= inside[-1][1]):
            inside.pop()
        prefix = inside[-1][0]
        short = path[len(prefix) :]
        member = Member("" if short.startswith("<") else short, kind, plain, names[path], more.get("note", ""))
        member.dimensions = tuple(more.get("dimensions", ()))
        inside[-1][2].append(member)
        if kind in ("struct", "union"):
            inside.append((prefix if short.startswith("<") else f"{path}.", offset + size, member.members))
        elif len(function(kind)[1]) != len(member.parameters):
            raise ValueError(f"{name}.{path}: {member.parameters} as the names of {kind}")
    return top
