"""Check and drive plugins of others, and write what came out as a table: the scoreboard of docs/plugins_scoreboard.md.

    python benchmarks/scoreboard.py 'NAME=LIB [VARIABLE=VALUE...]'... [--write docs/plugins_scoreboard.md]

Each argument is one word of the shell: what the plugin is, with its version; the library; variables for it. For each library this runs
`psmkit plugin check` and `psmkit plugin drive` with the newest table of its kind. A net plugin is driven once more behind psmkit's own
(PSM_NET=chain), a profiler behind libnccl-profiler-check.so. All of them report JSON. The emulated CUDA stands in for a GPU. The libraries are
the user's: nothing is fetched. --write replaces the table between the page's markers; without it the table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 900.0  # seconds for a command
FIRST, LAST = "<!-- measured: benchmarks/scoreboard.py -->\n", "<!-- end of measured -->"
ARGUMENT = re.compile(r"(?P<name>[^=]+)=(?P<library>\S+)(?P<settings>(?:\s+\w+=\S*)*)")
CLASSES = (("NCCL breaks", "breaks"), ("NCCL works by luck", "by luck"), ("advice", "advice"))


@dataclass(frozen=True)
class Plugin:
    """A library to examine: what it is, where, and the variables that it needs."""

    name: str
    library: Path
    settings: tuple[str, ...]


def plugin(text: str) -> Plugin:
    """The plugin of an argument."""
    found = ARGUMENT.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=LIB, then VARIABLE=VALUE, in one word of the shell")
    library = Path(found["library"])
    if not library.is_file():
        raise argparse.ArgumentTypeError(f"{library}: no such file")
    return Plugin(found["name"].strip(), library.absolute(), tuple(found["settings"].split()))


def psmkit(*words: str | Path) -> dict[str, Any]:
    """The JSON that a command prints; {"error"}: what it says instead."""
    command = [sys.executable, "-m", "psmkit", "plugin", *map(str, words), "--format", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {LIMIT:.0f} s"}
    if done.returncode in (0, 1):
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    return {"error": done.stderr.strip().rpartition("; ")[0] or done.stderr.strip()}


def own(name: str) -> Path:
    """A plugin of psmkit's own."""
    return ROOT / "psmkit" / "psm" / "lib" / name


def of_check(data: dict[str, Any]) -> str:
    """What the check says, in words."""
    if "error" in data:
        return str(data["error"])
    counts = [(sum(f["severity"] == word for f in data["findings"]), word) for word in ("error", "warning")]
    wrong = ", ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in counts if n)
    later = sum(table["filled_by_init"] for table in data["tables"])
    return wrong or (f"{later} tables filled by init" if later else "nothing wrong")


def of_drive(data: dict[str, Any]) -> str:
    """How many checks passed and were skipped, and which failed as what."""
    if "error" in data:
        return str(data["error"])
    results = data["results"]
    parts = [f"{sum(r['outcome'] == 'passed' for r in results)} ok"]
    for text, word in CLASSES:
        failed = [r["check"] for r in results if r["outcome"] == "failed" and r.get("class", CLASSES[0][0]) == text]
        if failed:
            parts.append(f"{word}: {', '.join(f'`{name}`' for name in failed)}")
    skipped = sum(r["outcome"] == "skipped" for r in results)
    return "; ".join([*parts, *([f"{skipped} skipped"] if skipped else [])])


def kinds(data: dict[str, Any]) -> dict[str, list[int]]:
    """The versions of each kind of table, newest first."""
    found: dict[str, list[int]] = {}
    for table in data.get("tables", ()):
        found.setdefault(table["kind"], []).append(table["version"])
    return found


def rows(one: Plugin, timeout: str) -> list[str]:
    """A line of the table for each kind of plugin in the library."""
    check = psmkit("check", one.library)
    settings = [f"--env={setting}" for setting in one.settings]
    out = []
    for kind, versions in kinds(check).items():
        if kind not in ("net", "tuner", "profiler"):
            continue
        cuda = () if kind == "tuner" else ("--cuda", "emulated")
        common = (*cuda, "--timeout", timeout, *settings)
        drive = of_drive(psmkit("drive", one.library, "--kind", kind, *common))
        behind = "-"
        if kind == "net":
            chain = f"--env=PSM_NET=chain:{one.library}"
            behind = of_drive(psmkit("drive", own("libnccl-net-psm.so"), "--kind", "net", *common, chain))
        elif kind == "profiler":
            wrap = f"--env=PSM_PROFILER_WRAP={one.library}"
            behind = of_drive(psmkit("drive", own("libnccl-profiler-check.so"), "--kind", "profiler", *common, wrap))
        numbers = ", ".join(f"v{version}" for version in versions)
        out.append(f"| {one.name} | {kind} {numbers} | {of_check(check)} | {drive} | {behind} |")
        print(out[-1], file=sys.stderr, flush=True)
    return out or [f"| {one.name} | - | {of_check(check)} | - | - |"]


def write(page: Path, table: str) -> None:
    """Replace the table of a page."""
    text = page.read_text("utf-8")
    head, found, rest = text.partition(FIRST)
    _, closed, tail = rest.partition(LAST)
    if not found or not closed:
        raise SystemExit(f"{page}: expected {FIRST.strip()} and {LAST}")
    page.write_text(f"{head}{FIRST}\n{table}\n\n{LAST}{tail}", "utf-8")


def main() -> None:
    """Run the commands, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugins", nargs="+", type=plugin, metavar="NAME=LIB")
    parser.add_argument("--timeout", default="10", help="seconds for a call of a plugin [10]")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the table of this page")
    given = parser.parse_args()
    lines = [line for one in given.plugins for line in rows(one, given.timeout)]
    head = ["| plugin | tables | check | drive | behind psmkit's |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *lines])
    if given.write:
        write(given.write, table)
    else:
        print(table)


if __name__ == "__main__":
    main()
