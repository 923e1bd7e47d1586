"""Replace the names in one line: the fields of a message that the catalogue knows by their kind, all other text by patterns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from psmkit.catalogue import Catalogue
from psmkit.catalogue.entries import LEVEL_WORDS
from psmkit.catalogue.names import kinds_of, public_words, searched_whole
from psmkit.names import patterns as p
from psmkit.names.paths import PUBLIC_WORDS
from psmkit.names.pseudonyms import Pseudonyms
from psmkit.names.redactor import Marks
from psmkit.scrub.pieces import cut

__all__ = ["Lines", "vocabulary"]

_TAG = re.compile(rf"(?:N?CCLX?|FLAGCX) (?:{LEVEL_WORDS}) ")
_STAMP = re.compile(r"^(?!\d+:\d{3,}:\d+ \[)[\[(]?\d[\d:./TZ +,-]*\d[\])]?:? +(?=[^\s\d])")
_LOST_COLON = re.compile(r"(?P<word>[A-Za-z][\w.-]*\d):(?P<tid>\d+)(?= \[-?\d+\])")
_NEVER = re.compile(r"(?!)")
_LINE, _HEAD = 0, 1
#: What stands at a place; 0 of a field: no name.
_PLACES = {"line": _LINE, "head": _HEAD, "pid": 2, "guid": 3, "host": 4, "address": 5, "text": 6}
_NAMES = tuple(_PLACES)
_FIELDS = 64  # of a message at most
_KEPT = 20_000  # prefixes that are remembered
_LONG_VALUE = 120
_ALNUM = re.compile(r"[A-Za-z0-9]")
_LETTERS = re.compile(r"^\d*[A-Za-z]+[-_]?")
_SHORTEST = 4  # a name of fewer letters may be part of any word
_LONG_NUMBER = 5
_LONGEST_MESSAGE = 4096  # a message that may start anywhere is looked for in no longer line


def vocabulary(catalogue: Catalogue) -> frozenset[str]:
    """The words that are no names, in lower case."""
    return public_words(catalogue) | PUBLIC_WORDS


class Lines:
    """Replaces the names in lines; before the names are settled, collects them."""

    def __init__(self, names: Pseudonyms, catalogue: Catalogue) -> None:
        self.names, self._catalogue = names, catalogue
        fields = zip(catalogue.compiled, catalogue.fields, strict=True)
        self._kinds = [kinds_of(message, found) for message, found in fields]
        self._table = b"".join(
            bytes(_PLACES.get(kind, 0) for kind in kinds).ljust(_FIELDS, b"\0") + bytes([searched_whole(message)])
            for message, kinds in zip(catalogue.compiled, self._kinds, strict=True)
        )
        self._heads: dict[str, str] = {}
        self._known: list[dict[bytes, bytes]] = [{} for _ in _PLACES]
        self._times: Counter[bytes] = Counter()
        self._stems: re.Pattern[str] | None = None
        self._hosts: list[str] = []

    def settle(self) -> None:
        """Number the names; from now on lines are replaced."""
        self._count()
        self.names.settle()
        self._heads.clear()
        for known in self._known:
            known.clear()
        self._hosts = sorted(
            (h for h in self.names.mapping().get("host", ()) if self._is_rare(h)), key=len, reverse=True
        )
        stems = {stem[0] if (stem := _LETTERS.match(host)) else host for host in self._hosts}
        self._stems = re.compile("|".join(map(re.escape, sorted(stems, key=len, reverse=True)))) if stems else _NEVER

    def block(self, data: bytes) -> bytes:
        """Some lines, with all names replaced."""
        out: list[bytes] = []
        at, known = 0, self._known
        places = list(self.places(data))
        if not self.names.settled:
            self._times.update(data[start:end] for start, end, kind in places if kind == _HEAD)
            if len(self._times) > _KEPT:
                self._count()
        for start, end, kind in places:
            value = data[start:end]
            new = known[kind].get(value) or self.place(kind, value)
            if new != value:
                out += (data[at:start], new)
                at = end
        if not out:
            return data
        out.append(data[at:])
        return b"".join(out)

    def places(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """Where names may stand in lines: start, end, and what stands there."""
        return self._catalogue.places_of_names(data, self._table)

    def place(self, kind: int, value: bytes) -> bytes:
        """What stands at a place, with all names replaced."""
        if kind == _LINE:
            return b"".join(map(self._line, cut(value)))
        text = value.decode("utf-8", "surrogateescape")
        if kind == _HEAD:
            new = self._head(text)
        elif kind == _PLACES["text"]:
            new = self._free(text)
        else:
            marks = Marks(self.names)
            new = marks.resolve(_field(self.names, marks, _NAMES[kind], text))
            if kind != _PLACES["pid"] and new == text:
                new = self._free(text)
        done = self._torn(new).encode("utf-8", "surrogateescape")
        if len(value) <= _LONG_VALUE:
            known = self._known[kind]
            if len(known) >= _KEPT:
                known.clear()
            known[value] = done
        return done

    def _line(self, data: bytes) -> bytes:
        """A line that is no message of the catalogue, or whose text may be anything."""
        text = data.decode("utf-8", "surrogateescape")
        tag = _TAG.search(text)
        if tag is None:
            new = self._other(text, data)
        else:
            end = tag.end()
            if not self.names.settled:
                self._see(text, 1)
            new = self._head(text[:end]) + self._message(text[end:])
        return self._torn(new).encode("utf-8", "surrogateescape")

    def _head(self, head: str) -> str:
        """What stands before a message."""
        stamp = _STAMP.match(head)
        kept = ""
        if stamp is not None:
            kept, head = head[: stamp.end()], head[stamp.end() :]
        split = _LOST_COLON.match(head) if self.names.settled else None
        if split is not None and (glued := self._lost_colon(split)):
            return kept + glued + head[split.end() :]
        known = self._heads.get(head)
        if known is None:
            if len(self._heads) >= _KEPT:
                self._heads.clear()
            known = self._heads[head] = self._free(head)
        return kept + known

    def _count(self) -> None:
        """Note how often hosts stand in prefixes."""
        for head, times in self._times.items():
            self._see(head.decode("utf-8", "surrogateescape"), times)
        self._times.clear()

    def _see(self, text: str, times: int) -> None:
        for match in p.PREFIX.finditer(text):
            self.names.seen[self.names.lead(match["host"])[1]] += times

    def _lost_colon(self, match: re.Match[str]) -> str:
        """host12:13 where host:12:13 lost its first colon; empty if it is not of a process that is known."""
        word, names = match["word"], self.names
        digits = len(word) - len(word.rstrip("0123456789"))
        for size in range(digits, 0, -1):
            host, pid = word[:-size], word[-size:]
            if names.knows("host", host) and names.knows("pid", pid):
                return f"{names.host(host)}{names.place('pid', pid)}:{names.place('pid', match['tid'])}"
        return ""

    def _message(self, text: str) -> str:
        """A message behind its prefix."""
        data = text.encode("utf-8", "surrogateescape")
        found = self._catalogue.spans(data)
        if found is None:
            return self._free(text)
        return self._fields(data, *found)

    def _other(self, text: str, data: bytes) -> str:
        """A line that is not NCCL's."""
        for where in ("line", "other") if len(data) <= _LONGEST_MESSAGE else ():
            found = self._catalogue.spans(data, where=where)
            if found is not None:
                return self._fields(data, *found)
        return self._free(text)

    def _free(self, text: str) -> str:
        """A text that no entry describes."""
        if not self.names.settled:
            self.names.learn(text)
        return self.names.rewrite(text, Marks(self.names))

    def _fields(self, data: bytes, number: int, spans: list[tuple[int, int, int]]) -> str:
        """A text that an entry describes: its fields by their kinds, then all others."""
        names, marks, kinds = self.names, Marks(self.names), self._kinds[number]
        out, at = [], 0
        for i, start, end in sorted(spans, key=lambda span: span[1]):
            kind = kinds[i]
            if kind == "text" or start < at or end <= start:
                continue
            value = data[start:end].decode("utf-8", "surrogateescape")
            if kind == "plain":
                if len(value) < _LONG_NUMBER:
                    continue
                new = marks.aside(value)
            else:
                new = _field(names, marks, kind, value)
            out += [data[at:start].decode("utf-8", "surrogateescape"), new]
            at = end
        out.append(data[at:].decode("utf-8", "surrogateescape"))
        text = "".join(out)
        if not names.settled:
            names.learn(text)
        return names.rewrite(text, marks)

    def _is_rare(self, host: str) -> bool:
        """Whether the letters of a host are part of no other word."""
        return len(host) >= _SHORTEST and not self.names.common(host) and any(c.isdigit() for c in host)

    def _torn(self, text: str) -> str:
        """A text in which hosts may stand that torn lines have glued to others."""
        if self._stems is None or self._stems.search(text) is None:
            return text
        for host in self._hosts:
            at = text.find(host)
            while at >= 0:
                end = at + len(host)
                before, after = text[at - 1 : at], text[end : end + 1]
                new = host
                if not (
                    before.isalpha() or (after and _ALNUM.match(after)) or (before.isdigit() and host[0].isdigit())
                ):
                    new = self.names.place("host", host)
                    text = text[:at] + new + text[end:]
                at = text.find(host, at + max(len(new), 1))
        return text


def _field(names: Pseudonyms, marks: Marks, kind: str, value: str) -> str:
    """What takes the place of a field."""
    if kind == "pid":
        return marks.put("pid", value) if value.isdecimal() else marks.aside(value)
    if kind == "guid":
        return marks.put("guid", value)
    if kind == "host":
        bare = value.strip("[]\"',;:()")
        if bare.isdecimal() or not bare or not bare[0].isalnum() or " " in bare or "/" in bare or ":" in bare:
            return value
        at = value.find(bare)
        return value[:at] + marks.put("host", bare) + value[at + len(bare) :]
    # An address may be one of a host, with a port behind it.
    match = re.match(r"(?P<host>[A-Za-z][\w.-]*)(?=[:<]\d+)", value)
    return value if match is None else marks.put("host", match["host"]) + value[match.end() :]
