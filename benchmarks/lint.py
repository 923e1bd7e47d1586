"""Measure `psmkit plan lint` on one group of many operations of many ranks: seconds of the whole command, and of its parts.

    python benchmarks/lint.py [--ranks 32] [--operations 24000] [--repeat 3] [--output benchmarks/lint.md]

Pairs and sizes of the messages are random, with a seed. The task file has a line for each send and each receive. Wanted: at most 10 seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402

WANTED = 10.0
RELEASES = ("2.27.5", "2.29.3", "2.30.7")


def write(path: Path, ranks: int, operations: int) -> int:
    """A task file of one group; the number of its lines."""
    chance = random.Random(1)
    lines = []
    for _ in range(ranks * operations // 2):
        source, target = chance.sample(range(ranks), 2)
        count = chance.choice((16, 1024, 8192, 65536))
        lines += [f"{source}: send {count} to={target}\n", f"{target}: recv {count} from={source}\n"]
    path.write_text("".join(lines))
    return len(lines)


def seconds(repeat: int, do: Callable[[], object]) -> float:
    """The least of some turns."""
    turns = []
    for _ in range(repeat):
        begin = time.perf_counter()
        do()
        turns.append(time.perf_counter() - begin)
    return min(turns)


def parts(path: Path, ranks: int, release: str, repeat: int) -> list[tuple[str, float]]:
    """What reading, packing, cutting and a run take."""
    from psmkit.cli.plan_lint_inputs import MOST_STEPS
    from psmkit.plan import Config, Scheduler, packed, tasks
    from psmkit.plan.cut import Cut
    from psmkit.plan.releases import number

    config = Config(
        ranks=ranks,
        scheduler=Scheduler.PLANNER,
        release=number(release) or 0,
        pass_sm=False,
        p2p_channels=32,
        channels=32,
        p2p_channels_per_peer=2,
        work_fifo_bytes=1 << 23,
        ll_threshold=16 << 10,
    )
    steps = tasks.read(path, ranks, MOST_STEPS)
    array = packed.pack(steps)
    with Cut(config, array) as cut:
        return [
            ("read the task file", seconds(repeat, lambda: tasks.read(path, ranks, MOST_STEPS))),
            ("pack the steps", seconds(repeat, lambda: packed.pack(steps))),
            ("compare sends and receives", seconds(repeat, lambda: packed.messages(array, ranks))),
            ("cut", seconds(repeat, lambda: Cut(config, array).__exit__(None, None, None))),
            ("one run", seconds(repeat, lambda: cut.run(0, 1 << 20))),
        ]


def main() -> int:
    """Measure, and print the page or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--operations", type=int, default=24_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch.tasks"
        lines = write(path, options.ranks, options.operations)
        for release in RELEASES:
            for fifo in (1 << 19, 1 << 20):
                command = [sys.executable, "-m", "psmkit", "plan", "lint", str(path), "--ranks", str(options.ranks)]
                command += ["--nccl", release, "--p2p-channels", "32", "--p2p-channels-per-peer", "2"]
                command += ["--fifo-bytes", str(fifo), "--chunk-bytes", "131072"]
                answers: set[str] = set()

                def run(command: list[str] = command, answers: set[str] = answers) -> None:
                    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
                    answers.add(done.stdout.partition(":")[0] or done.stderr[-200:])

                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                took = seconds(options.repeat, run)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / options.repeat
                answer = ", ".join(sorted(answers))
                rows.append(f"| {release} | {fifo / (1 << 20):g} MiB | {answer} | {took:.1f} | {cpu:.1f} |")
        of_parts = parts(path, options.ranks, RELEASES[-1], options.repeat)
    page = [
        "# Lint",
        "",
        f"`python benchmarks/lint.py`, the least of {options.repeat} turns, on {os.cpu_count()} processors, {processor()}; load of the machine {load()}.",
        "",
        f"One group of {options.ranks} ranks, {options.operations:,} operations a rank, {lines:,} lines in the task file; with the search "
        f"for what makes it safe. Wanted: at most {WANTED:.0f} seconds; where the machine is busy, of the processor.",
        "",
        "| NCCL | work FIFO | answer | seconds | of the processor |",
        "|---|---|---|---:|---:|",
        *rows,
        "",
        f"Parts, with {RELEASES[-1]}:",
        "",
        "| part | seconds |",
        "|---|---:|",
        *(f"| {name} | {took:.2f} |" for name, took in of_parts),
    ]
    text = "\n".join(page) + "\n"
    if options.output:
        Path(options.output).write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
