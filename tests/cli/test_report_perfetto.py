"""``psmkit report --perfetto``: which files are written, and what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result
from tests.report.traces import read

Cli = Callable[..., Result]
LOG = Path(__file__).parents[1] / "data" / "logs" / "fault_a2_n4_sigstop_rank1_in_setup"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trace_alone_writes_no_page(psmkit_cli: Cli, folder: Path) -> None:
    done = psmkit_cli("report", LOG, "--perfetto", "job.pftrace")
    assert (done.status, done.err) == (0, "")
    verdict, trace = done.out.splitlines()
    assert verdict.startswith("hung: rank 1 (vm:20406) ") and trace == "trace: job.pftrace (0.2 MB)"
    assert [path.name for path in folder.iterdir()] == ["job.pftrace"]
    events = read((folder / "job.pftrace").read_bytes()).events
    assert events[0].name == verdict
    assert {event.notes["code"] for event in events if event.category == "finding"} >= {"PSM103", "PSM407"}


def test_page_and_trace_are_written_together(psmkit_cli: Cli, folder: Path) -> None:
    done = psmkit_cli("report", LOG, "-o", "job.html", "--perfetto", "job.pftrace")
    assert done.status == 0
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["hung", "page", "trace"]
    assert sorted(path.name for path in folder.iterdir()) == ["job.html", "job.pftrace"]


def test_page_is_the_default(psmkit_cli: Cli, folder: Path) -> None:
    assert psmkit_cli("report", LOG).status == 0
    assert [path.name for path in folder.iterdir()] == ["report.html"]


def test_page_and_trace_need_different_files(psmkit_cli: Cli, folder: Path) -> None:
    done = psmkit_cli("report", LOG, "-o", "job", "--perfetto", "./job")
    assert (done.status, done.err) == (2, "psmkit: job: the page and the trace need different files\n")
    assert not list(folder.iterdir())


def test_unwritable_trace_is_reported_before_the_analysis(psmkit_cli: Cli, folder: Path) -> None:
    done = psmkit_cli("report", "no-such-log", "--perfetto", "missing/job.pftrace")
    assert done.status == 2 and "cannot write the trace: no such folder: missing" in done.err


def test_missing_package_names_the_extra(psmkit_cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "psmkit.report.perfetto", raising=False)
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    done = psmkit_cli("report", LOG, "--perfetto", "job.pftrace")
    assert (done.status, done.err) == (2, "psmkit: this command needs perfetto: pip install 'psmkit[perfetto]'\n")
    assert not list(folder.iterdir())
