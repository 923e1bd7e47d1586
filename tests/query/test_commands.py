"""``psmkit query`` and ``psmkit export``: formats, errors, files."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import psmkit
from psmkit.cli.app import main
from psmkit.query.schema import TABLES
from psmkit.query.source import Source
from tests.loggen.stream import write_stream
from tests.query import made
from tests.query.test_columns import ODD

LOG = made.LOG


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*args: object) -> Result:
        status = main([str(arg) for arg in args])
        shown = capsys.readouterr()
        return Result(status, shown.out, shown.err)

    return call


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    path = tmp_path / "odd.log"
    path.write_bytes(ODD)
    return path


def test_a_table_is_cut_to_the_width_and_safe_to_show(run: Cli, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = run("query", odd, "SELECT line, rank, text FROM events WHERE level = 'WARN' ORDER BY line").out
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert shown.splitlines()[-1] == "2 rows"
    monkeypatch.delenv("COLUMNS")
    shown = run("query", odd, "SELECT text, NULL AS nothing FROM events WHERE kind = 'unmatched.warn'").out
    assert "\x07" not in shown and "\\x07" in shown
    assert shown.splitlines()[1].endswith("-")


def test_json_has_columns_with_types_and_rows_as_objects(run: Cli) -> None:
    sql = "SELECT what, count(*), sum(milliseconds) / 0 AS odd, list(DISTINCT type ORDER BY type) AS types, 1 AS what FROM matches WHERE what = 'fd' GROUP BY what"
    found = json.loads(run("query", LOG, sql, "--format", "json").out)
    assert found["schema"] == "psmkit.query/1"
    assert [column["name"] for column in found["columns"]] == ["what", "count_star()", "odd", "types", "what_2"]
    assert found["rows"] == [{"what": "fd", "count_star()": 4, "odd": None, "types": ["GetFd"], "what_2": 1}]


def test_csv_starts_no_formula(run: Cli, odd: Path, tmp_path: Path) -> None:
    sql = "SELECT line, text FROM events WHERE kind = 'unmatched.warn'"
    out = tmp_path / "out.csv"
    assert run("query", odd, sql, "--format", "csv", "--output", out).out == ""
    ((line, text),) = list(csv.reader(io.StringIO(out.read_text())))[1:]
    assert line == "8"
    assert text.startswith("'=formula") and "\x07" not in text


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM events", '"nothing" not found'),
        ("SELECT * FROM nothing", "nothing does not exist! There are events, "),
        ("SELECT text::INT FROM events", "Could not convert"),
        ("", "there is no question"),
        ("SELECT 1; SELECT 2", "one question at a time"),
        ("DROP TABLE events", "read only"),
        ("INSERT INTO verdict SELECT * FROM verdict", "read only"),
        ("SET memory_limit = '9GB'", "read only"),
        ("COPY events TO 'x.csv'", "read only"),
        ("ATTACH 'x.db'", "read only"),
        ("PRAGMA disable_optimizer", "read only"),
        ("INSTALL httpfs", "read only"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM glob('/*')", "disabled by configuration"),
        ("SELECT * FROM given", "given does not exist"),
    ],
)
def test_a_wrong_question_is_one_line_and_status_2(sql: str, words: str, run: Cli) -> None:
    done = run("query", LOG, sql)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("psmkit: ") and done.err.count("\n") == 1
    assert words in done.err


def test_a_wrong_question_is_refused_before_the_logs_are_read(run: Cli) -> None:
    assert "syntax error" in run("query", "no-such.log", "SELEC 1").err
    assert "no-such.log" in run("query", "no-such.log", "SELECT 1 FROM events").err


@pytest.mark.parametrize("sql", ["DESCRIBE events", "EXPLAIN SELECT * FROM events", "SUMMARIZE verdict", "SHOW TABLES"])
def test_a_question_may_be_about_the_tables_themselves(sql: str, run: Cli) -> None:
    done = run("query", LOG, sql)
    assert done.status == 0, done.err
    assert done.out


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_columns_that_the_page_names(name: str, run: Cli) -> None:
    shown = json.loads(run("query", LOG, f"DESCRIBE {name}", "--format", "json").out)["rows"]
    assert [(row["column_name"], row["column_type"]) for row in shown] == [
        (c.name, c.sql) for c in TABLES[name].columns
    ]


def test_a_table_that_a_function_names_is_there(run: Cli) -> None:
    sql = "SELECT count(*) > 0 AS some FROM query_table('eve' || 'nts')"
    assert json.loads(run("query", LOG, sql, "--format", "json").out)["rows"] == [{"some": True}]


def test_columns_are_null_only_where_the_page_says_so() -> None:
    for path in (LOG, *(LOG.parents[2] / "tests" / "data" / "nccl" / n for n in ("stop_setup_r1", "import_oom_r1"))):
        logs = psmkit.load(path)
        for name, table in TABLES.items():
            rows = getattr(logs, name).arrow
            assert [c.name for c in table.columns if not c.null and rows.column(c.name).null_count] == [], name


def test_standard_input_is_refused(run: Cli) -> None:
    done = run("query", "-", "SELECT * FROM verdict")
    assert done.status == 2
    assert "read only once" in done.err


@pytest.mark.parametrize("command", [("query", "SELECT 1"), ("export", "-o", "tables")])
def test_a_missing_package_names_the_extra(command: tuple[str, ...], run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("psmkit.query."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    name, *rest = command
    done = run(name, LOG, *rest)
    assert done.status == 2
    assert done.err.endswith("pip install 'psmkit[query]'\n")


def test_parquet_and_arrow_files_hold_the_tables(run: Cli, tmp_path: Path) -> None:
    logs = psmkit.load(LOG)
    for form, read in (("parquet", pq.read_table), ("arrow", lambda path: pa.ipc.open_file(path).read_all())):
        done = run("export", LOG, f"--{form}", "-o", tmp_path / form)
        assert done.status == 0, done.err
        assert sorted(p.name for p in (tmp_path / form).iterdir()) == sorted(f"{name}.{form}" for name in TABLES)
        for name in TABLES:
            found = read(tmp_path / form / f"{name}.{form}")
            assert found.to_pylist() == getattr(logs, name).arrow.to_pylist()
            assert f"{name}.{form}: {found.num_rows:,} row" in done.out.replace(f"{tmp_path / form}/", "")


def test_csv_files_hold_the_tables_and_no_formula(run: Cli, odd: Path, tmp_path: Path) -> None:
    assert run("export", odd, "--csv", "-o", tmp_path / "out", "--table", "events", "--table", "ranks").status == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["events.csv", "ranks.csv"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "events.csv").read_text())))
    assert [row["line"] for row in rows] == [str(n) for n in range(1, 10)]
    assert rows[7]["text"].startswith("'=formula") and "\\x07" in rows[7]["text"]
    assert (rows[0]["time"], rows[6]["source"]) == ("", "transport/shm.cc:590")


def test_a_folder_that_exists_stays_as_it_is(run: Cli, tmp_path: Path) -> None:
    done = run("export", LOG, "-o", tmp_path)
    assert done.status == 2 and "it exists" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_nothing(run: Cli, tmp_path: Path) -> None:
    done = run("export", tmp_path / "no-such.log", "-o", tmp_path / "out")
    assert done.status == 2 and "no-such.log" in done.err
    assert list(tmp_path.iterdir()) == []
    assert "choose from events" in run("export", LOG, "-o", tmp_path / "out", "--table", "lines").err


def test_an_export_beside_the_logs_does_not_read_itself(run: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LOG.read_text())
    assert run("export", tmp_path, "-o", tmp_path / "tables").status == 0
    assert pq.read_table(tmp_path / "tables" / "verdict.parquet").column("files").to_pylist() == [1]


def test_batches_do_not_grow_with_the_log(tmp_path: Path) -> None:
    """Counted, not weighed: what a batch holds, and what waits for the writer, are bounded by the lines of a batch."""
    sizes = {}
    for name, size in (("short", 2_000_000), ("long", 10_000_000)):
        path = tmp_path / f"{name}.log"
        with path.open("wb") as file:
            write_stream(file, size, ranks=8)
        batches = [batch for _, batch in Source([path], least=4096).batches(["events", "matches"])]
        sizes[name] = max(batch.nbytes for batch in batches), sum(batch.num_rows for batch in batches)
    assert sizes["long"][1] > 4 * sizes["short"][1]
    assert sizes["long"][0] < 1.2 * sizes["short"][0]
