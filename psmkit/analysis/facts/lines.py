"""Read lines again: the text after the prefix, and fields. A scan keeps the fields of the first of several equal lines only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from psmkit.analysis.facts.job import Job
from psmkit.catalogue import Catalogue, load
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model.late import regex

__all__ = [
    "bare_warnings",
    "before_settings",
    "below",
    "catalogue",
    "fields_at",
    "matched",
    "message_at",
    "message_at_start",
    "prefetch",
    "unfolded",
    "with_role",
    "without_escapes",
]

# NCCL 2.0 to 2.2 do not print their name, nor do the tests of aws-ofi-nccl.
_HEAD = regex(
    r"NCCL (?:WARN|INFO|ABORT|TRACE|ERROR|ATTN|DIAG) ?|^\S+:\d+:\d+ \[\d+\] (?:\S+:\d+ )?(?:WARN|INFO) |^[\w.-]+ \[\d+\] \S+\.cu:\d+ WARN |(?:WARN|INFO|TRACE): Function: \S+ Line: \d+: (?=NET/OFI )"
)
#: So many lines above an error are read for its reason.
_BARE = 40
#: Four settings in a row, as a program prints the fields of a class or a dictionary: the values of those behind them can have any words.
_DUMP = regex(r"(?:\b[A-Za-z_]\w*=[^,=]{0,200}, ?){4}|(?:['\"][A-Za-z_][\w.-]*['\"]: [^,:]{0,200}, ?){4}")
#: The start of the next record, on a line that holds two.
_NEXT = regex(
    r"(?:\[\d+,\d+\]<std\w+>: ?)?(?<![\w.-])[\w.-]+:\d+:\d+ (?:\[-?\d+\] )?(?:\S+ )?NCCL (?:WARN|INFO|ABORT|TRACE|CALL|ATTN)\b"
)

#: Characters as JSON spells them; a text that was quoted twice has two backslashes.
_ESCAPE = regex(r"\\+u([0-9a-fA-F]{4})")
_BREAK = regex(r"\\+([ntr\"])")
_SPELLED = {"n": "\n", "t": "\t", "r": " ", '"': '"'}


def without_escapes(text: str) -> str:
    """A text in which ``\\u003c`` is the ASCII character that it spells; psmkit itself spells others so that do not print."""
    return _ESCAPE.sub(lambda m: _character(m) if _character(m).isascii() else m[0], text) if "\\u" in text else text


def _character(match: re.Match[str]) -> str:
    found = chr(int(match[1], 16))
    return found if found.isprintable() else match[0]


def unfolded(text: str) -> str:
    """A line of a structured log with the characters and line breaks that it spells, as the scanner reads it."""
    return _BREAK.sub(lambda m: _SPELLED[m[1]], _ESCAPE.sub(_character, text)) if "\\" in text else text


def catalogue(job: Job) -> Catalogue:
    """The catalogue of the scan, including the user's entries."""
    return getattr(job.scan, "catalogue", None) or load()


def with_role(job: Job, role: str) -> list[Event]:
    """The events whose catalogue entry has a role, in reading order."""
    known = catalogue(job).by_name
    names = [name for name in job.names if name in known and known[name].role == role]
    return job.events(*names) if names else []


def message_at(job: Job, ref: Ref | None) -> str:
    """The text of a line without its prefix and without a second record after it; empty if there is no line."""
    evidence = job.quotes.of(ref)
    return message_at_start(evidence[0].text) if evidence else ""


def message_at_start(text: str) -> str:
    """The message of a line without its prefix and without a second record after it."""
    parts = _HEAD.split(text, maxsplit=1)
    text = parts[1] if len(parts) == 2 else text
    glued = _NEXT.search(text)
    return text[: glued.start()] if glued is not None and glued.start() > 0 else text


def bare_warnings(job: Job, ref: Ref) -> list[tuple[Ref, str]]:
    """The lines just above a line that are warnings of NCCL or of its plugins without their prefix, each with its text: a post may leave it out."""
    out: list[tuple[Ref, str]] = []
    places = [Ref(ref.file, line, 0) for line in range(max(ref.line - _BARE, 1), ref.line)]
    prefetch(job, places)
    for above in places:
        text = " ".join("".join(e.text for e in job.quotes.of(above)).split())
        known = None if _HEAD.search(text) else catalogue(job).match(text)
        if known is not None and known[0].level == "WARN" and known[0].severity in ("error", "warning"):
            out.append((above, text))
    return out


def fields_at(job: Job, ref: Ref | None) -> Mapping[str, Value]:
    """The fields that the catalogue finds in a line; empty if no entry matches."""
    found = catalogue(job).match(message_at(job, ref).strip())
    return found[1] if found is not None else {}


def matched(job: Job, ref: Ref) -> str:
    """A line that is not NCCL's, from the words on by which its entry knows it; empty if no entry matches."""
    line = "".join(e.text for e in job.quotes.of(ref))
    found = catalogue(job).places(line, where="line")
    return line[found[0][0] :].strip() if found is not None else ""


def below(job: Job, ref: Ref) -> Ref | None:
    """The line below another in its file, None if there is none."""
    step = getattr(job.scan, "below", None)
    found: Ref | None = step(ref) if step is not None else None
    return found


def before_settings(text: str) -> str:
    """A line up to the settings that a program prints in it as one value: their words tell of no error."""
    dump = _DUMP.search(text)
    return text if dump is None else text[: dump.start()]


def prefetch(job: Job, refs: Iterable[Ref]) -> None:
    """Announce lines that will be read again, because seeking back in a compressed input is slow."""
    fetch = getattr(job.scan, "prefetch", None)
    if fetch is not None:
        fetch(list(refs))
