"""Markdown, SARIF and JUnit: valid structure, and hostile logs stay text in them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from markdown_it import MarkdownIt

from psmkit.model import CODES
from psmkit.report import Level, Options, render
from psmkit.report.escape import markdown_text, shorten, shorten_left, visible

from . import samples

NAMES = sorted(samples.ALL)


def sarif(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(render(samples.ALL[name](), "sarif"))
    return document


@pytest.mark.parametrize("name", NAMES)
def test_sarif_has_the_required_structure(name: str) -> None:
    document = sarif(name)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "psmkit"
    assert [rule["id"] for rule in rules] == sorted({rule["id"] for rule in rules})
    assert run["invocations"][0]["executionSuccessful"] is True
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        assert 0 <= result["rank"] <= 100
        for location in (*result["locations"], *result.get("relatedLocations", [])):
            physical = location["physicalLocation"]
            assert physical["region"]["startLine"] >= 1
            assert re.fullmatch(r"[A-Za-z0-9%/._~:-]+", physical["artifactLocation"]["uri"])


def test_sarif_rules_come_from_the_codes() -> None:
    rules = sarif("hung")["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["PSM101", "PSM602", "PSM801"]
    assert rules[0]["shortDescription"]["text"] == CODES["PSM101"].title
    assert rules[0]["defaultConfiguration"]["level"] == "error"


def test_sarif_keeps_all_evidence_with_its_place() -> None:
    result = sarif("hung")["runs"][0]["results"][0]
    assert result["ruleId"] == "PSM101"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "logs/nccl.rank3.log"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 141
    assert len(result["relatedLocations"]) == 1


def test_sarif_quotes_file_names() -> None:
    result = sarif("failed")["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "logs/a%20b%231.log"


@pytest.mark.parametrize("name", NAMES)
def test_junit_is_xml_and_its_counts_are_right(name: str) -> None:
    root = ET.fromstring(render(samples.ALL[name](), "junit"))
    (suite,) = root
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases) >= 1
    assert int(suite.attrib["failures"]) == sum(case.find("failure") is not None for case in cases)


def test_junit_has_a_case_for_each_rank_of_a_finding() -> None:
    root = ET.fromstring(render(samples.hung(), "junit"))
    names = [case.attrib["classname"] for case in root.iter("testcase")]
    assert names.count("psmkit.PSM101") == 1  # its culprit
    assert names.count("psmkit.PSM801") == 8
    assert names[0] == "psmkit.verdict"


@pytest.mark.parametrize(("fail_on", "failures"), [(Level.ERROR, 2), (Level.WARNING, 3), (Level.NEVER, 0)])
def test_junit_fails_at_the_level_that_was_asked_for(fail_on: Level, failures: int) -> None:
    root = ET.fromstring(render(samples.hung(), "junit", Options(fail_on=fail_on)))
    assert int(root.attrib["failures"]) == failures


def test_junit_of_a_healthy_job_passes() -> None:
    root = ET.fromstring(render(samples.healthy(), "junit"))
    assert root.attrib["failures"] == "0"
    assert root.attrib["tests"] == "1"


@pytest.mark.parametrize("form", ["markdown", "sarif", "junit", "text"])
def test_control_characters_are_written_out(form: str) -> None:
    page = render(samples.failed(), form)
    assert all(char == "\n" or char.isprintable() for char in page)
    assert "x1b[31mred" in page.replace("\\[", "[")


def test_markup_in_a_log_has_no_effect_in_markdown() -> None:
    html = MarkdownIt("commonmark").enable("table").render(render(samples.failed(), "markdown"))
    assert "<b>" not in html
    assert "@all" not in html.split("<pre>")[0]
    assert "[bold]x[/bold]" in html
    assert html.count("<pre>") == 1  # the backticks of the line did not end its fence


@pytest.mark.parametrize("name", NAMES)
def test_markdown_tables_are_tables(name: str) -> None:
    html = MarkdownIt("commonmark").enable("table").render(render(samples.ALL[name](), "markdown"))
    assert html.startswith("<h2>" + samples.ALL[name]().verdict.value)
    assert "<table>" in html


def test_markdown_folds_many_ranks() -> None:
    page = render(samples.many(), "markdown")
    assert "9 (culprit)" in page
    assert "| 0-8, 10-39, 41-59 |" in page


def test_visible_leaves_letters_of_all_languages_alone() -> None:
    assert visible("größer ЌЂ 日本 é") == "größer ЌЂ 日本 é"
    assert visible("a\tb\udcffc\U000e0041") == "a b\\xffc\\U000e0041"


def test_a_heading_or_list_cannot_start() -> None:
    assert markdown_text("# x") == "\\# x"
    assert markdown_text("- x") == "\\- x"


def test_texts_are_cut_at_either_end() -> None:
    assert shorten("abcdef", 4) == "abc…"
    assert shorten_left("abcdef", 4) == "…def"
    assert shorten("abc", 3) == "abc"
