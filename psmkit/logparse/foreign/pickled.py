"""Read the plain data of a pickle. Nothing is imported, called or built: an opcode that would do so ends the reading.

PyTorch writes flight recorder dumps as pickles of dicts, lists, texts and numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

__all__ = ["PickleError", "is_pickle", "read_pickle"]

_MAX_OPS = 8_000_000
_MAX_DIGITS = 4000


class PickleError(ValueError):
    """The pickle is damaged, too large, or holds more than data."""


class _Inert:
    """A function of torch that returns its first argument: torch tags lists with it. It is never called here."""


_MARK, _INERT = object(), _Inert()
_INERT_NAMES = {
    ("torch.jit._pickle", name) for name in ("build_intlist", "build_doublelist", "build_boollist", "restore_type_tag")
}


def is_pickle(head: bytes) -> bool:
    """Whether bytes begin as a pickle of protocol 2 to 5 does."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_pickle(data: bytes) -> Any:
    """The value of a pickle.

    Raises:
        PickleError: it is cut off or damaged, or needs code.
    """
    try:
        return _Reader(data).run()
    except PickleError:
        raise
    except (LookupError, struct.error, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise PickleError(f"the pickle is damaged ({type(error).__name__})") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, ops = self.data, _OPS
        for _ in range(_MAX_OPS):
            if self.at >= len(data):
                raise PickleError("the pickle ends early")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                return self.stack[-1]
            step = ops.get(code)
            if step is None:
                raise PickleError(f"the pickle holds more than data (opcode {chr(code)!r} at byte {self.at - 1})")
            step(self)
        raise PickleError(f"the pickle has more than {_MAX_OPS} steps")

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise PickleError("the pickle ends early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at) if b"\n" in self.data[self.at : self.at + _MAX_DIGITS] else -1
        if end < 0:
            raise PickleError("a line of the pickle has no end")
        part = self.data[self.at : end].decode("utf-8")
        self.at = end + 1
        return part

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise PickleError("the pickle is damaged (no mark)")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def name(self, module: str, name: str) -> None:
        if (module, name) not in _INERT_NAMES:
            raise PickleError(f"the pickle needs {module}.{name}, and psmkit loads no code")
        self.push(_INERT)

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function is not _INERT or not isinstance(arguments, tuple) or not arguments:
            raise PickleError("the pickle is damaged (a call of no function)")
        self.push(arguments[0])

    def long(self, size: int) -> None:
        self.push(int.from_bytes(self.take(size), "little", signed=True) if size <= _MAX_DIGITS else 0)

    def set_items(self, items: list[Any]) -> None:
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        self.stack[-1].extend(items)

    def tuple(self, size: int) -> None:
        items = tuple(self.stack[-size:])
        if len(items) < size:
            raise PickleError("the pickle is damaged (a short stack)")
        del self.stack[-size:]
        self.push(items)

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def decimal(self) -> None:
        text = self.line().removesuffix("L")
        self.push({"00": False, "01": True}.get(text, text) if text in ("00", "01") else int(text))


def _text(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.number(form)).decode("utf-8", "surrogateescape"))


def _bytes(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.number(form)))


_OPS: dict[int, Callable[[_Reader], Any]] = {
    0x80: lambda r: r.take(1),  # PROTO
    0x95: lambda r: r.take(8),  # FRAME
    ord("("): lambda r: r.push(_MARK),
    ord("0"): lambda r: r.stack.pop(),
    ord("1"): lambda r: r.since_mark(),
    ord("2"): lambda r: r.push(r.stack[-1]),
    ord("N"): lambda r: r.push(None),
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    ord("I"): lambda r: r.decimal(),
    ord("L"): lambda r: r.decimal(),
    ord("J"): lambda r: r.push(r.number("<i")),
    ord("K"): lambda r: r.push(r.number("<B")),
    ord("M"): lambda r: r.push(r.number("<H")),
    0x8A: lambda r: r.long(r.number("<B")),
    0x8B: lambda r: r.long(r.number("<i")),
    ord("F"): lambda r: r.push(float(r.line())),
    ord("G"): lambda r: r.push(r.number(">d")),
    ord("X"): _text("<I"),
    0x8C: _text("<B"),
    0x8D: _text("<Q"),
    ord("V"): lambda r: r.push(r.line()),
    ord("T"): _text("<i"),
    ord("U"): _text("<B"),
    ord("B"): _bytes("<I"),
    ord("C"): _bytes("<B"),
    0x8E: _bytes("<Q"),
    ord("}"): lambda r: r.push({}),
    ord("]"): lambda r: r.push([]),
    ord(")"): lambda r: r.push(()),
    ord("d"): lambda r: r.push(dict(zip((i := r.since_mark())[::2], i[1::2], strict=True))),
    ord("l"): lambda r: r.push(r.since_mark()),
    ord("t"): lambda r: r.push(tuple(r.since_mark())),
    0x85: lambda r: r.tuple(1),
    0x86: lambda r: r.tuple(2),
    0x87: lambda r: r.tuple(3),
    ord("a"): lambda r: r.extend([r.stack.pop()]),
    ord("e"): lambda r: r.extend(r.since_mark()),
    ord("s"): lambda r: r.set_items([*reversed([r.stack.pop(), r.stack.pop()])]),
    ord("u"): lambda r: r.set_items(r.since_mark()),
    ord("q"): lambda r: r.put(r.number("<B")),
    ord("r"): lambda r: r.put(r.number("<I")),
    0x94: lambda r: r.put(len(r.memo)),
    ord("p"): lambda r: r.put(int(r.line())),
    ord("h"): lambda r: r.push(r.memo[r.number("<B")]),
    ord("j"): lambda r: r.push(r.memo[r.number("<I")]),
    ord("g"): lambda r: r.push(r.memo[int(r.line())]),
    ord("c"): lambda r: r.name(r.line(), r.line()),  # GLOBAL
    0x93: lambda r: r.name(*reversed([r.stack.pop(), r.stack.pop()])),  # STACK_GLOBAL
    ord("R"): lambda r: r.reduce(),
}
