"""The text output of ncclras (2.24 and later): status answers and monitoring mode."""

from __future__ import annotations

import re
from dataclasses import field

from psmkit.logparse.foreign.textlines import numbered
from psmkit.logparse.foreign.types import RasComm, RasEvent, RasIssue, RasProcess, RasRank, RasReport, RasValue
from psmkit.model.late import dataclass, regex

__all__ = ["parse_ras_text"]

_ROW = regex(
    r"^(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s+(\d+(?:-\d+)?)\s+(\d{1,18})\s+(\d{1,18})\s+([A-Z]+)\s+([A-Z,]+)$"
)
_ISSUE = regex(r"^#\d+-\d+ \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)$")
_PROCESS = regex(r"^Process (\d{1,18}) on node (\S+?)(?: managing GPUs? (.*))?$")
_EVENT = regex(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] ([A-Z][A-Z_]+): (.*)$")
_EVENT_PROCESS = regex(r"[Pp]rocess (\d{1,18}) on node (\S+)(?: managing GPUs? ([0-9,]+))?")
_RANK = regex(
    r"^Rank (\d{1,18})(?: has launched up to operation (-?\d{1,18})| (has not launched any operations)| has status (\w+)| reported (.*?))?"
    r" -- (?:GPU (\d+(?: \(NVML \d+\))?) managed by process (\d{1,18}) on node (\S+)|\[process information not found\])$"
)
_SHARED = (
    regex(r"^(\d{1,18}) ranks? ha(?:ve|s) launched up to operation (-?\d{1,18})$"),
    regex(r"^(\d{1,18}) ranks? ha(?:ve|s) not launched any (operations)$"),
    regex(r"^(\d{1,18}) ranks? ha(?:ve|s) status (\w+)$"),
    regex(r"^(\d{1,18}) ranks? reported (.*)$"),
)
_DIFFERENT = regex(r"^Communicator ranks have different (?:(\w+) operation counts|collective operation counts|status)$")
_MISSING = regex(r"^The missing ranks?: ([\d,]+)$")
_JOB = regex(r"^(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})$")
# If nodes differ, the totals are in a table of their own.
_TOTALS = regex(r"^(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})$")
_NONE = "0"
# Some releases (2.27.3, NVIDIA/nccl#1762) print ranks from freed memory.
_MAX_RANK = 1 << 20
_DIGITS = 10


@dataclass(slots=True)
class _Value:
    value: str
    count: int
    line: int
    ranks: list[RasRank] = field(default_factory=list)


@dataclass(slots=True)
class _Issue:
    kind: str
    hash: int
    line: int
    what: str = ""
    operation: str | None = None
    missing: list[int] = field(default_factory=list)
    values: list[_Value] = field(default_factory=list)

    def freeze(self) -> list[RasIssue]:
        values = tuple(RasValue(v.value, v.count, tuple(v.ranks), v.line) for v in self.values)
        return [RasIssue(self.kind, self.hash, self.what, self.operation, tuple(self.missing), values, self.line)]


