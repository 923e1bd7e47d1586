"""Measure the cost of plans: scheduling 10,000 tasks into plans and reclaiming them, and whether it grows with history.

    python benchmarks/plan.py [--quick] [--repeat N] [--library FOLDER] [--output benchmarks/plan.md]

benchmarks/plan.c does the work, compiled with $CC (cc) against the libpsm of psmkit (--library: a folder with lib and include).
Its engine completes everything at once, so only libpsm's own cost remains: tasks, schedulers, launch, trace, rules, reclaim, pools.
Times are the minimum of many groups in short runs that take turns, to limit the effect of other work on the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean, compiled, load  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402

LIMIT = 300.0  # seconds for a run
TASKS = 10_000
WANTED = 1000.0  # nanoseconds per task, schedule and reclaim
SCHEDULERS = ("legacy", "planner")
KINDS = {
    "coll": (0, "all-reduces of 4 KiB"),
    "p2p": (0, "sends and recvs of 16 KiB"),
    "mixed": (0, "all-reduces, and sends and recvs between them"),
    "mixed-passsm": (1, "the same, p2p by PassSM"),
    "wide": (0, "all-reduces of 256 MiB, on up to 16 channels"),
}


def run(program: Path, *arguments: object, check: bool = True) -> list[list[str]]:
    done = subprocess.run(
        [program, *map(str, arguments)],
        env={**clean(), "PSM_PLAN_CHECK": str(int(check))},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode != 0:
        raise SystemExit(f"plan {' '.join(map(str, arguments))} failed: {done.stderr.strip()}")
    return [line.split() for line in done.stdout.splitlines()]


@dataclass
class Group:
    """The minimum over all runs, in nanoseconds per task, and the contents of a group."""

    times: dict[str, float] = field(default_factory=dict)
    made: dict[str, list[str]] = field(default_factory=dict)

    def add(self, lines: list[list[str]]) -> None:
        for name, *values in lines:
            if name in ("enqueue", "group", "reclaim"):
                self.times[name] = min(float(values[0]), self.times.get(name, float("inf")))
            else:
                self.made[name] = values

    @property
    def total(self) -> float:
        return self.times["group"] + self.times["reclaim"]


def groups(program: Path, repeat: int, count: int) -> dict[tuple[str, str, bool], Group]:
    found: dict[tuple[str, str, bool], Group] = {}
    for _ in range(repeat):
        for scheduler in SCHEDULERS:
            for kind, (pass_sm, _) in KINDS.items():
                for check in (True, False):
                    lines = run(program, scheduler, pass_sm, kind.partition("-")[0], TASKS, count, check=check)
                    found.setdefault((scheduler, kind, check), Group()).add(lines)
    return found


def groups_table(found: dict[tuple[str, str, bool], Group]) -> list[str]:
    rows = [
        f"Groups of {TASKS:,} tasks of a communicator of 8 ranks with 16 channels; nanoseconds a task. Group: cut into "
        "plans, launch, proxy ops, each with its event in the trace. Wanted: group and reclaim together at most "
        f"{WANTED:.0f}. A task on 16 channels is 16 works and 16 ops, and costs as much.\n",
        "| scheduler | tasks | plans | works | enqueue | group | reclaim | group + reclaim | a work | without rules |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (scheduler, kind, check), group in found.items():
        if not check:
            continue
        bare = found[scheduler, kind, False]
        times = " | ".join(f"{group.times[name]:.0f}" for name in ("enqueue", "group", "reclaim"))
        plans, works = (f"{int(group.made[name][0]):,}" for name in ("plans", "works"))
        rows.append(
            f"| {scheduler} | {KINDS[kind][1]} | {plans} | {works} | {times} | {group.total:.0f} "
            f"| {group.total * TASKS / int(group.made['works'][0]):.0f} | {bare.total:.0f} |"
        )
    return rows


def history_table(program: Path, plans: int) -> list[str]:
    rows = [
        f"\n## {plans:,} plans of one communicator\n",
        "One task a group: an all-reduce and a send take turns. Nanoseconds a plan from enqueueing to reclaim, the least "
        "of a thousand plans in each tenth; what the pools and stacks hold; the process's memory.\n",
        "| scheduler | plans so far | ns a plan | plans, ops, tasks in pools | scoped bytes | permanent bytes | resident KiB |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for scheduler in SCHEDULERS:
        for _, done, ns, in_plans, in_ops, in_tasks, scoped, permanent, resident in run(
            program, scheduler, 0, "history", plans, 0
        ):
            rows.append(
                f"| {scheduler} | {int(done):,} | {ns} | {in_plans}, {in_ops}, {in_tasks} | {int(scoped):,} | "
                f"{int(permanent):,} | {int(resident) // 1024:,} |"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short turns: within 20 seconds")
    parser.add_argument("--repeat", type=int, default=None, help="turns")
    parser.add_argument("--plans", type=int, default=None, help="plans of the history")
    parser.add_argument("--library", type=Path, default=None, help="folder with lib and include of libpsm")
    parser.add_argument("--output", type=Path, default=None, help="write the tables there, too")
    options = parser.parse_args()
    repeat = options.repeat or (1 if options.quick else 7)
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled("plan", options.library or tree(), Path(folder))
        rows = groups_table(groups(program, repeat, 5 if options.quick else 15))
        rows += history_table(program, options.plans or (100_000 if options.quick else 1_000_000))
    about = (
        f"`python benchmarks/plan.py`, the least of {repeat} turns, on {os.cpu_count()} processors, {platform.machine()}, "
        f"Linux {platform.release()}.\nLoad of the machine before: {before}, after: {load()}.\n"
    )
    text = "\n".join(["# Plans\n", about, *rows]) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
