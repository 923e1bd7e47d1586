"""docs/plan.md and docs/tasks.md name all that there is, and the examples break the rules that they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.analysis.rules.plan_trace import CODES_OF_RULES
from psmkit.plan import variants
from psmkit.plan.tasks import WORDS
from tests.cli.conftest import Result, psmkit_cli  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
EVERY = sorted((ROOT / "examples" / "plans").glob("*.tasks"))
LINTED = [path for path in EVERY if path.read_text("utf-8").splitlines()[1].startswith("# psmkit plan lint ")]
EXAMPLES = [path for path in EVERY if path not in LINTED]


def test_the_pages_name_every_step_of_a_task_file_and_every_rule_with_its_code() -> None:
    page, tasks = ((ROOT / "docs" / name).read_text("utf-8") for name in ("plan.md", "tasks.md"))
    for word in WORDS:
        assert f"`{word}" in tasks, word
    for rule, code in CODES_OF_RULES.items():
        assert re.search(rf"^\|.*`{re.escape(rule)}`.*\| \[{code}\]", page, re.MULTILINE), rule


def test_every_wrong_variant_has_its_example() -> None:
    assert {v.name for v in variants().values() if v.wrong} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_does_what_its_variant_declares(path: Path, psmkit_cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    monkeypatch.chdir(ROOT)
    command = path.read_text("utf-8").splitlines()[1].removeprefix("# psmkit ").split()
    assert command[:4] == ["plan", "simulate", "--tasks", f"examples/plans/{path.name}"]
    variant = variants()[command[command.index("--variant") + 1]]
    done: Result = psmkit_cli(*command)
    if path.stem == "legacy-limit":
        assert done.status == 1 and done.out.startswith("broken: stuck: ")
        return
    assert done.status == int(variant.wrong)
    assert f"  {variant.outcome}: " in done.out if variant.wrong else done.out.startswith("right: ")
    right = ["coll-first" if word == variant.name else word for word in command]
    assert psmkit_cli(*right).status == 0


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "plan.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.startswith("1 (")


@pytest.mark.parametrize("path", LINTED, ids=lambda p: p.stem)
def test_a_linted_example_hangs(path: Path, psmkit_cli, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    monkeypatch.chdir(ROOT)
    command = path.read_text("utf-8").splitlines()[1].removeprefix("# psmkit ").split()
    done: Result = psmkit_cli(*command)
    assert done.status == 1 and done.out.startswith("hangs: ")
    assert "What makes it safe, each shown by a run" in done.out
    newest = ["2.30.7" if word.startswith("2.") else word for word in command]
    larger = psmkit_cli(*newest, "--fifo-bytes", 8 << 20)
    assert larger.status == 0 and larger.out.startswith("safe: ")


def test_there_is_an_example_of_each_bug() -> None:
    assert {path.stem for path in LINTED} == {"ring-28000", "cut-in-two-places"}