class _Parser:
    """Parses one answer line by line."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.processes: int | None = None
        self.comms: list[RasComm] = []
        self.issues: list[RasIssue] = []
        self.dead: list[RasProcess] = []
        self.missing: list[RasProcess] = []
        self.events: list[RasEvent] = []
        self.timeouts = 0
        self.section: str | None = None
        self.issue: _Issue | None = None
        self.sections: set[str] = set()

    def feed(self, raw: str, number: int) -> None:
        text = raw.strip()
        if not text:
            return
        if self._heading(text, number) or self._table(text, number) or self._event(text, number):
            return
        if self.issue is not None:
            self._in_issue(text, number)
            return
        process = _PROCESS.match(text)
        if process and self.section in ("DEAD", "INCOMPLETE"):
            place = self.dead if self.section == "DEAD" else self.missing
            place.append(RasProcess(process.group(2), int(process.group(1)), process.group(3), number))
        timeout = re.match(r"^(?:Warning: e|E)ncountered (\d{1,18}) communication timeout", text)
        if timeout:
            self.timeouts = max(self.timeouts, int(timeout.group(1)))

    def _heading(self, text: str, number: int) -> bool:
        version = re.match(r"^NCCL version (\S+)", text)
        if version:
            self.version = self.version or version.group(1)
            return True
        if text in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            self._close()
            self.section = text
            return True
        if text in ("Job summary", "Errors", "Warnings") or text.startswith("Communicators..."):
            self._close()
            self.section = text.split("...")[0]
            self.sections.add(self.section)
            return True
        issue = _ISSUE.match(text)
        if issue:
            self._close()
            self.issue = _Issue(issue.group(2), int(issue.group(1), 16), number)
            return True
        return False

    def _table(self, text: str, number: int) -> bool:
        row = _ROW.match(text)
        if row and self.section == "Communicators":
            self.comms.append(
                RasComm(
                    hash=None,
                    size=int(row.group(5)),
                    status=row.group(7),
                    errors=row.group(8),
                    comms=int(row.group(2)),
                    line=number,
                )
            )
            return True
        job = _JOB.match(text)
        if job and self.section == "Job summary":
            self.processes = int(job.group(4))
            return True
        totals = _TOTALS.match(text)
        if totals and self.section == "Job summary":
            self.processes = int(totals.group(2))
            return True
        return False

    def _event(self, text: str, number: int) -> bool:
        event = _EVENT.match(text)
        if not event:
            return False
        process = _EVENT_PROCESS.search(event.group(3))
        self.events.append(
            RasEvent(
                event=event.group(2),
                time=event.group(1),
                process=RasProcess(process.group(2), int(process.group(1)), process.group(3), number)
                if process
                else None,
                detail=event.group(3),
                line=number,
            )
        )
        return True

    def _in_issue(self, text: str, number: int) -> None:
        issue = self.issue
        assert issue is not None
        different = _DIFFERENT.match(text)
        if different:
            if issue.what:
                # Releases that distinguish operations print a paragraph for each under one heading.
                self.issues.extend(issue.freeze())
                issue.values.clear()
            issue.what, issue.operation = text, different.group(1)
            return
        if not issue.what:
            issue.what = text
        missing = _MISSING.match(text)
        if missing:
            issue.missing.extend(
                int(r) for r in missing.group(1).split(",") if 0 < len(r) < _DIGITS and int(r) < _MAX_RANK
            )
            return
        rank = _RANK.match(text)
        if rank:
            self._rank(issue, rank, number)
            return
        for pattern in _SHARED:
            shared = pattern.match(text)
            if shared:
                value = shared.group(2)
                issue.values.append(_Value(_NONE if value == "operations" else value, int(shared.group(1)), number))
                return

    def _rank(self, issue: _Issue, match: re.Match[str], number: int) -> None:
        if int(match.group(1)) >= _MAX_RANK:
            return
        rank = RasRank(
            rank=int(match.group(1)),
            gpu=match.group(6),
            pid=int(match.group(7)) if match.group(7) else None,
            host=match.group(8),
            missing=issue.kind == "INCOMPLETE",
            line=number,
        )
        own = match.group(2) or (_NONE if match.group(3) else None) or match.group(4) or match.group(5)
        if own is not None:
            issue.values.append(_Value(own, 1, number, [rank]))
        elif issue.values:
            issue.values[-1].ranks.append(rank)
        elif issue.kind == "INCOMPLETE":
            issue.missing.append(rank.rank)
            issue.values.append(_Value("missing", 1, number, [rank]))

    def _close(self) -> None:
        if self.issue is not None:
            self.issues.extend(self.issue.freeze())
            self.issue = None

    def report(self) -> RasReport:
        self._close()
        return RasReport(
            version=self.version,
            processes=self.processes,
            comms=tuple(self.comms),
            issues=tuple(self.issues),
            dead=tuple(self.dead),
            missing=tuple(self.missing),
            events=tuple(self.events),
            timeouts=self.timeouts,
            # An answer ends with its warnings. One that stops earlier was truncated, or comes from monitoring mode.
            complete="Warnings" in self.sections or not self.sections,
        )


def parse_ras_text(text: str) -> list[RasReport]:
    """The answers in ``text``, in order; a job summary starts each answer."""
    out: list[RasReport] = []
    parser = _Parser()
    for number, line in numbered(text):
        if line.strip() == "Job summary" and "Job summary" in parser.sections:
            out.append(parser.report())
            parser = _Parser()
        parser.feed(line, number)
    last = parser.report()
    if last.comms or last.issues or last.events or last.version or last.processes is not None or not out:
        out.append(last)
    return out
