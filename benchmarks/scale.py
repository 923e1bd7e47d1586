"""Measure the analysis of jobs of 8 to 65,536 ranks, healthy and failing, with a known truth.

    python benchmarks/scale.py [--ranks 8,64,512,4096,65536] [--mb 45] [--dialects 2.18,2.27,2.30] [--faults ...] [--keep FILE]

Each log goes through a pipe from the generator (psmkit.synth, as `psmkit lab synth` writes it) into `psmkit analyze -`. There are two series: as
many bytes from each number of ranks (of those whose least log is not larger), and the least log of each, which grows with the ranks. Processor time
(user and system) is that of the analysis alone, start-up included; other work on the machine affects it less than the clock. Memory is the largest
RssAnon. With --keep, points that FILE has from an earlier run are not measured again. t = a + b x bytes + c x ranks is fitted to the processor time of all logs; the residual of each point is measured less fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from benchmarks.piped import feed  # noqa: E402
from psmkit.synth.large import Large, Order, OrderError  # noqa: E402

MB = 1_000_000
FAULTS = ("healthy", "kill-at-work", "lag-at-work", "other-count", "kernel-fails", "setup-fails")


@dataclass(frozen=True)
class Point:
    """A log and what was measured."""

    fault: str
    dialect: str
    ranks: int
    grows: bool  # its size follows from the ranks
    mb: float
    seconds: float
    cpu: float
    anon: float
    verdict: str
    right: bool  # the verdict
    blamed: bool  # the culprit, and nobody else

    @property
    def row(self) -> tuple[float, float, float]:
        """What the fit takes."""
        return 1.0, self.mb, self.ranks / 1000


def measured(fault: str, dialect: str, ranks: int, size: int | None, repeat: int) -> Point | None:
    """A point; None where a job of so many ranks prints more."""
    try:
        large = Large(Order(ranks, fault, dialect, size))
    except OrderError:
        return None
    truth = large.truth()
    runs = [feed(piece.data for piece in large.stream()) for _ in range(repeat)]
    best = min(runs, key=lambda fed: fed.cpu)
    if best.status not in (0, 1, 3):
        raise SystemExit(f"psmkit analyze: exit {best.status} for {fault} in {dialect}, {ranks} ranks: {best.errors}")
    return Point(
        fault,
        dialect,
        ranks,
        size is None,
        best.size / MB,
        best.seconds,
        best.cpu,
        best.anon,
        best.verdict,
        best.verdict in truth.verdicts,
        best.culprits == truth.culprits if truth.named else best.culprits <= truth.culprits,
    )


def fitted(points: list[Point]) -> tuple[np.ndarray, np.ndarray]:
    """a, b, c, and the residual of each point; relative errors count, so that the small logs do."""
    rows = np.array([point.row for point in points])
    cpu = np.array([point.cpu for point in points])
    weights = 1 / cpu
    found, *_ = np.linalg.lstsq(rows * weights[:, None], cpu * weights, rcond=None)
    return found, cpu - rows @ found


def table(points: list[Point], residuals: np.ndarray) -> str:
    lines = [
        "| log | dialect | ranks | MB | s | CPU s | us a rank | MB/s of CPU | RssAnon MiB | verdict | right | culprit | residual s | residual % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|---:|---:|",
    ]
    for p, residual in zip(points, residuals, strict=True):
        lines.append(
            f"| {p.fault} | {p.dialect} | {p.ranks} | {p.mb:.1f} | {p.seconds:.1f} | {p.cpu:.2f} | {p.cpu / p.ranks * 1e6:.0f} "
            f"| {p.mb / p.cpu:.0f} | {p.anon:.0f} | {p.verdict} | {'yes' if p.right else 'NO'} | {'yes' if p.blamed else 'NO'} "
            f"| {residual:+.2f} | {100 * residual / p.cpu:+.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="8,64,512,4096,65536")
    parser.add_argument("--mb", type=int, default=45, help="bytes of the logs of the first series")
    parser.add_argument("--dialects", default="2.18,2.27,2.30")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "scale.md")
    parser.add_argument("--keep", type=Path, help="points of earlier runs, and of this one")
    parser.add_argument(
        "--table", action="store_true", help="measure nothing: write the table of the points that --keep has"
    )
    args = parser.parse_args()
    points: list[Point] = []
    known: dict[tuple[str, str, int, bool], Point] = {}
    if args.keep and args.keep.exists():
        for line in args.keep.read_text().splitlines():
            old = Point(**json.loads(line))
            known[old.fault, old.dialect, old.ranks, old.grows] = old
    loads = [load()]
    for dialect in args.dialects.split(","):
        for fault in args.faults.split(","):
            for ranks in map(int, args.ranks.split(",")):
                for size in (args.mb * MB, None):
                    key = (fault, dialect, ranks, size is None)
                    point = known.get(key)
                    if point is None and not args.table:
                        point = measured(fault, dialect, ranks, size, args.repeat)
                    if point is not None:
                        points.append(point)
                        if args.keep and key not in known:
                            with args.keep.open("a") as file:
                                file.write(json.dumps(asdict(point)) + "\n")
                        print(table([point], np.zeros(1)).splitlines()[-1], file=sys.stderr, flush=True)
        loads.append(load())
    (a, b, c), residuals = fitted(points)
    anon = np.array([p.anon for p in points])
    least, each = np.linalg.lstsq(
        np.array([(1.0, p.ranks) for p in points]) / anon[:, None], np.ones(len(points)), rcond=None
    )[0]
    wrong = sum(not (p.right and p.blamed) for p in points)
    text = (
        f"# Jobs of 8 to 65,536 ranks\n\n`python benchmarks/scale.py`, the least of {args.repeat} on {os.cpu_count()} cores ({processor()}), Linux "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}; {'measured at other times' if args.table else 'load ' + ' '.join(loads)}. Logs of `psmkit lab synth` through a pipe.\n\n"
        f"Processor time = {a:.2f} s + {1000 * b:.2f} ms x MB + {c:.3f} ms x ranks; residuals below, at most "
        f"{max(abs(residuals / [p.cpu for p in points])):.0%} of a point. Verdict or culprit is wrong in {wrong} of {len(points)} logs. "
        f"RssAnon = {least:.0f} MiB + {each * 1024:.1f} KiB x ranks, whatever the bytes: the tables of the scan, the rows of the report and its JSON. Above "
        "4,000 ranks or so a scan keeps of each message without a complaint only the first lines as events, counts the rest, and the report says how "
        "many; the trackers that decide the verdict take all.\n\n" + table(points, residuals)
    )
    args.output.write_text(text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
