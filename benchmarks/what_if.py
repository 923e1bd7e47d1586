"""Compare what `psmkit plan what-if` says of 8 to 64 ranks, from runs of 4 ranks, with ranks of the lab.

    python benchmarks/what_if.py [--small 4] [--ranks 8,16,32,64] [--repeat 3] [--output benchmarks/what_if.md]

Small and large runs take turns. Compared are the set-up time (of all cases but the first one of a process, which loads CUDA), libpsm's
descriptors, and, with task files, the plans of every rank of the simulation.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from psmkit.cli.plan_what_if_inputs import read  # noqa: E402
from psmkit.lab import transfer  # noqa: E402
from psmkit.plan.what_if import what_if  # noqa: E402

PATTERNS = ("pair", "ring", "alltoall")
FAR = 10_240


def small_run(ranks: int, folder: Path) -> None:
    """A run with each pattern, several times."""
    cases = [transfer.Case(name=f"{p}-{i}", pattern=p, size=64, iters=1) for i in range(4) for p in PATTERNS]
    checked(transfer.start(cases, ranks, folder, deadline=300.0, debug="WARN"))


def checked(run: transfer.LabRun) -> transfer.LabRun:
    """The run, if it is good.

    Raises:
        RuntimeError: a rank failed.
    """
    if not run.outcome.good:
        raise RuntimeError(next((r.text for r in run.outcome.ranks if r.text), "something was left behind"))
    return run


def large_run(ranks: int, folder: Path) -> tuple[list[float], int]:
    """Set-up times of all to all, without the first one, and libpsm's descriptors of rank 0."""
    cases = [transfer.Case(name=str(i), pattern="alltoall", size=64, iters=1) for i in range(3)]
    run = checked(transfer.start(cases, ranks, folder, deadline=600.0, debug="WARN"))
    reports = [rank.reports for rank in run.outcome.ranks]
    times = [max(mine[case]["setup_seconds"] for mine in reports) for case in range(1, 3)]
    return times, int(reports[0][1]["held"])


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=4)
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    sizes = [int(n) for n in given.ranks.split(",")]
    times: dict[int, list[float]] = defaultdict(list)
    held: dict[int, int] = {}
    before = load()
    folder = Path(tempfile.mkdtemp(prefix="psm-what-if-"))
    try:
        small = []
        for turn in range(given.repeat):
            small.append(str(folder / f"small-{turn}"))
            small_run(given.small, Path(small[-1]))
            for ranks in sizes:
                mine, held[ranks] = large_run(ranks, folder / f"large-{turn}-{ranks}")
                times[ranks] += mine
                print(f"turn {turn}: {ranks} ranks: {', '.join(f'{t:.3f}' for t in mine)} s, load {load()}", flush=True)
        plans = str(folder / "plans")
        command = [
            "lab",
            "run",
            "--ranks",
            str(given.small),
            "--tasks",
            str(ROOT / "examples/plans/right.tasks"),
            "--out",
            plans,
        ]
        subprocess.run([sys.executable, "-m", "psmkit", *command], check=True, stdout=subprocess.DEVNULL)
        recorded = read(small)
        rows = [
            "# What-if against the lab\n",
            f"`python benchmarks/what_if.py`: {given.repeat} runs of {given.small} ranks with pairs, rings and all-to-all, in turns with the larger ones; "
            f"on {os.cpu_count()} processors ({processor()}), Linux {platform.release()}. Load of the machine before: {before}, after: {load()}. All-to-all "
            "over one channel, all ranks on one machine. Measured: median, least and largest. Predicted: from the runs of "
            f"{given.small} ranks alone, with 95 % bounds.\n",
            "| ranks | connections | set-up measured, s | predicted, s | error | descriptors measured | predicted |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for ranks in sizes:
            done = what_if(recorded, ranks, ranks, processors=recorded.processors)
            of = {q.name: q for q in done.quantities}
            taken, wanted = of["set-up time"], statistics.median(times[ranks])
            own = of["descriptors"].most - (ranks - 1) * 2  # without pidfds and what CUDA holds: one each for a peer
            rows.append(
                f"| {ranks} | {ranks * (ranks - 1):,} | {wanted:.3g} ({min(times[ranks]):.3g} to {max(times[ranks]):.3g}) | "
                f"{taken.most:.3g} ({taken.low:.3g} to {taken.high:.3g}) | {100 * (taken.most / wanted - 1):+.0f} % | {held[ranks]} | {own:.0f} |"
            )
        begun = time.monotonic()
        told = subprocess.run(
            [sys.executable, "-m", "psmkit", "plan", "what-if", *small, plans, "--ranks", str(FAR)],
            capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "120"},
        ).stdout  # fmt: skip
        rows += [
            "",
            f"`psmkit plan what-if` of the same runs, and of one with `--tasks examples/plans/right.tasks`, for {FAR:,} ranks takes {time.monotonic() - begun:.1f} s:\n",
            "```",
            *(line.rstrip() for line in told.splitlines()),
            "```",
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = "\n".join(rows) + "\n"
    print(text)
    if given.output:
        given.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
