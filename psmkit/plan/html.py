"""A simulation as one self-contained HTML file: plans side by side, a picture, the end of the plans, rules, trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from psmkit.model.wording import counted
from psmkit.plan import view
from psmkit.plan.picture import draw
from psmkit.plan.types import Rule, Simulation
from psmkit.report.drawing import PAGE_STYLE
from psmkit.report.escape import html_text

__all__ = ["render"]

_TRACE = 2000  # events of the shown rank
_STEPS = 500
_PLANS = 300

_STYLE = """
body{margin:24px auto;max-width:1180px;padding:0 16px}
h1{font-size:19px;margin:0 0 4px}h2{font-size:15px;margin:26px 0 8px}
p{margin:4px 0}.dim,th{color:var(--dim)}.bad{color:var(--error)}.good{color:var(--good)}
table{border-collapse:collapse;font:12px/1.4 ui-monospace,monospace}th{text-align:left;font-weight:600}
th,td{padding:4px 10px;border:1px solid var(--line);vertical-align:top}.plans td{white-space:nowrap}
tr.odd td{background:var(--lane)}td.odd,tr.odd td.odd{background:var(--odd)}tr.odd>td:first-child{border-left:4px solid var(--error)}
.wide{overflow-x:auto;border:1px solid var(--line);padding:4px}pre{font:12px/1.4 ui-monospace,monospace;background:var(--lane);padding:8px;overflow-x:auto}
details>summary{cursor:pointer;color:var(--dim)}
"""


def render(simulation: Simulation, rules: Mapping[str, Rule], *, rank: int | None = None) -> str:
    """The page. All its text is escaped, and it loads nothing.

    Args:
        simulation: the simulation.
        rules: the rules by name.
        rank: the rank whose plans are followed to their end; None: the one to look at first.
    """
    shown = view.focus(simulation) if rank is None else rank
    bad = bool(simulation.breaches or simulation.stuck)
    parts = [
        f'<h1 class="{"bad" if bad else "good"}">{html_text(view.sentence(simulation))}</h1>',
        f'<p class="dim">{html_text(view.title(simulation))}; {html_text(view.configuration(simulation))}</p>',
        *(_stuck(simulation)),
        *_breaches(simulation, rules),
        "<h2>Plans of the ranks</h2>",
        _plans(simulation),
        f"<h2>Streams and reclaim on rank {shown}</h2>",
        f'<div class="wide">{draw(simulation, shown)}</div>',
        _lives(simulation, shown),
        "<h2>Tasks</h2>",
        _details("steps", islice(view.step_lines(simulation), _STEPS), len(simulation.steps)),
        f"<h2>Trace of rank {shown}</h2>",
        _trace(simulation, shown),
    ]
    name = html_text(f"psmkit plan: {view.title(simulation)}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{PAGE_STYLE}{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _cell(text: str, style: str = "") -> str:
    return f"<td{f' class={style!r}'.replace(chr(39), chr(34)) if style else ''}>{text}</td>"


def _table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], name: str = "facts") -> str:
    head = "".join(f"<th>{html_text(text)}</th>" for text in heads)
    body = "".join(f"<tr{' class=odd' if odd else ''}>{''.join(cells)}</tr>\n" for odd, cells in rows)
    return f'<div class="wide"><table class="{name}"><tr>{head}</tr>\n{body}</table></div>'


def _plans(simulation: Simulation) -> str:
    found = view.columns(simulation)
    differing = view.divergence(simulation)
    plans = sorted({plan for column in found for plan in column.cells})
    rows = []
    for plan in _around(plans, differing.plan if differing is not None else 0):
        here = differing is not None and differing.plan == plan
        cells = [_cell(str(plan))]
        for column in found:
            *items, facts = column.cells.get(plan, ("-",))
            odd = here and differing is not None and differing.rank in column.ranks
            text = "<br>".join([*map(html_text, items), f'<span class="dim">{html_text(facts)}</span>'])
            cells.append(_cell(text, "odd" if odd else ""))
        rows.append(("odd" if here else "", cells))
    return _table(["plan", *(column.title for column in found)], rows, "plans") + _left_out(len(plans) - len(rows))


def _around(plans: Sequence[int], wanted: int) -> Sequence[int]:
    """Of many plans, those around the one of interest."""
    at = plans.index(wanted) if wanted in plans else 0
    first = max(0, min(at - _PLANS // 2, len(plans) - _PLANS))
    return plans[first : first + _PLANS]


def _left_out(count: int) -> str:
    return f'<p class="dim">{counted(count, "more plan")} left out.</p>' if count else ""


def _lives(simulation: Simulation, rank: int) -> str:
    broken = {b.plan for b in simulation.breaches if b.rank == rank}
    found = view.lives(simulation.events_of(rank))
    count = len(found)
    shown = _around([life.plan for life in found], min(broken, default=0))
    found = [life for life in found if life.plan in shown]
    rows = [
        ("odd" if life.plan in broken else "", [_cell(html_text(text)) for text in view.life_cells(life)])
        for life in found
    ]
    return _table(view.LIFE_HEADS, rows) + _left_out(count - len(rows)) if rows else ""


def _stuck(simulation: Simulation) -> Iterable[str]:
    found = view.stuck(simulation)
    if found:
        yield "<h2>Stuck</h2>"
        yield from (f"<p><b>{html_text(who)}</b>: {html_text(what)}</p>" for who, what in found)


def _breaches(simulation: Simulation, rules: Mapping[str, Rule]) -> Iterable[str]:
    if not simulation.breaches:
        return
    yield "<h2>Broken rules</h2>"
    rows = []
    for name, found in view.by_rule(simulation).items():
        text = rules[name].text if name in rules else ""
        rows.append(("odd", [f'<td colspan="3"><b>{html_text(name)}</b>: {html_text(text)}</td>']))
        for breach in found:
            event = "-" if breach.order is None else str(breach.order)
            rows.append(("", [_cell(html_text(cell)) for cell in (view.place(breach), event, breach.text)]))
    yield _table(["where", "event", "what happened"], rows)


def _trace(simulation: Simulation, rank: int) -> str:
    broken = {b.order for b in simulation.breaches if b.rank == rank}
    trace = list(simulation.events_of(rank))
    rows = [
        (
            "odd" if event.order in broken else "",
            [_cell(str(event.order)), _cell(str(event.plan or "")), _cell(html_text(str(event)))],
        )
        for event in trace[:_TRACE]
    ]
    more = f'<p class="dim">{counted(len(trace) - _TRACE, "more event")} left out.</p>' if len(trace) > _TRACE else ""
    table = _table(["event", "plan", "what happened"], rows)
    return f"<details><summary>{counted(len(trace), 'event')}</summary>{table}{more}</details>"


def _details(what: str, lines: Iterable[str], count: int) -> str:
    text = "\n".join(map(html_text, lines))
    more = f"\n… {count - _STEPS} more" if count > _STEPS else ""
    return f"<details open><summary>{count} {what}</summary><pre>{text}{more}</pre></details>"
