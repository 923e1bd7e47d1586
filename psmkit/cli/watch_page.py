"""What ``psmkit watch`` shows: a page that is redrawn, lines of text, or lines of JSON; and the environment of the command that it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from psmkit.model import CODES, Report, Severity
from psmkit.report.data import characters, plain
from psmkit.report.escape import shorten, visible
from psmkit.report.language import ENGLISH, Words
from psmkit.report.layout import Page, Span
from psmkit.report.options import Options
from psmkit.report.ranktable import fit
from psmkit.report.summary import culprit_name, next_step, sentence, size
from psmkit.report.text import headline

if TYPE_CHECKING:
    from psmkit.watch.files import Log
    from psmkit.watch.follow import Follower
    from psmkit.watch.loop import Watch
    from psmkit.watch.state import Sight

__all__ = ["Rates", "begun", "document", "environment", "fates", "frame", "told"]

SCHEMA = "psmkit.watch/1"
_FILES, _NEWS, _REFUSED = 6, 4, 3
_LONGEST = 4000  # characters of a variable: the kernel has a limit
_SPAN = 2.0  # seconds over which rates are measured


class Rates:
    """Bytes per second of each log."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._before: dict[Log, int] = {}
        self.of: dict[Log, float] = {}

    def update(self, logs: Sequence[Log]) -> None:
        """Look at the logs again."""
        now = time.monotonic()
        passed = now - self._at
        if self._before and passed < _SPAN:
            return
        sizes = {log: _size(log) for log in logs}
        self.of = {log: max(n - self._before.get(log, n), 0) / passed for log, n in sizes.items()} if passed else {}
        self._at, self._before = now, sizes


def frame(watch: Watch, rates: Rates, columns: int, rows: int, words: Words = ENGLISH) -> Page:
    """The page for a terminal of so many columns and rows."""
    now, state, follower = time.time(), watch.state, watch.follower
    page = Page(columns, words=words)
    page.cut(_what(follower, rates, now, words), "dim")
    page.blank()
    sight = state.now
    if sight.report is None:
        why = sight.told or words.say("nothing was read")
        page.wrap(words.say("no verdict yet: {why}", why=why), "heading", hang="  ")
    else:
        page.lines += headline(sight.report, Options(width=columns, words=words)).lines
        page.add("  ", _since(sight, now, words))
        if not sight.settled and sight.since is not None:
            left = _ago(max(sight.since + state.settle - now, 0.0))
            page.add(
                "  ",
                Span(
                    words.say(
                        "a rank that is only late looks the same: reported in {left} if nothing refutes it", left=left
                    ),
                    "warning",
                ),
            )
    if watch.inspector is not None and (watch.inspector.busy or watch.inspector.inputs):
        who = ", ".join(f"{host}:{pid}" for host, pid in watch.inspector.asked)
        looks = "psmkit inspect looks into {who}" if watch.inspector.busy else "psmkit inspect looked into {who}"
        page.wrap(words.say(looks, who=who), "dim", indent="  ", hang="    ")
    if state.error:
        failed = words.say("the newest lines could not be judged: {why}", why=state.error)
        page.wrap(failed, "warning", indent="  ", hang="    ")
    _files(page, follower, rates, now)
    for path in follower.paths.waiting:
        page.cut(words.say("waiting for {path}", path=path), "dim", "  ")
    for path, why in list(follower.refused.items())[:_REFUSED]:
        page.cut(words.say("not followed: {path}: {why}", path=path, why=why), "dim", "  ")
    for news in follower.news[-_NEWS:]:
        page.cut(news, "dim", "  ")
    page.blank()
    page.add(Span(words.say("Ctrl-C ends the watch"), "dim"))
    del page.lines[max(rows - 1, 8) :]
    return page


def begun(follower: Follower, settle: float, columns: int, words: Words = ENGLISH) -> Page:
    """What is watched, for output that scrolls."""
    page = Page(columns, words=words)
    logs = follower.logs
    text = words.say(
        "watching {files}, {size}; a wait is reported when it is {settle:g} s old; Ctrl-C ends",
        files=words.count(len(logs), "file"),
        size=size(sum(map(_size, logs))),
        settle=settle,
    )
    page.add(Span(f"{_clock(time.time())} {text}", "dim"))
    for path in follower.paths.waiting:
        page.add(Span(words.say("waiting for {path}", path=path), "dim"))
    for path, why in follower.refused.items():
        page.add(Span(words.say("not followed: {path}: {why}", path=path, why=why), "dim"))
    return page


def fates(news: Sequence[str], columns: int, words: Words = ENGLISH) -> Page:
    """What became of files, for output that scrolls."""
    page = Page(columns, words=words)
    for text in news[:_NEWS]:
        page.add(Span(f"{_clock(time.time())} {text}", "dim"))
    if len(news) > _NEWS:
        more = words.say("and {more} of files", more=words.count(len(news) - _NEWS, "more change"))
        page.add(Span(f"{_clock(time.time())} {more}", "dim"))
    return page


def told(sight: Sight, before: Sight | None, columns: int, words: Words = ENGLISH) -> Page:
    """What changed, for output that scrolls."""
    assert sight.report is not None
    page = Page(columns, words=words)
    changed = before is not None and before.verdict != sight.verdict
    was = words.say(", was {verdict}", verdict=words.verdict(before.verdict)) if before is not None and changed else ""
    page.add(Span(f"{_clock(time.time())} {_since(sight, time.time(), words)}{was}", "dim"))
    page.lines += headline(sight.report, Options(width=columns, words=words)).lines
    return page


