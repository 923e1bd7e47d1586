"""Rules are found by their place, and each registers itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.analysis import registry, rules
from psmkit.analysis.facts.job import Job
from psmkit.model import Finding


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are rules too, until the test ends."""
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    registry.registered.cache_clear()
    importlib.invalidate_caches()
    yield tmp_path
    registry.registered.cache_clear()


RULE = """
from psmkit.analysis.registry import rule

@rule(order={order})
def find(job):
    return []
"""


def test_every_module_of_the_folder_is_one_rule() -> None:
    modules = {path.stem for path in Path(rules.__path__[0]).glob("*.py")} - {"__init__"}
    assert {known.name for known in registry.registered()} == modules


def test_rules_run_by_their_order() -> None:
    orders = [known.order for known in registry.registered()]
    assert orders == sorted(set(orders))


def test_a_rule_takes_a_job_and_gives_findings() -> None:
    for known in registry.registered():
        hints = inspect.get_annotations(known.find, eval_str=True)
        assert hints == {"job": Job, "return": list[Finding]}, known.name
        assert known.find.__doc__, f"{known.name} does not say what it finds"


def test_a_new_module_is_a_rule_without_an_edit_elsewhere(folder: Path) -> None:
    (folder / "added_rule.py").write_text(RULE.format(order=1))
    assert registry.registered()[0].name == "added_rule"


def test_a_module_that_registers_nothing_is_an_error(folder: Path) -> None:
    (folder / "forgotten_rule.py").write_text("def find(job):\n    return []\n")
    with pytest.raises(TypeError, match="forgotten_rule registers no rule"):
        registry.registered()


def test_two_rules_of_one_order_are_an_error(folder: Path) -> None:
    (folder / "clashing_rule.py").write_text(RULE.format(order=registry.registered()[-1].order))
    registry.registered.cache_clear()
    with pytest.raises(ValueError, match="rule clashing_rule"):
        registry.registered()
