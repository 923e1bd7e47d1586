"""``psmkit plan simulate``, ``rules`` and ``variants``."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.plan import rules, variants
from tests.cli.conftest import Result

Cli = Callable[..., Result]
MIXED = "allreduce 1M\n0: send 64K to=1\n1: recv 64K from=0\n"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.tasks"
    path.write_text(MIXED)
    return path


def test_right_tasks_break_no_rule_and_exit_0(psmkit_cli: Cli, tasks: Path) -> None:
    for scheduler in ("legacy", "planner"):
        done = psmkit_cli("plan", "simulate", "--tasks", tasks, "--ranks", 3, "--scheduler", scheduler)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"right: no rule is broken\n  coll-first, {scheduler}, 3 ranks; 4 channels")
        assert "rank 2" in done.out and "#0 allreduce: ch 0-3" in done.out


def test_a_wrong_variant_exits_1_and_names_the_rule_that_it_declares(psmkit_cli: Cli, tasks: Path) -> None:
    done = psmkit_cli("plan", "simulate", "--tasks", tasks, "--ranks", 2, "--variant", "count-all-ops")
    assert done.status == 1
    assert done.out.startswith("broken: count.mismatch: rank 0, plan 1: ")
    assert "\nStuck\n" in done.out and "host function waits for the count" in done.out


def test_eight_ranks_are_side_by_side_in_any_width(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = psmkit_cli("plan", "simulate", "--seed", 3).out.splitlines()
        assert max(map(len, lines)) <= width
        assert {r for line in lines for r in re.findall(r"rank (\d)", line)} == set("01234567")


def test_the_same_arguments_print_the_same_and_the_order_does_not_change_the_plans(psmkit_cli: Cli) -> None:
    def found(*more: object) -> dict[str, list[object]]:
        return dict(
            json.loads(psmkit_cli("plan", "simulate", "--seed", 5, "--ranks", 4, "--format", "json", *more).out)
        )

    one, other = found(), found("--order-seed", 9)
    assert one == found()
    assert one["ranks"] == other["ranks"] and one["events"] != other["events"]


def test_a_graph_is_launched_as_often_as_asked(psmkit_cli: Cli, tasks: Path) -> None:
    arguments = ("plan", "simulate", "--tasks", tasks, "--ranks", 2, "--graph", 3, "--format", "json")
    found = json.loads(psmkit_cli(*arguments).out)
    assert [e["what"] for e in found["events"] if e["rank"] == 0].count("replay") == 3
    assert all(plan["persistent"] for rank in found["ranks"] for plan in rank["plans"])


def test_standard_input_is_a_task_file(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(MIXED))
    assert psmkit_cli("plan", "simulate", "--tasks", "-", "--ranks", 2).status == 0


def test_html_and_svg_are_whole_files(psmkit_cli: Cli, tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.html"
    done = psmkit_cli("plan", "simulate", "--tasks", tasks, "--ranks", 2, "--format", "html", "--output", out)
    assert done.status == 0 and done.out == ""
    assert out.read_text().startswith("<!doctype html>") and "<svg" in out.read_text()
    assert psmkit_cli("plan", "simulate", "--tasks", tasks, "--ranks", 2, "--format", "svg").out.startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either --tasks FILE or --seed N"),
        (("--seed", 1, "--tasks", "x"), "give either --tasks FILE or --seed N"),
        (("--tasks", "/none/of/it"), "/none/of/it: no such file"),
        (("--seed", 1, "--variant", "x\x1b[1m"), "expected one of coll-first, p2p-first"),
        (("--seed", 1, "--ranks", 0), "0 is not in the range"),
        (("--seed", 1, "--rank", 8), "rank 8, but the simulation has ranks 0 to 7"),
        (("--seed", 1, "--channels", 65), "channels"),
        (("--seed", 1, "--p2p-channels", 3), "power"),
        (("--seed", 1, "--fifo-depth", 3), "power"),
        (("--tasks", "x", "--groups", 2), "need --seed"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(psmkit_cli: Cli, arguments: tuple[object, ...], told: str) -> None:
    done = psmkit_cli("plan", "simulate", *arguments)
    assert done.status == 2 and done.out == ""
    assert done.err.startswith("psmkit: ") and done.err.count("\n") == 1 and told in done.err
    assert "\x1b" not in done.err


def test_a_wrong_line_of_a_task_file_is_named(psmkit_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "wrong.tasks"
    path.write_text("allreduce 1\nallredoce 1\n")
    done = psmkit_cli("plan", "simulate", "--tasks", path)
    assert done.status == 2 and done.err.startswith(f"psmkit: {path}:2: 'allredoce': no such step")


def test_a_task_that_libpsm_refuses_is_exit_2(psmkit_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "refused.tasks"
    path.write_text("0: send 1 to=0\n")
    done = psmkit_cli("plan", "simulate", "--tasks", path, "--ranks", 2)
    assert done.status == 2 and "PSM_ERR_INVALID" in done.err


def test_an_interrupt_ends_a_long_simulation(tmp_path: Path) -> None:
    path = tmp_path / "long.tasks"
    path.write_text("send 64K to=+1\nrecv 64K from=-1\n" * 40_000)
    command = [sys.executable, "-m", "psmkit", "plan", "simulate", "--ranks", "2", "--tasks", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        for wanted in (True, False):  # Python's handler is there until the simulation begins
            while _handles_interrupts(process.pid) is not wanted:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def _handles_interrupts(pid: int) -> bool:
    mask = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert mask is not None
    return bool(int(mask[1], 16) >> (signal.SIGINT - 1) & 1)


def test_rules_and_variants_are_listed(psmkit_cli: Cli) -> None:
    names = [row["name"] for row in json.loads(psmkit_cli("plan", "rules", "--format", "json").out)]
    assert names == [rule.name for rule in rules()]
    rows = json.loads(psmkit_cli("plan", "variants", "--format", "json").out)
    assert [row["name"] for row in rows] == list(variants())
    for row in rows:
        assert bool(row["breaks"]) == row["wrong"] and (row["breaks"] is None or row["breaks"] in names)
    assert len(psmkit_cli("plan", "rules").out.splitlines()) == 1 + len(names)
    assert "p2p-first" in psmkit_cli("plan", "variants").out
