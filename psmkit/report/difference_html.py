"""The comparison of two runs as one HTML file: where each rank parts from the good run, what only one side has, what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psmkit.model import Evidence
from psmkit.model.difference import Difference, PairedStep, StepDifference
from psmkit.model.wording import counted, plural, uncoloured
from psmkit.report.difference import (
    by_weight,
    grouped,
    headline,
    last_common,
    operations,
    shared_folder,
    track_words,
)
from psmkit.report.document import document, table
from psmkit.report.escape import html_text
from psmkit.report.layout import ranges

__all__ = ["render"]

_OPEN = 3  # groups of ranks whose steps are shown at once
_GROUPS = 256
_ROWS = 2000  # of a table
_WORDS = {"same": "=", "differs": "\N{NOT EQUAL TO}", "good": "only GOOD", "bad": "only BAD"}
_KINDS = {"setting": "Settings", "version": "Versions", "network": "Network", "topology": "Topology"}


def render(difference: Difference, good: str, bad: str, *, chosen: bool = False) -> str:
    """The page as text. All its text is escaped, and it loads nothing.

    Args:
        difference: the comparison.
        good: what was given as GOOD.
        bad: what was given as BAD.
        chosen: only some ranks were asked for.
    """
    return _Page(difference, good, bad, chosen).render()


class _Page:
    def __init__(self, difference: Difference, good: str, bad: str, chosen: bool) -> None:
        self.difference, self.good, self.bad, self.chosen = difference, good, bad, chosen
        rows = [row for step in difference.steps for row in step.around]
        ours = [at.file for at in (*(r.good_at for r in rows), *(s.good_at for s in difference.steps)) if at]
        theirs = [at.file for at in (*(r.bad_at for r in rows), *(s.bad_at for s in difference.steps)) if at]
        theirs += [difference.cause.at.file] if difference.cause is not None and difference.cause.at is not None else []
        ours += [o.missing_at.rpartition(":")[0] for o in difference.operations if o.missing_at]
        theirs += [o.extra_at.rpartition(":")[0] for o in difference.operations if o.extra_at]
        self.folders = shared_folder(ours), shared_folder(theirs)

    def render(self) -> str:
        word = "same" if self.difference.same else "differs"
        return document(("compare",), f"{word}: {self.good} and {self.bad} - psmkit", word, self.sections())

    def sections(self) -> Iterator[tuple[str, str, str]]:
        yield "answer", "", self.answer()
        yield "steps", "Where each rank parts", self.steps()
        yield "operations", "Steps that only one side has", self.operations()
        yield "settings", "Settings, versions, topology", self.settings()
        yield "equal", "Ranks without a difference", self.equal()

    def place(self, at: Evidence | str | None, side: int) -> str:
        if at is None:
            return ""
        name = str(at)
        return f'<span class="place mono">{html_text(name.removeprefix(self.folders[side]))}</span>'

    def answer(self) -> str:
        difference = self.difference
        word, _, rest = headline(difference, chosen=self.chosen).partition(":")
        rows = [
            ("GOOD", f"<code>{html_text(self.good)}</code>"),
            ("BAD", f"<code>{html_text(self.bad)}</code>"),
        ]
        if (cause := difference.cause) is not None:
            said = f"{html_text(cause.code)}: {html_text(cause.title)}"
            rows.append(("first finding", f"{said}{_quote(cause.at, self.place(cause.at, 1))}"))
        first = next(iter(by_weight(difference)), None)
        if first is not None:
            last = last_common(first)
            if last is not None and last.good is not None:
                places = f"{self.place(last.good_at, 0)} {self.place(last.bad_at, 1)}"
                rows.append(("last common", f"{html_text(last.good)}<br>{places}"))
            for name, text, at, side in (
                ("then GOOD", first.good, first.good_at, 0),
                ("then BAD", first.bad, first.bad_at, 1),
            ):
                none = (
                    "no warning"
                    if first.track == "errors"
                    else f"no more steps of its {html_text(first.track or 'track')}"
                )
                rows.append(
                    (
                        name,
                        (html_text(text) if text is not None else f'<span class="dim">{none}</span>')
                        + _quote(at, self.place(at, side)),
                    )
                )
        for name, ranks in (
            ("only in GOOD", difference.missing),
            ("only in BAD", difference.extra),
            ("in neither", difference.unseen),
        ):
            if ranks:
                rows.append((name, f"{plural(len(ranks), 'rank')} {ranges(ranks)}"))
        if difference.not_compared:
            rows.append(("not compared", f"rank not known: {html_text(', '.join(difference.not_compared))}"))
        out = [f'<h1><span class="v-{word}">{word}</span>:{html_text(rest)}</h1><dl class="answer">']
        out += [f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows]
        return "".join(out) + "</dl>"

    def steps(self) -> str:
        if not self.difference.steps:
            return ""
        groups = grouped(self.difference)
        out = [
            '<p class="dim">Steps of a rank, without addresses, ids and times. '
            "Threads interleave freely, so steps are compared within one track, such as the proxy calls of a rank. Ranks that part in the same way stand together.</p>"
            '<div class="tools"><input id="ranks-filter" placeholder="Ranks, such as 0-3,7" aria-label="Ranks to show">'
            '<button id="open-all" type="button">open all</button><button id="close-all" type="button">close all</button>'
            '<span id="shown" class="results" role="status"></span></div>'
        ]
        out += [self.group(group, open_=number < _OPEN) for number, group in enumerate(groups[:_GROUPS])]
        if rest := [step.rank for group in groups[_GROUPS:] for step in group if step.rank is not None]:
            out.append(
                f'<p class="dim">and {counted(len(rest), "more rank")}: {ranges(rest)}. See the JSON, or choose some by --ranks.</p>'
            )
        return "".join(out)

    def group(self, group: Sequence[StepDifference], *, open_: bool) -> str:
        first = group[0]
        ranks = [step.rank for step in group if step.rank is not None]
        name = f"{plural(len(ranks), 'rank')} {ranges(ranks)}" if ranks else "rank ?"
        process = f" ({html_text(first.process)})" if first.process and len(group) == 1 else ""
        lines = f" The lines are those of rank {first.rank}." if len(group) > 1 else ""
        rows = []
        last = last_common(first)
        if last is None and first.track != "errors":
            rows.append(_divider("no common step: the two differ from the first one"))
        for row in first.around or (PairedStep(_mark(first), first.good, first.bad, first.good_at, first.bad_at),):
            parts = row.mark != "same" and not any('class="p-first' in done for done in rows)
            rows.append(self.row(row, parts))
            if row is last:
                rows.append(_divider("last common step above; GOOD and BAD part here"))
        if first.good_more or first.bad_more:
            cells = (f"<td>{_more(count)}</td>" for count in (first.good_more, first.bad_more))
            rows.append(f'<tr class="more"><td></td>{"".join(cells)}</tr>')
        return (
            f'<details class="finding pairs s-error" id="rank-{ranks[0] if ranks else "unknown"}" data-ranks="{",".join(map(str, ranks))}"{" open" if open_ else ""}>'
            f'<summary><b>{name}</b>{process}: {html_text(track_words(first))} <span class="dim">- {html_text(_parts(first))}.{lines}</span></summary>'
            '<div class="table"><table class="pair"><thead><tr><th scope="col"></th><th scope="col">GOOD</th><th scope="col">BAD</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div></details>"
        )

    def row(self, row: PairedStep, parts: bool) -> str:
        cells = []
        for text, at, side in ((row.good, row.good_at, 0), (row.bad, row.bad_at, 1)):
            if text is None:
                cells.append('<td class="none"></td>')
                continue
            quote = f"<code>{_line(at)}</code>" if at is not None and row.mark != "same" and at.text else ""
            cells.append(f"<td>{self.place(at, side)}<div>{html_text(text)}</div>{quote}</td>")
        return f'<tr class="{"p-first " if parts else ""}p-{row.mark}"><td class="sign">{_WORDS[row.mark]}</td>{"".join(cells)}</tr>'

    def operations(self) -> str:
        found = operations(self.difference.operations)
        if not found:
            return '<p class="empty">None: the steps differ in their order only.</p>' if self.difference.steps else ""
        rows = []
        for one in found[:_ROWS]:
            o = one.first
            places = "<br>".join(filter(None, (self.place(o.missing_at, 0), self.place(o.extra_at, 1))))
            rows.append(
                f"<tr><td>{html_text(o.track)}</td><td class='wrap kind'>{html_text(o.kind)}</td><td>{o.good:,}</td><td>{o.bad:,}</td>"
                f"<td>{_number(o.missing)}</td><td>{_number(o.extra)}</td><td class='wrap'>{ranges(one.ranks)}</td><td>{places}</td></tr>"
            )
        rest = f'<p class="dim">and {len(found) - _ROWS:,} more rows</p>' if len(found) > _ROWS else ""
        head = ("track", "kind of step", "in GOOD", "in BAD", "only in GOOD", "only in BAD", "ranks", "first such line")
        note = '<p class="dim">Numbers are those of one rank. A step that BAD has with other values counts on both sides. <code>psmkit explain NAME</code> says what a line such as psm.fd means.</p>'
        return note + table(head, rows) + rest

    def settings(self) -> str:
        settings = self.difference.settings
        if not settings:
            return "" if self.difference.same else '<p class="empty">No difference.</p>'
        out = []
        for kind, title in _KINDS.items():
            rows = [
                f"<tr><td class='mono'>{html_text(s.name)}</td>{_value(s.good)}{_value(s.bad)}<td class='wrap'>{ranges(s.ranks) or 'all'}</td></tr>"
                for s in settings
                if s.kind == kind
            ]
            if rows:
                more = f'<p class="dim">and {len(rows) - _ROWS:,} more</p>' if len(rows) > _ROWS else ""
                out.append(f"<h3>{title}</h3>{table(('name', 'GOOD', 'BAD', 'ranks'), rows[:_ROWS])}{more}")
        return "".join(out)

    def equal(self) -> str:
        ranks = self.difference.equal_ranks
        if not ranks or self.difference.same:
            return ""
        same = "takes the same steps on both sides" if len(ranks) == 1 else "take the same steps on both sides"
        return f"<details><summary>{counted(len(ranks), 'rank')} {same}</summary><p>{ranges(ranks)}</p></details>"


def _mark(step: StepDifference) -> str:
    return "differs" if step.good is not None and step.bad is not None else "bad" if step.good is None else "good"


def _parts(step: StepDifference) -> str:
    if step.track == "errors":
        return (
            "BAD has a warning that GOOD does not have"
            if step.bad is not None
            else "GOOD has a warning that BAD does not have"
        )
    if step.bad is None:
        return "BAD has no more of them, GOOD goes on"
    return "GOOD has no more of them, BAD goes on" if step.good is None else "both go on in different ways"


def _more(count: int) -> str:
    return f"and {counted(count, 'more step')}" if count else "no more steps"


def _number(count: int) -> str:
    return f"<b>{count:,}</b>" if count else '<span class="dim">0</span>'


def _value(text: str | None) -> str:
    return (
        f"<td class='wrap mono'>{html_text(text)}</td>" if text is not None else "<td class='dim'>not in the log</td>"
    )


def _divider(text: str) -> str:
    return f'<tr class="parting"><td></td><td colspan="2">{text}</td></tr>'


def _line(at: Evidence) -> str:
    return html_text(uncoloured(at.text.strip()))


def _quote(at: Evidence | None, place: str) -> str:
    return "" if at is None else f"<br>{place}" + (f"<br><code>{_line(at)}</code>" if at.text else "")
