"""The text report: verdict, ranks, findings with their evidence, and missing inputs."""

from __future__ import annotations

from psmkit.model import Evidence, Finding, Report, Severity
from psmkit.report.escape import shorten, visible
from psmkit.report.layout import Page, Span, ranges
from psmkit.report.options import Options
from psmkit.report.ranktable import fit, rank_table
from psmkit.report.summary import (
    about,
    culprit_name,
    culprit_ranks,
    culprit_why,
    fold,
    matching_rows,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
)

__all__ = ["layout", "render"]

_EVIDENCE = {Severity.ERROR: 6, Severity.WARNING: 3, Severity.INFO: 1}
_RUNS = 12


def render(report: Report, options: Options | None = None) -> str:
    """The report as plain text."""
    return layout(report, options or Options()).text()


def layout(report: Report, options: Options) -> Page:
    """The report as styled lines of at most ``options.width`` characters, except the first line and paths."""
    page = Page(max(options.width, 40))
    _verdict(page, report)
    _ranks(page, report, options)
    _findings(page, report, options)
    _matching(page, report)
    if options.verbose:
        _communicators(page, report)
    _coverage(page, report, options)
    return page


def _verdict(page: Page, report: Report) -> None:
    text = sentence(report)
    verdict = report.verdict.value
    page.add(Span(verdict, verdict), Span(text[len(verdict) :], "heading"))
    if len(report.runs) > 1:
        shown = sorted(report.runs, key=lambda run: -run.verdict.badness)[:_RUNS]
        for run in sorted(shown, key=lambda run: run.index):
            page.wrap(
                sentence(run), indent="  ", hang="      ", lead=Span(f"run {run_number(run.index)} ", run.verdict.value)
            )
        if len(report.runs) > len(shown):
            page.add(Span(f"  and {len(report.runs) - len(shown)} more runs, none worse", "dim"))
    for culprit in report.culprits:
        reason = culprit_why(culprit, report)
        why = f": {reason}" if reason else ""
        stage = f" [stage {culprit.stage}]" if culprit.stage else ""
        of_run = f" of run {run_number(culprit.run)}" if len(report.runs) > 1 else ""
        page.wrap(
            f"{culprit_name(culprit)}{of_run}{stage}{why}",
            indent="  ",
            hang="      ",
            lead=Span("culprit: ", "culprit"),
        )
    page.add(Span(f"  confidence {percent(report.confidence)}", "dim"))


def _ranks(page: Page, report: Report, options: Options) -> None:
    if not report.ranks:
        return
    page.blank()
    hosts = {row.host for row in report.ranks if row.host is not None}
    title = f"Ranks: {len(report.ranks)} processes on {_count(len(hosts), 'host')}"
    if len(report.runs) == 1 and report.runs[0].nranks is not None:
        run = report.runs[0]
        title = f"Ranks: {len(run.ranks_seen)} of {run.nranks} seen, {_count(len(hosts), 'host')}"
    page.cut(title, "heading")
    table = rank_table(report.ranks, culprit_ranks(report), page.width, fold=not options.verbose)
    for line, style in zip(table.lines, table.styles, strict=True):
        page.add(Span(line, style))


def _findings(page: Page, report: Report, options: Options) -> None:
    page.blank()
    if not report.findings:
        page.add(Span("Findings: none", "heading"))
        return
    counts = dict.fromkeys((Severity.ERROR, Severity.WARNING, Severity.INFO), 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    page.add(
        Span("Findings: " + ", ".join(_count(n, names[s]) for s, n in counts.items() if n), "heading"),
    )
    noted = False
    for part in fold(report, everything=options.verbose):
        brief = counts[Severity.ERROR] > 0 and part.shown[0].severity is Severity.INFO and not options.verbose
        for finding in part.shown:
            if not brief or not noted:
                page.blank()
            noted = noted or brief
            if brief:
                # Next to an error a note distracts; its title is enough.
                _title(page, finding)
            else:
                _finding(page, finding, len(report.runs), options)
        if part.hidden:
            if not brief:
                page.blank()
            page.wrap(
                f"{part.rest()} (-v shows all)",
                "dim",
                indent=" " * 4,
                hang=" " * 6,
                lead=Span(f"{part.hidden[0].code} ", part.hidden[0].severity.value),
            )


def _title(page: Page, finding: Finding) -> None:
    label = "note" if finding.severity is Severity.INFO else finding.severity.value
    page.wrap(
        finding.title + f"  [{percent(finding.confidence)}]",
        "heading",
        hang=" " * 4,
        lead=Span(f"{label} {finding.code} ", finding.severity.value),
    )


def _finding(page: Page, finding: Finding, runs: int, options: Options) -> None:
    _title(page, finding)
    place = about(finding, runs=runs, stage=options.verbose)
    if place:
        page.wrap(place, "dim", indent="    ")
    if finding.explanation and finding.explanation != finding.title:
        short = finding.severity is Severity.INFO and not options.verbose
        text = shorten(finding.explanation, 2 * (page.width - 6)) if short else finding.explanation
        page.wrap(text, indent="    ")
    limit = len(finding.evidence) if options.verbose else _EVIDENCE[finding.severity]
    for item in finding.evidence[:limit]:
        _evidence(page, item, whole=options.verbose)
    if len(finding.evidence) > limit:
        page.add(Span(f"    … {_count(len(finding.evidence) - limit, 'more line')} of evidence", "dim"))
    if finding.next_step and (finding.severity is not Severity.INFO or options.verbose):
        page.wrap(finding.next_step, indent="    ", hang="      ", lead=Span("next: ", "code"))
    if finding.known_issue:
        page.wrap(finding.known_issue, indent="    ", lead=Span("known issue: ", "dim"))


def _evidence(page: Page, item: Evidence, *, whole: bool) -> None:
    # The place stands on a line of its own and uncut, so that it can be clicked or pasted.
    page.add("    ", Span(str(item), "place"))
    text = visible(item.text)
    page.add("      ", Span("| ", "dim"), Span(text if whole else _quoted(text, page.width - 8), "quote"))


def _quoted(text: str, width: int) -> str:
    """A log line in ``width`` characters; its message matters more than its time stamp and process."""
    at = text.find("NCCL ")
    if len(text) > width and at > 0:
        text = "…" + text[at:]
    return shorten(text, width)


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
    read = f"read {_count(coverage.files, 'file')}, {size(coverage.bytes)}, {_count(coverage.lines, 'line')}"
    if coverage.matched or coverage.unmatched:
        total = coverage.matched + coverage.unmatched
        # Rounded down: 100% must mean all lines.
        read += f"; understood {coverage.matched:,} of {total:,} NCCL lines ({100 * coverage.matched // total}%)"
    if coverage.torn:
        read += f"; {coverage.torn:,} torn"
    if coverage.other:
        read += f"; {coverage.other:,} not from NCCL"
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
    if coverage.rerun_with:
        page.add("  re-run with:")
        # Not wrapped, so that it can be pasted.
        page.add("    ", Span(rerun_line(coverage.rerun_with), "code"))
    for setting in dict.fromkeys(suspect.setting for suspect in report.suspects):
        page.add("  one setting decides between a rank that waits and a log that was cut:")
        page.add("    ", Span(setting, "code"))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
