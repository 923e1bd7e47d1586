"""One HTML file of a job: verdict, timeline, findings, ranks, waits, connections. It loads nothing, and text of logs in it is inert."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from psmkit.model import CODES, Evidence, Finding, Report, Severity
from psmkit.model.story import Story
from psmkit.model.timeline import Timeline, Track
from psmkit.model.wording import LACKS, counted, protocol_stage, uncoloured
from psmkit.report.axis import sentences
from psmkit.report.columns import Columns
from psmkit.report.document import document, table
from psmkit.report.escape import html_text, visible
from psmkit.report.layout import ranges
from psmkit.report.options import Options
from psmkit.report.summary import (
    about,
    behind,
    by_weight,
    common_folder,
    culprit_name,
    culprit_ranks,
    culprit_why,
    file_of,
    fold_causes,
    matching_rows,
    next_step,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
    suspect_name,
)
from psmkit.report.waits import edges, waiters

__all__ = ["draw", "render"]

_WHO = 8
_EVIDENCE = 6
_RANK_ROWS = 4096  # a browser takes seconds for more rows of a table
_TABLE_ROWS = 500
_SCRIPTS = ("timeline", "story")
_FEW = 30  # a timeline of fewer lines says less than the findings
_NAMES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(story: Story, options: Options | None = None) -> str:
    """The page as text."""
    return _Page(story, options or Options()).render()


def draw(timeline: Timeline, title: str, about: str = "") -> str:
    """The page of a timeline alone, as text; ``about`` is a sentence below its title."""
    columns = Columns()
    nothing = {
        "folder": "",
        "held": 0,
        "lines": 0,
        "texts": {},
        "pins": [],
        "blamed": [],
        "blamedNames": [],
        "links": [],
        "graph": [],
    }
    told = {"files": list(timeline.files), **nothing, **_drawn(timeline, columns, [t.name for t in timeline.tracks])}
    head = f"<h1>{html_text(title)}</h1>" + (f'<p class="dim">{html_text(about)}</p>' if about else "")
    sections = (("answer", "", head), ("time", "Timeline", _timeline(timeline)))
    return document(_SCRIPTS, f"{title} - psmkit", "timeline", sections, _data(told, columns))


class _Page:
    def __init__(self, story: Story, options: Options) -> None:
        self.story, self.report, self.options = story, story.report, options
        self.files = list(dict.fromkeys([*story.timeline.files, *story.texts, *_named_files(story.report)]))
        self.number = {name: at for at, name in enumerate(self.files)}
        self.edges = edges(story)
        self.folder = common_folder(story.report)
        if not all(name.startswith(self.folder) for name in self.files):
            self.folder = ""

    def render(self) -> str:
        columns = Columns()
        data = _data(self.data(columns), columns) + "".join(self.texts())
        verdict = self.report.verdict.value
        return document(_SCRIPTS, f"{verdict}: {self.story.title} - psmkit", verdict, self.sections(), data)

    # What is read without the script.

    def sections(self) -> Iterator[tuple[str, str, str]]:
        yield "answer", "", self.answer()
        drawn = ("time", "Timeline", self.timeline())
        found = ("findings", "Findings", self.findings())
        yield from (found, drawn) if len(self.story.timeline.marks) < _FEW else (drawn, found)
        yield "ranks", "Ranks", self.ranks()
        yield "waits", "Who waits for whom", self.waits()
        yield "connections", "Connections", self.connections()
        yield "handles", "Handles and segments that do not balance", self.held()
        yield "input", "What was read", self.input()

    def place(self, name: str, line: int) -> str:
        """A link to a line."""
        text = html_text(f"{name.removeprefix(self.folder)}:{line}")
        if name not in self.number or not line:
            return f'<span class="mono">{text}</span>'
        return f'<a href="#time" class="mono" data-place="{self.number[name]}:{line}">{text}</a>'

    def place_of(self, place: str | None) -> str:
        """A link to a line that is given as ``file:line``."""
        name, _, line = (place or "").rpartition(":")
        return self.place(name, int(line)) if line.isdecimal() else html_text(place or "")

    def answer(self) -> str:
        report = self.report
        text = sentence(report).replace(self.folder, "") if self.folder else sentence(report)
        verdict = report.verdict.value
        out = [f'<h1><span class="v-{verdict}">{verdict}</span>{html_text(text[len(verdict) :])}</h1>']
        rows: list[tuple[str, str]] = []
        for culprit in report.culprits[:_WHO]:
            stage = f", stage {known}" if (known := protocol_stage(culprit.stage)) else ""
            why = culprit_why(culprit, report)
            run = f" of run {run_number(culprit.run)}" if len(report.runs) > 1 else ""
            either = "one of: " if culprit.either else ""
            rows.append(("who", html_text(f"{either}{culprit_name(culprit)}{run}{stage}{f': {why}' if why else ''}")))
        if len(report.culprits) > _WHO:
            rows.append(("who", f"and {counted(len(report.culprits) - _WHO, 'more')}"))
        for suspect in report.suspects[:_WHO]:
            rows.append(
                (
                    "suspect",
                    html_text(f"{suspect_name(suspect)}: {suspect.owes}" if suspect.owes else suspect_name(suspect)),
                )
            )
        finding = behind(report)
        if finding is not None and finding.evidence:
            item = next((e for e in finding.evidence if len(e.text.split()) > 1), finding.evidence[0])
            rows.append(("proof", f"{self.place(item.file, item.line)}<br><code>{_line(item)}</code>"))
        if step := next_step(report):
            rows.append(("do this", html_text(step)))
        for ask in report.next:
            when = f"<br>{html_text(ask.when)}" if ask.when else ""
            rows.append(("next", f"<code>{html_text(ask.command)}</code>{when}<br>{html_text(ask.why)}"))
        if verdict != "inconclusive":
            rows.append(("confidence", percent(report.confidence)))
        if len(report.runs) > 1:
            rows += [
                (f"run {run_number(run.index)}{html_text(file_of(run))}", html_text(sentence(run)))
                for run in report.runs[:_TABLE_ROWS]
            ]
        last = ""
        out.append('<dl class="answer">')
        for name, value in rows:
            out.append(f"<dt>{name if name != last else ''}</dt><dd>{value}</dd>")
            last = name
        return "".join(out) + "</dl>"

    def timeline(self) -> str:
        return _timeline(self.story.timeline)

    def findings(self) -> str:
        report = self.report
        out: list[str] = []
        shown: set[int] = set()
        for fold in fold_causes(report, everything=self.options.verbose):
            for cause in fold.shown:
                out.append(
                    self.finding(
                        report.findings[cause.finding], [report.findings[n] for n in cause.same], open_=not out
                    )
                )
                out += [self.finding(report.findings[n], [], follows=True) for n in cause.follows[:_EVIDENCE]]
                if (rest := len(cause.follows) - _EVIDENCE) > 0:
                    out.append(f'<p class="dim">and {rest} more that follow from it</p>')
                shown.update((cause.finding, *cause.same, *cause.follows))
            if fold.hidden:
                ranks = {
                    r
                    for c in fold.hidden
                    for r in (report.findings[c.finding].culprits or report.findings[c.finding].ranks)
                }
                about_ranks = f", about ranks {ranges(ranks)}" if ranks else ""
                out.append(f'<p class="dim">and {len(fold.hidden)} more like this{about_ranks}</p>')
        notes = [f for f in by_weight(report) if f.severity is Severity.INFO]
        out += [self.finding(f, []) for f in notes[:_TABLE_ROWS]]
        return "".join(out) or '<p class="empty">None.</p>'

    def finding(self, finding: Finding, same: Sequence[Finding], *, open_: bool = False, follows: bool = False) -> str:
        known = CODES.get(finding.code)
        codes = ", ".join(dict.fromkeys([finding.code, *(f.code for f in same)]))
        details = about(finding, runs=len(self.report.runs), stage=True)
        lines = [*finding.evidence[:_EVIDENCE], *(e for f in same for e in f.evidence[:1])]
        evidence = list({(e.file, e.line): e for e in lines}.values())
        more = len(finding.evidence) - _EVIDENCE
        return (
            f'<details class="finding s-{finding.severity.value}{" follows" if follows else ""}"{" open" if open_ else ""}>'
            f'<summary><span class="code mono">{html_text(codes)}</span>{html_text(finding.title)} '
            f'<span class="dim">{"follows from it, " if follows else ""}{_NAMES[finding.severity]}, {percent(finding.confidence)}'
            f"{f', {html_text(details)}' if details else ''}</span></summary>"
            f"<p>{html_text(finding.explanation)}</p>"
            + (f"<p><b>Do this:</b> {html_text(finding.next_step)}</p>" if finding.next_step else "")
            + "".join(f"<div>{self.place(e.file, e.line)} <code>{_line(e)}</code></div>" for e in evidence)
            + (f'<div class="dim">and {counted(more, "more line")}</div>' if more > 0 else "")
            + (
                f'<p class="dim">{html_text(finding.code)}: {html_text(known.meaning)} More: <code>psmkit explain {html_text(finding.code)}</code></p>'
                if known
                else ""
            )
            + (f'<p class="dim">Known issue: {html_text(finding.known_issue)}</p>' if finding.known_issue else "")
            + "</details>"
        )

    def ranks(self) -> str:
        rows = self.report.ranks
        if not rows:
            return ""
        blamed = culprit_ranks(self.report)
        owes: dict[tuple[int, str], str] = {(d.run, d.process): d.owes for d in self.story.debtors}
        runs = len(self.report.runs) > 1
        head = [
            *(["run"] if runs else []),
            "rank",
            "process",
            "device",
            "state",
            "reached",
            "next step of its handshake",
            "last line",
        ]
        out = []
        for row in sorted(rows, key=lambda row: (row.run, (row.run, row.rank) not in blamed))[:_RANK_ROWS]:
            process = "" if row.host is None and row.pid is None else f"{row.host or ''}:{row.pid}"
            cells = [
                *([str(run_number(row.run))] if runs else []),
                "" if row.rank is None else str(row.rank),
                html_text(process),
                ", ".join(map(str, row.devices)) if row.devices else "",
                row.state,
                html_text(row.stage),
                html_text(owes.get((row.run, process), "")),
                self.place_of(row.last),
            ]
            mine = ' class="blamed"' if (row.run, row.rank) in blamed else ""
            out.append(f"<tr{mine}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        rest = f'<p class="dim">and {len(rows) - _RANK_ROWS:,} more ranks</p>' if len(rows) > _RANK_ROWS else ""
        return table(head, out) + rest

    def waits(self) -> str:
        found = waiters(self.story)
        if not found:
            return ""
        graph = '<svg id="graph" class="graph" role="img" aria-label="Who waits for whom"></svg>' if self.edges else ""
        runs = len(self.report.runs) > 1
        rows = [
            "<tr>"
            + (f"<td>{run_number(w.run)}</td>" if runs else "")
            + f"<td class='wrap'>{html_text(w.who)}</td><td>{html_text(w.target)}</td><td>{html_text(w.step)}</td>"
            + f"<td>{html_text(w.shown)}</td><td>{self.place_of(w.place)}</td></tr>"
            for w in found[:_TABLE_ROWS]
        ]
        head = (*(["run"] if runs else []), "who", "waits for", "step", "shown by", "line of the first")
        rest = len(found) - _TABLE_ROWS
        more = f'<p class="dim">and {counted(rest, "more row")}</p>' if rest > 0 else ""
        return f'<div class="split">{graph}<div>{table(head, rows)}{more}</div></div>'

    def connections(self) -> str:
        if not self.story.links:
            return ""
        runs = sorted({link.run for link in self.story.links})
        chosen = "".join(f'<option value="{run_number(run)}">run {run_number(run)}</option>' for run in runs)
        return (
            (
                f'<p class="tools"><select id="matrix-run" aria-label="Run">{chosen}</select></p>'
                if len(runs) > 1
                else ""
            )
            + '<canvas id="matrix" aria-label="Channels between ranks"></canvas><div id="matrix-legend" class="legend"></div>'
        )

    def held(self) -> str:
        rows = [
            f"<tr><td>{html_text(h.process)}</td><td>{html_text(h.kind)}</td><td class='mono'>{html_text(h.key)}</td><td>{h.opens}</td><td>{h.closes}</td>"
            f"<td>{h.imports}</td><td>{self.place_of(h.opened or h.imported)}</td><td>{self.place_of(h.closed)}</td></tr>"
            for h in self.story.held[:_TABLE_ROWS]
        ]
        if not rows:
            return ""
        rest = len(self.story.held) - _TABLE_ROWS
        return table(("process", "kind", "handle", "opened", "closed", "imported", "first line", "end"), rows) + (
            f'<p class="dim">and {rest} more</p>' if rest > 0 else ""
        )

    def input(self) -> str:
        coverage = self.report.coverage
        lines = [
            f"{counted(coverage.files, 'file')}, {size(coverage.bytes)}, {counted(coverage.lines, 'line')}: {coverage.matched:,} known, "
            f"{coverage.unmatched:,} of NCCL that psmkit does not know, {coverage.torn:,} torn, {coverage.other:,} of other programs, "
            f"{max(coverage.lines - coverage.matched - coverage.unmatched - coverage.torn - coverage.other, 0):,} empty or part of another line."
        ]
        if self.report.versions:
            lines.append(f"NCCL: {', '.join(self.report.versions)}.")
        if coverage.missing_ranks:
            lines.append(f"No line of ranks {ranges(coverage.missing_ranks)}.")
        if coverage.missing_subsystems:
            lines.append(f"No line of the subsystems {', '.join(coverage.missing_subsystems)}.")
        lines += [note for note in coverage.notes if not note.startswith(LACKS)]  # that is what to do
        if (held := self.held_lines()) < coverage.lines:
            lines.append(
                f"This page holds {held:,} of the {coverage.lines:,} lines: the logs are too long for all of them."
            )
        matched = [
            f"<tr><td>{name}</td><td>{c.matched:,}</td><td>{c.pending:,}</td><td>{c.orphan:,}</td></tr>"
            for name, c in matching_rows(self.report.matching)
        ]
        out = "".join(f"<p>{html_text(line)}</p>" for line in lines)
        if matched:
            out += table(("exchange", "matched", "only the first end", "only the second end"), matched)
        if coverage.rerun_with and not self.report.next:  # there it stands at the top
            out += f"<p>To see more in another run:</p><code>{html_text(rerun_line(coverage.rerun_with))}</code>"
        return out

    def held_lines(self) -> int:
        """How many lines of the logs the page holds."""
        return sum(len(excerpt.lines) for excerpts in self.story.texts.values() for excerpt in excerpts)

    # What the script draws.

    def data(self, columns: Columns) -> dict[str, Any]:
        timeline = self.story.timeline
        blamed = culprit_ranks(self.report)
        return {
            "files": self.files,
            "folder": self.folder,
            **_drawn(timeline, columns, [self.track_name(track) for track in timeline.tracks]),
            "held": self.held_lines(),
            "lines": self.report.coverage.lines,
            "texts": {
                self.number[name]: [[e.first, len(e.lines)] for e in excerpts]
                for name, excerpts in self.story.texts.items()
            },
            "pins": self.pins(),
            "blamed": [at for at, t in enumerate(timeline.tracks) if t.parent < 0 and (t.run, t.rank) in blamed],
            "blamedNames": sorted(
                {
                    f"run {run_number(run)}, rank {rank}" if len(self.report.runs) > 1 else f"rank {rank}"
                    for run, rank in blamed
                }
            ),
            "stages": [
                {"run": run_number(row.run), "rank": row.rank, "stage": visible(row.stage), "state": row.state}
                for row in self.report.ranks[:_RANK_ROWS]
                if row.rank is not None and self.story.links
            ],
            "links": [
                {
                    "run": run_number(link.run),
                    "source": link.source,
                    "target": link.target,
                    "via": visible(link.via),
                    "channels": link.channels,
                    **self._split(link.place),
                }
                for link in self.story.links
            ],
            "graph": [{k: visible(v) if isinstance(v, str) else v for k, v in edge.items()} for edge in self.edges],
        }

    def track_name(self, track: Track) -> str:
        several = len(self.report.runs) > 1 and track.parent < 0 and track.rank is not None
        return f"run {run_number(track.run)}, {track.name}" if several else track.name

    def pins(self) -> list[dict[str, Any]]:
        """The lines that errors and warnings rest on; ``first`` are those of the verdict."""
        out: dict[tuple[str, int], dict[str, Any]] = {}
        primary = behind(self.report)
        for finding in ([primary] if primary else []) + by_weight(self.report):
            if finding.severity is Severity.INFO:
                continue
            for item in finding.evidence[:_EVIDENCE]:
                if item.file in self.number:
                    row = {
                        "file": self.number[item.file],
                        "line": item.line,
                        "level": finding.severity.value,
                        "first": finding is primary,
                    }
                    out.setdefault((item.file, item.line), row)
        return list(out.values())

    def _split(self, place: str) -> dict[str, int]:
        name, _, line = place.rpartition(":")
        return {"file": self.number.get(name, 0), "line": int(line) if line.isdecimal() else 0}

    def texts(self) -> Iterator[str]:
        for name, excerpts in self.story.texts.items():
            text = "\n".join(visible(uncoloured(line)) for excerpt in excerpts for line in excerpt.lines)
            packed = base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode("ascii")
            yield f'<script type="text/plain" id="text-{self.number[name]}">{packed}</script>\n'


def _data(told: dict[str, Any], columns: Columns) -> str:
    """The blocks that the script reads, and the boxes that it fills."""
    text = json.dumps(told, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<div id="tip" role="tooltip" hidden></div>\n<aside id="drawer" aria-label="Selected line" hidden></aside>\n'
        f'<script type="application/json" id="story">{text}</script>\n'
        f'<script type="text/plain" id="columns">{columns.packed()}</script>\n'
    )


def _drawn(timeline: Timeline, columns: Columns, names: Sequence[str]) -> dict[str, Any]:
    """What the script needs of a timeline whose columns are added to ``columns``."""
    scale = columns.add_timeline(timeline)
    return {
        "axis": {"unit": timeline.axis.unit.value, "origin": timeline.axis.origin, "step": timeline.axis.step},
        "scale": scale,
        "tracks": [
            {"name": visible(name), "kind": t.kind, "parent": t.parent, "rank": t.rank}
            for name, t in zip(names, timeline.tracks, strict=True)
        ],
        "kinds": [
            {
                "name": k.name,
                "label": k.label,
                "group": k.group,
                "level": k.level.value,
                "meaning": k.meaning,
                "inside": k.inside,
            }
            for k in timeline.kinds
        ],
        "labels": [visible(label) for label in columns.labels],
        "columns": columns.index,
    }


def _timeline(timeline: Timeline) -> str:
    """What the script draws the timeline into; empty without a row."""
    if not len(timeline.marks) and not len(timeline.spans):
        return ""
    says = " ".join(sentences(timeline))
    return (
        f'<p class="dim">{html_text(says)}</p>'
        '<div class="tools"><input id="search" type="search" placeholder="Search (/)" aria-label="Search lines and calls">'
        '<span id="results" class="results" role="status"></span>'
        '<input id="ranks-filter" placeholder="Ranks, such as 0-3,7" aria-label="Ranks to show"><span id="ranks-note" class="results" role="status"></span>'
        '<button id="proof" type="button">show the proof</button><button id="open" type="button">open all ranks</button>'
        '<button id="close" type="button">close all</button>'
        '<button id="zoom-in" type="button" title="+">zoom in</button><button id="zoom-out" type="button" title="-">zoom out</button>'
        '<button id="all" type="button" title="0">show all</button><span id="groups" class="tools"></span></div>'
        '<div id="timeline"><canvas id="mini" height="22"></canvas><canvas id="axis" height="26"></canvas>'
        '<div id="scroll"><canvas id="rows" tabindex="0" aria-label="Timeline: a row for each rank"></canvas><div class="filler"></div></div></div>'
        '<div id="legend" class="legend"></div><div id="arrows-note" class="dim"></div>'
        '<p class="dim help">Drag to move. Ctrl and wheel, <kbd>+</kbd> and <kbd>-</kbd> zoom. Click a rank to open its threads, a line to read it. '
        "<kbd>,</kbd> and <kbd>.</kbd> go from line to line of a thread, <kbd>0</kbd> shows all. The address of the page holds what you see. "
        "A dashed frame marks a call that no line ends; hatching marks a wait.</p>"
    )


def _line(item: Evidence) -> str:
    return html_text(uncoloured(item.text.strip()))


def _named_files(report: Report) -> list[str]:
    names = [item.file for finding in report.findings for item in finding.evidence]
    return names + [row.last.rpartition(":")[0] for row in report.ranks if row.last]
