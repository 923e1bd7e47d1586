"""``psmkit tune``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from psmkit.cli.app import main

RULES = """\
op,bytes,nodes,ranks,algorithm,protocol,channels,note
allreduce,..64K,*,*,tree,ll,2,small
allreduce,64K..64M,2,16,ring,ll128,8,"middle, fitted"
*,*,*,*,ring,simple,*,
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.csv"
    path.write_text(RULES)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    lines = ["op,bytes,ranks,nodes,algorithm,protocol,us"]
    for kind, (latency, byte) in {"tree,ll": (10, 4e-4), "ring,simple": (50, 2e-5)}.items():
        lines += [f"allreduce,{2**p},16,2,{kind},{latency + byte * 2**p}" for p in range(8, 27)]
    path.write_text("\n".join(lines) + "\n")
    return path


def why(rules: Path, *more: str) -> list[str]:
    return ["tune", "why", "--op", "allreduce", "--bytes", "4M", "--ranks", "16", "--config", str(rules), *more]


def test_why_names_the_line_and_those_before_it(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(why(rules, "--nodes", "2")) == 0
    assert capsys.readouterr().out.splitlines() == [
        "allreduce of 4194304 bytes, 16 ranks on 2 nodes",
        "  ring ll128, 8 channels",
        f'  by {rules}:3: allreduce,64K..64M,2,16,ring,ll128,8,"middle, fitted"',
        "  line 2 is for bytes 0..65536",
    ]
    assert main(why(rules, "--nodes", "2", "--offered", "tree/ll,ring/simple", "--format", "json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["line"], answer["passed"]) == (4, 3)
    assert answer["passed_over"][1]["reason"] == "matches, but NCCL does not offer its algorithm and protocol here"


def test_wrong_rules_are_told_with_their_line(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "check", str(rules)]) == 0
    rules.write_text(RULES.replace("ll128", "l128"))
    assert main(["tune", "check", str(rules)]) == 1
    assert f'{rules}:3: protocol is "l128"' in capsys.readouterr().out
    assert main(why(rules)) == 2


def test_the_way_from_measurements_to_rules(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    table, other = tmp_path / "fitted.csv", tmp_path / "fitted.toml"
    assert main(["tune", "export", str(data), "-o", str(table)]) == 0
    assert main(["tune", "export", "--toml", str(data), "-o", str(other)]) == 0
    assert main(["tune", "compare", str(table), str(other)]) == 0
    assert main(["tune", "fit", str(data), "--format", "json"]) == 0
    fits = json.loads(capsys.readouterr().out.partition("\n")[2])["fits"]
    assert [round(f["latency"]) for f in fits] == [50, 10]
    assert main(["tune", "simulate", str(data), "--config", str(table), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 19 and all(math.isclose(row["us"], row["best_us"]) for row in rows)
    assert main(["tune", "plot", str(data), "-o", str(tmp_path / "plot.svg")]) == 0
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_compare_finds_where_two_files_differ(rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text(RULES.replace("..64K", "..32K"))
    assert main(["tune", "compare", str(rules), str(other)]) == 1
    out = capsys.readouterr().out
    assert "allreduce from 32769 bytes, 16 ranks on 2 nodes: tree ll x2 (line 2), ring simple x0 (line 4)" in out
