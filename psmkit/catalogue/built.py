"""The entries of psmkit's own files, read once: to parse and check them takes longer than a scan of a small log.

A wheel and the cache hold what became of the files, under a checksum of their contents and of the code that reads them. It cannot be stale, and if it
cannot be written, the only cost is time. The build calls this module to make what is in the wheel: built.py FOLDER.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from psmkit.catalogue.entries import Message, Phrase, Sample, read_file, read_phrases
from psmkit.model.codes import CODES
from psmkit.model.errors import CatalogueError

__all__ = ["built", "parsed"]

_FORMAT = b"3"
_HERE = Path(__file__).parent
_SHIPPED = _HERE / "built"
_KEPT = 8  # sets of files: one run reads several, and several versions may be installed
_CODE = ("entries.py", "titles.py", "built.py")
_LISTS = ("patterns", "distinct", "key", "known_issues", "repairs", "samples", "others")

Entries = tuple[list[Message], list[Phrase]]


class _Store:
    """The samples of all messages as the cache has them. No scan wants any."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def rows(self) -> list[list[list[Any]]]:
        """Of each message the samples."""
        rows: list[list[list[Any]]] = json.loads(self._data)
        return rows


class _Samples(Sequence[Sample]):
    """The samples of one message."""

    __slots__ = ("_number", "_store")

    def __init__(self, store: _Store, number: int) -> None:
        self._store, self._number = store, number

    def _made(self) -> tuple[Sample, ...]:
        return tuple(Sample(*row) for row in self._store.rows[self._number])

    def __len__(self) -> int:
        return len(self._store.rows[self._number])

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Sample]: ...
    def __getitem__(self, at: int | slice) -> Sample | Sequence[Sample]:
        return self._made()[at]

    def __eq__(self, other: object) -> bool:
        return self._made() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def built(paths: Sequence[Path]) -> Entries:
    """The entries of these files, from the wheel or the cache if one has them."""
    files = [(path.name, path.read_bytes()) for path in paths]
    name = _name(files)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return _unpacked((_SHIPPED / name).read_bytes())
    try:
        cache = _folder() / name
    except RuntimeError:  # no home directory
        return _read(files)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return _unpacked(cache.read_bytes())
    import tempfile

    entries = _read(files)
    with contextlib.suppress(OSError, ValueError, TypeError):
        data = _packed(entries)
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("wb", dir=cache.parent, delete=False) as out:
            out.write(data)
        os.replace(out.name, cache)
        kept = sorted(cache.parent.glob("catalogue-*.json"), key=lambda old: old.stat().st_mtime, reverse=True)
        for old in kept[_KEPT:]:
            old.unlink(missing_ok=True)
    return entries


def parsed(file: str, data: bytes) -> Entries:
    """The entries of a TOML file with this name and these contents.

    Raises:
        CatalogueError: it is no TOML, or an entry is invalid.
    """
    table = _parse(file, data)
    return read_file(file, table), read_phrases(file, table)


def _parse(file: str, data: bytes) -> dict[str, Any]:
    import tomllib  # late: the cache has what was parsed

    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise CatalogueError(f"not UTF-8 at byte {error.start}", file=file) from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"not TOML: {error}", file=file) from None


def _read(files: Sequence[tuple[str, bytes]]) -> Entries:
    messages: list[Message] = []
    phrases: list[Phrase] = []
    for name, data in files:
        more, said = parsed(name, data)
        messages += more
        phrases += said
    return messages, phrases


def _name(files: Sequence[tuple[str, bytes]]) -> str:
    code = [(name, (_HERE / name).read_bytes()) for name in _CODE]
    # two sums of zlib's: hashlib loads OpenSSL, which takes longer than all of this
    one, other = zlib.crc32(_FORMAT), zlib.adler32(_FORMAT)
    for name, data in (*code, ("codes", " ".join(CODES).encode()), *files):
        head = f"{name}\0{len(data)}\0".encode()
        one, other = zlib.crc32(data, zlib.crc32(head, one)), zlib.adler32(data, zlib.adler32(head, other))
    return f"catalogue-{one:08x}{other:08x}.json"


def _packed(entries: Entries) -> bytes:
    """The entries as JSON, without the fields that have their default; on a second line the samples of the messages."""
    messages, phrases = entries
    rows = [_row(message) for message in messages]
    for row in rows:
        row.pop("samples", None)
    samples = [[(s.text, s.kind, s.source, s.fields) for s in message.samples] for message in messages]
    document = {"messages": rows, "phrases": [_row(phrase) for phrase in phrases]}
    return f"{json.dumps(document)}\n{json.dumps(samples)}\n".encode()


def _row(entry: Message | Phrase) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(entry):
        value = getattr(entry, field.name)
        usual = field.default_factory() if callable(field.default_factory) else field.default
        if value != usual:
            found[field.name] = value
    return found


def _unpacked(data: bytes) -> Entries:
    first, _, second = data.partition(b"\n")
    if not second.endswith(b"]\n"):
        raise ValueError("the samples are missing")
    document, store = json.loads(first), _Store(second)
    for number, row in enumerate(document["messages"]):
        row["samples"] = _Samples(store, number)
    for row in (*document["messages"], *document["phrases"]):
        for name in _LISTS:
            if type(row.get(name)) is list:
                row[name] = tuple(row[name])
        if "within" in row:
            row["within"] = {name: tuple(ends) for name, ends in row["within"].items()}
    return [Message(**row) for row in document["messages"]], [Phrase(**row) for row in document["phrases"]]


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "psmkit"


def _ship(folder: Path) -> None:
    """Write what a wheel holds: the catalogue, and what 0.1's reasons mean."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("catalogue-*.json"):
        old.unlink()
    for paths in (sorted(_HERE.glob("*.toml")), sorted((_HERE / "v01").glob("*.toml"))):
        files = [(path.name, path.read_bytes()) for path in paths]
        (folder / _name(files)).write_bytes(_packed(_read(files)))


if __name__ == "__main__":
    _ship(Path(sys.argv[1]))
