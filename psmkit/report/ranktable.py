"""The table of ranks, fitted to a width and folded when there are many ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psmkit.model import RankRow
from psmkit.model.late import dataclass
from psmkit.report.cells import breadth, head, padded
from psmkit.report.escape import shorten, shorten_apart, shorten_left, visible
from psmkit.report.language import ENGLISH, Words
from psmkit.report.layout import ranges

__all__ = ["FOLD_ABOVE", "Table", "device_text", "fit", "known_text", "legend", "rank_table", "widths"]

FOLD_ABOVE = 16
_ODD = 3  # groups of at most this many ranks keep a line for each rank
_LONG = 32  # above this many lines, a folded table folds runs too
_BAD = ("failed", "died", "stuck", "waiting", "silent", "missing")


@dataclass(frozen=True, slots=True)
class Table:
    """A table as lines; ``styles`` has one style for each line."""

    lines: tuple[str, ...]
    styles: tuple[str, ...]


def fit(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: Sequence[int] = (),
    pair: tuple[int, int] | None = None,
    whole: Sequence[int] = (),
) -> list[str]:
    """A table of at most ``width`` columns of a terminal. The widest columns shrink first.

    A column of ``whole`` does not shrink. A column of ``left`` loses the beginning of its cells. The two columns of ``pair`` show the first difference of their cells.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    sizes = widths(headers, cells, width, whole)
    cut = [[(shorten_left if i in left else shorten)(cell, sizes[i]) for i, cell in enumerate(row)] for row in cells]
    if pair is not None:
        one, other = pair
        for row, uncut in zip(cut, cells, strict=True):
            row[one], row[other] = shorten_apart(uncut[one], uncut[other], sizes[one], sizes[other])
    shown = [[cell.strip() for cell in row] for row in (headers, *cut)]
    sizes = [max(breadth(row[i]) for row in shown) for i in range(len(headers))]
    lines = ("  ".join(padded(cell, size) for cell, size in zip(row, sizes, strict=True)) for row in shown)
    return [head(line.rstrip(), width) for line in lines]


def widths(headers: Sequence[str], cells: Sequence[Sequence[str]], width: int, whole: Sequence[int] = ()) -> list[int]:
    """The widths of the columns of a table of at most ``width`` columns. The widest shrink first, those of ``whole`` do not."""
    sizes = [max([breadth(name), *(breadth(row[i]) for row in cells)]) for i, name in enumerate(headers)]
    floor = [sizes[i] if i in whole else max(breadth(name), 4) for i, name in enumerate(headers)]
    excess = sum(sizes) + 2 * (len(headers) - 1) - width
    while excess > 0:
        column = max((i for i in range(len(sizes)) if sizes[i] > floor[i]), key=lambda i: sizes[i], default=None)
        if column is None:
            break
        sizes[column] -= 1
        excess -= 1
    return sizes


def known_text(value: object) -> str:
    """``?`` if it is not known."""
    return "?" if value is None else str(value)


def device_text(row: RankRow) -> str:
    """``3``, ``0,1`` for a process with several devices, ``?`` if none is known."""
    devices = (row.device,) if row.device is not None else row.devices
    return ranges(devices).replace(", ", ",") or "?"


def _one(row: RankRow, many: bool, folder: str, words: Words) -> list[str]:
    # Readers count runs from 1.
    return [
        *([str(row.run + 1)] if many else []),
        known_text(row.rank),
        known_text(row.host),
        known_text(row.pid),
        device_text(row),
        words.state(row.state),
        row.stage,
        f"{row.lines:,}",
        (row.last or "-").removeprefix(folder),
    ]


def _folded(rows: list[RankRow], many: bool, words: Words) -> list[str]:
    ranks = [row.rank for row in rows if row.rank is not None]
    unknown = len(rows) - len(ranks)
    name = ranges(ranks) + (words.say(" (+{count} of unknown rank)", count=unknown) if unknown and ranks else "")
    hosts = {row.host for row in rows}
    pids = sum(row.pid is not None for row in rows)
    devices = sorted({d for row in rows for d in (row.devices if row.device is None else (row.device,))})
    return [
        *([ranges({row.run + 1 for row in rows})] if many else []),
        name or words.say("{count} of unknown rank", count=unknown),
        known_text(next(iter(hosts))) if len(hosts) == 1 else words.say("{count} hosts", count=len(hosts)),
        words.count(pids, "pid") if pids else "?",
        ranges(devices) or "?",
        words.state(rows[0].state),
        rows[0].stage,
        f"{sum(row.lines for row in rows):,}",
        "-",
    ]


