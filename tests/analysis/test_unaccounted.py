"""Processes that no communicator line names: which of them belong to a run, and that none of them becomes healthy with it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import psmkit
from psmkit.cli.app import main
from psmkit.model import Report
from tests.loggen import Plan, generate
from tests.mutilate import DAMAGE

DATA = Path(__file__).parents[1] / "data"
PROXY = re.compile(r"opId|proxy (?:send|recv) connection|operation=|Connected to proxy|ProxyCall UDS")
QUIET = "{host}:9001:9001 [0] NCCL INFO {text}\n"


def verdicts(report: Report) -> list[str]:
    return [str(run.verdict) for run in report.runs]


def healthy(folder: Path, seed: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in generate("healthy_both", "2.27", seed=seed).files().items():
        (folder / name).write_text(text)


def unnamed(ranks: int = 8, host: str = "other", scenario: str = "no_teardown") -> dict[str, str]:
    """The files of a job without its end, logged with NCCL_DEBUG_SUBSYS=PROXY."""
    files = generate(scenario, "2.27", seed=3, plan=Plan(ranks=ranks, work="p2p", teardown=False)).files()
    return {
        f"other.{name}": "".join(
            line.replace("node0:", f"{host}:", 1) for line in text.splitlines(keepends=True) if PROXY.search(line)
        )
        for name, text in files.items()
    }


def test_unfinished_job_of_another_host_is_a_run_of_its_own(tmp_path: Path) -> None:
    """The log of eight ranks that has no communicator line, beside a job that ended well."""
    (tmp_path / "other.log").write_bytes((DATA / "logs" / "passsm-8gpu.log").read_bytes())
    for path in (DATA / "logs" / "ok_n4_psm_64K").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report = psmkit.analyze([str(tmp_path)])
    assert sorted(verdicts(report)) == ["healthy", "inconclusive"]
    assert report.verdict == "inconclusive"
    assert all(f"node201:{pid}" in report.reason for pid in range(709392, 709400)), report.reason
    assert main(["analyze", str(tmp_path), "--fail-on", "inconclusive"]) == 1


@pytest.mark.parametrize("merged", ["before", "after", "woven", "a file each"])
@pytest.mark.parametrize("host", ["other", "node0"])
def test_ranks_without_a_communicator_do_not_end_with_a_finished_run(merged: str, host: str, tmp_path: Path) -> None:
    good = generate("healthy_both", "2.27").merged()
    other = unnamed(host=host)
    if host == "node0":
        other = {name: re.sub(r"^node0:60", "node0:70", text, flags=re.MULTILINE) for name, text in other.items()}
    rest = "".join(other.values())
    if merged == "before":
        (tmp_path / "job.log").write_text(rest + good)
    elif merged == "after":
        (tmp_path / "job.log").write_text(good + rest)
    elif merged == "woven":
        lines, more = good.splitlines(keepends=True), rest.splitlines(keepends=True)
        step = len(lines) // len(more) + 1
        (tmp_path / "job.log").write_text(
            "".join("".join(lines[i * step : (i + 1) * step]) + more[i] for i in range(len(more)))
            + "".join(lines[len(more) * step :])
        )
    else:
        (tmp_path / "job.log").write_text(good)
        for name, text in other.items():
            (tmp_path / name).write_text(text)
    report = psmkit.analyze([str(tmp_path)])
    assert sorted(verdicts(report)) == ["healthy", "inconclusive"], report.reason
    assert report.verdict == "inconclusive" and f"{host}:7" in report.reason.replace("other:6", "other:7")


def test_helper_process_in_the_stream_of_a_finished_run_belongs_to_it(tmp_path: Path) -> None:
    lines = generate("healthy_both", "2.27").merged().splitlines(keepends=True)
    for at, text in ((40, "NCCL version 2.27.5+cuda12.9"), (60, "NET/Plugin: Could not find: libnccl-net.so.")):
        lines.insert(at, QUIET.format(host="node0", text=text))
    (tmp_path / "job.log").write_text("".join(lines))
    report = psmkit.analyze([str(tmp_path)])
    assert verdicts(report) == ["healthy"], report.reason


def test_damaged_prefix_does_not_make_another_run(tmp_path: Path) -> None:
    lines = generate("healthy_both", "2.27").merged().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if " opId=" in line and " done" in line)
    lines.insert(at, lines[at].replace("node0:", "nodf0:", 1))
    (tmp_path / "job.log").write_text("".join(lines))
    report = psmkit.analyze([str(tmp_path)])
    assert len(report.runs) == 1, report.reason


@pytest.mark.parametrize("seed", range(4))
def test_text_glued_to_a_prefix_does_not_make_another_run(seed: int, tmp_path: Path) -> None:
    files = {name: text.encode() for name, text in generate("healthy_both", "2.27").files().items()}
    for name, data in DAMAGE["glued"](files, random.Random(seed)).items():
        (tmp_path / name).write_bytes(data)
    report = psmkit.analyze([str(tmp_path)])
    assert len(report.runs) == 1, report.reason
    assert not [f for f in report.findings if f.severity == "error"]


def test_rank_whose_log_lost_its_beginning_belongs_to_the_run_that_lacks_it(tmp_path: Path) -> None:
    healthy(tmp_path)
    path = tmp_path / "nccl.rank2.log"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if PROXY.search(line)))
    report = psmkit.analyze([str(tmp_path)])
    assert verdicts(report) == ["inconclusive"], report.reason
    assert sorted(row.pid for row in report.ranks if row.pid) == [6001, 6002, 6003, 6004]


def test_more_processes_than_ranks_are_missing_do_not_fill_a_run(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "nccl.rank2.log").unlink()
    for name, text in unnamed(host="other").items():
        (tmp_path / name).write_text(text)
    report = psmkit.analyze([str(tmp_path)])
    assert verdicts(report) == ["inconclusive"] * 2, report.reason
    others = {row.run for row in report.ranks if row.host == "other"}
    assert len(others) == 1 and others.isdisjoint(row.run for row in report.ranks if row.host == "node0")


def test_processes_without_any_communicator_line_stay_one_run(tmp_path: Path) -> None:
    for name, text in unnamed().items():
        (tmp_path / name).write_text(text)
    report = psmkit.analyze([str(tmp_path)])
    assert verdicts(report) == ["inconclusive"] and len(report.ranks) == 8


def test_finished_communicator_does_not_speak_for_one_that_shares_no_process_with_it(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(generate("healthy_eight_ranks", "2.27").merged().replace("node0:", "first:"))
    (tmp_path / "other.log").write_text(generate("no_teardown", "2.27", seed=4).merged().replace("node0:", "second:"))
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "inconclusive", report.reason
    assert sorted(verdicts(report)) == ["healthy", "inconclusive"]
    assert report.reason.startswith("run 2 of 2: the log ends while the job is still at work")


def test_line_of_a_launcher_counts_for_the_run_that_has_communicators(tmp_path: Path) -> None:
    """A process that is in no run must not hide who died in the other one."""
    for name, text in generate("kill_at_work", "2.27").files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "other.log").write_text("".join(unnamed().values()))
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed" and [c.global_rank for c in report.culprits] == [2], report.reason
    assert sorted(verdicts(report)) == ["failed", "inconclusive"]
