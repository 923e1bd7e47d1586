"""Private keys that span lines."""

from __future__ import annotations

import re

__all__ = ["Keys"]

_BEGIN = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_END = re.compile(rb"-----END [A-Z ]*PRIVATE KEY-----")
_BODY = re.compile(rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----)")
_REPLACED = b"[key]"
_LONGEST = 400  # lines


class Keys:
    """Follows the lines of a file, and replaces those of private keys."""

    def __init__(self) -> None:
        self._left = 0

    def block(self, data: bytes) -> bytes:
        """Some lines, without the parts that belong to keys."""
        if not self._left and b"PRIVATE KEY" not in data:
            return data
        lines = ((line, line.rstrip(b"\r")) for line in data.split(b"\n"))
        return b"\n".join(self.inside(bare) + line[len(bare) :] for line, bare in lines)

    def inside(self, line: bytes) -> bytes:
        """The line, without the part that belongs to a key."""
        if self._left:
            end = _END.search(line)
            if end is None:
                self._left -= 1
                if not line:
                    return line
                return _REPLACED
            self._left = 0
            return (_REPLACED if end.start() else b"") + line[end.start() :]
        if b"PRIVATE KEY" not in line:
            return line
        line = _BODY.sub(rb"\1" + _REPLACED + rb"\2", line)
        last = None
        for last in _BEGIN.finditer(line):  # noqa: B007
            pass
        if last is not None and _END.search(line, last.end()) is None:
            self._left = _LONGEST
            return line[: last.end()] + (_REPLACED if line[last.end() :] else b"")
        return line
