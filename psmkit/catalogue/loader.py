"""Read catalogue files and compile them with the C engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, overload

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue.built import built, parsed
from psmkit.catalogue.entries import (
    DATA_END,
    DATA_ROLES,
    KEEPS,
    LEVEL_WORDS,
    LEVELS,
    ROLES,
    WHERES,
    Message,
    Phrase,
    Value,
)
from psmkit.model.errors import CatalogueError
from psmkit.model.late import dataclass, regex

__all__ = ["UNMATCHED_WARN", "Catalogue", "load", "load_texts"]

UNMATCHED_WARN = "unmatched.warn"
_PREFIX = regex(rf"\bNCCL (?:{LEVEL_WORDS}) ")
_HERE = Path(__file__).parent
_PLACES = 1 << 15
_FLOAT, _INT = 5, 2  # types as csrc/logscan/catalogue.h numbers them

# First in every catalogue: the scanner reports a WARN without an entry under this name.
_TORN = -2  # what the scanner returns for a message that is cut
_UNMATCHED = Message(
    name=UNMATCHED_WARN,
    subsystem="core",
    patterns=("{text:rest}",),
    level="WARN",
    keep="all",
    meaning="A warning that the catalogue does not know.",
)


@dataclass(frozen=True, slots=True)
class _Matched:
    # What the engine found in a text, in bytes. ``number`` is that of the message, or negative.
    number: int
    span: tuple[int, int]
    fields: dict[int, tuple[int, int]]
    values: Any
    texts: int


class _Fields(Sequence[tuple[tuple[str, int], ...]]):
    """The fields of each message of a compiled catalogue. A scan asks for those of the few messages that it found."""

    def __init__(self, native: Any, count: int) -> None:
        self._native = native
        self._made: list[tuple[tuple[str, int], ...] | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, number: int) -> tuple[tuple[str, int], ...]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[tuple[tuple[str, int], ...]]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[at] for at in range(len(self))[number]]
        made = self._made[number]
        if made is None:
            count = lib.ls_catalogue_fields(self._native, number)
            made = self._made[number] = tuple(
                (
                    ffi.string(lib.ls_catalogue_field_name(self._native, number, at)).decode(),
                    lib.ls_catalogue_field_type(self._native, number, at),
                )
                for at in range(count)
            )
        return made


class Catalogue:
    """A set of messages, compiled for the scanner on first use.

    Raises:
        CatalogueError: two entries have the same name, or (from :attr:`native`) a pattern is invalid.
    """

    def __init__(self, messages: Sequence[Message], phrases: Sequence[Phrase] = ()) -> None:
        self.messages: tuple[Message, ...] = tuple(messages)
        self.phrases: tuple[Phrase, ...] = tuple(phrases)
        #: The names and contents of the files that were added to psmkit's.
        self.extra: tuple[tuple[str, bytes], ...] = ()
        #: By meaning: an engine for all of its phrases, and one for each.
        self._phrases: dict[str, tuple[Catalogue, list[tuple[Phrase, Catalogue]]]] = {}
        self.by_name: dict[str, Message] = {}
        for message in self.messages:
            other = self.by_name.setdefault(message.name, message)
            if other is not message:
                where = f" (also in {other.file})" if other.file != message.file else ""
                raise CatalogueError(f"a second entry of this name{where}", file=message.file, entry=message.name)
        for message in self.messages:
            lost = [name for name in message.repairs if name not in self.by_name]
            if lost:
                raise CatalogueError(
                    f"repairs names {lost[0]!r}, which is no entry", file=message.file or None, entry=message.name
                )

    @cached_property
    def ledgers(self) -> tuple[str, ...]:
        """Names of the ledgers, in the scanner's numbering."""
        return tuple(dict.fromkeys(m.ledger for m in self.messages if m.ledger is not None))

    @cached_property
    def compiled(self) -> tuple[Message, ...]:
        """The messages, in the scanner's numbering."""
        return (_UNMATCHED, *self.messages)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(message.name for message in self.compiled)

    @cached_property
    def constants(self) -> tuple[Mapping[str, Value], ...]:
        """The fields that each sighting of one has beside those of its text."""
        return tuple(message.constants for message in self.compiled)

    @cached_property
    def native(self) -> Any:
        """The compiled catalogue, for the scanner."""
        cat = ffi.gc(lib.ls_catalogue_new(), lib.ls_catalogue_free)
        for number, message in enumerate(self.compiled):
            _compile(cat, number, message, self)
        lib.ls_catalogue_finish(cat)
        return cat

    @cached_property
    def fields(self) -> Sequence[tuple[tuple[str, int], ...]]:
        """Names and types of the fields of each compiled message."""
        return _Fields(self.native, len(self.compiled))

    def phrase(self, says: str, text: str) -> Phrase | None:
        """The first phrase with this meaning in a text, None if there is none. Case does not matter.

        Raises:
            KeyError: no phrase has this meaning.
        """
        if says not in self._phrases:
            found = [p for p in self.phrases if p.says == says]
            if not found:
                raise KeyError(says)
            self._phrases[says] = Catalogue([_as_message(*found)]), [(p, Catalogue([_as_message(p)])) for p in found]
        all_of_them, each = self._phrases[says]
        data = f" {text.lower()}\n".encode()
        if not all_of_them._says(data):  # as in most texts
            return None
        for phrase, engine in each:
            match = engine.match(data, where="line")
            if match is not None and all(
                low <= value <= high
                for name, (low, high) in phrase.within.items()
                if isinstance(value := match[1].get(name), int)
            ):
                return phrase
        return None

    def cut(self, text: str) -> bool:
        """Whether a NCCL message ends in the middle of a pattern, so that its end is lost."""
        return self._matched(text.encode(), "nccl").number == _TORN

    def match(self, text: str | bytes, *, where: str = "nccl") -> tuple[Message, dict[str, Value]] | None:
        """The entry that matches a message (for ``nccl``, without its prefix) or a line, and its fields. None: no entry matches."""
        data = text.encode() if isinstance(text, str) else text
        found = self._matched(data, where)
        if found.number < 0:
            return None
        fields: dict[str, Value] = dict(self.compiled[found.number].constants)
        for i, (name, kind) in enumerate(self.fields[found.number]):
            if i in found.fields:
                start, end = found.fields[i]
                is_text = found.texts >> i & 1
                fields[name] = data[start:end].decode("utf-8", "replace") if is_text else decode(kind, found.values[i])
        return self.compiled[found.number], fields

    def places(self, text: str, *, where: str = "nccl") -> tuple[tuple[int, int], list[tuple[int, int]]] | None:
        """Where in a message or a line an entry matches, and where its fields are, as offsets of characters. None: no entry matches."""
        data = text.encode("utf-8", "replace")
        found = self._matched(data, where)
        if found.number < 0:
            return None

        def characters(span: tuple[int, int]) -> tuple[int, int]:
            return len(data[: span[0]].decode("utf-8", "replace")), len(data[: span[1]].decode("utf-8", "replace"))

        return characters(found.span), sorted(map(characters, found.fields.values()))

    def spans(self, data: bytes, *, where: str = "nccl") -> tuple[int, list[tuple[int, int, int]]] | None:
        """The number of the entry that matches a message or a line, and of each field its number, and where it is in bytes. None: no entry matches."""
        present, _values, starts, lengths, _ = room = self._room
        number = lib.ls_match_text(self.native, WHERES.index(where), data, len(data), *room)
        if number < 0:
            return None
        bits, out = present[0], []
        while bits:
            i = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            out.append((i, starts[i], starts[i] + lengths[i]))
        return number, out

    def places_of_names(self, data: bytes, kinds: bytes) -> Iterator[tuple[int, int, int]]:
        """Where names may stand in lines: start, end, and kind, 0 for a line as a whole, 1 for what precedes a NCCL message, or that of a field.

        Args:
            data: lines.
            kinds: for each compiled message the kinds of its fields, 0 for one that holds no name, and behind 64 of them 1 if the message is
                searched as a whole.
        """
        room, count, at = self._places, ffi.new("uint32_t *"), 0
        while at < len(data):
            at = lib.ls_places(self.native, kinds, data, at, len(data), room, _PLACES, count)
            found = iter(ffi.unpack(room, 3 * count[0]))
            yield from zip(found, found, found, strict=True)

    @cached_property
    def _places(self) -> Any:
        return ffi.new("uint32_t[]", 3 * _PLACES)

    def _says(self, data: bytes) -> bool:
        """Whether an entry matches a line. The rules ask this of a text of each rank, so the room for the fields is made once; nobody reads it."""
        found: int = lib.ls_match_text(self.native, WHERES.index("line"), data, len(data), *self._room)
        return found >= 0

    @cached_property
    def _room(self) -> tuple[Any, ...]:
        return (*map(ffi.new, ("uint64_t[2]", "uint64_t[64]", "uint32_t[64]", "uint32_t[64]")), ffi.NULL)

    def _matched(self, data: bytes, where: str) -> _Matched:
        present, values = ffi.new("uint64_t[2]"), ffi.new("uint64_t[64]")
        starts, lengths, span = ffi.new("uint32_t[64]"), ffi.new("uint32_t[64]"), ffi.new("uint32_t[2]")
        number = lib.ls_match_text(
            self.native, WHERES.index(where), data, len(data), present, values, starts, lengths, span
        )
        if number < 0:
            return _Matched(number, (0, 0), {}, values, 0)
        known = {i: (starts[i], starts[i] + lengths[i]) for i in range(len(self.fields[number])) if present[0] >> i & 1}
        return _Matched(number, (span[0], span[1]), known, values, present[1])


