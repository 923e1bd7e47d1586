"""A simulation as text: verdict, plans of all ranks side by side, the end of each plan, stuck threads, broken rules."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from psmkit.model.wording import counted
from psmkit.plan import view
from psmkit.plan.types import Breach, Event, Rule, Simulation, What
from psmkit.report.escape import shorten
from psmkit.report.layout import Page, Span

__all__ = ["layout"]

_NARROWEST = 22  # width of a column of plans
_LINES = 6  # lines per plan
_PLANS = 24
_TASKS = 16
_ALIKE = 3  # breaches shown per rule
_STUCK = 8


def layout(
    simulation: Simulation, rules: Mapping[str, Rule], width: int, *, rank: int | None = None, verbose: bool = False
) -> Page:
    """The page, with at most ``width`` characters per line.

    Args:
        simulation: the simulation.
        rules: the rules by name.
        width: width of the page.
        rank: the rank whose plans are followed to their end; None: the one to look at first.
        verbose: leave nothing out.
    """
    page = Page(max(width, 60))
    shown = view.focus(simulation) if rank is None else rank
    _verdict(page, simulation)
    _tasks(page, simulation, verbose)
    _plans(page, simulation, verbose)
    _lives(page, simulation, shown, verbose)
    _stuck(page, simulation, verbose)
    _breaches(page, simulation, rules, verbose)
    if verbose:
        _trace(page, simulation, shown)
    return page


def _verdict(page: Page, simulation: Simulation) -> None:
    text = view.sentence(simulation)
    word, _, rest = text.partition(":")
    bad = simulation.breaches or simulation.stuck
    page.wrap(rest, "heading", indent="", hang="  ", lead=Span(f"{word}:", "failed" if bad else "healthy"))
    page.wrap(f"{view.title(simulation)}; {view.configuration(simulation)}", "dim", indent="  ", hang="  ")
    if simulation.stuck and simulation.breaches:
        page.add("  ", Span("and stuck", "hung"), ": no thread can continue")


def _tasks(page: Page, simulation: Simulation, verbose: bool) -> None:
    page.blank()
    page.add(Span("Tasks", "heading"))
    lines = list(view.step_lines(simulation))
    shown = lines if verbose else lines[:_TASKS]
    for line in shown:
        text, mark, comment = line.partition("  #")
        page.add("  ", Span(text), Span(mark + comment, "dim"))
    if len(lines) > len(shown):
        page.add(Span(f"  … {counted(len(lines) - len(shown), 'more step')} (-v shows all)", "dim"))


def _plans(page: Page, simulation: Simulation, verbose: bool) -> None:
    found = view.columns(simulation)
    plans = sorted({plan for column in found for plan in column.cells})
    page.blank()
    if not plans:
        page.add(Span("Plans: none", "heading"))
        return
    page.add(Span("Plans", "heading"))
    number = len(str(plans[-1])) + 1
    fit = max(1, (page.width - 4 - number) // (_NARROWEST + 2))
    # Balance the blocks rather than leave a single column alone.
    blocks = -(-len(found) // fit)
    fit = -(-len(found) // blocks)
    size = min((page.width - 4 - number - 2 * (fit - 1)) // fit, 46)
    differing = view.divergence(simulation)
    rows = plans if verbose else _rows(plans, differing)
    for at in range(0, len(found), fit):
        block = found[at : at + fit]
        if at:
            page.add()
        heads = "  ".join(shorten(column.title, size).ljust(size) for column in block)
        page.add("    ", Span(" " * number + heads, "dim"))
        for row in rows:
            alike = set.intersection(*(set(c.cells[row][:-1]) for c in found if row in c.cells))
            fold = not verbose and max(len(c.cells[row]) for c in found if row in c.cells) > _LINES + 1
            _row(page, block, row, alike, size, number, differing, fold)
        if len(rows) < len(plans):
            page.add(Span(f"    … {counted(len(plans) - len(rows), 'more plan')} (-v shows all)", "dim"))


def _rows(plans: list[int], differing: Breach | None) -> list[int]:
    first = 0
    if differing is not None and differing.plan in plans:
        first = max(0, min(plans.index(differing.plan) - _PLANS // 2, len(plans) - _PLANS))
    return plans[first : first + _PLANS]


def _row(
    page: Page,
    block: Sequence[view.Column],
    row: int,
    alike: Collection[str],
    size: int,
    number: int,
    differing: Breach | None,
    fold: bool,
) -> None:
    cells = [_cell(column.cells.get(row, ("-",)), alike, size, fold) for column in block]
    here = differing is not None and differing.plan == row
    for i, parts in enumerate(zip_longest(*cells, fillvalue="")):
        mark = Span("  > ", "failed") if here and i == 0 else Span("    ")
        spans = [mark, Span((str(row) if i == 0 else "").ljust(number), "code")]
        for column, cell, part in zip(block, cells, parts, strict=True):
            odd = here and differing is not None and differing.rank in column.ranks
            style = "culprit" if odd else "dim" if i == len(cell) - 1 else ""
            spans.append(Span(part.ljust(size) + "  ", style))
        page.add(*spans)


def _cell(lines: Sequence[str], alike: Collection[str], size: int, fold: bool) -> list[str]:
    *items, facts = lines
    if fold:
        # The reader looks for differences between ranks.
        common = [line for line in items if line in alike]
        others = [line for line in items if line not in alike]
        if len(common) > 2:
            common = [*common[:1], f"… {len(common) - 1} more as on all ranks"]
        room = _LINES + 2 - len(common)
        if len(others) > room:
            others = [*others[: room - 1], f"… {len(others) - room + 1} more"]
        items = common + others
    out: list[str] = []
    for line in (*items, facts):
        out += textwrap.wrap(line, size, subsequent_indent="  ") or [""]
    return out


def _lives(page: Page, simulation: Simulation, rank: int, verbose: bool) -> None:
    found = view.lives(simulation.events_of(rank))
    if not found:
        return
    broken = {b.plan for b in simulation.breaches if b.rank == rank}
    shown = (
        found if verbose or len(found) <= _PLANS else [f for f in found if f.plan in broken][:_PLANS] or found[:_PLANS]
    )
    page.blank()
    page.add(Span(f"Reclaim on rank {rank}, by numbers of events", "heading"))
    heads, rows = view.LIFE_HEADS, [view.life_cells(life) for life in shown]
    used = [i for i in range(len(heads)) if i in (0, 7, 8) or any(row[i] != "-" for row in rows)]
    sizes = [max(len(heads[i]), *(len(row[i]) for row in rows)) for i in used]
    if sum(sizes) + 2 * len(sizes) + 2 > page.width:  # drop the least informative column
        used, sizes = [used[0], *used[2:]], [sizes[0], *sizes[2:]]
    page.add("    ", Span("  ".join(heads[i].ljust(size) for i, size in zip(used, sizes, strict=True)), "dim"))
    for life, row in zip(shown, rows, strict=True):
        odd = life.plan in broken
        text = "  ".join(row[i].ljust(size) for i, size in zip(used, sizes, strict=True)).rstrip()
        page.add(
            Span("  > " if odd else "    ", "failed"), Span(shorten(text, page.width - 4), "culprit" if odd else "")
        )
    if len(shown) < len(found):
        page.add(Span(f"    … {counted(len(found) - len(shown), 'more plan')} (-v shows all)", "dim"))


def _stuck(page: Page, simulation: Simulation, verbose: bool) -> None:
    found = view.stuck(simulation)
    if not found:
        return
    page.blank()
    page.add(Span("Stuck", "heading"))
    for who, what in found if verbose else found[:_STUCK]:
        page.wrap(what, indent="  ", hang="      ", lead=Span(f"{who}: ", "hung"))
    if len(found) > _STUCK and not verbose:
        page.add(Span(f"  … {len(found) - _STUCK} more (-v shows all)", "dim"))


def _breaches(page: Page, simulation: Simulation, rules: Mapping[str, Rule], verbose: bool) -> None:
    page.blank()
    if not simulation.breaches:
        page.add(Span("Rules: none broken", "heading"))
        return
    page.add(Span("Broken rules", "heading"))
    for name, found in view.by_rule(simulation).items():
        text = rules[name].text if name in rules else ""
        page.wrap(text, indent="  ", hang="      ", lead=Span(f"{name}: ", "error"))
        for number, breach in enumerate(found if verbose else found[:_ALIKE]):
            page.wrap(breach.text, indent="    ", hang="      ", lead=Span(f"{view.place(breach)}: ", "heading"))
            if number == 0 or verbose:
                for event in view.evidence(simulation.events, breach):
                    _event(page, event, breach.order)
        if len(found) > _ALIKE and not verbose:
            page.add(Span(f"    … {len(found) - _ALIKE} more (-v shows all)", "dim"))


def _event(page: Page, event: Event, broken: int | None) -> None:
    odd = event.order == broken
    plan = f"plan {event.plan}: " if event.plan else ""
    text = shorten(f"{event.order:5}  {plan}{event}", page.width - 6)
    page.add(Span("    > " if odd else "      ", "failed"), Span(text, "culprit" if odd else ""))


def _trace(page: Page, simulation: Simulation, rank: int) -> None:
    page.blank()
    page.add(Span(f"Trace of rank {rank}", "heading"))
    broken = {b.order for b in simulation.breaches if b.rank == rank}
    for event in simulation.events_of(rank):
        if event.what is not What.STUCK:
            _event(page, event, event.order if event.order in broken else None)
