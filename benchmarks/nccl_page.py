"""The pages about releases of NCCL: tables with a row for each release, kind and number of ranks. A row stays on its page until it is run
again, so that each library can be run by a command of its own."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Page", "Row", "Table", "arguments", "publish"]

_NOT_EXACT = "Not exact:"


@dataclass(frozen=True)
class Row:
    """A row: its cells by the names of columns, whether it is as it should be, and why not."""

    kind: str
    cells: Mapping[str, str]
    good: bool
    why: Sequence[str] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return self.cells["release"], self.kind, self.cells["ranks"]


@dataclass(frozen=True)
class Table:
    """A table: what stands above it, its columns, those with numbers, and its kinds in their order. With several kinds a column ``what`` has
    them. ``release`` and ``ranks`` are always there."""

    columns: Sequence[str]
    numbers: Sequence[str]
    kinds: Sequence[str]
    above: str = ""

    def of(self, rows: Mapping[tuple[str, str, str], Row]) -> list[Row]:
        """Its rows: by release, kind, ranks."""

        def place(row: Row) -> tuple[list[int], int, list[int]]:
            release, kind, ranks = row.key
            return _numbers(release), self.kinds.index(kind), _numbers(ranks)

        return sorted((row for row in rows.values() if row.kind in self.kinds), key=place)

    def head(self) -> list[str]:
        return [
            _line(self.columns),
            "|" + "".join("---:|" if name in self.numbers else "---|" for name in self.columns),
        ]

    def read(self, lines: Sequence[str]) -> Iterator[Row]:
        """The rows that it has on a page."""
        head = self.head()[0]
        for line in lines[lines.index(head) + 2 :] if head in lines else ():
            if not line.startswith("|"):
                break
            cells = dict(zip(self.columns, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
            yield Row(cells.get("what", self.kinds[0]), cells, good=True)


@dataclass(frozen=True)
class Page:
    """A page: what is above its tables, the tables, and what is below."""

    above: Sequence[str]
    tables: Sequence[Table]
    below: Sequence[str] = field(default=())

    def render(self, before: str, new: Iterable[Row]) -> str:
        """The page with new rows in the place of those of the same release, kind and ranks; ``before`` is its text so far."""
        lines = before.splitlines()
        rows = {row.key: row for table in self.tables for row in table.read(lines)}
        notes = lines[lines.index(_NOT_EXACT) + 2 :] if _NOT_EXACT in lines else []
        notes = [line for line in notes if line.startswith("- ")]
        for row in new:
            rows[row.key] = row
            release, kind, ranks = row.key
            about = f"- {release}, {kind}, {ranks} ranks: "
            notes = [note for note in notes if not note.startswith(about)] + [about + why for why in row.why]
        out = [*self.above]
        for table in self.tables:
            if mine := table.of(rows):
                out += ["", *([table.above, ""] if table.above else []), *table.head()]
                out += [_line([row.cells[name] for name in table.columns]) for row in mine]
        if self.below:
            out += ["", *self.below]
        if notes:
            out += ["", _NOT_EXACT, "", *notes]
        return "\n".join(out) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def arguments(about: str | None, ranks: str, deadline: str) -> argparse.ArgumentParser:
    """The arguments of a program that writes such a page."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="*")
    parser.add_argument("--ranks", default=ranks)
    parser.add_argument("--deadline", default=deadline)
    parser.add_argument("--output", type=Path, help="the page; its other rows stay")
    return parser


def publish(page: Page, rows: Iterable[Row], output: Path | None) -> int:
    """Write the page after each row, or print it at the end; the exit status."""
    done: list[Row] = []
    before = output.read_text() if output and output.exists() else ""
    for row in rows:
        print(f"{', '.join(row.key)} ranks: {'good' if row.good else '; '.join(row.why)}", file=sys.stderr)
        done.append(row)
        if output:
            output.write_text(page.render(before, done))
    if output is None:
        print(page.render("", done), end="")
    elif not done:
        output.write_text(page.render(before, []))
    return 0 if all(row.good for row in done) else 1