def decode(kind: int, value: int) -> int | float:
    """A number as the scanner packs it."""
    if kind == _FLOAT:
        packed = ffi.new("uint64_t *", value)
        return float(ffi.cast("double *", packed)[0])
    return value - (1 << 64) if kind == _INT and value >> 63 else value


def _as_message(*phrases: Phrase) -> Message:
    """Phrases with one meaning in the form of the engine: a message that matches anywhere in a line."""
    patterns = tuple(dict.fromkeys(pattern for phrase in phrases for pattern in phrase.patterns))
    says, file = phrases[0].says, phrases[0].file
    return Message(name=says, subsystem="phrase", patterns=patterns, level="NONE", where="line", file=file)


def _compile(cat: Any, number: int, message: Message, catalogue: Catalogue) -> None:
    def fail(reason: str) -> CatalogueError:
        return CatalogueError(reason, file=message.file or None, entry=message.name)

    lib.ls_catalogue_message(
        cat,
        WHERES.index(message.where),
        LEVELS.index(message.level),
        KEEPS.index(message.keep),
        (message.role or "").encode(),
    )
    if message.complaint:
        lib.ls_catalogue_complaint(cat, number)
    if message is not _UNMATCHED:
        error = ffi.new("char[160]")
        for pattern in message.patterns:
            raw = pattern.encode()
            column = lib.ls_catalogue_pattern(cat, number, raw, len(raw), error, 160)
            if column:
                reason = ffi.string(error).decode()
                if reason.startswith("the same pattern"):
                    other = catalogue.compiled[int(reason.rpartition("#")[2])]
                    raise fail(f"{pattern!r} is also a pattern of {other.name}")
                raise fail(f"column {_characters(raw, column)} of {pattern!r}: {reason}")
    else:
        lib.ls_catalogue_text_field(cat, number, b"text")
    for name in message.distinct:
        if lib.ls_catalogue_distinct(cat, number, name.encode()):
            raise fail(f"distinct names {name!r}, which no pattern has")
    if message.ledger is not None:
        lib.ls_catalogue_ledger(cat, number, catalogue.ledgers.index(message.ledger), message.scope == "host")
        for name in message.key:
            if lib.ls_catalogue_key(cat, number, name.encode()):
                raise fail(f"key names {name!r}, which no pattern has")
    if message.role is not None:
        count = lib.ls_catalogue_fields(cat, number)
        names = {ffi.string(lib.ls_catalogue_field_name(cat, number, i)).decode() for i in range(count)}
        known = names | message.constants.keys() if message.role in DATA_ROLES else names
        missing = [name for name in ROLES[message.role] if name not in known]
        if missing:
            raise fail(f"role {message.role} needs a field {missing[0]!r}")
        if message.role in DATA_ROLES and not message.distinct:
            for name in (*DATA_END, "state") if message.role == "data.event" else DATA_END:
                if name in names:
                    lib.ls_catalogue_distinct(cat, number, name.encode())


