"""Replace names of people and machines in a report: hosts, addresses, paths, users and pids.

Placeholders are numbered in order of appearance, so the same log gives the same placeholders and equal names stay equal.
A pid becomes a small number, because the reports have numbers in those fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from psmkit.model import Culprit, Evidence, Finding, RankRow, Report, Run, Shape, Suspect
from psmkit.model.late import regex
from psmkit.names import Redactor

__all__ = ["redact"]

_T = TypeVar("_T")
_PROCESS = regex(r"^(?P<host>.+):(?P<pid>\d+)$")


def redact(report: Report) -> Report:
    """``report`` with placeholders for hosts, addresses, paths, users and pids in all its texts, evidence included."""
    redactor = Redactor()
    # Ranks come first, so that the numbers follow their order.
    for part in (*_walk(report.ranks), *_walk(report)):
        _learn(redactor, part)
    return _rewrite(report, redactor)


def _walk(value: Any) -> Iterator[Any]:
    """All dataclasses and texts below ``value``, in order."""
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from _walk(getattr(value, item.name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _walk(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _walk(part)


def _learn(redactor: Redactor, part: Any) -> None:
    if isinstance(part, str):
        redactor.learn(part)
        return
    if isinstance(part, (Evidence, Shape)):
        redactor.input(part.file)
    elif isinstance(part, RankRow) and part.last:
        redactor.input(part.last.rpartition(":")[0])
    elif isinstance(part, Finding):
        for process in part.processes:
            match = _PROCESS.match(process)
            if match:
                redactor.process(match["host"], match["pid"])
    elif isinstance(part, Run):
        for name in part.hosts:
            redactor.host(name)
    if isinstance(part, (RankRow, Culprit, Suspect)):
        if part.host is not None:
            redactor.host(part.host)
        if part.pid is not None:
            redactor.pid(part.pid)
        if part.host is not None and part.pid is not None:
            redactor.process(part.host, str(part.pid))


# Texts that psmkit itself writes, by field.
_KEPT = frozenset(
    {"code", "comm", "communicators", "known_issue", "missing_subsystems", "name", "parent", "stage", "state"}
)


def _rewrite(value: _T, redactor: Redactor, field: str = "") -> _T:
    result: Any = value
    if isinstance(value, Enum) or field in _KEPT:
        pass
    elif isinstance(value, str):
        result = _string(value, redactor, field)
    elif field == "pid" and isinstance(value, int):
        result = redactor.pid(value)
    elif isinstance(value, Sequence):
        result = tuple(_rewrite(part, redactor, field) for part in value)
    elif isinstance(value, dict):
        result = {key: _rewrite(part, redactor) for key, part in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _rewrite(getattr(value, f.name), redactor, f.name) for f in dataclasses.fields(value)}
        result = dataclasses.replace(value, **changed)
    return cast(_T, result)


def _string(text: str, redactor: Redactor, field: str) -> str:
    if field == "file":
        return redactor.path(text)
    if field in ("host", "hosts"):
        return redactor.host(text)
    if field == "last":
        file, colon, line = text.rpartition(":")
        return f"{redactor.path(file)}:{line}" if colon else redactor.text(text)
    match = _PROCESS.match(text) if field == "processes" else None
    if match:
        return f"{redactor.host(match['host'])}:{redactor.place('pid', match['pid'])}"
    return redactor.text(text)
