"""Measure how long ranks of the lab take to connect all to all, by their number, and what a power law through that says of more ranks.

    python benchmarks/setup.py [--ranks 2,4,8,16,32,64] [--repeat 5] [--channels 2] [--output benchmarks/setup.md]
                               [--picture docs/pictures/setup.svg]

Each run connects twice: when CUDA is loaded for the first time, and again. The numbers of ranks take turns, so that other work on the machine
affects all of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from psmkit.lab import transfer  # noqa: E402
from psmkit.plan.fitted import Estimate, power  # noqa: E402
from psmkit.report.drawing import Sheet, duration, log_scale, log_ticks, shape  # noqa: E402

LEAST = 8  # ranks from which on the power law is fitted: below, what a rank costs without connections counts
BEYOND = (128, 256, 512, 1024)


@dataclass(frozen=True)
class Run:
    """One run: seconds to connect at first, again, and of the whole run; descriptors and private bytes of a rank."""

    first: float
    again: float
    whole: float
    held: int
    kept: int


def once(ranks: int, channels: int) -> Run:
    """Connect all to all, twice.

    Raises:
        RuntimeError: a rank failed.
    """
    folder = Path(tempfile.mkdtemp(prefix="psm-setup-"))
    try:
        cases = [transfer.Case(name=str(i), pattern="alltoall", size=64, iters=1, channels=channels) for i in range(2)]
        run = transfer.start(cases, ranks, folder / "run", deadline=600.0, debug="WARN")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not run.outcome.good:
        raise RuntimeError(next((r.text for r in run.outcome.ranks if r.text), "something was left behind"))
    reports = [rank.reports for rank in run.outcome.ranks]
    first, again = (max(mine[case]["setup_seconds"] for mine in reports) for case in range(2))
    return Run(first, again, run.outcome.seconds, reports[0][0]["held"], reports[0][0]["kept"])


def spread(values: list[float]) -> str:
    """The median, and the least and the largest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def told(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def table(runs: dict[int, list[Run]], channels: int, before: str) -> str:
    """The results in Markdown."""
    rows = [
        "# Connecting all to all\n",
        f"`python benchmarks/setup.py`: {len(next(iter(runs.values())))} runs of each size, in turns; {channels} channels; on {os.cpu_count()} "
        f"processors ({processor()}), Linux {platform.release()}. Load of the machine before: {before}, after: {load()}. Medians, with the least and the "
        "largest. The time is that of the slowest rank, from the start of the proxies to the last Connect, buffers included; the handle sanitizer is on. "
        "The first time emulated CUDA is loaded, too.\n",
        "| ranks | connections | first time, s | again, s | ms a connection | whole run, s | libpsm's descriptors of a rank | private memory of a rank, MiB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for ranks, mine in sorted(runs.items()):
        count = channels * ranks * (ranks - 1)
        again = [r.again for r in mine]
        cells = [
            f"{ranks}", f"{count:,}", spread([r.first for r in mine]), spread(again), f"{1e3 * statistics.median(again) / count:.2f}",
            spread([r.whole for r in mine]), f"{mine[0].held}", f"{statistics.median(r.kept for r in mine) / 2**20:.1f}",
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    fitted = law(runs)
    if fitted is not None:
        exponent, beyond = fitted
        rows += [
            "",
            f"A power law through the points from {LEAST} ranks on (second column of times): time grows with the ranks to the power of {told(exponent)}; "
            "the number of connections grows with the power of 2. On the same machine, where all ranks share its processors, it says, with 95 % bounds:\n",
            "| ranks | connections | s |",
            "|---:|---:|---:|",
            *(f"| {n:,} | {channels * n * (n - 1):,} | {told(e)} |" for n, e in zip(BEYOND, beyond, strict=True)),
        ]
    return "\n".join(rows) + "\n"


def law(runs: dict[int, list[Run]]) -> tuple[Estimate, list[Estimate]] | None:
    """The exponent, and the times beyond."""
    points = [(ranks, run.again) for ranks, mine in runs.items() if ranks >= LEAST for run in mine]
    return power([p[0] for p in points], [p[1] for p in points], BEYOND, 1) if points else None


def picture(runs: dict[int, list[Run]]) -> str:
    """Measured points, and the power law with its bounds beyond them."""
    points = [(ranks, run.again) for ranks, mine in runs.items() for run in mine]
    fit_of = [p for p in points if p[0] >= LEAST]
    grid = [LEAST * (BEYOND[-1] / LEAST) ** (i / 60) for i in range(61)]
    found = power([p[0] for p in fit_of], [p[1] for p in fit_of], grid, 1)
    assert found is not None
    estimates = found[1]
    low, high = min(p[0] for p in points), BEYOND[-1]
    least = 10**-3 if min(p[1] for p in points) < 1e-2 else 1e-2
    most = 10 ** len(str(int(max(e.high for e in estimates))))
    sheet = Sheet(
        760,
        "Time to connect all ranks to all",
        "Measured on one machine, and a power law with 95 % bounds; both axes are logarithmic.",
    )
    sheet.legend(
        [
            (f'<path d="{shape("circle", 7, 6, 3)}" class="bar c0"/>', "a run"),
            ('<path d="M0 6H14" class="curve s1"/>', f"power {found[0].value:.2f} of the ranks"),
            ('<rect x="0" y="1" width="14" height="10" class="bar c1" fill-opacity=".3"/>', "95 % of such runs"),
        ]
    )
    top, bottom, left, right = sheet.top + 12, sheet.top + 312, 70.0, 730.0
    x, y = log_scale(low, high, left, right), log_scale(least, most, bottom, top)
    for at in log_ticks(low, high, 12, 2):
        sheet.line(x(at), top, x(at), bottom + 4, "rule")
        sheet.text(x(at), bottom + 18, f"{at:.0f}", "dim", anchor="middle")
    sheet.text((left + right) / 2, bottom + 35, "ranks", "text", anchor="middle")
    for at in log_ticks(least, most, 10, 10):
        sheet.line(left - 4, y(at), right, y(at), "rule")
        sheet.text(left - 9, y(at) + 4, duration(at), "dim", anchor="end")
    upper = [f"{x(n):.1f} {y(e.high):.1f}" for n, e in zip(grid, estimates, strict=True)]
    lower = [f"{x(n):.1f} {y(e.low):.1f}" for n, e in zip(grid, estimates, strict=True)]
    sheet.path(f"M{'L'.join(upper + lower[::-1])}Z", "c1", ' fill-opacity=".3" stroke="none"', "95 % bounds")
    sheet.path("M" + "L".join(f"{x(n):.1f} {y(e.value):.1f}" for n, e in zip(grid, estimates, strict=True)), "curve s1")
    for ranks, seconds in points:
        sheet.path(
            shape("circle", x(ranks), y(seconds), 3),
            "bar c0",
            ' fill-opacity=".7"',
            f"{ranks} ranks: {duration(seconds, 3)}",
        )
    return sheet.render(bottom + 44)


def main() -> int:
    """Measure, and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8,16,32,64")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    runs: dict[int, list[Run]] = defaultdict(list)
    before = load()
    for turn in range(given.repeat):
        for ranks in [int(n) for n in given.ranks.split(",")]:
            run = once(ranks, given.channels)
            runs[ranks].append(run)
            print(f"turn {turn}: {ranks} ranks: {run.first:.2f} s, {run.again:.2f} s again, load {load()}", flush=True)
    text = table(runs, given.channels, before)
    print(text)
    if given.output:
        given.output.write_text(text)
    if given.picture:
        given.picture.write_text(picture(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
