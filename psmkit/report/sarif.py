"""The report as SARIF 2.1.0, for code hosts and editors that show findings beside a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from psmkit.model import CODES, Evidence, Finding, Report, Severity
from psmkit.report.escape import visible
from psmkit.report.options import Options
from psmkit.report.summary import by_weight, sentence

__all__ = ["findings_document", "render"]

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report, options: Options | None = None) -> str:
    """The report as a SARIF log of one run."""
    failed = report.verdict.badness >= 3
    properties = {"verdict": report.verdict.value, "confidence": round(report.confidence, 4)}
    return _document(by_weight(report), sentence(report), failed, properties)


def findings_document(findings: Sequence[Finding], said: str, suppressed: Sequence[tuple[Finding, str]] = ()) -> str:
    """Findings that are of no run of a job, such as those of an audit, as a SARIF log.

    Args:
        findings: in order.
        said: the result in a few words.
        suppressed: findings that the user suppressed, with the reason.
    """
    failed = any(finding.severity is Severity.ERROR for finding in findings)
    return _document(findings, said, failed, {}, suppressed)


def _document(
    findings: Sequence[Finding],
    said: str,
    failed: bool,
    properties: dict[str, Any],
    suppressed: Sequence[tuple[Finding, str]] = (),
) -> str:
    codes = sorted({finding.code for finding in (*findings, *(finding for finding, _ in suppressed))})
    places = {code: index for index, code in enumerate(codes)}
    results = [_result(finding, places[finding.code]) for finding in findings]
    for finding, reason in suppressed:
        taken = {"kind": "external", "justification": visible(reason)}
        results.append({**_result(finding, places[finding.code]), "suppressions": [taken]})
    document = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "psmkit", "rules": [_rule(code) for code in codes]}},
                "columnKind": "unicodeCodePoints",
                "results": results,
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {"level": "error" if failed else "note", "message": {"text": visible(said)}}
                        ],
                    }
                ],
                "properties": properties,
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
