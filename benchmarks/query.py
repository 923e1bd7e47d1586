"""Measure tables of logs: the rate and the memory of `psmkit export`, and how long questions take.

    python benchmarks/query.py [--small MB] [--large MB] [--repeat N] [--output benchmarks/query.md]

The rate is the slope between two sizes. An export has two threads: one reads, one writes. On two free cores it takes as long as the busier one, whose
processor time other work on the machine affects less than the clock. The logs are those of benchmarks/run.py. Memory is the largest RssAnon of the process.
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

from benchmarks.machine import load, processor  # noqa: E402
from benchmarks.run import MB, Sample, anon, keep_bytecode, median, run, seconds  # noqa: E402
from psmkit.model.wording import counted  # noqa: E402
from tests.loggen.stream import write_stream  # noqa: E402

FORMATS = ("parquet", "arrow", "csv")
QUESTIONS = (
    "SELECT verdict FROM verdict",
    "SELECT rank, count(*) FROM events GROUP BY rank",
    "SELECT type, count(*), max(answered_line - served_line) FROM matches GROUP BY type",
)


def busiest(sample: Sample) -> float:
    return sample.busiest


def checked(sample: Sample) -> Sample:
    if sample.status != 0:
        raise SystemExit(sample.output.decode(errors="replace"))
    return sample


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", type=int, default=100, help="MB")
    parser.add_argument("--large", type=int, default=1000, help="MB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "query.md")
    args = parser.parse_args()
    psmkit = str(Path(sys.executable).parent / "psmkit")
    cores = set(sorted(os.sched_getaffinity(0))[-2:])
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        folder = Path(name)
        keep_bytecode(folder)
        sizes: dict[Path, int] = {}
        for label, size in (("small", args.small * MB), ("large", args.large * MB)):
            path = folder / f"{label}.log"
            with path.open("wb") as file:
                sizes[path] = write_stream(file, size)
        small, large = sizes
        more = (sizes[large] - sizes[small]) / MB

        def samples(path: Path, form: str) -> tuple[list[Sample], int]:
            out, found = folder / "tables", []
            for _ in range(args.repeat):
                shutil.rmtree(out, ignore_errors=True)
                found.append(checked(run([psmkit, "export", str(path), f"--{form}", "-o", str(out)], cores)))
            return found, sum(file.stat().st_size for file in out.iterdir())

        lines = [
            "| `psmkit export` | small s | large s | MB/s | MB/s of the busier thread | RssAnon small MiB | RssAnon large MiB | large tables MB |"
        ]
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
        for form in FORMATS:
            (first, _), (second, written) = samples(small, form), samples(large, form)
            rate, of_thread = (more / (median(second, key) - median(first, key)) for key in (seconds, busiest))
            lines.append(
                f"| `--{form}` | {median(first, seconds):.2f} | {median(second, seconds):.2f} | {rate:.0f} | {of_thread:.0f} "
                f"| {median(first, anon):.0f} | {median(second, anon):.0f} | {written / MB:.0f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
        lines += ["", "| `psmkit query` | small s | large s | RssAnon large MiB |", "|---|---:|---:|---:|"]
        for question in QUESTIONS:
            first, second = (
                [checked(run([psmkit, "query", str(path), question], cores)) for _ in range(args.repeat)]
                for path in (small, large)
            )
            lines.append(
                f"| `{question}` | {median(first, seconds):.2f} | {median(second, seconds):.2f} | {median(second, anon):.0f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
        args.output.write_text(
            f"# Tables of logs\n\n`python benchmarks/query.py`, medians of {counted(args.repeat, 'run')} on two cores of {os.cpu_count()} ({processor()}), "
            f"load {load()}, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}. Logs of 64 interleaved ranks: small is {sizes[small]:,} bytes, "
            f"large {sizes[large]:,}. MB/s is of the log's text, the slope between the two: by the clock, and by the processor time of the busier of the two threads, "
            f"which is the clock on two free cores.\n\n" + "\n".join(lines) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
