"""``psmkit.load``: tables for Python and notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import psmkit
from psmkit.query.errors import QueryError
from psmkit.query.schema import TABLES
from tests.query import made
from tests.query.test_columns import ODD


def test_tables_are_attributes_in_arrow_and_pandas() -> None:
    logs = psmkit.load(made.LOG)
    assert set(TABLES) <= set(dir(logs))
    assert isinstance(logs.events.arrow, pa.Table)
    assert logs.events is logs.events
    frame = logs.matches.pandas()
    assert str(frame["answered_line"].dtype) == "Int64"  # exact, although some are missing
    assert sorted(frame["state"]) == ["matched"] * 81 + ["pending"]
    assert pa.table(logs.ranks).num_rows == len(logs.ranks) == 4
    with pytest.raises(AttributeError, match="there are events, matches"):
        _ = logs.lines


def test_a_sum_of_integers_is_an_integer() -> None:
    found = psmkit.load(made.LOG).query("SELECT sum(line) AS lines, 1.5 AS other FROM events").arrow
    assert found.schema.field("lines").type == pa.int64()
    assert found.column("lines").to_pylist()[0] > 1000


def test_a_wrong_question_raises() -> None:
    logs = psmkit.load(made.LOG)
    with pytest.raises(QueryError, match="syntax error"):
        logs.query("SELEC 1")
    assert len(logs.query("SELECT * FROM verdict")) == 1


def test_a_notebook_shows_texts_of_logs_inert(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(ODD)
    logs = psmkit.load([path])
    for shown in (
        logs._repr_html_(),
        logs.events._repr_html_(),
        logs.query('SELECT text AS "<b>" FROM events')._repr_html_(),
    ):
        assert shown.count("<table") >= 1
        assert "<script" not in shown and "<b>" not in shown.replace("<b>failed</b>", "")
    assert "&lt;script&gt;" in logs.events._repr_html_()
    assert repr(logs).startswith("<failed: ")
    assert repr(logs.verdict).startswith("<1 row of verdict, ")


def test_a_long_table_is_cut_in_a_notebook() -> None:
    logs = psmkit.load(made.LOG)
    shown = logs.events._repr_html_()
    assert shown.count("<tr>") == 21
    assert f"{len(logs.events):,} rows, the first 20 of them" in shown


def test_the_report_is_that_of_the_analysis() -> None:
    assert psmkit.load(made.LOG).report == psmkit.analyze([str(made.LOG)])


def test_nothing_is_loaded_before_it_is_needed() -> None:
    code = "import sys, psmkit, psmkit.query.schema; print([n for n in ('pyarrow', 'duckdb', 'pandas') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["[]"]
