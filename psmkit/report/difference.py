"""The comparison of two runs in words and as text; ``difference_html`` has it as a page."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

from psmkit.model import Evidence
from psmkit.model.difference import Difference, OperationDifference, PairedStep, SettingDifference, StepDifference
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural
from psmkit.report.escape import shorten, visible
from psmkit.report.layout import Page, Span, ranges
from psmkit.report.ranktable import fit

__all__ = [
    "Operations",
    "by_weight",
    "grouped",
    "headline",
    "last_common",
    "operations",
    "page",
    "shared_folder",
    "track_words",
]

_FOLD = 8
_MARKS = {"same": "=", "differs": "|", "good": "<", "bad": ">"}


def headline(difference: Difference, *, chosen: bool = False) -> str:
    """Where BAD first differs, and in how many ranks, in one sentence. ``chosen``: only some ranks were asked for."""
    if difference.same:
        unseen = f"; no log of {_ranks(difference.unseen)} on either side" if difference.unseen else ""
        who = "every rank takes" if not (chosen or unseen) else _with(difference.equal_ranks, "takes", "take")
        return f"same: {who} the same protocol steps with the same settings{unseen}"
    return f"differs: {_difference(difference)}"


def _difference(difference: Difference) -> str:
    if difference.cause is not None:
        few = len(difference.steps), len(difference.compared)
        count = f"; the steps of {few[0]} of {few[1]} ranks differ" if difference.steps and few[1] > 1 else ""
        return f"{difference.cause.title} ({difference.cause.code}, only in the bad log){count}"
    if difference.steps:
        step = by_weight(difference)[0]
        alike = [s.rank for s in difference.steps if s.rank is not None and _first(s) == _first(step)]
        who = _ranks(alike) if alike else step.process or "a process"
        many = len(difference.compared)
        count = (
            f"; {len(difference.steps)} of {many} ranks {plural(len(difference.steps), 'differs', 'differ')}"
            if many > 1
            else ""
        )
        if step.track == "errors" and step.bad is not None:
            return f"{who} first, by a warning that the good log does not have: {step.bad}{count}"
        bad = "the bad log has no more steps" if step.bad is None else f"the bad log has {step.bad}"
        good = "the good log has no more" if step.good is None else f"the good one {step.good}"
        return f"{who} first, {'each ' if len(alike) > 1 else ''}after {_common(step)}: {bad}, {good}{count}"
    if difference.missing:
        return f"{_with(difference.missing, 'is', 'are')} only in the good log"
    if difference.extra:
        return f"{_with(difference.extra, 'is', 'are')} only in the bad log"
    return "the steps are the same, but settings or topology differ"


def _first(step: StepDifference) -> tuple[object, ...]:
    return (step.track, step.common, step.good, step.bad)


def track_words(step: StepDifference) -> str:
    """``proxy calls, 5 steps in common``."""
    return "warnings" if step.track == "errors" else f"{step.track}, {counted(step.common, 'step')} in common"


def _common(step: StepDifference) -> str:
    return f"{counted(step.common, 'common step')}{f' of its {step.track}' if step.track else ''}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{plural(len(ranks), 'rank')} {ranges(set(ranks))}"


def _with(ranks: tuple[int, ...], one: str, more: str) -> str:
    """The ranks with a verb."""
    return f"{_ranks(ranks)} {more if len(ranks) > 1 else one}"


def by_weight(difference: Difference) -> list[StepDifference]:
    """The ranks that the cause blames first, then a warning, then the rank that diverges first."""
    blamed = difference.cause.ranks if difference.cause is not None else ()
    return sorted(
        difference.steps,
        key=lambda s: (s.rank not in blamed, s.track != "errors", s.common, s.rank is None, s.rank or 0),
    )


def last_common(step: StepDifference) -> PairedStep | None:
    """The last step that both sides have; warnings have no order to the steps before them."""
    return step.last_common if step.track != "errors" else None


def grouped(difference: Difference) -> list[list[StepDifference]]:
    """Ranks that take the same steps around their first difference, the one to look at first at the front."""
    groups: dict[tuple[object, ...], list[StepDifference]] = {}
    for step in by_weight(difference):
        rows = tuple((row.mark, row.good, row.bad) for row in step.around)
        key = (step.track, step.common, step.good, step.bad, rows, step.good_more, step.bad_more)
        groups.setdefault(key, []).append(step)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Operations:
    """Ranks that miss, or have too many, steps of one kind in the same numbers; ``first`` is the row of the lowest rank."""

    first: OperationDifference
    ranks: tuple[int, ...]


def operations(rows: Iterable[OperationDifference]) -> list[Operations]:
    """The rows with equal numbers together, in the order of the tracks."""
    groups: dict[tuple[object, ...], list[OperationDifference]] = defaultdict(list)
    for row in rows:
        groups[row.track, row.kind, row.good, row.bad, row.missing, row.extra].append(row)
    order: dict[tuple[str, str], int] = {}
    for track, kind, *_ in groups:
        order.setdefault((str(track), str(kind)), len(order))
    found = [Operations(group[0], tuple(row.rank for row in group)) for group in groups.values()]
    return sorted(found, key=lambda o: (order[o.first.track, o.first.kind], o.ranks))


def shared_folder(names: Iterable[str]) -> str:
    """The folder, with its slash, that all files are in; empty if there is none."""
    folders = {os.path.dirname(name) for name in names}
    if not folders or "" in folders or len({folder.startswith("/") for folder in folders}) > 1:
        return ""
    folder = os.path.commonpath(folders)
    return f"{folder}/" if folder and folder != "/" else ""


def page(difference: Difference, columns: int, *, verbose: bool = False, chosen: bool = False) -> Page:
    """The comparison as text of ``columns`` characters."""
    page = Page(columns)
    word, _, rest = headline(difference, chosen=chosen).partition(":")
    if difference.same:
        page.add(Span(word, "healthy"), Span(f":{rest}"))
        return page
    page.add(Span(word, "hung"), Span(f":{rest}", "heading"))
    if difference.cause is not None:
        _quote(page, difference.cause.at)
    for ranks, side in ((difference.missing, "good"), (difference.extra, "bad")):
        if ranks:
            page.wrap(ranges(ranks), indent="  ", lead=Span(f"ranks only in the {side} log: ", "warning"))
    if difference.not_compared:
        page.wrap(
            ", ".join(difference.not_compared), indent="  ", lead=Span("not compared, rank not known: ", "warning")
        )
    if difference.steps:
        page.blank()
        page.add(Span("First step that differs, per rank", "heading"))
        steps = by_weight(difference)
        for number, step in enumerate(steps if verbose else steps[:_FOLD]):
            _step(page, step, whole=verbose or number == 0)
        if not verbose and len(steps) > _FOLD:
            rest = ranges([step.rank for step in steps[_FOLD:] if step.rank is not None])
            page.add(Span(f"  and {len(steps) - _FOLD} more ranks ({rest}; -v shows all)", "dim"))
    if difference.equal_ranks:
        page.wrap(ranges(difference.equal_ranks), indent="  ", lead=Span("no difference on ranks: ", "dim"))
    if difference.operations:
        _operations(page, operations(difference.operations), verbose)
    if difference.settings:
        page.blank()
        page.add(Span("Settings, versions and topology that differ", "heading"))
        _settings(page, difference.settings)
    return page


def _step(page: Page, step: StepDifference, *, whole: bool) -> None:
    who = f"rank {step.rank}" if step.rank is not None else "rank ?"
    process = f" ({step.process})" if step.process else ""
    page.add("  ", Span(who, "heading"), f"{process}: {track_words(step)}")
    whole = whole and len(step.around) > 1
    last = last_common(step)
    if not whole and last is not None and last.good is not None:
        page.wrap(last.good, indent="    ", hang="          ", lead=Span("both: ", "dim"))
        for at in (last.good_at, last.bad_at):
            if at is not None:
                page.add("          ", Span(str(at), "place"))
    for label, text, at in (("good", step.good, step.good_at), ("bad", step.bad, step.bad_at)):
        page.wrap(
            text or ("no warning" if step.track == "errors" else "no more steps"),
            indent="    ",
            hang="          ",
            lead=Span(f"{label + ':':<5} ", "dim"),
        )
        _quote(page, at)
    if whole:
        _side_by_side(page, step)


def _quote(page: Page, at: Evidence | None) -> None:
    if at is not None:
        page.add("          ", Span(str(at), "place"))
        page.add("            ", Span("| ", "dim"), Span(shorten(visible(at.text), page.width - 14)))


def _side_by_side(page: Page, step: StepDifference) -> None:
    """The steps around the difference in two columns."""
    room = (page.width - 4 - 5) // 2
    lines = (
        max((_line(row.good_at) for row in step.around), default=0),
        max((_line(row.bad_at) for row in step.around), default=0),
    )
    digits = [len(str(line)) for line in lines]

    def cell(text: str | None, at: Evidence | None, side: int) -> str:
        number = str(at.line) if at is not None else ""
        return f"{number:>{digits[side]}} {shorten(visible(text), room - digits[side] - 1) if text is not None else ''}"

    page.add("    ", Span(f"{'line in good':<{room}}     line in bad", "dim"))
    above = last_common(step)
    for row in step.around:
        style = "" if row.mark == "same" else "warning"
        left, right = cell(row.good, row.good_at, 0), cell(row.bad, row.bad_at, 1)
        page.add("    ", Span(f"{left:<{room}}"), Span(f"  {_MARKS[row.mark]}  ", style), Span(right))
        if row is above:
            page.add("    ", Span("-- last common step ".ljust(2 * room + 5, "-"), "dim"))
    if step.good_more or step.bad_more:
        page.add("    ", Span(f"{f'and {step.good_more} more':<{room}}     and {step.bad_more} more", "dim"))


def _line(at: Evidence | None) -> int:
    return at.line if at is not None else 0


def _operations(page: Page, rows: Sequence[Operations], verbose: bool) -> None:
    page.blank()
    page.add(Span("Steps that only one side has, by kind", "heading"))
    shown = rows if verbose else rows[: 2 * _FOLD]
    cells = [
        [o.first.kind, str(o.first.good), str(o.first.bad), str(o.first.missing), str(o.first.extra), ranges(o.ranks)]
        for o in shown
    ]
    head = ["step", "in good", "in bad", "only good", "only bad", "ranks"]
    for number, line in enumerate(fit(head, cells, page.width - 2)):
        page.add("  ", Span(line, "dim" if number == 0 else ""))
    if len(rows) > len(shown):
        page.add(Span(f"  and {len(rows) - len(shown)} more rows (-v shows all)", "dim"))


def _settings(page: Page, settings: tuple[SettingDifference, ...]) -> None:
    cells = [
        [
            s.kind,
            s.name,
            "not in the log" if s.good is None else s.good,
            "not in the log" if s.bad is None else s.bad,
            ranges(s.ranks) or "all",
        ]
        for s in settings
    ]
    for number, line in enumerate(fit(["kind", "name", "good", "bad", "ranks"], cells, page.width - 2, pair=(2, 3))):
        page.add("  ", Span(line, "dim" if number == 0 else ""))
