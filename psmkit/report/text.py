"""The text report: verdict, ranks, findings with their evidence, and missing inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psmkit.model import CODES, Ask, Cause, Evidence, Finding, Report, Severity, Verdict
from psmkit.model.wording import counted, plural, protocol_stage, uncoloured, without_bars
from psmkit.report.escape import shorten, visible
from psmkit.report.excerpt import excerpt
from psmkit.report.layout import Page, Span, ranges
from psmkit.report.options import Options
from psmkit.report.ranktable import fit, legend, rank_table
from psmkit.report.summary import (
    Fold,
    about,
    behind,
    common_folder,
    culprit_name,
    culprit_ranks,
    culprit_why,
    fold,
    fold_causes,
    foremost,
    listed,
    matching_rows,
    next_step,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
    suspect_name,
)

__all__ = ["headline", "layout", "render"]

_EVIDENCE = 3
_ALSO = 1  # lines of evidence of each other finding of a group
_RUNS = 12
_SHOWN_FOLLOWS = 3
_WHO = 4
_NAMES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
#: What stands between the prefix of a line of NCCL and its message.
_LEVELS = tuple(f"NCCL {level} " for level in ("WARN", "INFO", "TRACE", "CALL", "ABORT", "ATTN", "DIAG", "ERROR"))
#: So much of three rows is lost where they break between words.
_RAGGED = 30
#: A shorter text is no message.
_LEAST = 12
#: A place of at most this length and its line share a row.
_SHORT_PLACE = 44


def render(report: Report, options: Options | None = None) -> str:
    """The report as plain text."""
    return layout(report, options or Options()).text()


def layout(report: Report, options: Options) -> Page:
    """The report as styled lines of at most ``options.width`` characters, except the first line and paths."""
    page = Page(max(options.width, 40))
    folder = common_folder(report)
    _verdict(page, report, folder)
    _ranks(page, report, options, folder)
    _causes(page, report, options, folder)
    _notes(page, report, options, folder)
    if options.verbose:
        _matching(page, report)
        _communicators(page, report)
    _coverage(page, report, options)
    _next(page, report, options)
    return page


def headline(report: Report, options: Options) -> Page:
    """The start of the report: verdict, who, proof, and what to do."""
    page = Page(max(options.width, 40))
    _verdict(page, report, common_folder(report))
    return page


def _verdict(page: Page, report: Report, folder: str) -> None:
    text = sentence(report).replace(folder, "") if folder else sentence(report)
    verdict = report.verdict.value
    page.add(Span(verdict, verdict), Span(text[len(verdict) :], "heading"))
    if len(report.runs) > 1:
        shown = sorted(report.runs, key=lambda run: -run.verdict.badness)[:_RUNS]
        for run in sorted(shown, key=lambda run: run.index):
            page.wrap(
                sentence(run), indent="  ", hang="      ", lead=Span(f"run {run_number(run.index)} ", run.verdict.value)
            )
        if len(report.runs) > len(shown):
            page.add(Span(f"  and {counted(len(report.runs) - len(shown), 'more run')}, none worse", "dim"))
    _who(page, report)
    finding = behind(report)
    if finding is not None and finding.evidence:
        _proof(page, _telling(finding.evidence), folder, finding.title)
    if step := next_step(report):
        page.wrap(step, indent="  ", hang=" " * 11, lead=Span("do this: ", "code"))


def _who(page: Page, report: Report) -> None:
    sure = f"confidence {percent(report.confidence)}"
    for number, culprit in enumerate(report.culprits[:_WHO]):
        reason = culprit_why(culprit, report)
        stage = f", stage {known}" if (known := protocol_stage(culprit.stage)) else ""
        of_run = f" of run {run_number(culprit.run)}" if len(report.runs) > 1 else ""
        text = f"{culprit_name(culprit)}{of_run}{stage}" + (f": {reason}" if reason else "")
        if culprit.either and not culprit.peer_unnamed:
            both = len(report.culprits) == 2 and all(c.pid is not None for c in report.culprits)  # both print the error
            if both:
                text = f"and {text}" if number else f"both ends: {text}"
            elif number:
                text = f"or {text}"
        elif culprit.peer_unnamed and number:
            text = f"and {text}"
        if number == len(report.culprits[:_WHO]) - 1:
            rest = len(report.culprits) - _WHO
            if culprit.peer_unnamed:
                text += (
                    ", each one end of a failed connection whose other end the log does not name"
                    if number
                    else ", one of two ranks that differ; the log does not name the other one"
                    if _differ(report)
                    else ", one end of the failed connection; the log does not name the other end"
                )
            text += (f", and {rest} more" if rest > 0 else "") + f" ({sure})"
        lead = Span("who:     " if not number else "         ", "culprit")
        page.wrap(text, indent="  ", hang=" " * 11, lead=lead)
    for suspect in report.suspects[:_WHO]:
        page.wrap(suspect_name(suspect), indent="  ", hang=" " * 11, lead=Span("suspect: ", "culprit"))
    if not report.culprits and report.verdict is not Verdict.INCONCLUSIVE:
        page.add(Span(f"  {sure}", "dim"))


def _differ(report: Report) -> bool:
    """Whether the first finding is about calls that differ, and not about a connection."""
    return bool(report.findings) and report.findings[0].code == "PSM301"


def _telling(evidence: Sequence[Evidence]) -> Evidence:
    """The first line that says more than one word: ``Exception:`` alone proves nothing."""
    return next((item for item in evidence if len(item.text.split()) > 1), evidence[0])


def _proof(page: Page, item: Evidence, folder: str, about: str) -> None:
    """The line that proves the headline: its message whole where three rows hold it."""
    place = _place(item, folder)
    room, rest = page.width - 13 - len(place), page.width - 11
    if room >= 40:
        widths = [room, rest, rest]
        lead: tuple[Span | str, ...] = ("  ", Span("proof:   ", "dim"), Span(place, "place"), ": ")
    else:
        widths = [rest, rest, rest]
        lead = (" " * 11,)
        page.add("  ", Span("proof:   ", "dim"), Span(place, "place"))
    text = _line(item)
    if len(text) > widths[0]:
        text = _quoted(item, sum(widths) - _RAGGED, about, widths[0])
    for row in _rows(text, widths[0], rest):
        page.add(*lead, Span(row, "quote"))
        lead = (" " * 11,)


def _rows(text: str, first: int, rest: int) -> Iterator[str]:
    """``text`` in rows of these widths, broken between words where that is possible."""
    width = first
    while len(text) > width:
        at = text.rfind(" ", 0, width + 1)
        end = at if at > width // 2 else width
        yield text[:end].rstrip()
        text, width = text[end:].lstrip(), rest
    yield text


def _place(item: Evidence, folder: str) -> str:
    return f"{item.file.removeprefix(folder)}:{item.line}"


def _ranks(page: Page, report: Report, options: Options, folder: str) -> None:
    if not report.ranks:
        return
    page.blank()
    title = f"Ranks: {_counts(report)}"
    page.cut(title + (f"; files in {folder}" if folder else ""), "heading")
    table = rank_table(report.ranks, culprit_ranks(report), page.width, fold=not options.verbose, folder=folder)
    for line, style in zip(table.lines, table.styles, strict=True):
        page.add(Span(line, style))
    page.wrap(legend(report.ranks), "dim", indent="  ", hang="    ")
    disputed = [row for row in report.ranks if row.rank_dispute is not None] if options.verbose else []
    for row in disputed:
        page.wrap(
            f"{row.host}:{row.pid} has no rank, because the evidence contradicts itself: {row.rank_dispute}",
            "dim",
            indent="  ",
            hang="    ",
        )


def _counts(report: Report) -> str:
    """How many ranks, processes and hosts the table shows: a process with several devices has a row for each of its ranks."""
    named = len({row.host for row in report.ranks if row.host is not None})
    hosts = counted(named, "host") if named else "unknown hosts"
    seen = [row for row in report.ranks if row.pid is not None]
    procs = len({(row.run, row.host, row.pid) for row in seen})
    if len(report.runs) == 1 and report.runs[0].nranks is not None:
        run = report.runs[0]
        nameless = len({(row.host, row.pid) for row in seen if row.rank is None})
        more = f"{counted(nameless, 'process', 'processes')} of unknown rank, " if nameless else ""
        return f"{len(run.ranks_seen)} of {run.nranks} seen, {more}{hosts}"
    if procs < len(seen) and all(row.rank is not None for row in seen):
        return f"{counted(len(seen), 'rank')} in {counted(procs, 'process', 'processes')} on {hosts}"
    # lines of other programs may name more ranks and hosts
    kind = " with NCCL lines" if report.coverage.other + report.coverage.beside else ""
    return f"{counted(procs + len(report.ranks) - len(seen), 'process', 'processes')}{kind} on {hosts}"


def _causes(page: Page, report: Report, options: Options, folder: str) -> None:
    page.blank()
    counts = dict.fromkeys((Severity.ERROR, Severity.WARNING, Severity.INFO), 0)
    for part in fold_causes(report, everything=True):  # findings about one cause are one entry below
        counts[report.findings[part.shown[0].finding].severity] += len(part.shown)
    counts[Severity.INFO] = sum(finding.severity is Severity.INFO for finding in report.findings)
    found = ", ".join(counted(n, _NAMES[s]) for s, n in counts.items() if n)
    notes = [f for f in report.findings if f.severity is Severity.INFO]
    hidden = notes and not _shows_notes(report, options)
    page.wrap(f"Findings: {found or 'none'}" + (" (-v shows the notes)" if hidden else ""), "heading")
    for part in fold_causes(report, everything=options.verbose):
        for cause in part.shown:
            page.blank()
            _cause(page, cause, report, options, folder)
        if part.hidden:
            page.blank()
            head = report.findings[part.hidden[0].finding]
            rest = Fold((), tuple(report.findings[c.finding] for c in part.hidden)).rest()
            page.wrap(
                f"{rest} (-v shows all)",
                "dim",
                indent=" " * 4,
                hang=" " * 6,
                lead=Span(f"{head.code} ", head.severity.value),
            )


def _cause(page: Page, cause: Cause, report: Report, options: Options, folder: str) -> None:
    finding = report.findings[cause.finding]
    same = [report.findings[n] for n in cause.same]
    _finding(page, finding, report, options, folder, same=same)
    for n in cause.follows[: None if options.verbose else _SHOWN_FOLLOWS]:
        other = report.findings[n]
        page.wrap(
            f"{other.code} {other.title}",
            indent="    ",
            hang="      ",
            lead=Span("follows from it: ", other.severity.value),
        )
    if not options.verbose and len(cause.follows) > _SHOWN_FOLLOWS:
        rest = len(cause.follows) - _SHOWN_FOLLOWS
        page.add(Span(f"    and {rest} more that {plural(rest, 'follows', 'follow')} from it", "dim"))


def _shows_notes(report: Report, options: Options) -> bool:
    """Whether notes are shown: always with -v, else where they are all that there is to say."""
    told = any(finding.severity is not Severity.INFO for finding in report.findings)
    return options.verbose or (report.verdict is Verdict.INCONCLUSIVE and not told)


def _told(finding: Finding) -> bool:
    """Whether a note is shown where notes are all that there is to say."""
    return not CODES[finding.code].aside


def _notes(page: Page, report: Report, options: Options, folder: str) -> None:
    if not _shows_notes(report, options):
        return
    all_aside = not any(_told(finding) for finding in report.findings)
    for part in fold(report, everything=options.verbose):
        for finding in part.shown:
            if finding.severity is Severity.INFO and (options.verbose or all_aside or _told(finding)):
                page.blank()
                _finding(page, finding, report, options, folder)
        if part.hidden and part.hidden[0].severity is Severity.INFO:
            page.wrap(
                f"{part.rest()} (-v shows all)",
                "dim",
                indent="    ",
                hang="      ",
                lead=Span(f"{part.hidden[0].code} "),
            )


def _finding(
    page: Page, finding: Finding, report: Report, options: Options, folder: str, same: Sequence[Finding] = ()
) -> None:
    primary = finding is behind(report)
    also = list(dict.fromkeys(other.code for other in same if other.code != finding.code))
    title = f"also seen as {listed(also)}" if also else ""
    if options.verbose or not primary:
        title = f"{finding.title}  [{percent(finding.confidence)}]" + (f", {title}" if title else "")
    page.wrap(
        title, "heading", hang=" " * 4, lead=Span(f"{_NAMES[finding.severity]} {finding.code} ", finding.severity.value)
    )
    place = about(finding, runs=len(report.runs), stage=options.verbose)
    if place:
        page.wrap(place, "dim", indent="    ")
    # The cause is explained; what is beside it has its line and the next step.
    brief = not options.verbose and finding.severity is not Severity.INFO and not primary and behind(report) is not None
    if finding.explanation and finding.explanation != finding.title and not brief:
        short = finding.severity is Severity.INFO and not options.verbose
        text = shorten(finding.explanation, 2 * (page.width - 6)) if short else finding.explanation
        page.wrap(text, indent="    ")
    if options.verbose:
        for other in same:
            page.wrap(other.title, indent="    ", hang="      ", lead=Span(f"{other.code} ", other.severity.value))
    _all_evidence(page, finding, same, options, folder, _ALSO if brief else _EVIDENCE)
    if finding.next_step and (options.verbose or not (primary or finding.severity is Severity.INFO)):
        page.wrap(finding.next_step, indent="    ", hang="      ", lead=Span("next: ", "code"))
    if finding.known_issue:
        page.wrap(finding.known_issue, indent="    ", lead=Span("known issue: ", "dim"))


def _all_evidence(
    page: Page, finding: Finding, same: Sequence[Finding], options: Options, folder: str, most: int
) -> None:
    titles = {item: other.title for other in (*reversed(same), finding) for item in other.evidence}
    every = list(dict.fromkeys((*finding.evidence, *(item for other in same for item in other.evidence))))
    if options.verbose:
        shown = every
    else:
        shown = list(finding.evidence[: 1 if finding.severity is Severity.INFO else most])
        shown += [item for other in same for item in other.evidence[:_ALSO] if item not in shown]
    for item in shown:
        _evidence(page, item, folder, titles[item], whole=options.verbose)
    if len(every) > len(shown):
        page.add(Span(f"    … {counted(len(every) - len(shown), 'more line')} of evidence", "dim"))


def _evidence(page: Page, item: Evidence, folder: str, about: str, *, whole: bool) -> None:
    place = _place(item, folder)
    room = page.width - len(place) - 7
    if not whole and len(place) <= _SHORT_PLACE and room >= 30:
        page.add("    ", Span(place, "place"), Span(" | ", "dim"), Span(_quoted(item, room, about), "quote"))
        return
    page.add("    ", Span(place, "place"))
    page.add(
        "      ",
        Span("| ", "dim"),
        Span(visible(uncoloured(item.text)) if whole else _quoted(item, page.width - 8, about), "quote"),
    )


def _line(item: Evidence) -> str:
    """A line of a log as one can read it: without colours, and with an ellipsis for a progress bar that another thread drew into it."""
    return without_bars(visible(uncoloured(item.text)), " \N{HORIZONTAL ELLIPSIS} ").strip()


def _quoted(item: Evidence, width: int, about: str, row: int | None = None) -> str:
    """A log line in ``width`` characters; its message matters more than its time stamp and process, which need a ``row`` for the whole line.

    A message that is still too long is cut around its deciding words and those that it shares with ``about``, the title of its finding.
    """
    text = _line(item)
    at = next((at for mark in _LEVELS if (at := text.find(mark)) > 0), 0)
    if len(text) > (width if row is None else row) and 0 < at < len(text) - _LEAST:
        text = "…" + text[at:].removeprefix("NCCL INFO ")
    return excerpt(
        text, width, about, [visible(word).strip() for word in item.words], visible(uncoloured(item.head)).strip()
    )


def _matching(page: Page, report: Report) -> None:
    rows = matching_rows(report.matching)
    if not rows:
        return
    page.blank()
    page.add(Span("Matched across ranks", "heading"))
    cells = [[name, f"{c.matched:,}", f"{c.pending:,}", f"{c.orphan:,}"] for name, c in rows]
    for number, line in enumerate(fit(["exchange", "matched", "pending", "orphan"], cells, page.width - 2)):
        page.add("  ", Span(line, "dim" if number == 0 else ""))


def _communicators(page: Page, report: Report) -> None:
    if not report.communicators:
        return
    page.blank()
    page.add(Span("Communicators", "heading"))
    cells = [
        [
            str(run_number(comm.run)),
            comm.name,
            "?" if comm.nranks is None else str(comm.nranks),
            ranges(comm.ranks_seen) or "-",
            str(comm.init_started),
            str(comm.init_complete),
            str(comm.destroyed),
            comm.parent or "-",
        ]
        for comm in report.communicators
    ]
    headers = ["run", "name", "ranks", "seen", "started", "complete", "destroyed", "parent"]
    for number, line in enumerate(fit(headers, cells, page.width - 2)):
        page.add("  ", Span(line, "dim" if number == 0 else ""))


def _coverage(page: Page, report: Report, options: Options) -> None:
    coverage = report.coverage
    page.blank()
    page.add(Span("Evidence", "heading"))
    read = f"read {counted(coverage.files, 'file')}, {size(coverage.bytes)}, {counted(coverage.lines, 'line')}"
    ours = coverage.matched - coverage.beside
    if total := ours + coverage.unmatched + coverage.torn:
        # Rounded down: 100% must mean all lines.
        read += f"; understood {ours:,} of {total:,} NCCL lines ({100 * ours // total}%)"
    else:
        read += "; no NCCL line"
    if coverage.beside:
        read += f"; understood {counted(coverage.beside, 'line')} of torch, launchers and other programs"
    if coverage.torn:
        read += f"; {coverage.torn:,} torn"
    if coverage.other:
        read += f"; {counted(coverage.other, 'other line')}"
    page.wrap(read, indent="  ", hang="    ")
    if report.versions:
        page.wrap(", ".join(report.versions), indent="  ", hang="    ", lead=Span("versions: ", "dim"))
    for note in coverage.notes:
        page.wrap(note, indent="  ", hang="    ", lead=Span("note: ", "dim"))
    if coverage.missing_ranks:
        page.wrap(ranges(coverage.missing_ranks), indent="  ", hang="    ", lead=Span("ranks with no log: ", "warning"))
    if coverage.missing_subsystems:
        page.wrap(
            ", ".join(coverage.missing_subsystems),
            indent="  ",
            hang="    ",
            lead=Span("subsystems not logged: ", "warning"),
        )
    if options.verbose and coverage.shapes:
        page.add(Span("  lines that no catalogue entry matches, by shape:", "dim"))
        for shape in coverage.shapes:
            page.cut(f"{shape.count:7,}  {shape.file}:{shape.line}  {shape.shape}", indent="  ")
    elif coverage.shapes:
        top = ", ".join(f"{shape.count:,}x" for shape in coverage.shapes[:1])
        page.cut(f"not understood, most often ({top}): {coverage.shapes[0].shape}", "dim", indent="  ")
    if coverage.rerun_with and options.verbose and not any(ask.kind == "rerun" for ask in report.next):
        page.add("  re-run with:")
        # Not wrapped, so that it can be pasted.
        page.add("    ", Span(rerun_line(coverage.rerun_with), "code"))


def _next(page: Page, report: Report, options: Options) -> None:
    """The command that may decide what is open, at the end, and the settings for another run."""
    asked = report.next if options.verbose else foremost(report.next)
    if asked:
        page.blank()
        add_asks(page, asked)


def add_asks(page: Page, asked: Sequence[Ask]) -> None:
    """Commands to run next, each with how it decides."""
    for number, ask in enumerate(asked):
        page.add(Span("next" if not number else "or", "heading"), f", {ask.when}:" if ask.when else ":")
        # Not wrapped, so that it can be pasted.
        page.add("  ", Span(ask.command, "code"))
        page.wrap(ask.why, "dim", indent="  ", hang="  ")
