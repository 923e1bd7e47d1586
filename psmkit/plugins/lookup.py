"""How each release of NCCL and RCCL finds a plugin: the names that it opens, and the tables that it looks for in them."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from dataclasses import dataclass, replace

from psmkit.model.errors import PsmkitError
from psmkit.plugins.abi import Table, nccl_releases, release_number, symbols_of, tables

__all__ = [
    "LIBRARY_KINDS",
    "RCCL_RELEASES",
    "Opening",
    "Release",
    "Try",
    "all_releases",
    "choose",
    "has_variable",
    "names",
    "opening",
    "release",
    "settings",
    "variable",
]

# CollNet tables are in the library of a net plugin.
LIBRARY_KINDS = ("net", "tuner", "profiler", "env", "gin", "rma")
# RCCL looks for the tables of the NCCL that it is based on, without a profiler, in libraries called librccl-*.
RCCL_RELEASES = (
    "2.10.3",
    "2.11.4",
    "2.12.12",
    "2.13.4",
    "2.15.5",
    "2.16.5",
    "2.17.1",
    "2.18.3",
    "2.18.6",
    "2.20.5",
    "2.21.5",
)

_LONGEST_NAME = 254
_THEN_NET = "after that, the library of the net plugin"
_RESERVED = {"net": 2, "gin": 3, "rma": 3}  # of 16 places in a list, for built-in ones
_PLACES = 16

# The first release that looks for a library of the kind, with a variable of its own.
_SINCE = {
    "net": (2, 4, 2),
    "tuner": (2, 19, 1),
    "profiler": (2, 23, 4),
    "env": (2, 28, 7),
    "gin": (2, 28, 7),
    "rma": (2, 30, 3),
}


class ReleaseError(PsmkitError):
    """The text does not name a release, or there are no facts about it."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of NCCL or RCCL. ``facts`` is the NCCL release whose facts apply; ``note`` says why, if it is another one.

    Of a ``library`` that was read, ``symbols`` are the tables that it looks up, ``mentioned`` those that its messages only name.
    """

    vendor: str  # NCCL, RCCL
    name: str
    facts: str
    note: str = ""
    library: str = ""
    symbols: frozenset[str] | None = None
    mentioned: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.vendor} {self.name}{f' ({os.path.basename(self.library)})' if self.library else ''}"

    @property
    def number(self) -> tuple[int, ...]:
        """The version for comparisons: that of the facts."""
        return release_number(self.facts)

    def tables(self, kind: str) -> list[Table]:
        """The tables that it looks for, in its order; the first that exists is taken."""
        if self.vendor == "RCCL" and kind == "profiler" and self.name in RCCL_RELEASES:
            return []
        wanted = symbols_of(self.facts) if self.symbols is None else self.symbols
        return [table for table in tables() if table.kind == kind and table.symbol in wanted]


@dataclass(frozen=True, slots=True)
class Try:
    """A name passed to dlopen; None is the main program."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a release opens for a kind of plugin. ``why`` says why there is nothing, or gives another remark.

    ``plugins`` has more than one element if the variable is a list. For each of them the first name that opens is taken.
    """

    plugins: tuple[tuple[Try, ...], ...]
    why: str = ""
    lazy: bool = False  # functions are bound when first called, not when the library is opened

    @property
    def tries(self) -> tuple[Try, ...]:
        """All names, in order."""
        return tuple(one for plugin in self.plugins for one in plugin)


def _one(*tries: Try, why: str = "", lazy: bool = False) -> Opening:
    return Opening((tries,) if tries else (), why, lazy)


def release(vendor: str, text: str) -> Release:
    """Parse the name of a release, such as 2.27.5 or v2.27.5-1.

    Raises:
        ReleaseError: the text is not a release, or the release is older than the known ones.
    """
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-\d+)?", text.strip())
    if found is None:
        raise ReleaseError(f"{text!r} is not a release of {vendor}, expected a number such as 2.27.5")
    number = tuple(int(part) for part in found.groups(default="0"))
    name = ".".join(str(part) for part in number)
    known = [release_number(one) for one in nccl_releases()]
    if number < known[0]:
        raise ReleaseError(f"{vendor} {name}: nothing is known about releases before {nccl_releases()[0]}")
    at = nccl_releases()[bisect_right(known, number) - 1]
    if vendor == "RCCL":
        if name in RCCL_RELEASES:
            return Release(vendor, name, name)
        return Release(vendor, name, at, f"RCCL {name} is unknown; judged by the rules of NCCL {at}")
    note = "" if at == name else f"NCCL {name} is unknown; judged as {at}"
    return Release(vendor, name, at, note)


def all_releases() -> list[Release]:
    """All known releases, NCCL's first, oldest first."""
    return [
        *(Release("NCCL", name, name) for name in nccl_releases()),
        *(Release("RCCL", name, name) for name in RCCL_RELEASES),
    ]


def variable(kind: str) -> str:
    """The environment variable that names a plugin."""
    return f"NCCL_{'NET' if kind == 'collnet' else kind.upper()}_PLUGIN"


def has_variable(who: Release, kind: str) -> bool:
    """Whether a release reads the variable of the kind."""
    return opening(who, kind, "/x/libx.so") != opening(who, kind, None)


def _prefix(who: Release, kind: str) -> str:
    return f"lib{who.vendor.lower()}-{kind}"


