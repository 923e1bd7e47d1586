"""Numbers that leave a mark where they are printed, so that a line of a small job can be printed again for another host of a large one."""

from __future__ import annotations

__all__ = ["BEGIN", "END", "Rank", "Shown", "Step", "mark"]

#: What stands around a mark. No line of a log holds them.
BEGIN, END = "\x01", "\x02"


def mark(kind: str, value: int, form: str = "") -> str:
    """A value in a line, to be replaced: ``kind`` is R (rank), H (host), I (address of a host) or S (step); ``form`` is as of :func:`format`."""
    return f"{BEGIN}{kind}{value:d}{form}{END}"


class Rank(int):
    """A rank. Its neighbours on the ring are ranks, too; anything else that is computed from it is a plain number."""

    def __format__(self, spec: str) -> str:
        if spec:
            raise ValueError(f"a rank is printed as it is, not as {spec!r}")
        return mark("R", int(self))

    def __str__(self) -> str:
        return mark("R", int(self))

    def __add__(self, other: int) -> Rank:
        return Rank(int(self) + other)

    def __sub__(self, other: int) -> Rank:
        return Rank(int(self) - other)

    def __mod__(self, other: int) -> int:
        found = int(self) % int(other)
        return Rank(found) if isinstance(other, Shown) else found

    def __xor__(self, other: int) -> Rank:
        return Rank(int(self) ^ other)


class Shown(int):
    """A number of the small job that lines show as that of the large one."""

    shown: int

    def __new__(cls, value: int, shown: int) -> Shown:
        """``value`` is what the small job computes with, ``shown`` what its lines say."""
        made = super().__new__(cls, value)
        made.shown = shown
        return made

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec)

    def __str__(self) -> str:
        return str(self.shown)


class Step(int):
    """How many collectives came before: a mark, because rounds are inserted."""

    def __format__(self, spec: str) -> str:
        return mark("S", int(self), spec or "d")

    def __str__(self) -> str:
        return mark("S", int(self), "d")

    def __add__(self, other: int) -> Step:
        return Step(int(self) + other)

    def __sub__(self, other: int) -> Step:
        return Step(int(self) - other)
