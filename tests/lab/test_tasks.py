"""Task files on the lab."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.cli.app import main
from psmkit.lab import tasks
from psmkit.lab.cuda import LabError
from psmkit.plan import Config, Scheduler
from psmkit.plan.programs import parse_program

CONFIG = Config(ranks=2, scheduler=Scheduler.PLANNER, channels=1, p2p_channels=1)
ALL = """allreduce 1000 float32 sum
reduce 10 int32 max root=1
0: send 70000 uint8 to=1 times=2
1: recv 70000 uint8 from=0 times=2
end
allgather 5 float16
reducescatter 7 uint64 prod
broadcast 9 bfloat16 root=1
end
1: send 1 float64 to=0
0: recv 1 float64 from=1
0: send 8 int8 to=0
0: recv 8 int8 from=0
"""


def test_every_kind_of_task_is_played_and_its_data_checked(tmp_path: Path) -> None:
    done = tasks.start(ALL, parse_program(ALL, 2), CONFIG, tmp_path / "run")
    assert [(r.state, r.text) for r in done.outcome.ranks] == [("good", "")] * 2
    assert done.outcome.good
    assert done.outcome.ranks[1].reports[0]["bytes"] >= 2 * 70000
    report = analyze([str(p) for p in done.evidence()])
    assert report.verdict.value == "healthy", report.reason


def test_communicators_of_some_ranks(tmp_path: Path) -> None:
    text = "comm a 0-1\nallreduce 8 float32 sum\nend\ncomm b 2,1\n0: send 4 int32 to=1\n1: recv 4 int32 from=0\nend\ncomm alone 2\nallgather 4 int8\n"
    done = tasks.start(text, parse_program(text), replace(CONFIG, ranks=3), tmp_path / "run")
    assert [(r.state, r.text) for r in done.outcome.ranks] == [("good", "")] * 3


def test_a_recv_that_nobody_calls_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hang.tasks").write_text("allreduce 8 float32 sum\nend\n0: send 8M uint8 to=1\nend\n")
    out = tmp_path / "run"
    arguments = [
        "lab",
        "run",
        "--tasks",
        str(tmp_path / "hang.tasks"),
        "--ranks",
        "2",
        "--out",
        str(out),
        "--deadline",
        "2",
    ]
    assert main([*arguments, "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert {r["rank"]: r["state"] for r in result["ranks"]} == {0: "hung", 1: "waiting"}
    assert (out / "case.tasks").read_text().startswith("allreduce 8")


def test_what_is_about_patterns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tasks").write_text(ALL)
    arguments = ["lab", "run", "--tasks", str(tmp_path / "a.tasks"), "--out", str(tmp_path / "run")]
    assert main([*arguments, "--pattern", "ring"]) == 2
    assert "--pattern is about patterns" in capsys.readouterr().err
    assert (
        main(["lab", "run", "--tasks", str(tmp_path / "no.tasks"), "--ranks", "2", "--out", str(tmp_path / "run")]) == 2
    )
    assert "no such file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_graphs_are_not_for_the_lab(tmp_path: Path) -> None:
    text = "capture\nallreduce 1 float32 sum\nend\ncaptured\nreplay 2\ndrop\n"
    with pytest.raises(LabError, match="'capture' in the task file"):
        tasks.start(text, parse_program(text, 2), CONFIG, tmp_path / "run")
