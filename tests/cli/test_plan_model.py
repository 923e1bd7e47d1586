"""`psmkit plan model`: the verdicts of spin on a page, a counterexample event by event."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from psmkit.cli.plan import command
from psmkit.plan.model import model_variants

PAGE = Path(__file__).parents[2] / "docs" / "plan_model.md"


pytestmark = pytest.mark.usefixtures("spin")


def _without_counts(line: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d{3,}|\d{1,3}(,\d{3})+", "N", line))


def test_a_wrong_variant_is_shown_with_the_shortest_way_to_its_rule() -> None:
    done = CliRunner().invoke(command, ["model", "--variant", "reclaim-twice"], standalone_mode=False)
    assert done.return_value == 1
    lines = done.output.splitlines()
    assert lines[1].split()[:2] == ["reclaim-twice", "reclaim.twice"]
    assert lines[3].startswith("The shortest path to reclaim.twice for plan 1, ")
    assert lines[-1].split(maxsplit=1)[1] == "main          RECLAIMER plan 1: by LaunchKernelAfter"


def test_a_hang_is_told_with_who_waits() -> None:
    done = CliRunner().invoke(command, ["model", "--variant", "count-all-ops", "--hang"], standalone_mode=False)
    assert done.return_value == 1
    assert done.output.splitlines()[-1].endswith("STUCK plan 1: its host function waits, count 1")


def test_json_has_what_was_looked_at_and_every_event() -> None:
    done = CliRunner().invoke(
        command, ["model", "--variant", "lose-reclaimer", "--format", "json"], standalone_mode=False
    )
    (row,) = json.loads(done.output)
    assert (row["variant"], row["rule"], row["expected"]) == ("lose-reclaimer", "reclaim.never", "reclaim.never")
    assert row["states"] > 0
    assert row["scope"]["blocking"] is True
    assert row["steps"][0]["what"] == "PREPARE"


def test_all_variants_do_what_they_are_made_for() -> None:
    done = CliRunner().invoke(command, ["model"], standalone_mode=False)
    assert done.return_value == 0, done.output
    shown = {line.split()[0]: line.split()[1] for line in done.output.splitlines()[1:]}
    assert shown == {name: known.rule or "-" for name, known in model_variants().items()}
    # Another spin may count other states.
    page = re.search(r"```console\n\$ psmkit plan model\n(.*?)```", PAGE.read_text(), re.S)
    assert page is not None
    assert [_without_counts(line) for line in page[1].splitlines()] == [
        _without_counts(line) for line in done.output.splitlines()
    ]


def test_a_hang_needs_a_variant() -> None:
    done = CliRunner().invoke(command, ["model", "--hang"])
    assert done.exit_code == 2
    assert "--hang needs --variant" in done.output
