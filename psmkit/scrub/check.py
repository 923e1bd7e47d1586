"""Find what looks like a name of a person or a machine, or like a secret, by the rules that replace them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from psmkit.catalogue import Catalogue
from psmkit.logparse.inputs import Input
from psmkit.names import patterns as p
from psmkit.names.joined import is_of_message
from psmkit.names.pseudonyms import Pseudonyms, is_pseudonym
from psmkit.scrub.files import is_pickle_input
from psmkit.scrub.keys import Keys
from psmkit.scrub.lines import Lines, vocabulary
from psmkit.scrub.pieces import pieces

__all__ = ["Check", "Left", "check"]

_MOST = 1000  # sightings that are kept; all are counted
_WORD = re.compile(r"[\w.:-]+")
_GLUED = re.compile(r"(.+?)(?:host|ost|st|t)-?\d+")
_FEW = 50
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


def _starts(words: Collection[str]) -> re.Pattern[bytes]:
    """A filter for lines that may hold one of many words."""
    if not words:
        return re.compile(rb"(?!)")
    starts = {word[:4].encode("utf-8", "surrogateescape") for word in words}
    return re.compile(b"|".join(map(re.escape, sorted(starts))) if len(starts) <= _FEW else b"")


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
    starts = _starts(words)
    for item in inputs:
        if item.kind == "record" or is_pickle_input(item):
            out.add(item.path, 0, "file that cannot be checked", "")
            continue
        keys = Keys()
        for number, text, _ in pieces(item):
            if keys.inside(text) != text:
                out.add(item.path, number, "token", "private key")
            lines.line(text)
            for kind, name in dict.fromkeys(probe.found):
                out.add(item.path, number, kind, name)
            if starts.search(text):
                for word in set(_WORD.findall(text.decode("utf-8", "surrogateescape"))):
                    if word in words and (words[word], word) not in probe.found:
                        out.add(item.path, number, words[word], word)
            probe.found.clear()
    return out