def document(event: str, sight: Sight, before: Sight | None, follower: Follower) -> dict[str, Any]:
    """A change as an object of ``psmkit.watch/1``. ``event``: ``verdict``, a new one was reported, or ``end``, the watch ends."""
    report, proof = sight.report, sight.proof
    last = max((when for log in follower.logs if (when := log.last.arrivals.last) is not None), default=None)
    return {
        "schema": SCHEMA,
        "event": event,
        "time": _stamp(time.time()),
        "verdict": sight.verdict or None,
        "before": before.verdict if before is not None else None,
        "settled": sight.settled,
        "since": _stamp(sight.since) if sight.since is not None else None,
        "reason": plain(report.reason if report is not None else sight.told),
        "confidence": plain(float(report.confidence)) if report is not None else None,
        "culprits": plain(report.culprits) if report is not None else [],
        "suspects": plain(report.suspects) if report is not None else [],
        "codes": codes(report),
        "proof": {"file": plain(proof.file), "line": proof.line, "text": plain(proof.text)} if proof else None,
        "do_this": plain(next_step(report)) if report is not None else "",
        "files": len(follower.logs),
        "bytes": follower.bytes,
        "last_line": _stamp(last) if last is not None else None,
        "news": [characters(text) for text in follower.news],
    }


def environment(sight: Sight, before: Sight | None) -> dict[str, str]:
    """The verdict as variables for the command that runs on a change. Texts of logs are escaped as on a terminal."""
    report, proof = sight.report, sight.proof
    assert report is not None
    values = {
        "VERDICT": sight.verdict,
        "BEFORE": before.verdict if before is not None else "",
        "SENTENCE": sentence(report),
        "CODE": sight.code,
        "CODES": " ".join(codes(report)),
        "WHO": ", ".join(culprit_name(culprit) for culprit in report.culprits),
        "RANKS": " ".join(dict.fromkeys(str(c.rank) for c in report.culprits if c.rank is not None)),
        "SINCE": _stamp(sight.since) if sight.since is not None else "",
        "PROOF": f"{proof.file}:{proof.line}: {proof.text}" if proof is not None else "",
        "DO_THIS": next_step(report),
    }
    return {f"PSMKIT_{name}": shorten(visible(characters(text)), _LONGEST) for name, text in values.items()}


def codes(report: Report | None) -> list[str]:
    """The codes of errors and warnings, worst first."""
    found = report.findings if report is not None else ()
    return list(dict.fromkeys(f.code for f in found if f.severity is not Severity.INFO and f.code in CODES))


def _what(follower: Follower, rates: Rates, now: float, words: Words) -> str:
    logs = follower.logs
    newest = max(
        (log for log in logs if log.last.arrivals.last is not None),
        key=lambda log: log.last.arrivals.last or 0.0,
        default=None,
    )
    what = words.say(", ").join(
        (words.count(len(logs), "file"), size(sum(map(_size, logs))), f"{size(round(sum(rates.of.values())))}/s")
    )
    parts = [f"psmkit watch{words.say(': ')}{what}"]
    if newest is not None and newest.last.arrivals.last is not None:
        where = newest.path.removeprefix(_folder(logs))
        ago = _ago(now - newest.last.arrivals.last)
        parts.append(words.say("the last line came {ago} ago in {where}", ago=ago, where=where))
    return words.say("; ").join(parts)


def _files(page: Page, follower: Follower, rates: Rates, now: float) -> None:
    """The files, those first that have been silent for longest."""
    logs = sorted(follower.logs, key=lambda log: (log.last.arrivals.last or 0.0, log.order))
    if not logs:
        return
    words = page.words
    folder = _folder(logs)
    rows = [
        [
            log.path.removeprefix(folder),
            size(_size(log)),
            f"{size(round(rates.of.get(log, 0.0)))}/s",
            words.say("{ago} ago", ago=_ago(now - log.last.arrivals.last))
            if log.last.arrivals.last is not None
            else "-",
        ]
        for log in logs[:_FILES]
    ]
    page.blank()
    headers = [words.say(name) for name in ("silent for longest", "size", "rate", "last line")]
    for number, line in enumerate(fit(headers, rows, page.width - 2)):
        page.add("  ", Span(line, "" if number else "dim"))
    if len(logs) > _FILES:
        page.add("  ", Span(words.say("and {more}", more=words.count(len(logs) - _FILES, "more file")), "dim"))
    page.blank()


def _folder(logs: Sequence[Log]) -> str:
    """The folder of all logs, with its slash; empty if there is none."""
    if len({log.path.startswith("/") for log in logs}) != 1:
        return ""
    folder = os.path.commonpath([os.path.dirname(log.path) for log in logs])
    return f"{folder}/" if folder not in ("", "/") else ""


def _size(log: Log) -> int:
    return sum(part.offset for part in log.parts)


def _since(sight: Sight, now: float, words: Words) -> str:
    verdict = words.verdict(sight.verdict)
    if sight.since is None:
        return verdict
    return words.say(
        "{verdict} since {clock} ({ago}), by the arrival of lines",
        verdict=verdict,
        clock=_clock(sight.since),
        ago=_ago(now - sight.since),
    )


def _ago(seconds: float) -> str:
    """``3 s``, ``2 min 5 s``, ``3 h 12 min``, ``2 d 3 h``."""
    whole = max(round(seconds), 0)
    for unit, name, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def _clock(when: float) -> str:
    moment = datetime.fromtimestamp(when)
    form = "%H:%M:%S" if moment.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S"
    return moment.strftime(form)


def _stamp(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
