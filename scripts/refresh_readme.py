"""Put the output of `make demo` and the table of benchmarks/results.md into README.md, as they are now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SESSION = re.compile(r"```\n\$ psmkit analyze .*?\n```", re.DOTALL)
TABLE = re.compile(r"\| what \|.*?\n(?=\n)", re.DOTALL)


def session() -> str:
    """What the demo prints, without blanks at line ends."""
    done = subprocess.run(
        ["sh", "examples/demo.sh", str(Path(sys.executable).parent / "psmkit"), "tests/data/logs"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").split("\n"))


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()
    results = (ROOT / "benchmarks" / "results.md").read_text()
    table = results[results.index("| what") :].strip() + "\n"
    shown = f"```\n{session()}\n```"
    text = SESSION.sub(lambda _: shown, text, count=1)
    text = TABLE.sub(lambda _: table, text, count=1)
    page.write_text(text)


if __name__ == "__main__":
    main()
