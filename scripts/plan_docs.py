"""Run the commands shown in docs/plan.md and docs/plan_lint.md, and update their output, the tables and the pictures.

Usage: python scripts/plan_docs.py [--check]

A block that begins with ``$ psmkit plan`` holds the output of that command. A comment ``picture: ARGUMENTS`` precedes an image that
``psmkit plan simulate ARGUMENTS`` draws, or ``psmkit plan ARGUMENTS`` if they begin with ``lint``. Generated tables lie between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``.
``--check`` changes nothing and fails when something is stale.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from psmkit import plan
from psmkit.cli.app import main as psmkit
from psmkit.plan import releases as plan_releases

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(ROOT / "docs" / name for name in ("plan.md", "plan_lint.md"))
EXAMPLES = "examples/plans"

_SESSION = re.compile(r"```\n\$ (psmkit plan [^\n]*)\n.*?```", re.DOTALL)
_PICTURE = re.compile(r"<!-- picture: ([^\n]*) -->\n!\[[^\]]*\]\(([^)]+)\)")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def run(command: str) -> str:
    """The output of a command, 100 columns wide, without blanks at line ends."""
    out = io.StringIO()
    before, where = os.environ.get("COLUMNS"), os.getcwd()
    os.environ["COLUMNS"] = "100"
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(out):
            status = psmkit(shlex.split(command, comments=True)[1:])
    finally:
        os.chdir(where)
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    if status not in (0, 1, 3):
        raise SystemExit(f"{command}: exit status {status}")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _cell(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _schedulers(bits: int) -> str:
    return {1: "legacy", 2: "planner", 3: "both"}[bits]


def rules() -> str:
    """The table of rules."""
    rows = [f"| `{r.name}` | {_schedulers(r.schedulers)} | {_cell(r.text)} |" for r in plan.rules()]
    return "\n".join(["| rule | schedulers | what must hold |", "|---|---|---|", *rows])


def variants() -> str:
    """The table of variants, with an example of each broken one."""
    rows = []
    for v in plan.variants().values():
        example = f"[{v.name}.tasks](../{EXAMPLES}/{v.name}.tasks)" if v.wrong else ""
        rows.append(f"| `{v.name}` | {f'`{v.outcome}`' if v.outcome else 'right'} | {_cell(v.summary)} | {example} |")
    return "\n".join(["| variant | breaks | what it does | example |", "|---|---|---|---|", *rows])


def releases() -> str:
    """The table of releases: what each does with sends and recvs."""
    names: dict[str, Callable[[plan_releases.Release], str]] = {
        "next plan begins": lambda r: "at the round of the cut" if r.carries else "at round 0",
        "a batch mixes": lambda r: (
            "all rounds" if not r.round_groups else "8 rounds, no passes" if r.epochs else "8 rounds, passes"
        ),
        "room in the FIFO comes": lambda r: (
            f"behind the group{', or by an abort' if r.abortable else ''}" if r.event_room else "from kernels"
        ),
        "rounds": lambda r: "by groups of ranks" if r.grouped_rounds else "by nodes",
        "first channel of a round": lambda r: "its number, bits reversed" if r.reversed_rounds else "its number",
        "parts of a message": lambda r: "by Simple" if r.simple_parts else "by its protocol",
    }
    rows = []
    for row in plan_releases.releases():
        first, last = plan_releases.version(row.since), plan_releases.version(row.until)
        cells = [
            f"`{row.name}`",
            first if first == last else f"{first} to {last}",
            *(tell(row) for tell in names.values()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    head = ["scheduler", "NCCL", *names]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


PARTS: dict[str, Callable[[], str]] = {"rules": rules, "variants": variants, "releases": releases}


def current() -> dict[Path, str]:
    """The pages and their pictures, regenerated."""
    return {path: text for page in PAGES for path, text in _page(page).items()}


def _page(page: Path) -> dict[Path, str]:
    text = page.read_text("utf-8")
    pictures = {
        page.parent / name: run(
            f"psmkit plan {arguments if arguments.startswith('lint ') else f'simulate {arguments}'} --format svg"
        )
        for arguments, name in _PICTURE.findall(text)
    }
    text = _SESSION.sub(lambda m: f"```\n$ {m[1]}\n{run(m[1])}```", text)
    text = _PART.sub(lambda m: f"{m[1]}\n{PARTS[m[2]]()}\n\n{m[3]}", text)
    return {page: text, **pictures}


def main(args: list[str]) -> int:
    """Write stale parts, or report them."""
    stale = [path for path, text in current().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in args:
        for path in stale:
            print(f"not current, run python scripts/plan_docs.py: {path.relative_to(ROOT)}", file=sys.stderr)
        return 1 if stale else 0
    for path, text in current().items() if stale else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
