"""Pseudonyms that a log can be analysed by: in the order of the names, of the same form, and stable when a log is scrubbed again.

Names are collected first (:meth:`Pseudonyms.text` of all texts), numbered by :meth:`Pseudonyms.settle`, and replaced then. A pseudonym is known by its
form: it stays as it is. Numbers (pids, addresses, GUIDs) get the first numbers of their class, so the same set of them is numbered alike again.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from itertools import chain

from psmkit.names import patterns as p
from psmkit.names.joined import Joined
from psmkit.names.paths import Paths
from psmkit.names.redactor import Redactor

__all__ = ["KINDS", "Pseudonyms", "is_pseudonym"]

#: The kinds of names, in the order of the mapping.
KINDS = ("host", "domain", "user", "pid", "ip", "mac", "guid", "name", "token", "uuid", "id", "cloud", "account")
_FORMS = {
    "host": re.compile(r"(?:host|ost|st|t)-?\d+"),
    "domain": re.compile(r"\.domain\d+"),
    "user": re.compile(r"user\d+"),
    "name": re.compile(r"name\d+"),
    "token": re.compile(r"token\d+"),
    "mac": re.compile(r"02(?::00)+:[0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2}"),
    "guid": re.compile(r"(?:0x)?020*[0-9a-f]{1,6}|0200:0000:[0-9a-f]{4}:[0-9a-f]{4}"),
    "uuid": re.compile(r"00000000-0000-4000-8000-[0-9a-f]{12}"),
    "id": re.compile(r"1d0{20,}[0-9a-f]+"),
    "cloud": re.compile(r"[a-z]+-0{3}[0-9a-f]+"),
    "account": re.compile(r"0{5}\d+"),
}
# A pseudonym stands where a name of another kind may stand, too: a token before the host of a URL, where a user may be.
_WORDS = ("host", "domain", "user", "name", "token")
_ANY_WORD = re.compile(r"(?:host-?|user|name|token|\.domain)\d+")
# Networks that nobody has: for benchmarks, reserved, for documentation.
_BENCHMARK, _RESERVED = int(ipaddress.ip_address("198.18.0.0")), int(ipaddress.ip_address("240.0.0.0"))
_FEW_NETS = 512
_DOCUMENTS = int(ipaddress.ip_address("2001:db8::"))
_LINK_LOCAL = int(ipaddress.ip_address("fe80::"))
_MAPPED = int(ipaddress.ip_address("::ffff:0:0"))
_NETS = tuple(map(ipaddress.ip_network, ("198.18.0.0/15", "240.0.0.0/4", "2001:db8::/32")))
_FIRST_PID = 100  # smaller numbers are those of processes in a container, and say nothing
_HOLDS_ALL = 254
_PARTS = re.compile(r"\d+|\D+")
_HOST = re.compile(r"[A-Za-z0-9_.-]*$")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts node9 before node10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part) for part in _PARTS.findall(name)
    )


def is_pseudonym(kind: str, name: str) -> bool:
    """Whether a name has the form of a pseudonym; a pid never shows it."""
    if kind != "ip":
        form = _FORMS.get(kind)
        known = form is not None and form.fullmatch(name) is not None
        return known or (kind in _WORDS and _ANY_WORD.fullmatch(name) is not None)
    address = ipaddress.ip_address(name.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if any(address in net for net in _NETS):
        return True
    return address.version == 6 and int(address) >> 32 == _LINK_LOCAL >> 32


class Pseudonyms(Redactor):
    """Collects names, numbers them, replaces them.

    Args:
        public: words that are no names, in lower case.
        keep: kinds that stay as they are; of :data:`KINDS`.
    """

    def __init__(self, public: Collection[str] = (), keep: Collection[str] = ()) -> None:
        super().__init__()
        self._public = public
        self._keep = frozenset(keep)
        self._paths = Paths(self, public)
        self.settled = False
        #: In how many prefixes of lines each host stands.
        self.seen: Counter[str] = Counter()
        self._joined: dict[str, str] = {}
        self.common = lru_cache(maxsize=100_000)(self._common)  # type: ignore[method-assign]

    # ---- what a name becomes ----

    def place(self, kind: str, name: str) -> str:
        """The pseudonym of a name; before :meth:`settle` the name itself."""
        if kind in self._keep:
            return name
        if kind == "ip":
            name, scope, zone = name.partition("%")
            return self._place(kind, name) + scope + zone
        return self._place(kind, name)

    def _place(self, kind: str, name: str) -> str:
        table = self._names.setdefault(kind, {})
        known = table.get(name)
        if known is None:
            # Late: a name that only the replacement shows.
            table[name] = known = self._late(kind, name) if self.settled else name
            self.remember(kind, name)
        return known

    def host(self, name: str) -> str:
        """The pseudonym of a host, with one for the domain behind it."""
        if name in p.NOT_HOSTS or not name:
            return name
        if name in self._joined:
            return self._joined[name]
        if p.is_address(name):
            return self.place("ip", name)
        first, dot, tail = name.partition(".")
        if not dot or not first or not tail or first.isdecimal():
            return self.place("host", name)
        return self.place("host", first) + self.domain(dot + tail)

    def lead(self, name: str) -> tuple[str, str]:
        """What stands before a host in a prefix that was damaged, without names; and the host."""
        at = _HOST.search(name).start()  # type: ignore[union-attr]  # it matches any text
        return (self._paths.component(name[:at]), name[at:]) if at else ("", name)

    def domain(self, tail: str) -> str:
        """The pseudonym of the labels behind a host; a suffix of a file is none."""
        first = tail[1:].partition(".")[0].lower()
        if first in self._public and p.DOMAINS.isdisjoint(tail.lower().split(".")):
            return tail
        return self.place("domain", tail)

    def path(self, path: str) -> str:
        """A path whose names are replaced; directories of systems and packages stay."""
        return path if path in ("-", "<stdin>") or "path" in self._keep else self._paths.path(path)

    def words(self, text: str) -> str:
        """A name of several words, each of which is replaced as in a path."""
        return self._paths.component(text)

    def public_path(self, path: str) -> str:
        """A path below /dev, /sys or /proc, with names of hosts and pids in it replaced."""
        return self._paths.known(path)

    def file_name(self, name: str) -> str:
        """The name of an input."""
        return name if "path" in self._keep else self._paths.path(name)

    def _common(self, name: str) -> bool:
        bare = name.strip("0123456789")
        return not bare or (bare == name and bare.lower() in self._public and "-" not in bare)

    def knows(self, kind: str, name: str) -> bool:
        """Whether a name was collected."""
        return name in self._names.get(kind, ())

    @property
    def hosts(self) -> Iterable[str]:
        """The names of hosts that were collected, with those that stay."""
        return self._names.get("host", {})

    def mapping(self) -> dict[str, dict[str, str]]:
        """The pseudonyms of all names that were replaced, by kind."""
        out = {}
        for kind in KINDS:
            changed = {name: new for name, new in self._names.get(kind, {}).items() if name != new}
            if changed:
                out[kind] = changed
        return out

    # ---- numbering ----

    def settle(self) -> None:
        """Number the names that were collected."""
        hosts = self._names.get("host", {})
        joined = Joined(self._processes, hosts, self.seen, self._public)
        for name in joined.parents:
            first = name.partition(".")[0]
            if first != name and first not in self._processes:
                hosts.pop(first, None)  # of text before a host, which is no host
        for kind, table in self._names.items():
            number = _NUMBERERS.get(kind, _numbered)
            fresh = number(kind, [name for name in table if kind != "host" or name not in joined.parents])
            table.update((name, fresh.get(name, name)) for name in list(table))
        self.settled = True
        if "host" not in self._keep:
            for name in joined.in_order():
                self._joined[name] = joined.pseudonym(name, self.host, self._paths.component)
                if name in hosts:
                    hosts[name] = self._joined[name]

    def _late(self, kind: str, name: str) -> str:
        table = self._names[kind]
        if is_fixed(kind, name):
            return name
        if kind in ("pid", "ip", "mac", "guid", "uuid", "id", "cloud", "account"):
            # The number behind those of its class: numbered again with all of them, it would move others.
            fresh = _NUMBERERS[kind](kind, [*table, name])
            taken = set(table.values())
            return next(new for new in chain((fresh[name],), _following(fresh[name])) if new not in taken)
        number = len(table) + 1
        taken = set(table.values()) | table.keys()
        form = _form(kind, name)
        while form.format(number) in taken:
            number += 1
        return form.format(number)


def _following(text: str) -> Iterable[str]:
    """Texts whose last number is greater."""
    match = re.search(r"([0-9a-f]+)$", text)
    if match is None:
        return
    base = 16 if re.search("[a-f:-]", text) else 10
    value, width = int(match[1], base), len(match[1])
    while True:
        value += 1
        digits = f"{value:0{width}x}" if base == 16 else f"{value:0{width}d}"
        yield text[: match.start()] + digits


def is_fixed(kind: str, name: str) -> bool:
    """Whether a name says nothing, or is a pseudonym that is known by its form."""
    if kind == "pid":
        return int(name) < _FIRST_PID
    if kind in _WORDS:
        return is_pseudonym(kind, name)
    return False


def _form(kind: str, name: str) -> str:
    if kind == "domain":
        return ".domain{}"
    # Launchers mark the lines of a pod by its name, which is known by the number at its end.
    return "host-{}" if kind == "host" and re.search(r"[A-Za-z].*-\d+$", name) else kind + "{}"


def _numbered(kind: str, names: list[str]) -> dict[str, str]:
    """Names as words with numbers, in their natural order."""
    out = {name: name for name in names if is_fixed(kind, name)}
    number = 0
    for name in sorted((name for name in names if name not in out), key=natural):
        number += 1
        while f"{kind}{number}" in out or f"{kind}-{number}" in out or f".{kind}{number}" in out:
            number += 1
        out[name] = _form(kind, name).format(number)
    return out


def _classes(names: Iterable[str], key: Callable[[str], object]) -> Mapping[object, list[str]]:
    out: dict[object, list[str]] = {}
    for name in names:
        out.setdefault(key(name), []).append(name)
    return out


def _pids(kind: str, names: list[str]) -> dict[str, str]:
    """A pid becomes one with as many digits."""
    out = {name: name for name in names if is_fixed(kind, name)}
    for size, group in _classes((name for name in names if name not in out), len).items():
        assert isinstance(size, int)
        values = sorted(set(map(int, group)))
        new = {value: f"{10 ** (size - 1) + i:0{size}d}" for i, value in enumerate(values)}
        out.update((name, new[int(name)]) for name in group)
    return out


def _addresses(kind: str, names: list[str]) -> dict[str, str]:
    """Addresses of one network stay in one network, in their order."""
    parsed = {name: ipaddress.ip_address(name) for name in names}
    fours, sixes = set(), set()
    for address in parsed.values():
        inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
        if inner is not None:
            fours.add(int(inner))
        else:
            sixes.add(int(address))
    four: dict[int, int] = {}
    nets = _classes(map(str, sorted(fours)), lambda text: int(text) >> 8)
    for i, net in enumerate(nets.values()):
        base = _BENCHMARK + (i << 8) if i < _FEW_NETS else _RESERVED + (i - _FEW_NETS << 8)
        first = 1 if len(net) <= _HOLDS_ALL else 0
        four.update((int(text), base + first + j) for j, text in enumerate(net))
    six: dict[int, int] = {}
    local = [value for value in sorted(sixes) if value >> 64 == _LINK_LOCAL >> 64]
    six.update((value, _LINK_LOCAL + 1 + j) for j, value in enumerate(local))
    wide = _classes((str(v) for v in sorted(sixes) if v not in six), lambda text: int(text) >> 64)
    for i, net in enumerate(wide.values()):
        six.update((int(text), _DOCUMENTS + (i << 64) + 1 + j) for j, text in enumerate(net))
    out = {}
    for name, address in parsed.items():
        if isinstance(address, ipaddress.IPv4Address):
            out[name] = str(ipaddress.IPv4Address(four[int(address)]))
            continue
        inner = address.ipv4_mapped
        new = ipaddress.IPv6Address(_MAPPED + four[int(inner)] if inner is not None else six[int(address)])
        if name.count(":") == 7 and len(name) == 39:
            out[name] = new.exploded
        else:
            out[name] = f"::ffff:{ipaddress.IPv4Address(four[int(inner)])}" if inner is not None else str(new)
    return out


def _macs(kind: str, names: list[str]) -> dict[str, str]:
    out = {}
    for group in _classes(names, lambda name: name.count(":")).values():
        values = sorted({name.lower() for name in group})
        new = {value: f"{i + 1:06x}" for i, value in enumerate(values)}
        for name in group:
            tail = new[name.lower()]
            middle = ":00" * (name.count(":") - 3)
            out[name] = f"02{middle}:{tail[:2]}:{tail[2:4]}:{tail[4:]}"
    return out


def _guids(kind: str, names: list[str]) -> dict[str, str]:
    def bare(name: str) -> str:
        return name.lower().removeprefix("0x").replace(":", "")

    out = {}
    for group in _classes(names, lambda name: len(bare(name))).values():
        values = sorted({bare(name) for name in group})
        new = {value: f"02{i + 1:0{len(value) - 2}x}" for i, value in enumerate(values)}
        for name in group:
            digits = new[bare(name)]
            if ":" in name:
                digits = ":".join(digits[i : i + 4] for i in range(0, len(digits), 4))
            out[name] = ("0x" if name.lower().startswith("0x") else "") + digits
    return out


def _uuids(kind: str, names: list[str]) -> dict[str, str]:
    values = sorted({name.lower() for name in names})
    new = {value: f"00000000-0000-4000-8000-{i + 1:012x}" for i, value in enumerate(values)}
    return {name: new[name.lower()] for name in names}


def _counted(
    form: Callable[[str, int], str], key: Callable[[str], object]
) -> Callable[[str, list[str]], dict[str, str]]:
    def number(kind: str, names: list[str]) -> dict[str, str]:
        return {
            name: form(name, i + 1) for group in _classes(names, key).values() for i, name in enumerate(sorted(group))
        }

    return number


def _cloud(name: str, number: int) -> str:
    prefix, _, digits = name.rpartition("-")
    return f"{prefix}-{number:0{len(digits)}x}"


_NUMBERERS: Mapping[str, Callable[[str, list[str]], dict[str, str]]] = {
    "pid": _pids,
    "ip": _addresses,
    "mac": _macs,
    "guid": _guids,
    "uuid": _uuids,
    "id": _counted(lambda name, number: f"1d{number:0{len(name) - 2}x}", len),
    "cloud": _counted(_cloud, lambda name: (name.rpartition("-")[0], len(name))),
    "account": _counted(lambda name, number: f"{number:0{len(name)}d}", len),
}
