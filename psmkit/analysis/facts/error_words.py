"""Words of a failure in lines that psmkit does not know: settings, prose and warnings have them, too, and report none."""

from __future__ import annotations

import re

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.catalogue import Catalogue
from psmkit.logparse.types import Ref
from psmkit.model.late import regex

__all__ = ["GOES_ON", "WARNS", "first_error", "is_prose", "without_settings"]

#: A warning that may be turned off.
WARNS = regex(
    r"\b(?:silence|suppress|disable|ignore) (?:this|the) warning\b|\bwarning can be (?:safely )?ignored\b",
    re.IGNORECASE,
)
#: What the words of a failure end with where the program goes on; the head of glog for lines that are no errors; a frame of a stack.
GOES_ON = regex(
    r"\b(?:try(?:ing)? again|will retry|retrying|(?:will use|using) (?:the )?default|will use defau|fall(?:s|ing)? back|fallback|(?:proceed|continu|go)(?:s|ing)? (?:on )?without)\b|^\[[\d-]{10} [\d:,]+ I \d+ \d+\] |^\s*#?\d+: .*(?:\[0x[0-9a-f]+\]|\(demangling failed\))",
    re.IGNORECASE,
)
#: So many files, and lines of each, are read where psmkit knows no line.
_FILES, _LINES = 8, 400
#: A level at which a program reports no error, and the word by which it says that it goes on.
_QUIET = regex(r"(?:^|[\s\[|(])(?:DEBUG|TRACE)(?=[\s\]|):])|\b[Ii]gnor(?:e|ed|es|ing) (?:\w+ )?(?:error|exception)s?\b")
#: A setting that a program lists: its name, and a number, a switch or a dictionary.
_SETTING = regex(
    r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+|\([a-z]+\))+\s*[:=]\s*(?:-?\d[\w.]*|true|false|True|False|on|off)|[a-z]\w*\s*[:=]\s*(?:\{.*\}|None|True|False|-?\d[\d.]*)"
)
_NUMBER, _NAME = r"-?\d[\w.]*\b", r"\w*(?:_\w+|timeouts?)"
_VALUE = rf"""(?:None\b|True\b|False\b|null\b|true\b|false\b|{_NUMBER}|'[^'\s]*'|"[^"\s]*"|\{{\}}|\[\])"""
#: Settings inside a line: an option of a command, a field of a call or a namespace (``name_of=3``, ``timeout=3``, ``on=True``), and a member of a
#: dictionary (``'name': 3``). The name of a setting may have words of an error, as may the value of one with several words.
_PAIRS = regex(
    rf"""--[A-Za-z][\w-]*(?:=\S+)?|\b{_NAME}\s?=\s?{_VALUE}|\b\w+=(?:None|True|False)\b|(?P<quote>['"])[\w.-]+(?P=quote)\s*:\s*{_VALUE}|\b[a-z]\w*_\w+=(?=\w+\()""",
    re.IGNORECASE,
)
#: Prose has so many words, and so many of them before those of an error. A line of a program has technical words beside them: numbers, names of
#: functions, paths, types of exceptions, levels.
_WORDS, _BEFORE = 16, 8
_TECHNICAL = regex(
    r"\d|[A-Za-z]_[A-Za-z]|[\w.]/[\w.]|\b[a-z]+=|[a-z][A-Z]|\b[A-Z]{2,}\b|\b\w*(?:Error|Exception)\b|[()]{2}|::"
)


def without_settings(text: str) -> str:
    """A line without the settings in it."""
    return _PAIRS.sub("", text) if "=" in text or ":" in text or "--" in text else text


def is_prose(known: Catalogue, text: str) -> bool:
    """Whether a line is a long sentence of plain words that begins with no word of an error, as people and language models write."""
    words = text.split()
    if len(words) < _WORDS or _TECHNICAL.search(text) is not None:
        return False
    return known.phrase("a word of an error", " ".join(words[:_BEFORE])) is None


def first_error(job: Job) -> str | None:
    """The first line of an input that psmkit does not know which tells of a failure in common words; None if none of the first lines does."""
    known = lines.catalogue(job)
    for at, file in enumerate(job.scan.files[:_FILES]):
        ref: Ref | None = Ref(at, 1, 0) if file.lines else None
        for _ in range(_LINES):
            if ref is None:
                break
            text = " ".join("".join(e.text for e in job.quotes.of(ref)).split())
            if known.phrase("a word of an error", text) is not None and _reports(known, text):
                return text
            ref = lines.below(job, ref)
    return None


def _reports(known: Catalogue, text: str) -> bool:
    """Whether a line with words of a failure reports one: its program takes it for an error, and the words are no setting and no prose."""
    level = known.match(text, where="other")
    if level is not None and level[0].severity == "harmless" and "failed" not in text.lower():
        return False
    if any(form.search(text) is not None for form in (_QUIET, WARNS, GOES_ON)) or _SETTING.fullmatch(text) is not None:
        return False
    said = without_settings(lines.before_settings(text))
    return known.phrase("a word of an error", said) is not None and not is_prose(known, text)
