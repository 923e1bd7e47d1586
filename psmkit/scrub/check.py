"""Find what looks like a name of a person or a machine, or like a secret, by the rules that replace them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from psmkit.catalogue import Catalogue
from psmkit.logparse.inputs import Input
from psmkit.names import patterns as p
from psmkit.names.joined import is_of_message
from psmkit.names.pseudonyms import Pseudonyms, is_pseudonym
from psmkit.scrub.files import is_pickle_input
from psmkit.scrub.keys import Keys
from psmkit.scrub.lines import Lines, vocabulary
from psmkit.scrub.pieces import blocks

__all__ = ["Check", "Left", "check"]

_MOST = 1000  # sightings that are kept; all are counted
_WORD = re.compile(r"[\w.:-]+")
_GLUED = re.compile(r"(.+?)(?:host|ost|st|t)-?\d+")
_LONG, _KEPT = 120, 50_000
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Left:
    """A sighting. ``text`` is its beginning only."""

    file: str
    line: int
    kind: str
    text: str


@dataclass
class Check:
    """What was found: the first sightings, and how many of each kind there are."""

    left: list[Left] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, file: str, line: int, kind: str, name: str) -> None:
        """Record a sighting."""
        self.counts[kind] += 1
        if len(self.left) < _MOST:
            self.left.append(Left(file, line, p.label(kind), hidden(name)))


def hidden(name: str) -> str:
    """The beginning of a name, and how long it is."""
    shown = "".join(c if c.isprintable() else "?" for c in name[: min(_SHOWN, len(name) // 3)])
    return f"{shown}... ({len(name)} characters)"


class _Probe(Pseudonyms):
    """Collects what would be replaced and does not have the form of a pseudonym; remembers nothing."""

    def __init__(self, public: Collection[str], keep: Collection[str]) -> None:
        super().__init__(public, (*keep, "pid"))
        self.found: list[tuple[str, str]] = []

    def _place(self, kind: str, name: str) -> str:
        if not is_pseudonym(kind, name):
            self.found.append((kind, name))
        return name

    def host(self, name: str) -> str:
        word = _GLUED.fullmatch(name)
        if word is None or is_pseudonym("host", name):
            return super().host(name)
        # Torn lines glue other text to hosts.
        found = len(self.found)
        if not is_of_message(word[1], self._public):
            self._paths.component(word[1])
        if len(self.found) > found:
            self.found[found:] = [("host", name)]
        return name

    def process(self, host: str, pid: str) -> None:
        self.host(host)


def check(
    inputs: Collection[Input],
    catalogue: Catalogue,
    keep: Collection[str] = (),
    known: Mapping[str, Mapping[str, str]] | None = None,
) -> Check:
    """Look through inputs. ``known`` are names that must not be there: those that were replaced, by kind."""
    probe = _Probe(vocabulary(catalogue), keep)
    lines, out = Lines(probe, catalogue), Check()
    words = {
        name: kind
        for kind, names in (known or {}).items()
        if kind not in ("pid", "name", "account")
        for name in names
        if not probe.common(name)
    }
    checked: dict[tuple[int, bytes], tuple[tuple[str, str], ...]] = {}
    for item in inputs:
        if is_pickle_input(item):
            out.add(item.path, 0, "file that cannot be checked", "")
            continue
        keys = Keys()
        for first, data in blocks(item):
            bare = keys.block(data)
            if bare != data:
                at = next(
                    i
                    for i, (one, two) in enumerate(zip(bare.split(b"\n"), data.split(b"\n"), strict=True))
                    if one != two
                )
                out.add(item.path, first + at, "token", "private key")
            for start, end, kind in lines.places(bare):
                value = bare[start:end]
                found = checked.get((kind, value))
                if found is None:
                    lines.place(kind, value)
                    found = (*dict.fromkeys(probe.found), *_known(value, words, probe.found))
                    probe.found.clear()
                    if len(value) <= _LONG:
                        if len(checked) > _KEPT:
                            checked.clear()
                        checked[kind, value] = found
                if found:
                    number = first + bare.count(b"\n", 0, start)
                    for what, name in found:
                        out.add(item.path, number, what, name)
    return out


def _known(value: bytes, words: Mapping[str, str], found: Collection[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The words of a text that must not be there, without those that were found anyway."""
    if words:
        for word in set(_WORD.findall(value.decode("utf-8", "surrogateescape"))):
            if word in words and (words[word], word) not in found:
                yield words[word], word
