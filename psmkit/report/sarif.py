"""The report as SARIF 2.1.0, for code hosts and editors that show findings beside a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from psmkit.model import CODES, Evidence, Finding, Report, Severity
from psmkit.report.escape import visible
from psmkit.report.options import Options
from psmkit.report.summary import by_weight, sentence

__all__ = ["render"]

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report, options: Options | None = None) -> str:
    """The report as a SARIF log of one run."""
    codes = sorted({finding.code for finding in report.findings})
    places = {code: index for index, code in enumerate(codes)}
    failed = report.verdict.badness >= 3
    document = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "psmkit", "rules": [_rule(code) for code in codes]}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, places[finding.code]) for finding in by_weight(report)],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {"level": "error" if failed else "note", "message": {"text": visible(sentence(report))}}
                        ],
                    }
                ],
                "properties": {"verdict": report.verdict.value, "confidence": round(report.confidence, 4)},
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _rule(name: str) -> dict[str, Any]:
    code = CODES.get(name)
    if code is None:
        return {"id": name}
    return {
        "id": code.code,
        "shortDescription": {"text": code.title},
        "fullDescription": {"text": code.meaning},
        "help": {"text": code.next_step},
        "defaultConfiguration": {"level": _LEVEL[code.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = " ".join(part for part in (_stop(finding.title), _stop(finding.explanation), finding.next_step) if part)
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "rank": round(100 * finding.confidence, 1),
        "message": {"text": visible(text)},
        "locations": [_location(item) for item in finding.evidence[:1]],
        "partialFingerprints": {"psmkit/1": _fingerprint(finding)},
        "properties": {
            "run": finding.run,
            "comm": None if finding.comm is None else visible(finding.comm),
            "ranks": list(finding.ranks),
            "culprits": list(finding.culprits),
            "processes": [visible(process) for process in finding.processes],
            "stage": finding.stage,
            "known_issue": finding.known_issue,
        },
    }
    related = [{"id": number, **_location(item)} for number, item in enumerate(finding.evidence[1:], 1)]
    if related:
        result["relatedLocations"] = related
    return result


def _stop(text: str) -> str:
    """``text`` as a sentence with its full stop."""
    return text if not text or text.endswith((".", "!", "?")) else text + "."


def _location(item: Evidence) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(item.file)},
            "region": {"startLine": max(item.line, 1), "snippet": {"text": visible(item.text)}},
        }
    }


def _uri(path: str) -> str:
    # A relative path stays relative: the consumer of the document knows the base.
    raw = path.encode("utf-8", "surrogateescape")
    if PurePath(path).is_absolute():
        return "file://" + quote(raw)
    # A colon in the first segment would be read as a URI scheme.
    return quote(raw)


def _fingerprint(finding: Finding) -> str:
    # Made from what stays the same when the job fails again, not from pids and line numbers.
    parts = (finding.code, finding.comm and "comm", finding.ranks, finding.culprits, finding.stage)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
