"""An input as blocks of whole lines, and long lines in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from psmkit.logparse.inputs import Input, Reader

__all__ = ["blocks", "cut"]

_CHUNK = 1 << 18
_LONGEST = 1 << 18  # a longer line is cut where a word ends
_CUTS = (b" ", b",", b";", b"\0")


def blocks(source: Input, notes: list[str] | None = None) -> Iterator[tuple[int, bytes]]:
    """The number of a line, and the bytes from there on: whole lines, or a piece of a long one."""
    reader = Reader(source)
    number, rest = 1, b""
    try:
        while chunk := reader.read(_CHUNK):
            end = chunk.rfind(b"\n") + 1
            if end:
                block = rest + chunk[:end]
                yield number, block
                number += block.count(b"\n")
                rest = chunk[end:]
            else:
                rest += chunk
            while len(rest) > 2 * _LONGEST:
                at = _place(rest)
                yield number, rest[:at]
                rest = rest[at:]
        if rest:
            yield number, rest
    finally:
        if notes is not None and reader.note is not None:
            notes.append(reader.note)
        reader.close()


def cut(line: bytes) -> Iterator[bytes]:
    """The pieces of a line."""
    while len(line) > _LONGEST:
        end = _place(line)
        yield line[:end]
        line = line[end:]
    yield line


def _place(line: bytes) -> int:
    """Where to cut a long line."""
    at = max(line.rfind(word, _LONGEST // 2, _LONGEST) for word in _CUTS)
    return at + 1 if at > 0 else _LONGEST
