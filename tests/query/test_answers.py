"""What SQL says of a log is what ``psmkit analyze`` says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.query.logs import Logs
from psmkit.report.data import report_dict
from tests.loggen import generate

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
REAL = [
    *sorted(path for path in (DATA / "logs").iterdir() if path.is_dir() or path.suffix == ".log"),
    *(
        DATA / "nccl" / name
        for name in (
            "corrupt_r1", "hang_in_import_r3", "import_oom_r1", "kill_init_r1", "missing_recv_r1", "n2nodes_kill_iter3_r3",
            "stock2215_begin_end_n8", "stop_setup_r1",
        )
    ),
    ROOT / "examples" / "reproduce" / "forgotten-recv.log",
    ROOT / "examples" / "query" / "job.log",
]  # fmt: skip
MADE = [
    ("healthy_both", "2.21"),
    ("kill_at_work", "2.27"),
    ("kill_at_work", "passsm"),
    ("healthy_both", "2.18"),
]


def rows(logs: Logs, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in logs.query(sql).rows()]


def expect_the_same(logs: Logs, report: dict[str, Any]) -> None:
    """Counts of findings, open and matched exchanges, culprits, ranks and the verdict."""
    coverage = report["coverage"]
    assert rows(logs, "SELECT verdict, reason, lines, matched, unmatched FROM verdict") == [
        (report["verdict"], report["reason"], *(coverage[key] for key in ("lines", "matched", "unmatched")))
    ]
    counts = Counter(finding["code"] for finding in report["findings"])
    assert dict(rows(logs, "SELECT code, count(*) FROM findings GROUP BY code")) == counts
    evidence = [(at, e["file"], e["line"], e["text"]) for at, f in enumerate(report["findings"]) for e in f["evidence"]]
    assert rows(logs, "SELECT finding, file, line, text FROM evidence") == evidence
    exchanges = Counter(
        {row[:2]: row[2] for row in rows(logs, "SELECT what, state, count(*) FROM matches GROUP BY ALL")}
    )
    for what, kind in (("call", "proxy_calls"), ("fd", "fd_exchanges")):
        assert {s: exchanges[what, s] for s in ("matched", "pending", "orphan")} == report["matching"][kind]
    culprits = [(c["run"], c["rank"], c["global_rank"], c["host"], c["pid"], c["why"]) for c in report["culprits"]]
    assert rows(logs, "SELECT run, rank, global_rank, host, pid, why FROM culprits") == culprits
    ranks = [(r["run"], r["rank"], r["state"], r["stage"], r["lines"], r["last"]) for r in report["ranks"]]
    assert rows(logs, "SELECT run, rank, state, stage, lines, last FROM ranks") == ranks
    assert rows(logs, "SELECT run, verdict FROM runs") == [(r["index"], r["verdict"]) for r in report["runs"]]
    known = "SELECT count(*) FROM events WHERE kind <> 'unmatched.warn' AND subsystem <> 'other'"
    assert rows(logs, known) == [(coverage["matched"],)]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_sql_says_of_a_log_of_the_repository_what_the_analysis_says(path: Path) -> None:
    expect_the_same(psmkit.load(path), report_dict(psmkit.analyze([str(path)])))


@pytest.mark.parametrize(("name", "dialect"), MADE)
def test_sql_says_of_a_made_log_what_the_analysis_says(name: str, dialect: str, tmp_path: Path) -> None:
    for file, text in generate(name, dialect).files().items():
        (tmp_path / file).write_text(text)
    expect_the_same(psmkit.load(tmp_path), report_dict(psmkit.analyze([str(tmp_path)])))


def test_sql_keeps_two_runs_of_a_file_apart(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        generate("healthy_both", "2.27", seed=5).merged() + generate("kill_at_work", "2.27", seed=6).merged()
    )
    logs = psmkit.load(log)
    expect_the_same(logs, report_dict(psmkit.analyze([str(log)])))
    assert [run for (run,) in rows(logs, "SELECT DISTINCT run FROM events WHERE run IS NOT NULL ORDER BY run")] == [
        0,
        1,
    ]
    assert rows(logs, "SELECT run, count(*) FROM processes GROUP BY run ORDER BY run") == [(0, 4), (1, 4)]


def test_findings_say_which_one_is_the_cause() -> None:
    logs = psmkit.load(DATA / "logs" / "fault_a2_n4_sigstop_rank1_in_setup")
    asked = "SELECT role, list(code ORDER BY code) FROM findings WHERE role IS NOT NULL GROUP BY role"
    got = dict(rows(logs, asked))
    assert got["cause"] == ["PSM103"] and {"PSM304", "PSM407"} <= set(got["same"])
    assert len(rows(logs, "SELECT DISTINCT cause FROM findings WHERE role IS NOT NULL")) == 1
