"""Parts of a recorded job, printed for all hosts, for one, or many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from psmkit.model.arrays.whole import np
from psmkit.synth.recorded import Part, Said
from psmkit.synth.template import Bytes, Ints, Numbers, Template, width

__all__ = ["Bytes", "Repeated", "Section", "Unit"]

_PIECE = 4_000_000  # bytes that are rendered at a time
_SLICES = 3  # of a round: a host prints its lines of each at once


class Repeated(Protocol):
    """A round that is printed many times."""

    size: int

    def rows(self, rounds: Ints, steps: int, host: int) -> Iterable[Bytes]:
        """Its text in each of ``rounds``, which have so many ``steps``; ``host`` is whose it is, if it is of one."""
        ...


def _parts(said: Iterable[Said]) -> list[Part]:
    return [part for line in said for part in line.parts]


class Section:
    """Lines of the small job in their order."""

    def __init__(self, said: Sequence[Said], numbers: Numbers) -> None:
        self.said, self.numbers, self.layout = said, numbers, numbers.layout
        self._fixed = 0
        self._steps: Counter[tuple[int, str]] = Counter()
        for host, lines in groupby(sorted(said, key=lambda line: line.host), key=lambda line: line.host):
            parts = _parts(lines)
            for begin, end in self._spans(host):
                for part in parts:
                    if isinstance(part, str):
                        self._fixed += (end - begin) * len(part.encode())
                    elif part.kind == "S":
                        self._steps[part.value, part.form] += end - begin
                    else:
                        self._fixed += (end - begin) * width(part, numbers, begin, 0)
        self._kept: dict[object, list[tuple[Template, int, int]]] = {}

    def size(self, done: int) -> int:
        """Bytes that all hosts print after ``done`` steps."""
        return self._fixed + sum(n * len(format(value + done, form)) for (value, form), n in self._steps.items())

    def _spans(self, host: int) -> list[tuple[int, int]]:
        return [(0, 1)] if host < 0 else self.layout.spans(host)

    def _widths(self, done: int) -> tuple[int, ...]:
        return tuple(len(format(value + done, form)) for value, form in self._steps)

    def stream(self, done: int = 0, nccl: bool | None = None) -> Iterator[Bytes]:
        """All lines, or only those that are or are not of NCCL's log, each burst of a host for all hosts that it stands for."""
        for host, burst in groupby(self.said, key=lambda line: line.host):
            parts = _parts(line for line in burst if nccl is None or line.nccl == nccl)
            for begin, end in self._spans(host) if parts else ():
                template = Template.of(parts, self.numbers, begin, done)
                yield from _rendered(template, begin, end, 0, done)

    def sliced(self, number: int, done: int) -> Iterator[Bytes]:
        """A round for all hosts, in slices. Its lines have no order between hosts."""
        key = self._widths(done)
        if key not in self._kept:
            self._kept.clear()
            each = -(-len(self.said) // _SLICES)
            made = self._kept[key] = []
            for at in range(0, len(self.said), each):
                some = sorted(self.said[at : at + each], key=lambda line: line.host)
                for host, lines in groupby(some, key=lambda line: line.host):
                    parts = _parts(lines)
                    made += [(Template.of(parts, self.numbers, b, done), b, e) for b, e in self._spans(host)]
        for template, begin, end in self._kept[key]:
            yield from _rendered(template, begin, end, number, done)

    def whole(self) -> Repeated:
        """A round for all hosts as one text."""
        return _Whole(self)

    def joined(self, done: int) -> Template:
        """The text of all hosts, with holes for what differs between rounds with as many digits."""
        texts = []
        for host, burst in groupby(self.said, key=lambda line: line.host):
            parts = _parts(burst)
            for begin, end in self._spans(host):
                template = Template.of(parts, self.numbers, begin, done)
                texts += [template.at(each) for each in range(begin, end)]
        return Template.joined(texts)

    def noise(self, lines: int, host: int | None = None) -> Iterator[Bytes]:
        """So many lines: of one host, or of all in turn."""
        # the line of the first host, for any
        parts = [part if isinstance(part, str) else replace(part, at=-1, by=0) for part in self.said[0].parts]
        template = Template.of(parts, self.numbers, 0, 0)
        most = max(1, _PIECE // len(template))
        for begin in range(0, lines, most):
            rows = np.arange(begin, min(begin + most, lines))
            hosts = rows % self.layout.hosts if host is None else np.full(len(rows), host)
            yield template.render(hosts, rows, rows).reshape(-1)


def _rendered(template: Template, begin: int, end: int, number: int, done: int) -> Iterator[Bytes]:
    most = max(1, _PIECE // max(1, len(template)))
    for first in range(begin, end, most):
        hosts = np.arange(first, min(first + most, end))
        yield template.render(hosts, np.full(len(hosts), number), np.full(len(hosts), done)).reshape(-1)


class _Whole:
    """A round of all hosts."""

    def __init__(self, section: Section) -> None:
        self.section, self.size = section, section.size(0)
        self._made: tuple[tuple[int, ...], Template] | None = None

    def rows(self, rounds: Ints, steps: int, host: int) -> Iterable[Bytes]:
        for some, widths in _alike(self.section, rounds, steps):
            if self._made is None or self._made[0] != widths:
                self._made = widths, self.section.joined(int(some[0]) * steps)
            yield from self._made[1].render(np.zeros_like(some), some, some * steps)


class Unit:
    """The lines of NCCL's log of one host, or of one rank on it, in a section."""

    def __init__(self, section: Section, host: int, local: int | None, first: int) -> None:
        """``host`` of the small job, ``first`` of the hosts of the large job that it is to be printed for."""
        self.section, self.first = section, first
        self.parts = _parts(
            line for line in section.said if line.host == host and line.nccl and local in (None, line.local)
        )
        self.size = sum(
            len(p.encode()) if isinstance(p, str) else width(p, section.numbers, first, 0) for p in self.parts
        )
        self._made: tuple[tuple[int, ...], Template] | None = None

    def text(self, host: int, done: int) -> Bytes:
        """It after ``done`` steps."""
        return (
            self._template(self.section._widths(done), done)
            .render(np.array([host]), np.zeros(1, int), np.array([done]))
            .reshape(-1)
        )

    def rows(self, rounds: Ints, steps: int, host: int) -> Iterable[Bytes]:
        for some, widths in _alike(self.section, rounds, steps):
            template = self._template(widths, int(some[0]) * steps)
            yield from template.render(np.full(len(some), host), some, some * steps)

    def _template(self, widths: tuple[int, ...], done: int) -> Template:
        if self._made is None or self._made[0] != widths:
            self._made = widths, Template.of(self.parts, self.section.numbers, self.first, done)
        return self._made[1]


def _alike(section: Section, rounds: Ints, steps: int) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """Rounds in pieces in which the numbers of steps have as many digits."""
    begin = 0
    widths = [section._widths(number * steps) for number in rounds.tolist()]
    for at in range(1, len(widths) + 1):
        if at == len(widths) or widths[at] != widths[begin]:
            yield rounds[begin:at], widths[begin]
            begin = at
