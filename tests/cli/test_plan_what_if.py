"""``psmkit plan what-if``: a small run of the lab, replayed at another size, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result

Cli = Callable[..., Result]
TASKS = Path(__file__).parents[2] / "examples" / "plans" / "right.tasks"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of 4 ranks: with plans, with patterns, and with patterns over two nodes."""
    from psmkit.cli.app import main

    folder = tmp_path_factory.mktemp("small")
    found = {name: folder / name for name in ("plans", "patterns", "nodes")}
    common = ["lab", "run", "--ranks", "4", "--deadline", "120"]
    patterns = ["--pattern", "pair,ring,alltoall", "--size", "64", "--debug", "WARN"]
    assert main([*common, "--tasks", str(TASKS), "--out", str(found["plans"])]) == 0
    # with logs at WARN the analysis has no proof that all is well
    assert main([*common, *patterns, "--out", str(found["patterns"])]) in (0, 3)
    assert main([*common, *patterns, "--nodes", "2", "--out", str(found["nodes"])]) in (0, 3)
    return found


def answer(cli: Cli, *arguments: object) -> dict[str, Any]:
    done = cli("plan", "what-if", *arguments, "--format", "json")
    assert (done.status, done.err) == (0, ""), done.err
    value: dict[str, Any] = json.loads(done.out)
    return value


def most(value: dict[str, Any], name: str) -> float:
    return next(float(q["most"]) for q in value["quantities"] if q["name"] == name)


def test_a_small_run_gives_its_plans_back_and_scales(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    value = answer(psmkit_cli, runs["plans"], runs["patterns"], "--ranks", 10240)
    assert value["schema"] == "psmkit.plan-what-if/1"
    assert value["replay"] == {"recorded": 4, "same": 4, "first": ""}
    assert (value["recorded_ranks"], value["ranks"], value["ranks_per_node"]) == (4, 10240, 8)
    # all-to-all, and a ring for the collectives
    assert value["connections"]["within a node"] + value["connections"]["between nodes"] == 10240 * 10239 + 10240
    assert most(value, "tasks") == 5 and most(value, "plan cycles") == 1
    measured = {p["name"]: p["value"]["value"] for p in value["parameters"] if p["measured"]}
    assert measured["descriptors of a peer"] == pytest.approx(2)
    assert measured["descriptors of an end"] == pytest.approx(0.5)
    assert value["missing"]


def test_descriptors_predicted_are_those_of_the_lab_at_the_same_size(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    value = answer(psmkit_cli, runs["patterns"], "--ranks", 4, "--ranks-per-node", 4)
    reports = json.loads((runs["patterns"] / "result.json").read_text())["ranks"][0]["reports"]
    extra = 3 + 3  # a pidfd for each peer, a descriptor for each exported FIFO
    assert most(value, "descriptors") == pytest.approx(reports[-1]["held"] + extra)


def test_connections_between_nodes_are_measured_where_there_are_some(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    def far(value: dict[str, Any]) -> bool:
        return bool(
            next(p["measured"] for p in value["parameters"] if p["name"] == "descriptors of an end to another node")
        )

    assert far(answer(psmkit_cli, runs["nodes"], "--ranks", 64))
    assert not far(answer(psmkit_cli, runs["patterns"], "--ranks", 64))


def test_logs_and_records_alone_are_enough(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    value = answer(psmkit_cli, runs["plans"] / "logs", runs["plans"] / "records", "--ranks", 256)
    assert value["replay"]["same"] == value["replay"]["recorded"] == 4
    assert any("give the recorded plans back" in note for note in value["notes"])


def test_the_text_says_what_is_worst_and_what_is_not_known(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    done = psmkit_cli("plan", "what-if", runs["plans"], runs["patterns"], "--ranks", 512, "--processors", 4)
    assert (done.status, done.err) == (0, "")
    first = done.out.splitlines()[0]
    assert first.startswith("4 recorded ranks as 512 ranks, 8 on a node: set-up time")
    for words in ("4 of 4 recorded plans come back", "measured, n=", "assumed", "Not in the model", "all to all"):
        assert words in done.out


def test_bad_input_is_one_clear_line(psmkit_cli: Cli, runs: dict[str, Path], tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = psmkit_cli("plan", "what-if", *arguments)
        assert done.status == 2 and done.out == ""
        assert len(done.err.strip().splitlines()) == 1, done.err
        return str(done.err)

    broken, empty, other = tmp_path / "broken", tmp_path / "empty", tmp_path / "other"
    for folder in (broken, empty, other):
        folder.mkdir()
    (broken / "result.json").write_text('{"settings": {"ranks": "many"}}')
    (empty / "a.log").write_text("nothing of NCCL\n")
    shutil.copy(runs["patterns"] / "result.json", other / "result.json")
    data = json.loads((other / "result.json").read_text())
    data["settings"]["ranks"] = 5
    (other / "result.json").write_text(json.dumps(data))
    assert "no such file or folder" in refused(tmp_path / "none", "--ranks", 8)
    assert "is not a result of `psmkit lab run`" in refused(broken, "--ranks", 8)
    assert "nothing to replay" in refused(empty, "--ranks", 8)
    assert "give one small run" in refused(runs["patterns"], other, "--ranks", 8)
    assert "expected as many or more" in refused(runs["patterns"], "--ranks", 2)


def test_records_without_their_logs_are_refused(psmkit_cli: Cli, runs: dict[str, Path]) -> None:
    done = psmkit_cli("plan", "what-if", runs["plans"] / "records", "--ranks", 64)
    assert done.status == 2 and "give the logs, too" in done.err