def opening(who: Release, kind: str, value: str | None, net: str | None = None) -> Opening:
    """What a release opens for a kind of plugin with this value of its variable; None means unset.

    Args:
        who: the release.
        kind: the kind of plugin.
        value: value of the variable.
        net: the value of NCCL_NET_PLUGIN, because some kinds fall back to that library.
    """
    if kind == "collnet":
        return opening(who, "net", value)
    at = who.number
    if at < _SINCE[kind] or (who.vendor == "RCCL" and kind == "profiler" and who.name in RCCL_RELEASES):
        return Opening((), f"it has no {kind} plugins")
    if kind == "gin" and at < (2, 29, 7):
        return replace(opening(who, "net", net), why="it looks only in the library of the net plugin")
    if kind == "rma" and at < (2, 30, 7):
        return replace(opening(who, "gin", net, net), why="it looks only in the library of the GIN plugin")
    if kind in _RESERVED and at >= (2, 27, 3):
        return _list(who, kind, value, net)
    if value is not None and value.lower() == "none" and at >= (2, 28, 3):
        return Opening((), "none: no external plugin of this kind")
    if kind == "net":
        return _one(*_tries_net(who, value))
    if kind == "tuner" and at < (2, 21, 5):
        return _one(*((Try(value),) if value else ()), why="" if value else "there is no default name", lazy=True)
    if kind == "profiler" and at < (2, 26, 2):
        return _one(_verbatim(who, value) if value else Try(f"{_prefix(who, kind)}.so"))
    own = _tries(who, kind, value)
    if kind == "tuner" or (kind == "profiler" and at >= (2, 28, 3)):
        return _one(*own, *opening(who, "net", net).tries, why=_THEN_NET)
    return _one(*own)


def _tries_net(who: Release, value: str | None) -> tuple[Try, ...]:
    prefix = _prefix(who, "net")
    if who.number < (2, 11, 4) or not value:
        return (Try(f"{prefix}.so"),)
    if who.number < (2, 21, 5):
        return (Try(f"{prefix}-{value}.so"),)
    return _tries(who, "net", value)


def _verbatim(who: Release, value: str) -> Try:
    # The comparison ends with the value, so any beginning of the word matches, even S.
    static = who.number >= (2, 22, 3) and "STATIC_PLUGIN".startswith(value.upper())
    return Try(None if static else value)


def _tries(who: Release, kind: str, value: str | None) -> tuple[Try, ...]:
    prefix = _prefix(who, kind)
    if not value:
        return (Try(f"{prefix}.so"),)
    name = value[:_LONGEST_NAME] if who.number >= (2, 26, 2) else value
    suffixed = Try(f"{prefix}-{value}.so"[:_LONGEST_NAME] if who.number >= (2, 26, 2) else f"{prefix}-{value}.so")
    library = value.startswith("lib") and value.endswith(".so")
    if who.facts == "2.27.3":
        return (Try(name),) if library else (suffixed,)
    if who.number >= (2, 27, 5) and ("/" in value or library):
        return (_verbatim(who, name),)
    return (_verbatim(who, name), suffixed)


def _list(who: Release, kind: str, value: str | None, net: str | None) -> Opening:
    # After the list, GIN and RMA look into the library of the net plugin, which is already open.
    after = () if kind == "net" else tuple((one,) for one in opening(who, "net", net).tries)
    why = [] if kind == "net" else [_THEN_NET]
    if value is None:
        return Opening(((Try(f"{_prefix(who, kind)}.so"),), *after), "; ".join(why))
    if value.lower() == "none" and who.number >= (2, 28, 3):
        return Opening(after, "; ".join(["none: no external plugin of this kind", *why]))
    names = [name for name in value.split(",") if name]
    if not names:
        return Opening(after, "; ".join(["an empty value: not even the default name", *why]))
    most = _PLACES - _RESERVED[kind]
    if len(names) > most:
        why.append(f"of {len(names)} names the first {most} are used")
    used = [name for name in names[:most] if len(name) <= _LONGEST_NAME]
    if len(used) < min(len(names), most):
        why.append(f"names of more than {_LONGEST_NAME} characters are ignored")
    return Opening((*(_tries(who, kind, name) for name in used), *after), "; ".join(why))


def names(plugin: tuple[Try, ...]) -> list[str]:
    """The tries of one plugin as text. The main program always opens, so nothing after it is tried."""
    found = []
    for one in plugin:
        found.append("the program itself" if one.name is None else one.name)
        if one.name is None:
            break
    return found


def choose(found: Opening, path: str) -> Try | None:
    """The try that opens the library at a path, assuming that it and no other file is on the loader's path."""
    base = os.path.basename(path)
    for plugin in found.plugins:
        for one in plugin:
            if one.name is None:
                break  # the main program always opens, so no further name of this plugin is tried
            if os.path.abspath(one.name) == os.path.abspath(path) if "/" in one.name else one.name == base:
                return one
    return None


def settings(who: Release, kind: str, path: str) -> list[tuple[str, str | None]]:
    """Variables and values by which a release opens this library for a kind of plugin, shortest first; None means unset.

    The variable of the net plugin also counts for kinds that fall back to its library.
    """
    base = os.path.basename(path)
    found: list[tuple[str, str | None]] = []
    for own in dict.fromkeys((kind, "net")):
        name = variable(own)
        prefix = f"{_prefix(who, 'net' if own == 'collnet' else own)}-"
        values: list[str | None] = [None]
        if base.startswith(prefix) and base.endswith(".so") and len(base) > len(prefix) + 3:
            values.append(base[len(prefix) : -3])
        for value in (*values, base, os.path.abspath(path)):
            if own == kind:
                # A value without effect is not a setting.
                if value is not None and opening(who, kind, value) == opening(who, kind, None):
                    continue
                hit = choose(opening(who, kind, value), path)
            elif value is not None:
                hit = choose(opening(who, kind, None, value), path)
            else:
                hit = None
            if hit is not None and (name, value) not in found:
                found.append((name, value))
    return found
