"""Reports about real logs: every format of them is valid, and redaction leaves no name."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

import psmkit
from psmkit.model import Report
from psmkit.report import FORMATS, Options, data, render
from psmkit.report.redact import redact

LOGS = Path(__file__).parents[1] / "data" / "logs"
NAMES = sorted(path.name for path in LOGS.iterdir() if path.is_dir() or path.suffix in (".log", ".gz"))


@pytest.fixture(scope="module", params=NAMES)
def report(request: pytest.FixtureRequest) -> Report:
    return psmkit.analyze([LOGS / request.param])


def test_every_format_is_valid(report: Report) -> None:
    jsonschema.validate(json.loads(render(report, "json")), data.schema())
    assert json.loads(render(report, "sarif"))["version"] == "2.1.0"
    ET.fromstring(render(report, "junit"))
    for form in FORMATS:
        page = render(report, form, Options(verbose=True))
        assert all(char == "\n" or char.isprintable() for char in page)
    assert render(report).splitlines()[0].startswith(f"{report.verdict.value}: ")


def test_redaction_leaves_no_host_pid_or_path(report: Report) -> None:
    hosts = {row.host for row in report.ranks if row.host}
    pids = {str(row.pid) for row in report.ranks if row.pid is not None and row.pid > 9999}
    for form in FORMATS:
        page = render(redact(report), form, Options(verbose=True, width=500))
        words = set(page.replace("/", " ").replace(":", " ").replace('"', " ").replace("`", " ").split())
        assert not (hosts | pids) & words
        assert str(LOGS) not in page


def test_help_loads_neither_the_model_nor_the_scanner() -> None:
    code = "import sys; from psmkit.cli.app import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=LOGS.parents[2], timeout=60
    )
    loaded = set(done.stderr.split())
    assert "analyze" in done.stdout
    heavy = {
        "numpy",
        "rich",
        "tabulate",
        "cffi",
        "psmkit.model",
        "psmkit.logparse",
        "psmkit.analysis",
        "psmkit.catalogue",
    }
    assert not loaded & heavy
