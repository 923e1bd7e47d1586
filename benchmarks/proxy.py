"""Measure blocking calls of libpsm's proxy against bare round trips with the same socket type, size and way of waiting.

    python benchmarks/proxy.py [--quick] [--repeat N] [--rounds N] [--library FOLDER] [--output benchmarks/proxy.md]

benchmarks/proxy.c does the work, compiled with $CC (cc) against the libpsm of psmkit (--library: a folder with lib and include).
Calls and bare round trips take turns, and a ratio is the median of the turns' ratios, so that other work on the machine affects both.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean, compiled, load  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402

LIMIT = 120.0  # seconds for a run


def measure(program: Path, repeat: int, rounds: int, sleeping: bool = True) -> dict[str, list[float]]:
    """Median nanoseconds by name, one for each turn."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeat):
        for env in (clean(), {**clean(), "PSM_SPIN": "0"}) if sleeping else (clean(),):
            done = subprocess.run(
                [program, str(rounds)], env=env, capture_output=True, text=True, timeout=LIMIT, check=True
            )
            for line in done.stdout.splitlines():
                name, nanoseconds = line.split()
                found[name].append(float(nanoseconds))
    return found


def table(found: dict[str, list[float]], before: str) -> str:
    """The results in Markdown."""
    rows = [
        "# Blocking calls of the proxy\n",
        f"`python benchmarks/proxy.py`, medians of {len(found['call_polling'])} turns, on {os.cpu_count()} processors, "
        f"{platform.machine()}, Linux {platform.release()}.",
        f"Load of the machine before: {before}, after: {load()}. A ratio is the median of those of the turns.\n",
        "| 24 bytes, 16 back | median us | best us | bare us | best bare us | ratio | wanted |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    names = {
        "polling": ("between processes, polling", "a bare round trip on a socket", "<= 1.1"),
        "sleeping": ("between processes, sleeping", "a bare round trip on a socket", "<= 1.1"),
        "same_process": ("inside a process, polling", "a flag in memory", "<= 2 us"),
    }
    for way, (what, beside, aim) in names.items():
        call, bare = found[f"call_{way}"], found["bare_flag" if way == "same_process" else f"bare_{way}"]
        ratio = statistics.median(a / b for a, b in zip(call, bare, strict=True))
        figures = [statistics.median(call), min(call), statistics.median(bare), min(bare)]
        rows.append(
            f"| {what}; beside {beside} | {' | '.join(f'{f / 1000:.2f}' for f in figures)} | {ratio:.2f} | {aim} |"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short turns: within 10 seconds")
    parser.add_argument("--repeat", type=int, default=None, help="turns")
    parser.add_argument("--rounds", type=int, default=None, help="calls a turn")
    parser.add_argument("--library", type=Path, default=None, help="folder with lib and include of libpsm")
    parser.add_argument("--output", type=Path, default=None, help="write the table there, too")
    options = parser.parse_args()
    repeat, rounds = (
        options.repeat or (5 if options.quick else 15),
        options.rounds or (3000 if options.quick else 10000),
    )
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled("proxy", options.library or tree(), Path(folder), "-lpthread")
        text = table(measure(program, repeat, rounds), before)
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
