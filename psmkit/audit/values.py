"""What a machine holds: numbers, names, pointers and resources; and what is done with them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Place", "Token", "Value", "element", "moved", "named", "negated", "operation", "said", "whole"]

# int | ("s", name) | ("p", root, path) | ("r", number of a resource) | ("f", usr, name) | ("t", text)
Value = Any
Place = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class Token:
    """A resource: what it is, where the code that makes it stands, who released it."""

    kind: str
    name: str
    function: str
    file: str
    line: int
    stage: str
    root: str = ""  # of a struct: its memory
    released: list[str] = field(default_factory=list)
    wrong: bool = False  # a function released it that cannot
    lost: str = ""  # a function that psmkit does not know took it


def named(name: str, path: tuple[Any, ...]) -> str:
    for one in path:
        name += f"[{one}]" if isinstance(one, int) else one if one.startswith("[") else f".{one}"
    return name if len(name) < 300 else f"{name[:200]}~{zlib.crc32(name.encode()):x}"


def said(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    if value[0] == "p":
        return f"&{named(value[1].rpartition(':')[2], value[2])}"
    return f"{'r' if value[0] == 'r' else ''}{value[1]}"


def element(index: Value) -> Any:
    return index if isinstance(index, int) else f"[{said(index)}]"


def whole(place: Place) -> Place:
    """Of the first element of an array: the array."""
    return (place[0], place[1][:-1]) if place[1] and place[1][-1] == 0 else place


def negated(name: str) -> str:
    return name[1:] if name.startswith("!") else f"!{name}"


def moved(value: Value, by: Value) -> Value:
    """A pointer or a number, and a distance."""
    if isinstance(value, int) and isinstance(by, int):
        return value + by
    if isinstance(value, tuple) and value[0] == "p":
        root, path = value[1], value[2]
        if isinstance(by, int):
            if path and isinstance(path[-1], int):
                return ("p", root, (*path[:-1], path[-1] + by))
            return value if by == 0 else ("p", root, (*path, by))
        return ("p", root, (*(path[:-1] if path and path[-1] == 0 else path), element(by)))
    return value if by == 0 else ("s", f"({said(value)} + {said(by)})"[:300])


_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "*": lambda a, b: a * b, "+": lambda a, b: a + b, "-": lambda a, b: a - b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b, "<<": lambda a, b: a << min(max(b, 0), 128), ">>": lambda a, b: a >> min(max(b, 0), 128), "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
}  # fmt: skip


def operation(word: str, left: Value, right: Value) -> Value:
    if word in ("==", "!="):
        same = _same(left, right)
        if isinstance(same, bool):
            return int(same == (word == "=="))
        return ("s", same if word == "==" else negated(same))
    if isinstance(left, int) and isinstance(right, int):
        if word in ("/", "%"):
            return ("s", f"{left} {word} 0") if right == 0 else left // right if word == "/" else left % right
        return _NUMBERS[word](left, right)
    if word in ("+", "-") and isinstance(left, tuple) and left[0] == "p":
        if word == "+":
            return moved(left, right)
        if isinstance(right, int):
            return moved(left, -right)
    if word == "+" and isinstance(right, tuple) and right[0] == "p":
        return moved(right, left)
    a, b = said(left), said(right)
    if word in ("<", ">=", ">", "<="):
        if word in (">", "<="):
            a, b = b, a
        return ("s", f"{'!' if word in ('>=', '<=') else ''}{a} < {b}")
    if (word, right) in (("+", 0), ("-", 0), ("|", 0), ("*", 1)):
        return left
    if 0 in (left, right) and word in ("*", "&"):
        return 0
    return ("s", f"({a} {word} {b})"[:300])


def _same(left: Value, right: Value) -> bool | str:
    """Whether two values are equal, or the question."""
    if left == right:
        return True
    names = [one for one in (left, right) if isinstance(one, tuple) and one[0] == "s"]
    if not names:
        return False
    if len(names) == 1 and 0 in (left, right):
        return negated(str(names[0][1]))
    a, b = said(left), said(right)
    return f"{a} == {b}"
