"""The lines of an input, one at a time, with their numbers and ends; a line of any length in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from psmkit.logparse.inputs import Input, Reader

__all__ = ["pieces"]

_CHUNK = 1 << 20
_LONGEST = 1 << 18  # a longer line is cut where a word ends
_CUTS = (b" ", b",", b";", b"\0")


def pieces(source: Input, notes: list[str] | None = None) -> Iterator[tuple[int, bytes, bytes]]:
    """The number of a line, its text, and its end (``\\r\\n`` for example), which is empty for all but the last piece of a long line."""
    reader = Reader(source)
    number, rest = 1, b""
    try:
        while chunk := reader.read(_CHUNK):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                for piece in _cut(line):
                    yield number, piece, b""
                bare = line.rstrip(b"\r")
                yield number, *_last(bare, line[len(bare) :] + b"\n")
                number += 1
            while len(rest) > 2 * _LONGEST:
                end = _place(rest)
                yield number, rest[:end], b""
                rest = rest[end:]
        if rest:
            for piece in _cut(rest):
                yield number, piece, b""
            bare = rest.rstrip(b"\r")
            yield number, *_last(bare, rest[len(bare) :])
    finally:
        if notes is not None and reader.note is not None:
            notes.append(reader.note)
        reader.close()


def _cut(line: bytes) -> Iterator[bytes]:
    """All pieces of a line but the last."""
    while len(line) > _LONGEST:
        end = _place(line)
        yield line[:end]
        line = line[end:]


def _last(line: bytes, end: bytes) -> tuple[bytes, bytes]:
    while len(line) > _LONGEST:
        line = line[_place(line) :]
    return line, end


def _place(line: bytes) -> int:
    """Where to cut a long line."""
    at = max(line.rfind(cut, _LONGEST // 2, _LONGEST) for cut in _CUTS)
    return at + 1 if at > 0 else _LONGEST