def _unseen(row: RankRow) -> bool:
    """Whether nothing is known of a rank but that it exists."""
    return row.state == "missing" and row.host is None and row.pid is None and not row.lines


def _order(row: RankRow) -> tuple[int, bool, int, str, int]:
    return (row.run, row.rank is None, row.rank or 0, row.host or "", row.pid or 0)


def rank_table(
    rows: Sequence[RankRow],
    culprits: set[tuple[int, int]],
    width: int,
    *,
    fold: bool = True,
    folder: str = "",
    words: Words = ENGLISH,
) -> Table:
    """The table of ``rows``. ``culprits`` are (run, global rank). The paths of last lines are shown without ``folder``.

    Above 16 ranks only culprits and outliers keep a line of their own; the others are grouped by state and stage.
    Ranks that no line is from share a line in any table: their lines would say nothing but their number.
    """
    many = len({row.run for row in rows}) > 1
    if len(culprits) > FOLD_ABOVE:  # single lines for so many culprits would not help
        culprits = set()
    groups: dict[tuple[int | None, str, str], list[RankRow]] = {}
    single: list[RankRow] = []
    ordered = sorted(rows, key=_order)
    # In a job that restarted often, runs with the same course share a line.
    apart = len({(row.run, row.state, row.stage) for row in rows}) <= _LONG
    for row in ordered:
        alike = len(rows) > FOLD_ABOVE or _unseen(row)
        if fold and alike and (row.run, row.rank) not in culprits:
            groups.setdefault((row.run if apart else None, row.state, row.stage), []).append(row)
        else:
            single.append(row)
    folded: list[list[RankRow]] = []
    for members in sorted(groups.values(), key=len):
        if len(members) == 1 or (len(members) <= _ODD and len(single) + len(members) <= FOLD_ABOVE):
            single.extend(members)
        else:
            folded.append(members)
    lines = [(_order(row), _one(row, many, folder, words), _style(row, culprits)) for row in single]
    lines += [(_order(part[0]), _folded(part, many, words), _style(part[0], culprits)) for part in folded]
    lines.sort(key=lambda line: line[0])
    headers = [*(["run"] if many else []), "rank", "host", "pid", "dev", "state", "stage", "lines", "last line"]
    headers = [words.say(name) for name in headers]
    cells = [cells for _, cells, _ in lines]
    if _width(headers, cells) > width:  # the last line gives the line number too, and the folder is the same for all
        headers = [*headers[:-2], headers[-1]]
        cells = [[*row[:-2], row[-1].rpartition("/")[2]] for row in cells]
    table = fit(headers, cells, width, left=(len(headers) - 1,))
    return Table(tuple(table), ("dim", *(style for _, _, style in lines)))


#: What the table shows that no word of it explains. A state that says it, such as "failed", needs no line.
_LEGEND: tuple[tuple[Callable[[RankRow], bool], str], ...] = (
    (
        lambda row: None in (row.rank, row.host, row.pid) or (row.device is None and not row.devices),
        "?: no line shows it for sure",
    ),
    (lambda row: row.state == "open", "open: the log does not show its end"),
    (lambda row: row.state == "ended", "ended: the scheduler ended the job while this process ran"),
    (lambda row: row.state == "victim", "victim: the error of another process ended it"),
)


def legend(rows: Sequence[RankRow], words: Words = ENGLISH) -> str:
    """The signs in the table of ``rows`` that need an explanation, with it; empty if there is none."""
    return words.say("; ").join(words.say(text) for shown, text in _LEGEND if any(map(shown, rows)))


def _width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    across = zip(headers, *rows, strict=True)
    return sum(max(breadth(visible(cell)) for cell in column) for column in across) + 2 * (len(headers) - 1)


def _style(row: RankRow, culprits: set[tuple[int, int]]) -> str:
    if row.rank is not None and (row.run, row.rank) in culprits:
        return "culprit"
    return "warning" if row.state in _BAD else ""
