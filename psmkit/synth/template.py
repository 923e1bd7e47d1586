"""Text with holes that numbers fill in for many hosts or many rounds at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from psmkit.model.arrays.whole import np, npt
from psmkit.synth.recorded import Layout, Part, Token

__all__ = ["Numbers", "Template", "width"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_HEX = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), dtype=np.uint16)
_ADDRESS = 12  # characters of an address after its first part


def _mixed(words: Words) -> Words:
    """Numbers without a pattern (the end of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class Numbers:
    """What the numbers of a job are made from. ``digits`` of the number of a host."""

    layout: Layout
    seed: int

    @property
    def digits(self) -> int:
        """Of the number of a host."""
        return len(str(self.layout.hosts - 1))

    def rank(self, host: Ints, local: Ints) -> Ints:
        """Ranks by host and by their number on it."""
        return host * self.layout.each + local

    def pointer(self, host: Ints, value: Words) -> Words:
        """Addresses of the small job, as far away as the host's memory is."""
        return value + ((_mixed(self._of(host)) & np.uint64(0x3FFFF)) << np.uint64(20))

    def fresh_pointer(self, host: Ints, number: Ints, value: Words) -> Words:
        """Addresses that each round has its own of."""
        return np.uint64(0x7F0000000000) + (self._in(host, number, value) & np.uint64(0xFFFFFFFFF0))

    def word(self, host: Ints, value: Words) -> Words:
        """Numbers of 64 bits by host."""
        return _mixed(value ^ self._of(host)) | np.uint64(1 << 63)

    def fresh_word(self, host: Ints, number: Ints, value: Words) -> Words:
        """Numbers of 64 bits that each round has its own of."""
        return self._in(host, number, value) | np.uint64(1 << 63)

    def _of(self, host: Ints) -> Words:
        return host.astype(np.uint64) * np.uint64(0xD1342543DE82EF95) + np.uint64(self.seed % (1 << 64))

    def _in(self, host: Ints, number: Ints, value: Words) -> Words:
        return _mixed(value ^ _mixed(self._of(host) ^ (number.astype(np.uint64) << np.uint64(20))))


def width(token: Token, numbers: Numbers, host: int, done: int) -> int:
    """Characters that a token takes in a line of a host after some steps."""
    if token.kind == "R":
        at = token.at if token.at >= 0 else (host + token.by) % numbers.layout.hosts
        return len(str(at * numbers.layout.each + token.value))
    if token.kind == "S":
        return len(format(token.value + done, token.form))
    if token.kind == "H":
        return numbers.digits
    return _ADDRESS + 2 if token.kind == "I" else token.width


class Template:
    """Lines of one host, or of several one after the other, with holes.

    A hole belongs to a host of its own (``at``), or to the one that a row is rendered for.
    """

    def __init__(self, text: Bytes, holes: dict[tuple[str, int], tuple[Ints, ...]], numbers: Numbers) -> None:
        """``holes``: by kind and width the places, the values, the hosts (-1: that of the row) and what is added to that of the row."""
        self.text, self.holes, self.numbers = text, holes, numbers
        self._places: dict[tuple[str, int], Ints] = {}  # of each byte of the holes

    def __len__(self) -> int:
        return len(self.text)

    @classmethod
    def of(cls, parts: Iterable[Part], numbers: Numbers, host: int, done: int) -> Template:
        """The text of lines as ``host`` prints them after ``done`` steps; it fits all hosts and steps whose numbers have as many digits."""
        texts: list[bytes] = []
        found: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
        place = 0
        for part in parts:
            if isinstance(part, str):
                texts.append(part.encode())
            elif part.kind == "I":
                texts.append(b"10.000.000.000")
                for i, shift in enumerate((14, 7, 0)):
                    hole = (place + 3 + 4 * i, shift, part.at, part.by)
                    found.setdefault(("I", 3), []).append(hole)
            else:
                wide = width(part, numbers, host, done)
                texts.append(b"0" * wide)
                kind = ("h" if part.form == "x" else "d") if part.kind == "S" else part.kind
                found.setdefault((kind, wide), []).append((place, part.value, part.at, part.by))
            place += len(texts[-1])
        text = np.frombuffer(b"".join(texts), dtype=np.uint8)
        return cls(text, {key: _columns(holes) for key, holes in found.items()}, numbers)

    def at(self, host: int) -> Template:
        """The same for one host, with holes only for what differs between rounds."""
        text = self._filled(np.array([host]), None, None)[0]
        kept: dict[tuple[str, int], tuple[Ints, ...]] = {
            (kind, wide): (places, values, np.full(len(places), host), np.zeros_like(by))
            for (kind, wide), (places, values, _, by) in self.holes.items()
            if kind in _FRESH
        }
        return Template(text, kept, self.numbers)

    @classmethod
    def joined(cls, templates: Sequence[Template]) -> Template:
        """One after the other."""
        found: dict[tuple[str, int], list[tuple[Ints, ...]]] = {}
        place = 0
        for template in templates:
            for key, (places, *others) in template.holes.items():
                found.setdefault(key, []).append((places + place, *others))
            place += len(template)
        holes = {
            key: tuple(np.concatenate(columns) for columns in zip(*parts, strict=True)) for key, parts in found.items()
        }
        return cls(np.concatenate([t.text for t in templates]), holes, templates[0].numbers)

    def render(self, hosts: Ints, rounds: Ints, done: Ints) -> Bytes:
        """The text of each row: of a host, in a round, after so many steps; all three are arrays of one length."""
        return self._filled(hosts, rounds, done)

    def _filled(self, hosts: Ints, rounds: Ints | None, done: Ints | None) -> Bytes:
        out = np.empty((len(hosts), len(self.text)), dtype=np.uint8)
        out[:] = self.text
        for (kind, wide), (places, values, at, by) in self.holes.items():
            if rounds is None or done is None:
                if kind in _FRESH:
                    continue
                rounds_, done_ = hosts, hosts  # nobody asks
            else:
                rounds_, done_ = rounds, done
            own = _hosts(hosts, at, by, self.numbers.layout.hosts)
            chars = _FILL[kind](self.numbers, own, values, rounds_, done_, wide)
            if (kind, wide) not in self._places:
                self._places[kind, wide] = (places[:, None] + np.arange(wide)).ravel()
            out[:, self._places[kind, wide]] = chars.reshape(len(chars), -1)
        return out


def _columns(holes: Sequence[tuple[int, int, int, int]]) -> tuple[Ints, ...]:
    places, values, at, by = zip(*holes, strict=True)
    # a value of 64 bits stays the same bits
    words = np.array(values, dtype=np.uint64).view(np.int64)
    return np.array(places), words, np.array(at), np.array(by)


def _hosts(rows: Ints, at: Ints, by: Ints, hosts: int) -> Ints:
    """The host of each row and hole."""
    if (at >= 0).all():
        return np.broadcast_to(at, (len(rows), len(at)))
    found = (rows[:, None] + by) % hosts
    return np.where(at < 0, found, at) if (at >= 0).any() else found


def _hex(words: Words, wide: int) -> Bytes:
    """The last digits of numbers."""
    even = wide + wide % 2
    chars = _HEX[words.astype(">u8", order="C").view(np.uint8).reshape(*words.shape, 8)[..., 8 - even // 2 :]]
    return np.ascontiguousarray(chars).view(np.uint8).reshape(*words.shape, even)[..., even - wide :]


def _decimal(numbers: Ints, wide: int) -> Bytes:
    out = np.empty((*numbers.shape, wide), dtype=np.uint8)
    for i in range(wide - 1, -1, -1):
        numbers, out[..., i] = np.divmod(numbers, 10)
    return out + np.uint8(ord("0"))


#: What the holes of each kind get: from the hosts of rows and holes, the values, the rounds and steps of rows.
_Fill = Callable[[Numbers, Ints, Ints, Ints, Ints, int], Bytes]
_FILL: dict[str, _Fill] = {
    "R": lambda n, host, value, _round, _done, wide: _decimal(n.rank(host, value), wide),
    "H": lambda n, host, value, _round, _done, wide: _decimal(host, wide),
    "I": lambda n, host, value, _round, _done, wide: _decimal(100 + (host >> value & 127), wide),
    "d": lambda n, host, value, _round, done, wide: _decimal(done[:, None] + value, wide),
    "h": lambda n, host, value, _round, done, wide: _hex((done[:, None] + value).astype(np.uint64), wide),
    "P": lambda n, host, value, _round, _done, wide: _hex(n.pointer(host, value.view(np.uint64)), wide),
    "p": lambda n, host, value, number, _done, wide: _hex(
        n.fresh_pointer(host, number[:, None], value.view(np.uint64)), wide
    ),
    "X": lambda n, host, value, _round, _done, wide: _hex(n.word(host, value.view(np.uint64)), wide),
    "x": lambda n, host, value, number, _done, wide: _hex(
        n.fresh_word(host, number[:, None], value.view(np.uint64)), wide
    ),
}
#: The kinds that differ between rounds.
_FRESH = frozenset("dhpx")
