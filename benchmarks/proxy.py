"""Measure blocking calls of libpsm's proxy beside bare round trips of the same socket type, size and way of waiting.

    python benchmarks/proxy.py [--repeat N] [--rounds N] [--library FOLDER] [--output FILE]

The work is done by benchmarks/proxy.c, compiled with $CC (cc) over the libpsm of psmkit (--library: a folder with lib and include).
Calls and bare round trips take turns, and a ratio is the median of the ratios of turns, so that other work on the machine disturbs both.
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

from psmkit.cli.config import tree  # noqa: E402

LIMIT = 120.0  # seconds a run may take


def build(place: Path, target: Path) -> None:
    """Compile the C side against libpsm."""
    command = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-I", str(place / "include")]
    library = place / "lib"
    link = ["-L", str(library), "-l:libpsm.so.0", f"-Wl,-rpath,{library.resolve()}"]
    subprocess.run([*command, str(ROOT / "benchmarks" / "proxy.c"), "-o", str(target), *link, "-lpthread"], check=True)


def measure(program: Path, repeat: int, rounds: int) -> dict[str, list[float]]:
    """Median nanoseconds by name, one for each turn."""
    found: dict[str, list[float]] = defaultdict(list)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PSM_", "NCCL_"))}
    for _ in range(repeat):
        for env in (clean, {**clean, "PSM_SPIN": "0"}):
            done = subprocess.run(
                [program, str(rounds)], env=env, capture_output=True, text=True, timeout=LIMIT, check=True
            )
            for line in done.stdout.splitlines():
                name, nanoseconds = line.split()
                found[name].append(float(nanoseconds))
    return found


def table(found: dict[str, list[float]]) -> str:
    """Markdown."""
    rows = [
        f"{platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}\n",
        "| blocking call of 24 bytes, 16 back | median us | bare round trip us | ratio | aim |",
        "|---|---|---|---|---|",
    ]
    for way, aim in (("polling", "<= 1.1"), ("sleeping", "<= 1.1")):
        call, bare = found[f"call_{way}"], found[f"bare_{way}"]
        ratio = statistics.median(a / b for a, b in zip(call, bare, strict=True))
        rows.append(
            f"| between processes, {way} | {statistics.median(call) / 1000:.2f} | {statistics.median(bare) / 1000:.2f}"
            f" | {ratio:.2f} | {aim} |"
        )
    inside = statistics.median(found["call_same_process"]) / 1000
    rows.append(f"| inside a process, polling | {inside:.2f} | - | - | <= 2 us |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9, help="turns")
    parser.add_argument("--rounds", type=int, default=10000, help="calls a turn")
    parser.add_argument("--library", type=Path, default=None, help="folder with lib and include of libpsm")
    parser.add_argument("--output", type=Path, default=None, help="write the table there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "proxy"
        build(options.library or tree(), program)
        text = table(measure(program, options.repeat, options.rounds))
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
