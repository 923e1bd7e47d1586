"""Measure the analysis of logs of thousands of ranks, healthy and failing; compared with grep on the same files.

    python benchmarks/failing.py [--ranks N] [--mb N] [--more N] [--large-ranks N] [--repeat N] [--output benchmarks/failing.md]

All times are processor time (user and system) of the whole command, start-up included, which other work on the machine affects less than the
clock. Each is the least of the runs, because other work only adds to it. Of each kind of log there are five: N, 4 N and 8 N ranks in as many bytes, 4 N ranks in more bytes, and a large one. They give the parts of
t = a + b x bytes + c x ranks. Memory is the largest RssAnon of the process. The logs are those of tests/loggen/crowd.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import processor  # noqa: E402
from benchmarks.run import MB, Sample, anon, cpu, keep_bytecode, median, run  # noqa: E402
from tests.loggen.crowd import KINDS, write_files, write_merged  # noqa: E402


def measured(path: Path, repeat: int, core: int) -> tuple[float, float, float, str]:
    """Processor seconds and RssAnon of the analysis, processor seconds of grep, and the verdict."""
    psmkit = str(Path(sys.executable).parent / "psmkit")
    ours: list[Sample] = [run([psmkit, "analyze", str(path)], core) for _ in range(repeat)]
    peer = [run(["grep", "-rc", "NCCL", str(path)], core) for _ in range(repeat)]
    bad = next((s for s in ours if s.status not in (0, 1)), None)
    if bad is not None:
        raise SystemExit(f"psmkit analyze {path.name}: exit {bad.status}: {bad.output.decode(errors='replace')[-300:]}")
    verdict = ours[0].output.decode(errors="replace").split(":", 1)[0]
    return min(map(cpu, ours)), median(ours, anon), min(map(cpu, peer)), verdict


def slope(seconds: float, amount: float, form: str) -> str:
    """The amount per second, or - without a difference, or if it is within what two runs of the same command differ by."""
    return format(amount / seconds, form) if amount and seconds > 0.05 else "-"


def row(kind: str, folder: Path, args: argparse.Namespace) -> str:
    """One line of the table."""
    n, size = args.ranks, args.mb * MB
    shapes = ((n, size), (4 * n, size), (8 * n, size), (4 * n, size + args.more * MB), (args.large_ranks, 100 * MB))
    found = []
    written = []
    for ranks, wanted in shapes:
        path = folder / "job.log"
        written.append(write_merged(path, kind, ranks, wanted))
        found.append(measured(path, args.repeat, args.core))
        path.unlink()
    few, half, many, long, large = (seconds for seconds, *_ in found)
    rate = slope(long - half, (written[3] - written[1]) / MB, ".0f")
    return (
        f"| {kind} | {found[0][3]} | {few:.2f} | {half:.2f} | {many:.2f} | {many / half:.2f} | {(many - few) / (7 * n) * 1000:.2f} | {rate} "
        f"| {written[4] / MB:.0f} | {large:.2f} | {found[4][1]:.0f} | {found[4][2]:.2f} |"
    )


def files_row(folder: Path, args: argparse.Namespace) -> str:
    """The abort of all ranks, with a file for each rank."""
    found = []
    for ranks in (args.ranks, 4 * args.ranks, 8 * args.ranks):
        path = folder / "job"
        path.mkdir()
        write_files(path, "abort", ranks, args.mb * MB)
        found.append(measured(path, args.repeat, args.core))
        shutil.rmtree(path)
    few, half, many = (seconds for seconds, *_ in found)
    each = (many - few) / (7 * args.ranks) * 1000
    return f"| abort, a file a rank | {found[0][3]} | {few:.2f} | {half:.2f} | {many:.2f} | {many / half:.2f} | {each:.2f} | - | - | - | - | - |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--mb", type=int, default=40, help="bytes of the smaller logs")
    parser.add_argument("--more", type=int, default=180, help="bytes by which one log is longer")
    parser.add_argument("--large-ranks", type=int, default=10240, help="of the log of 100 MB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "failing.md")
    args = parser.parse_args()
    n = args.ranks
    lines = [
        f"| log | verdict | {n} ranks s | {4 * n} ranks s | {8 * n} ranks s | ratio | ms a rank | MB/s | large MB "
        f"| {args.large_ranks} ranks s | RssAnon MiB | grep -c s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        keep_bytecode(Path(name))
        write_merged(Path(name) / "first.log", "abort", 16)
        measured(Path(name) / "first.log", 1, args.core)
        for kind in args.kinds:
            lines.append(row(kind, Path(name), args))
            print(lines[-1], file=sys.stderr, flush=True)
        if "abort" in args.kinds:
            lines.append(files_row(Path(name), args))
    text = (
        f"# Logs of thousands of ranks\n\n`make bench`, processor seconds (user and system), the least of {args.repeat} runs on one core of "
        f"{os.cpu_count()} ({processor()}), Linux {platform.release().split('-')[0]}, Python {platform.python_version()}. {n}, {4 * n} and {8 * n} "
        f"ranks print {args.mb} MB each, or what one round of theirs needs; ratio compares the last two, ms a rank is the slope from the first to "
        f"the last, MB/s the slope to {args.more} MB more. grep counts the lines of the large log.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    print("\n" + text)
    args.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
