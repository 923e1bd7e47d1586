"""The JSON report follows its schema, loses nothing, and has the documented keys."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from psmkit.model import Evidence, Finding, Named, Report
from psmkit.report import data, render

from . import samples


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_a_report_follows_the_schema(name: str) -> None:
    wrong = jsonschema.Draft202012Validator(data.schema()).iter_errors(json.loads(render(samples.ALL[name](), "json")))
    assert not [error.message for error in wrong]


def test_a_report_with_named_processes_follows_the_schema() -> None:
    report = samples.hung()
    named = Named(1, "n7", 4711, "launcher tag", 3, "process group 2 (3)")
    findings = tuple(dataclasses.replace(f, named=(named,)) for f in report.findings)
    shown = json.loads(render(dataclasses.replace(report, findings=findings), "json"))
    assert not [error.message for error in jsonschema.Draft202012Validator(data.schema()).iter_errors(shown)]
    assert all(f["named"][0]["pid"] == 4711 for f in shown["findings"])


def test_the_schema_itself_is_valid() -> None:
    validator = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
    assert not [error.message for error in validator.iter_errors(data.schema())]


def test_the_schema_refuses_what_is_not_a_report() -> None:
    document = json.loads(render(samples.hung(), "json"))
    del document["matching"]["sendrecv"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, data.schema())


def test_the_keys_of_the_contract_are_there() -> None:
    document = data.report_dict(samples.hung())
    assert list(document) == [
        "schema", "verdict", "reason", "confidence", "culprits", "suspects", "findings", "matching", "runs", "communicators",
        "ranks", "coverage", "versions", "causes", "next",
    ]  # fmt: skip
    assert {
        "run",
        "comm",
        "rank",
        "global_rank",
        "host",
        "pid",
        "device",
        "stage",
        "why",
        "rank_basis",
        "either",
        "peer_unnamed",
        "gpu",
    } == set(document["culprits"][0])
    assert {"matched", "pending", "orphan"} == set(document["matching"]["proxy_calls"])
    assert {
        "files",
        "bytes",
        "lines",
        "matched",
        "unmatched",
        "shapes",
        "missing_ranks",
        "missing_subsystems",
        "rerun_with",
    } <= set(document["coverage"])


def test_every_field_of_a_finding_is_written() -> None:
    finding = samples.hung().findings[-1]
    assert set(data.finding_dict(finding)) == {field.name for field in dataclasses.fields(Finding)}


def test_every_field_of_a_report_is_written() -> None:
    assert set(data.report_dict(samples.healthy())) == {f.name for f in dataclasses.fields(Report)} | {"schema"}


def test_what_is_unknown_is_null() -> None:
    document = json.loads(render(samples.inconclusive(), "json"))
    assert document["ranks"][0]["host"] is None
    assert document["ranks"][0]["rank"] is None
    assert document["findings"][0]["known_issue"] is None


def test_control_characters_are_escaped_and_kept() -> None:
    text = render(samples.failed(), "json")
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["findings"][0]["title"].endswith(samples.NASTY)


def test_a_surrogate_becomes_readable() -> None:
    finding = dataclasses.replace(samples.hung().findings[-1], evidence=(Evidence("bad\udcff.log", 1, "x"),))
    text = json.dumps(data.finding_dict(finding), ensure_ascii=False).encode("utf-8").decode()
    assert json.loads(text)["evidence"][0]["file"] == "bad\\udcff.log"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="no such format: yaml"):
        render(samples.hung(), "yaml")


def test_a_large_report_has_a_line_for_each_rank_and_the_same_content(monkeypatch: pytest.MonkeyPatch) -> None:
    report = samples.hung()
    indented = render(report, "json")
    monkeypatch.setattr(data, "_MOST_INDENTED", len(report.ranks) - 1)
    lines = render(report, "json").splitlines()
    assert json.loads("\n".join(lines)) == json.loads(indented)
    assert (
        sum(line.startswith('{"run": 0, "rank": ') for line in lines)
        == len(report.ranks)
        < len(lines)
        < indented.count("\n")
    )
