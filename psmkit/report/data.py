"""Reports as plain data: the only module that turns findings and reports into dictionaries."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from importlib import resources
from typing import Any

from psmkit.model import Finding, Report
from psmkit.report.options import Options

__all__ = ["SCHEMA", "characters", "finding_dict", "plain", "render", "report_dict", "schema"]

SCHEMA = "psmkit.report/1"

#: Ranks of a job whose report is indented. That of a larger one has a line for each rank, communicator and finding.
_MOST_INDENTED = 1024
_AS_THEY_ARE = frozenset({int, bool, type(None)})
#: The fields of each class that was met, None for what is no dataclass.
_NAMES: dict[type, tuple[str, ...] | None] = {}
_FINDING_KEYS = (
    "code",
    "title",
    "severity",
    "confidence",
    "run",
    "comm",
    "ranks",
    "culprits",
    "named",
    "suspects",
    "processes",
    "stage",
    "evidence",
    "explanation",
    "next_step",
    "known_issue",
)


def plain(value: Any) -> Any:
    """Dataclasses, enums and texts as JSON has them."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, str):
        return characters(value)
    if isinstance(value, Enum):
        return value.value
    if kind not in _NAMES:
        _NAMES[kind] = tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
    names = _NAMES[kind]
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        # Confidences are estimates; more digits would suggest a precision that they do not have.
        return round(value, 4)
    return value


def characters(text: str) -> str:
    """The text, with the bytes of a file name that are no characters written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding as a dictionary with the keys of ``psmkit.report/1``."""
    data = plain(finding)
    for line in data["evidence"]:
        del line["words"]  # they only help to cut the text, which is whole here
    return {key: data[key] for key in _FINDING_KEYS}


def report_dict(report: Report) -> dict[str, Any]:
    """A report as a dictionary that follows the schema ``psmkit.report/1``; unknown values are None."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "reason": plain(report.reason),
        "confidence": plain(float(report.confidence)),
        "culprits": plain(report.culprits),
        "suspects": plain(report.suspects),
        "findings": [finding_dict(finding) for finding in report.findings],
        "matching": plain(report.matching),
        "runs": plain(report.runs),
        "communicators": plain(report.communicators),
        "ranks": plain(report.ranks),
        "coverage": plain(report.coverage),
        "versions": plain(report.versions),
        "causes": plain(report.causes),
        "next": plain(report.next),
    }


def render(report: Report, options: Options | None = None) -> str:
    """The JSON report, in ASCII: control characters from a log are escaped, and nothing is lost."""
    data = report_dict(report)
    if len(report.ranks) <= _MOST_INDENTED:
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_a_line_each(value)}" for key, value in data.items()) + "\n}\n"


def _a_line_each(value: Any) -> str:
    """A value, with each dictionary of a list on a line. Only without an indent does Python's encoder run in C."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"


def schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report, as shipped in the package."""
    text = resources.files("psmkit.report").joinpath("schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
