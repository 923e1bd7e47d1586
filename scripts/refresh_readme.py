"""Update the output of commands and the speed in README.md.

Usage: python scripts/refresh_readme.py [--check]

A ``console`` block of README.md holds one command of ``CUTS`` and the part of its output that the cut keeps; ``...`` marks omitted
lines. The speed comes from ``benchmarks/results.md``. ``--check`` changes nothing. It fails if the output of ``psmkit analyze`` or
the speed is not current. The numbers of the lab's run differ each time, so ``tests/test_readme.py`` compares its words.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (psmkit [^\n]*)\n(.*?)```", re.DOTALL)
SPEED = re.compile(r"1,000 MB in [\d.]+ s on one core and needs \d+ MiB")


def analysis_cut(lines: list[str]) -> list[str]:
    """The verdict with who, proof and what to do, and the ranks."""
    found = next(n for n, line in enumerate(lines) if line.startswith("Findings:"))
    return [*lines[: found - 1], "..."]


def lab_cut(lines: list[str]) -> list[str]:
    """The headline, and the first paragraph of the analysis."""
    first = next(n for n, line in enumerate(lines) if line.startswith("analysis: "))
    end = next(n for n in range(first, len(lines)) if lines[n].startswith(" "))
    return [lines[0], "...", *lines[first:end], "..."]


CUTS: dict[str, Callable[[list[str]], list[str]]] = {"analyze": analysis_cut, "lab": lab_cut}


def shown(command: str) -> str:
    """The part of a command's output in the README: 100 columns wide, without blanks at line ends."""
    words = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        if "--out" in words:
            words[words.index("--out") + 1] = f"{folder}/out"
        done = subprocess.run(
            [str(Path(sys.executable).parent / words[0]), *words[1:]],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
        )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stderr}")
    lines = CUTS[words[1]]([line.rstrip() for line in done.stdout.splitlines()])
    return "".join(f"{line}\n" for line in lines)


def speed() -> str:
    """Seconds and memory for a log of 1,000 MB, from the last benchmark."""
    rows = (ROOT / "benchmarks" / "results.md").read_text("utf-8").splitlines()
    head = [cell.strip() for cell in next(row for row in rows if row.startswith("| what |")).split("|")]
    cells = [cell.strip() for cell in next(row for row in rows if row.startswith("| psmkit analyze FILE |")).split("|")]
    row = dict(zip(head, cells, strict=True))
    return f"1,000 MB in {row['1000 MB s']} s on one core and needs {row['RssAnon 1000 MB MiB']} MiB"


def main(args: list[str]) -> int:
    """Write README.md, or check it."""
    before = PAGE.read_text("utf-8")
    check = "--check" in args
    text = SPEED.sub(speed(), before)
    for block in BLOCK.finditer(text):
        command = block[1]
        if not (check and command.startswith("psmkit lab")):
            text = text.replace(block[0], f"```console\n$ {command}\n{shown(command)}```")
    if text != before and check:
        print("README.md is not current, run python scripts/refresh_readme.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
