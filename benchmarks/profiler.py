"""Measure the cost of libnccl-profiler-psm.so for NCCL: ns for the start and stop of an event, and for a change of its state.

    python benchmarks/profiler.py [--rounds N] [--runs N] [--other LIB]... [--env NAME=VALUE]... [--output benchmarks/profiler.md]

benchmarks/profiler_calls.c, compiled here, calls a profiler as NCCL does, with open parents. Each figure is the minimum of all runs, because
other work on the machine only adds time. --other adds other profilers, built elsewhere; --env sets variables that they need. A profiler
with a full pool returns NULL handles, which cost nothing and lose the event; their number is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402

LIMIT = 300.0  # seconds for a run
CASES = {
    "group": "start and stop of a group",
    "coll": "start and stop of a collective",
    "step": "start and stop of a proxy step",
    "state": "recordEventState",
}


def compiled(folder: Path) -> Path:
    """The program that makes the calls."""
    program = folder / "profiler_calls"
    source = ROOT / "benchmarks" / "profiler_calls.c"
    compiler = os.environ.get("CC", "cc")
    include = f"-I{ROOT / 'psmkit' / 'psm' / 'include'}"
    subprocess.run(
        [compiler, "-std=gnu11", "-O2", include, source, "-o", program, "-ldl", "-lpthread"], check=True, timeout=LIMIT
    )
    return program


def measure(
    program: Path, library: Path, case: str, threads: int, rounds: int, runs: int, env: dict[str, str]
) -> dict[str, Any] | None:
    """The program's results; None if the profiler ended it."""
    with tempfile.TemporaryDirectory() as records:
        done = subprocess.run(
            [program, library, case, str(threads), str(rounds), str(runs)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**clean(), "PSM_RECORD_DIR": records, **env},
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{library.name} {case}: {done.stderr.strip() or done.returncode}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def cell(found: dict[str, Any] | None, calls: int) -> str:
    """A figure, with the number of lost events."""
    if found is None:
        return "-"
    lost = int(found["null_handles"])
    return f"{found['ns']:.0f}" if not lost else f"NULL handles: {lost / calls:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000, help="calls of a run")
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--other", type=Path, action="append", default=[], help="another profiler")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    env = dict(item.split("=", 1) for item in options.env)
    own = tree() / "lib" / "libnccl-profiler-psm.so"
    tries = [
        ("TSC", own, 1, {}),
        ("TSC, 2 threads", own, 2, {}),
        ("clock_gettime", own, 1, {"PSM_PROFILER_CLOCK": "monotonic"}),
        *((library.name, library, 1, env) for library in options.other),
    ]
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        rows = []
        for name, library, threads, more in tries:
            found = [
                measure(program, library.absolute(), case, threads, options.rounds, options.runs, more)
                for case in CASES
            ]
            rows.append((name, [cell(f, options.rounds * options.runs * threads) for f in found]))
        clock = measure(program, own, "clock", 1, options.rounds, options.runs, {})
    lines = [
        "# What a profiler costs NCCL",
        "",
        f"ns a call, the least of {options.runs} runs of {options.rounds} calls on pinned threads; {platform.machine()},"
        f" {os.cpu_count()} CPUs, clock_gettime alone {cell(clock, 1)} ns. `python benchmarks/profiler.py`",
        "",
        "| profiler | " + " | ".join(CASES.values()) + " |",
        "|---|" + "---:|" * len(CASES),
        *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows),
        "",
        "The first lines are libnccl-profiler-psm.so by its clock; a row of its file is two cache lines that are cold. Other profilers keep events in",
        "memory that only their own process can read. NULL handles: the profiler answered no event, as its pool was full or it leaves the kind out.",
        "No proxy operation or kernel ends the collectives here: a profiler that waits for one keeps them all.",
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
