"""The text report: verdict, ranks, findings with their evidence, and missing inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psmkit.model import CODES, Ask, Cause, Evidence, Finding, Report, Severity, Verdict
from psmkit.model.wording import protocol_stage, uncoloured, without_bars
from psmkit.report.cells import breadth, head, padded
from psmkit.report.escape import shorten, visible
from psmkit.report.excerpt import excerpt
from psmkit.report.language import ENGLISH, Words
from psmkit.report.layout import Page, Span, ranges
from psmkit.report.options import Options
from psmkit.report.ranktable import fit, legend, rank_table
from psmkit.report.summary import (
    Fold,
    about,
    advice,
    behind,
    common_folder,
    culprit_name,
    culprit_ranks,
    culprit_why,
    file_of,
    fold,
    fold_causes,
    listed,
    matching_rows,
    next_step,
    original,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
    suspect_name,
    verdict_line,
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
#: What stands before the lines of the verdict.
_LABELS = ("who: ", "suspect: ", "proof: ", "do this: ")


def render(report: Report, options: Options | None = None) -> str:
    """The report as plain text."""
    return layout(report, options or Options()).text()


def layout(report: Report, options: Options) -> Page:
    """The report as styled lines of at most ``options.width`` columns, except the first line and paths."""
    page = Page(max(options.width, 40), words=options.words)
    folder = common_folder(report)
    _verdict(page, report, folder)
    _ranks(page, report, options, folder)
    _causes(page, report, options, folder)
    _notes(page, report, options, folder)
    if options.verbose:
        _matching(page, report)
        _communicators(page, report)
    _coverage(page, report, options)
    _next(page, report)
    return page


def headline(report: Report, options: Options) -> Page:
    """The start of the report: verdict, who, proof, and what to do."""
    page = Page(max(options.width, 40), words=options.words)
    _verdict(page, report, common_folder(report))
    return page


def _verdict(page: Page, report: Report, folder: str) -> None:
    words = page.words
    verdict, reason = verdict_line(report, words)
    page.add(Span(verdict, report.verdict.value), Span(reason.replace(folder, "") if folder else reason, "heading"))
    if english := original(report, words):
        page.wrap(_in_english(english.replace(folder, "") if folder else english, words), "dim", "  ", _column(words))
    if len(report.runs) > 1:
        shown = sorted(report.runs, key=lambda run: -run.verdict.badness)[:_RUNS]
        for run in sorted(shown, key=lambda run: run.index):
            page.wrap(
                sentence(run, words),
                indent="  ",
                hang="      ",
                lead=Span(words.say("run {run}", run=run_number(run.index)) + file_of(run) + " ", run.verdict.value),
            )
        if len(report.runs) > len(shown):
            more = words.count(len(report.runs) - len(shown), "more run")
            page.add(Span("  " + words.say("and {more}, none worse", more=more), "dim"))
    _who(page, report)
    finding = behind(report)
    if finding is not None and finding.evidence:
        _proof(page, _telling(finding.evidence), folder, finding.title)
    if step := next_step(report, words):
        page.wrap(step, indent="  ", hang=_column(words), lead=Span(_label("do this: ", words), "code"))


def _label(label: str, words: Words) -> str:
    """What begins a line of the verdict, as wide as the widest of them."""
    return padded(words.say(label), max(breadth(words.say(each)) for each in _LABELS))


def _column(words: Words) -> str:
    """Blanks up to the column where the lines of the verdict have their text."""
    return " " * (breadth(_label(_LABELS[0], words)) + 2)


def _in_english(text: str, words: Words) -> str:
    """A sentence of a rule, which has no other language."""
    return words.say("in English: {text}", text=text)


def _who(page: Page, report: Report) -> None:
    words = page.words
    sure = words.say("confidence {sure}", sure=percent(report.confidence))
    for number, culprit in enumerate(report.culprits[:_WHO]):
        reason = culprit_why(culprit, report)
        stage = words.say(", stage {stage}", stage=known) if (known := protocol_stage(culprit.stage)) else ""
        of_run = words.say(" of run {run}", run=run_number(culprit.run)) if len(report.runs) > 1 else ""
        text = f"{culprit_name(culprit, words)}{of_run}{stage}"
        text += words.say(": ") + words.sentence(reason) if reason else ""
        if culprit.either and not culprit.peer_unnamed:
            both = len(report.culprits) == 2 and all(c.pid is not None for c in report.culprits)  # both print the error
            if both:
                text = words.say("and {name}" if number else "both ends: {name}", name=text)
            elif number:
                text = words.say("or {name}", name=text)
        elif culprit.peer_unnamed and number:
            text = words.say("and {name}", name=text)
        if number == len(report.culprits[:_WHO]) - 1:
            rest = len(report.culprits) - _WHO
            if culprit.peer_unnamed:
                text += (
                    words.say(", each one end of a failed connection whose other end the log does not name")
                    if number
                    else words.say(", one of two ranks that differ; the log does not name the other one")
                    if _differ(report)
                    else words.say(", one end of the failed connection; the log does not name the other end")
                )
            text += words.say(", and {count} more", count=rest) if rest > 0 else ""
            text += words.say(" ({sure})", sure=sure)
        lead = _label("who: ", words) if not number else " " * (len(_column(words)) - 2)
        page.wrap(text, indent="  ", hang=_column(words), lead=Span(lead, "culprit"))
    for suspect in report.suspects[:_WHO]:
        lead = _label("suspect: ", words)
        page.wrap(suspect_name(suspect, words), indent="  ", hang=_column(words), lead=Span(lead, "culprit"))
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
    label, column = _label("proof: ", page.words), _column(page.words)
    rest = page.width - len(column)
    room = rest - 2 - breadth(place)
    if room >= 40:
        widths = [room, rest, rest]
        lead: tuple[Span | str, ...] = ("  ", Span(label, "dim"), Span(place, "place"), ": ")
    else:
        widths = [rest, rest, rest]
        lead = (column,)
        page.add("  ", Span(label, "dim"), Span(place, "place"))
    text = _line(item)
    if breadth(text) > widths[0]:
        text = _quoted(item, sum(widths) - _RAGGED, about, widths[0])
    for row in _rows(text, widths[0], rest):
        page.add(*lead, Span(row, "quote"))
        lead = (column,)


def _rows(text: str, first: int, rest: int) -> Iterator[str]:
    """``text`` in rows of these widths, broken between words where that is possible."""
    width = first
    while breadth(text) > width:
        most = len(head(text, width))
        at = text.rfind(" ", 0, most + 1)
        end = at if at > most // 2 else most
        yield text[:end].rstrip()
        text, width = text[end:].lstrip(), rest
    yield text


def _place(item: Evidence, folder: str) -> str:
    return f"{item.file.removeprefix(folder)}:{item.line}"


def _ranks(page: Page, report: Report, options: Options, folder: str) -> None:
    if not report.ranks:
        return
    page.blank()
    words = page.words
    title = words.say("Ranks: {counts}", counts=_counts(report, words))
    page.cut(title + (words.say("; files in {folder}", folder=folder) if folder else ""), "heading")
    culprits = culprit_ranks(report)
    table = rank_table(report.ranks, culprits, page.width, fold=not options.verbose, folder=folder, words=words)
    for line, style in zip(table.lines, table.styles, strict=True):
        page.add(Span(line, style))
    page.wrap(legend(report.ranks, words), "dim", indent="  ", hang="    ")
    disputed = [row for row in report.ranks if row.rank_dispute is not None] if options.verbose else []
    for row in disputed:
        page.wrap(
            words.say(
                "{process} has no rank, because the evidence contradicts itself: {dispute}",
                process=f"{row.host}:{row.pid}",
                dispute=row.rank_dispute,
            ),
            "dim",
            indent="  ",
            hang="    ",
        )


def _counts(report: Report, words: Words) -> str:
    """How many ranks, processes and hosts the table shows: a process with several devices has a row for each of its ranks."""
    named = len({row.host for row in report.ranks if row.host is not None})
    hosts = words.count(named, "host") if named else words.say("unknown hosts")
    seen = [row for row in report.ranks if row.pid is not None]
    procs = len({(row.run, row.host, row.pid) for row in seen})
    if len(report.runs) == 1 and report.runs[0].nranks is not None:
        run = report.runs[0]
        nameless = len({(row.host, row.pid) for row in seen if row.rank is None})
        processes = words.count(nameless, "process", "processes")
        more = words.say("{processes} of unknown rank, ", processes=processes) if nameless else ""
        return words.say(
            "{seen} of {nranks} seen, {more}{hosts}",
            seen=len(run.ranks_seen),
            nranks=run.nranks,
            more=more,
            hosts=hosts,
        )
    if procs < len(seen) and all(row.rank is not None for row in seen):
        return words.say(
            "{ranks} in {processes} on {hosts}",
            ranks=words.count(len(seen), "rank"),
            processes=words.count(procs, "process", "processes"),
            hosts=hosts,
        )
    # lines of other programs may name more ranks and hosts
    beside = report.coverage.other + report.coverage.beside
    processes = words.count(procs + len(report.ranks) - len(seen), "process", "processes")
    text = "{processes} with NCCL lines on {hosts}" if beside else "{processes} on {hosts}"
    return words.say(text, processes=processes, hosts=hosts)


def _causes(page: Page, report: Report, options: Options, folder: str) -> None:
    page.blank()
    counts = dict.fromkeys((Severity.ERROR, Severity.WARNING, Severity.INFO), 0)
    for part in fold_causes(report, everything=True):  # findings about one cause are one entry below
        counts[report.findings[part.shown[0].finding].severity] += len(part.shown)
    counts[Severity.INFO] = sum(finding.severity is Severity.INFO for finding in report.findings)
    words = page.words
    found = words.say(", ").join(words.count(n, _NAMES[s]) for s, n in counts.items() if n)
    notes = [f for f in report.findings if f.severity is Severity.INFO]
    hidden = notes and not _shows_notes(report, options)
    title = words.say("Findings: {found}", found=found or words.say("none"))
    page.wrap(title + (words.say(" (-v shows the notes)") if hidden else ""), "heading")
    for part in fold_causes(report, everything=options.verbose):
        for cause in part.shown:
            page.blank()
            _cause(page, cause, report, options, folder)
        if part.hidden:
            page.blank()
            head = report.findings[part.hidden[0].finding]
            rest = Fold((), tuple(report.findings[c.finding] for c in part.hidden)).rest(words)
            page.wrap(
                words.say("{rest} (-v shows all)", rest=rest),
                "dim",
                indent=" " * 4,
                hang=" " * 6,
                lead=Span(f"{head.code} ", head.severity.value),
            )


def _cause(page: Page, cause: Cause, report: Report, options: Options, folder: str) -> None:
    words = page.words
    finding = report.findings[cause.finding]
    same = [report.findings[n] for n in cause.same]
    _finding(page, finding, report, options, folder, same=same)
    for n in cause.follows[: None if options.verbose else _SHOWN_FOLLOWS]:
        other = report.findings[n]
        page.wrap(
            f"{other.code} {_titled(other, words)}",
            indent="    ",
            hang="      ",
            lead=Span(words.say("follows from it: "), other.severity.value),
        )
    if not options.verbose and len(cause.follows) > _SHOWN_FOLLOWS:
        rest = len(cause.follows) - _SHOWN_FOLLOWS
        more = "and {count} more that follows from it" if rest == 1 else "and {count} more that follow from it"
        page.add(Span("    " + words.say(more, count=rest), "dim"))


def _titled(finding: Finding, words: Words) -> str:
    """What a rule says of a finding; the title of its code stands before a sentence that has no other language."""
    if words is ENGLISH:
        return finding.title
    if words.knows(finding.title):
        return words.sentence(finding.title)
    return words.say(": ").join((words.code(finding.code, "title"), finding.title))


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
                page.words.say("{rest} (-v shows all)", rest=part.rest(page.words)),
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
    words = page.words
    title = words.say("also seen as {codes}", codes=listed(also, words)) if also else ""
    name = finding.title if words is ENGLISH else words.code(finding.code, "title")
    if options.verbose or not primary:
        title = f"{name}  [{percent(finding.confidence)}]" + (words.say(", ") + title if title else "")
    elif words is not ENGLISH:
        title = name + (words.say(", ") + title if title else "")
    lead = Span(f"{words.say(_NAMES[finding.severity])} {finding.code} ", finding.severity.value)
    page.wrap(title, "heading", hang=" " * 4, lead=lead)
    place = about(finding, runs=len(report.runs), stage=options.verbose, words=words)
    if place:
        page.wrap(place, "dim", indent="    ")
    # The cause is explained; what is beside it has its line and the next step.
    brief = not options.verbose and finding.severity is not Severity.INFO and not primary and behind(report) is not None
    if words is not ENGLISH:
        _own_words(page, finding, options, primary=primary, brief=brief)
    elif finding.explanation and finding.explanation != finding.title and not brief:
        short = finding.severity is Severity.INFO and not options.verbose
        text = shorten(finding.explanation, 2 * (page.width - 6)) if short else finding.explanation
        page.wrap(text, indent="    ")
    if options.verbose:
        for other in same:
            lead = Span(f"{other.code} ", other.severity.value)
            page.wrap(_titled(other, words), indent="    ", hang="      ", lead=lead)
    _all_evidence(page, finding, same, options, folder, _ALSO if brief else _EVIDENCE)
    if finding.next_step and (options.verbose or not (primary or finding.severity is Severity.INFO)):
        page.wrap(advice(finding, words), indent="    ", hang="      ", lead=Span(words.say("next: "), "code"))
    if finding.known_issue:
        page.wrap(finding.known_issue, indent="    ", lead=Span(words.say("known issue: "), "dim"))


def _own_words(page: Page, finding: Finding, options: Options, *, primary: bool, brief: bool) -> None:
    """What a rule says of a finding below the title of its code, in another language than English.

    The explanation of a rule has only English. It stands at the cause, after the meaning of the code.
    """
    words = page.words
    known = words.knows(finding.title)
    if known and not primary:
        page.wrap(words.sentence(finding.title), indent="    ")
    if not brief:
        page.wrap(words.code(finding.code, "meaning"), indent="    ")
    own = [] if known and not (primary or options.verbose) else [finding.title]
    explained = finding.explanation not in ("", finding.title, CODES[finding.code].meaning)
    if explained and not brief and (primary or options.verbose):
        own.append(finding.explanation)
    if own:
        page.wrap(_in_english(". ".join(own), words), "dim", indent="    ", hang="      ")


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
        more = page.words.count(len(every) - len(shown), "more line")
        page.add(Span("    … " + page.words.say("{more} of evidence", more=more), "dim"))


def _evidence(page: Page, item: Evidence, folder: str, about: str, *, whole: bool) -> None:
    place = _place(item, folder)
    room = page.width - breadth(place) - 7
    if not whole and breadth(place) <= _SHORT_PLACE and room >= 30:
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
    words, lead = [visible(word).strip() for word in item.words], visible(uncoloured(item.head)).strip()
    if breadth(text) == len(text):
        return excerpt(text, width, about, words, lead)
    # So many characters of this text fill the width on average; where its wide ones come together, fewer do.
    return shorten(excerpt(text, max(width * len(text) // breadth(text), _LEAST), about, words, lead), width)


def _matching(page: Page, report: Report) -> None:
    words = page.words
    rows = matching_rows(report.matching, words)
    if not rows:
        return
    page.blank()
    page.add(Span(words.say("Matched across ranks"), "heading"))
    headers = [words.say(name) for name in ("exchange", "matched", "pending", "orphan")]
    cells = [[name, f"{c.matched:,}", f"{c.pending:,}", f"{c.orphan:,}"] for name, c in rows]
    for number, line in enumerate(fit(headers, cells, page.width - 2)):
        page.add("  ", Span(line, "dim" if number == 0 else ""))


def _communicators(page: Page, report: Report) -> None:
    if not report.communicators:
        return
    page.blank()
    page.add(Span(page.words.say("Communicators"), "heading"))
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
    names = ("run", "name", "ranks", "seen", "started", "complete", "destroyed", "parent")
    headers = [page.words.say(name) for name in names]
    for number, line in enumerate(fit(headers, cells, page.width - 2)):
        page.add("  ", Span(line, "dim" if number == 0 else ""))


def _coverage(page: Page, report: Report, options: Options) -> None:
    coverage, words = report.coverage, page.words
    page.blank()
    page.add(Span(words.say("Evidence"), "heading"))
    # stacks and documents are no lines of a log
    read = words.say(
        "read {files}, {size}, {lines}" if coverage.lines else "read {files}, {size}",
        files=words.count(coverage.files, "file"),
        size=size(coverage.bytes),
        lines=words.count(coverage.lines, "line"),
    )
    ours = coverage.matched - coverage.beside
    if total := ours + coverage.unmatched + coverage.torn:
        # Rounded down: 100% must mean all lines.
        share = 100 * ours // total
        read += words.say(
            "; understood {ours:,} of {total:,} NCCL lines ({share}%)", ours=ours, total=total, share=share
        )
    else:
        read += words.say("; no NCCL line")
    if coverage.beside:
        lines = words.count(coverage.beside, "line")
        read += words.say("; understood {lines} of torch, launchers and other programs", lines=lines)
    if coverage.torn:
        read += words.say("; {count:,} torn", count=coverage.torn)
    if coverage.other:
        read += words.say("; ") + words.count(coverage.other, "other line")
    page.wrap(read, indent="  ", hang="    ")
    if report.versions:
        page.wrap(", ".join(report.versions), indent="  ", hang="    ", lead=Span(words.say("versions: "), "dim"))
    for note in coverage.notes:
        page.wrap(words.sentence(note), indent="  ", hang="    ", lead=Span(words.say("note: "), "dim"))
    if coverage.missing_ranks:
        lead = Span(words.say("ranks with no log: "), "warning")
        page.wrap(ranges(coverage.missing_ranks), indent="  ", hang="    ", lead=lead)
    if coverage.missing_subsystems:
        page.wrap(
            ", ".join(coverage.missing_subsystems),
            indent="  ",
            hang="    ",
            lead=Span(words.say("subsystems not logged: "), "warning"),
        )
    if options.verbose and coverage.shapes:
        page.add(Span("  " + words.say("lines that no catalogue entry matches, by shape:"), "dim"))
        for shape in coverage.shapes:
            page.cut(f"{shape.count:7,}  {shape.file}:{shape.line}  {shape.shape}", indent="  ")
    elif coverage.shapes:
        top = ", ".join(f"{shape.count:,}x" for shape in coverage.shapes[:1])
        shape_text = words.say("not understood, most often ({top}): {shape}", top=top, shape=coverage.shapes[0].shape)
        page.cut(shape_text, "dim", indent="  ")
    if coverage.rerun_with and options.verbose and not any(ask.kind == "rerun" for ask in report.next):
        page.add("  " + words.say("re-run with:"))
        # Not wrapped, so that it can be pasted.
        page.add("    ", Span(rerun_line(coverage.rerun_with), "code"))


def _next(page: Page, report: Report) -> None:
    """The commands that may decide what is open, at the end."""
    if report.next:
        page.blank()
        add_asks(page, report.next)


def add_asks(page: Page, asked: Sequence[Ask]) -> None:
    """Commands to run next, each with how it decides."""
    words = page.words
    for number, ask in enumerate(asked):
        when = words.say(", {when}:", when=words.sentence(ask.when)) if ask.when else words.say(":")
        page.add(Span(words.say("or" if number else "next"), "heading"), when)
        # Not wrapped, so that it can be pasted.
        page.add("  ", Span(ask.command, "code"))
        page.wrap(words.sentence(ask.why), "dim", indent="  ", hang="  ")
