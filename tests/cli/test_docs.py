"""The pages of docs/ are current and complete, and their example works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest

from psmkit.cli.app import COMMANDS, cli
from psmkit.model import CODES
from psmkit.report import data
from tests import scripts

from .conftest import Result

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return scripts.load("docs")


def test_generated_pages_are_current(generator: ModuleType) -> None:
    pages = {part: generator.current(part) for part in generator.PARTS}
    stale = [part for part, (path, text) in pages.items() if path.read_text("utf-8") != text]
    assert stale == [], "run python scripts/docs.py"


def test_every_code_has_an_anchor() -> None:
    page = (DOCS / "findings.md").read_text("utf-8")
    assert re.findall(r'<a id="(psm\d+)"></a>', page) == [code.lower() for code in CODES]


def anchors(page: Path) -> set[str]:
    """What a link into the page may name: its headings, as GitHub spells them, and its own marks."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | set(re.findall(r'<a id="([^"]+)">', text))


def test_rows_of_a_table_have_as_many_columns_as_its_head() -> None:
    odd = []
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for table in re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE):
            rows = [
                len(re.findall(r"(?<!\\)\|", row)) - row.endswith("|") for row in map(str.rstrip, table.splitlines())
            ]
            ends = [row for row in table.splitlines() if not row.rstrip().endswith("|")]
            if len(set(rows)) > 1 or ends:
                odd.append(f"{page.name}: {table.splitlines()[0]}")
    assert odd == []


def test_links_to_a_part_of_a_page_lead_to_it() -> None:
    lost = []
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "changelog").glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text("utf-8")):
            if anchor not in anchors(page.parent / target if target else page):
                lost.append(f"{page.name}: {target}#{anchor}")
    assert lost == []


def commands_of(page: Path) -> list[str]:
    """Each command line of psmkit on a page, in a block or inside the text, without its comment."""
    text = page.read_text("utf-8").replace("\\\n", " ").replace("\\|", "|")
    inner = re.findall(r"\$\((psmkit [^)]*)\)", text)
    text = re.sub(r"\$\(psmkit [^)]*\)", "FOLDER", text)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ )?(psmkit .*)", fenced, re.MULTILINE) + re.findall(
        r"^ {4,}(psmkit .*)", text, re.MULTILINE
    )
    inline = [" ".join(found.split()) for found in re.findall(r"`(psmkit [^`]*)`", text)]
    return [re.split(r" {2,}| #| &| -- ", found)[0] for found in lines + inline + inner]


def unknown(command: click.Command, words: list[str], context: click.Context) -> list[str]:
    """Options and subcommands in the words that the command does not have; ``a|b`` stands for both."""
    if isinstance(command, click.Group) and words and re.fullmatch(r"\[?[a-z][a-z|-]*\]?", words[0]):
        lost = []
        for name in words[0].strip("[]").split("|"):
            inner = command.get_command(context, name)
            lost += [name] if inner is None else unknown(inner, words[1:], click.Context(inner, parent=context))
        return lost
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    named = [re.split(r"[=\]]", word.strip("[]"))[0] for word in words if re.match(r"\[?--?[a-z]", word)]
    return [name for name in named if name not in known]


def test_commands_on_the_pages_exist_with_their_options() -> None:
    checked, wrong = 0, []
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "changelog").glob("*.md")]:
        for line in commands_of(page):
            # What is quoted is an argument, such as a compiler's flags.
            words = re.sub(r"'[^']*'", "QUOTED", line).split()[1:]
            if words and re.fullmatch(r"[a-z|]+", words[0]):
                checked += 1
                wrong += [f"{page.name}: {line}: {name}" for name in unknown(cli, words, click.Context(cli))]
    assert checked > 150
    assert wrong == []


def test_the_operator_page_names_every_command_and_option(psmkit_cli: Cli) -> None:
    page = (DOCS / "operator.md").read_text("utf-8")
    for command in COMMANDS:
        assert f"psmkit {command}" in page
    for option in re.findall(r"--[a-z-]+", psmkit_cli("analyze", "--help").out):
        assert option in page or option == "--help"


def test_the_runbook_asks_for_the_subsystems_that_a_report_asks_for(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("node1:1100:1101 [0] NCCL INFO NCCL version 2.26.2+cuda12.8\n")
    asked = json.loads(psmkit_cli("analyze", log, "--format", "json").out)["coverage"]["rerun_with"]
    (shown,) = re.findall(r"^export NCCL_DEBUG_SUBSYS=(\S+)$", (DOCS / "runbook.md").read_text("utf-8"), re.MULTILINE)
    assert shown == asked["NCCL_DEBUG_SUBSYS"]


def test_the_example_in_python_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "nccl.log").write_text("node1:1100:1101 [0] NCCL INFO NCCL version 2.26.2+cuda12.8\n")
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "operator.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "inconclusive" in done.stdout


def test_the_json_page_names_every_key() -> None:
    page = (DOCS / "report-json.md").read_text("utf-8")

    def keys(part: object) -> set[str]:
        if not isinstance(part, dict):
            return set()
        found = set(part.get("properties", {})) if part.get("type") == "object" else set()
        return found.union(*(keys(value) for value in part.values()))

    assert [key for key in sorted(keys(data.schema())) if f"`{key}`" not in page and f'"{key}"' not in page] == []


def example() -> tuple[str, str]:
    """The log and the catalogue of the worked example."""
    page = (DOCS / "catalogue.md").read_text("utf-8").partition("## A worked example")[2]
    log = re.search(r"```\n(node1.*?)```", page, re.DOTALL)
    entries = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert log is not None and entries is not None
    return log[1], entries[1]


def test_the_worked_example_makes_a_call_of_a_foreign_dialect(psmkit_cli: Cli, tmp_path: Path) -> None:
    lines, entries = example()
    log, toml = tmp_path / "mf.log", tmp_path / "mf.toml"
    log.write_text(lines, "utf-8")
    toml.write_text(entries, "utf-8")
    before = json.loads(psmkit_cli("analyze", log, "--format", "json").out)
    assert before["coverage"]["unmatched"] == 4
    after = json.loads(psmkit_cli("analyze", log, "--format", "json", "--catalogue", toml).out)
    assert after["coverage"]["unmatched"] == 0
    assert after["matching"]["proxy_calls"] == {"matched": 1, "pending": 0, "orphan": 0}
    ops = json.loads(psmkit_cli("ops", log, "--format", "json", "--catalogue", toml).out)["ops"]
    assert [(op["op"], op["stage"], op["size"]) for op in ops] == [("0x7f33a0001c40", "matched", 240)]


def test_the_entry_on_the_page_is_valid(psmkit_cli: Cli, tmp_path: Path) -> None:
    page = (DOCS / "catalogue.md").read_text("utf-8")
    entry = re.search(r"## An entry\n\n```toml\n(.*?)```", page, re.DOTALL)
    assert entry is not None
    tomllib.loads(entry[1])
    file = tmp_path / "myfork.toml"
    file.write_text(entry[1], "utf-8")
    found = psmkit_cli(
        "explain", "--catalogue", file, "mfProxyServe call=0x7f0215c09cc0 kind=3 answered 240 bytes", "--format", "json"
    )
    assert json.loads(found.out)[0]["fields"] == {"op": 0x7F0215C09CC0, "type": 3, "resp_size": 240}