def _characters(raw: bytes, column: int) -> int:
    return len(raw[: column - 1].decode("utf-8", "replace")) + 1


@lru_cache(maxsize=1)
def _own() -> Catalogue:
    return read_tables(sorted(_HERE.glob("*.toml")))


def read_tables(paths: Sequence[Path]) -> Catalogue:
    """The catalogue of these files of psmkit's own."""
    return Catalogue(*built(paths))


def load(extra: Sequence[str | os.PathLike[str]] = ()) -> Catalogue:
    """psmkit's catalogue, followed by the entries of ``extra`` TOML files.

    Raises:
        CatalogueError: a file is not TOML, an entry is invalid, or a sample does not match its entry; the error names file, entry and, for a pattern, the column.
    """
    texts = []
    for path in extra:
        try:
            texts.append((os.fspath(path), Path(path).read_bytes()))
        except OSError as error:
            raise CatalogueError(error.strerror or str(error), file=os.fspath(path)) from None
    return load_texts(texts)


def load_texts(extra: Sequence[tuple[str, bytes]]) -> Catalogue:
    """As :func:`load`, of the names and the contents of TOML files, which :attr:`Catalogue.extra` has."""
    own = _own()
    if not extra:
        return own
    messages, phrases = list(own.messages), list(own.phrases)
    for name, data in extra:
        more, said = parsed(name, data)
        messages += more
        phrases += said
    catalogue = Catalogue(messages, phrases)
    catalogue.extra = tuple(extra)
    _ = catalogue.native
    for message in messages[len(own.messages) :]:
        _check_samples(message, catalogue)
    return catalogue


def _check_samples(message: Message, catalogue: Catalogue) -> None:
    """Check that the samples of a message match it and give their fields.

    Raises:
        CatalogueError: one does not.
    """
    for sample in message.samples:
        found = catalogue.match(sample.text, where=message.where)
        if found is None:  # a whole line of a log
            found = catalogue.match(_PREFIX.split(sample.text, maxsplit=1)[-1], where=message.where)
        if found is None or found[0] is not message:
            why = "no pattern matches it" if found is None else f"{found[0].name} matches it"
            raise CatalogueError(f"sample {sample.text!r}: {why}", file=message.file or None, entry=message.name)
        for name, value in sample.fields.items():
            read = found[1].get(name)
            # TOML has no unsigned numbers of 64 bits: a sample writes such a value as a text
            given = int(value, 0) if isinstance(value, str) and isinstance(read, int) else value
            if read != given:
                reason = f"sample {sample.text!r}: the field {name} is {read!r}, not {value!r}"
                raise CatalogueError(reason, file=message.file or None, entry=message.name)
