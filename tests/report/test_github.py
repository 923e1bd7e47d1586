"""Annotations of GitHub Actions: one line a command, nothing of a log can make another one."""

from __future__ import annotations

import dataclasses
import re

import pytest

from psmkit.model import Severity
from psmkit.report import Options, render
from tests.report import samples

_COMMAND = re.compile(
    r"::(error|warning|notice) (?:file=([^:,]*|[^:,]*(?:%3A|%2C)[^:,]*),line=\d+,)?title=([^:,]+)::(.*)"
)


def commands(text: str) -> list[tuple[str, str, str]]:
    out = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        assert match, line
        out.append((match[1], match[3], match[4]))
    return out


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_each_line_is_a_command(name: str) -> None:
    assert commands(render(samples.ALL[name](), "github"))


def test_the_verdict_comes_first_with_who_proof_and_what_to_do() -> None:
    kind, title, text = commands(render(samples.hung(), "github"))[0]
    assert kind == "error" and title.startswith("hung%3A ")
    lines = text.split("%0A")
    assert [line.partition(":")[0] for line in lines[:3]] == ["who", "proof", "do this"]
    assert "logs/nccl.rank3.log:141" in lines[1]


def test_a_healthy_job_is_a_notice() -> None:
    assert [kind for kind, _, _ in commands(render(samples.healthy(), "github"))] == ["notice"]


def test_more_than_github_shows_is_counted() -> None:
    report = samples.hung()
    error = next(f for f in report.findings if f.severity is Severity.ERROR)
    many = tuple(dataclasses.replace(error, title=f"{error.title} {n}") for n in range(25))
    told = commands(render(dataclasses.replace(report, findings=many), "github", Options(verbose=True)))
    assert [kind for kind, _, _ in told].count("error") == 10
    assert told[-1][0] == "notice" and told[-1][1] == "psmkit%3A 15 more findings"


def test_text_of_a_log_makes_no_command() -> None:
    report = samples.hung()
    finding = next(f for f in report.findings if f.severity is Severity.ERROR)
    evil = dataclasses.replace(finding.evidence[0], file="a,b:c\n::error::x", text="100%\r\n::add-mask::secret\x1b[31m")
    bad = dataclasses.replace(finding, title="x\n::stop-commands::y", evidence=(evil,))
    text = render(dataclasses.replace(report, findings=(bad,)), "github")
    assert len(commands(text)) == len(text.splitlines()) and "100%25" in text and "\x1b" not in text
    assert not any(line.startswith(("::add-mask", "::stop")) for line in text.splitlines())
