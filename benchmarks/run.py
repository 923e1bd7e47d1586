"""Measure an analysis: its rate on one core, its start-up, its memory; compared with other programs on the same files.

    python benchmarks/run.py [--small MB] [--large MB] [--repeat N] [--quick] [--output benchmarks/results.md]

The rate is the slope between the two sizes, so that start-up does not count. It is measured by the clock and by processor time, which other
work on the machine affects less. Memory is the largest RssAnon of the process. The logs are those of tests/loggen/stream.py: 64 interleaved
ranks, seeded, with fresh ids, in a temporary folder.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.instructions import kept  # noqa: E402
from benchmarks.machine import processor  # noqa: E402
from tests.loggen.stream import write_stream  # noqa: E402

MB = 1_000_000
LIMIT = 300.0  # seconds for a run


def keep_bytecode(folder: Path) -> None:
    """Let the commands keep their byte code in a folder, as programs that were installed have it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")


@dataclass(frozen=True)
class Sample:
    """One run of a command: seconds, seconds of processor time, largest RssAnon in MiB, exit status (None: timeout), processor time of its busiest thread."""

    seconds: float
    cpu: float
    anon: float
    status: int | None
    output: bytes
    busiest: float = 0.0


def of_threads(pid: int, seen: dict[int, float]) -> None:
    """Note the seconds of processor time of each thread of a process."""
    tick = os.sysconf("SC_CLK_TCK")
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (OSError, ProcessLookupError):
            continue
        seen[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / tick


def rss_anon(pid: int) -> float:
    """MiB of a process and its children; 0 when it is gone."""
    total = 0.0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) / 1024
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += rss_anon(int(child))
    except (OSError, ProcessLookupError):
        pass
    return total


def run(command: Sequence[str], core: int | set[int], stdin: Path | None = None, pipe: bool = False) -> Sample:
    """Run a command on one core, or some, and watch its memory. ``pipe`` feeds ``stdin`` through a pipe, from another core."""
    feeder = None
    source: int | object = subprocess.DEVNULL
    if stdin and pipe:
        feeder = subprocess.Popen(["cat", str(stdin)], stdout=subprocess.PIPE)
        source = feeder.stdout
    elif stdin:
        source = stdin.open("rb")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=source,  # type: ignore[arg-type]
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {core} if isinstance(core, int) else core),
    )
    peak = 0.0
    threads: dict[int, float] = {}
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.005):
            peak = max(peak, rss_anon(process.pid))
            of_threads(process.pid, threads)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status: int | None
    try:
        output, errors = process.communicate(timeout=LIMIT)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        status = None
    seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    stop.set()
    watcher.join()
    if feeder:
        feeder.kill()
        feeder.wait()
    return Sample(seconds, cpu, peak, status, output + errors, max(threads.values(), default=0.0))


def median(samples: Sequence[Sample], key: Callable[[Sample], float]) -> float:
    return statistics.median(key(s) for s in samples)


def seconds(sample: Sample) -> float:
    return sample.seconds


def cpu(sample: Sample) -> float:
    return sample.cpu


def anon(sample: Sample) -> float:
    return sample.anon


@dataclass(frozen=True)
class Row:
    what: str
    start: float | None
    small: float
    large: float | None
    rate: float | None
    cpu_rate: float | None
    anon_small: float
    anon_large: float | None
    note: str = ""


def measure(
    what: str,
    command: Callable[[Path], Sequence[str]],
    files: tuple[Path, Path, Path],
    sizes: tuple[int, int],
    repeat: int,
    core: int,
    feed: str = "",
    accept: tuple[int, ...] = (0, 1),
) -> Row:
    """Medians of runs on an almost empty, the small and the large file."""

    def runs(path: Path, times: int) -> list[Sample]:
        return [run(command(path), core, path if feed else None, feed == "pipe") for _ in range(times)]

    tiny, small, large = files
    start = runs(tiny, max(3, repeat))
    first = runs(small, repeat)
    bad = next((s for s in first if s.status not in accept), None)
    begin = median(start, seconds)
    if bad:
        text = bad.output.decode(errors="replace").strip().splitlines()
        why = "took too long" if bad.status is None else f"exit {bad.status}: {text[-1][:80] if text else ''}"
        return Row(what, begin, bad.seconds, None, None, None, bad.anon, None, why)
    small_s, small_cpu, small_anon = (median(first, key) for key in (seconds, cpu, anon))
    if small_s * sizes[1] / sizes[0] > LIMIT:
        rates = sizes[0] / MB / (small_s - begin), sizes[0] / MB / (small_cpu - median(start, cpu))
        return Row(what, begin, small_s, None, *rates, small_anon, None, "too slow for the large file")
    second = runs(large, repeat)
    large_s, large_cpu, large_anon = (median(second, key) for key in (seconds, cpu, anon))
    more = (sizes[1] - sizes[0]) / MB
    return Row(
        what,
        begin,
        small_s,
        large_s,
        more / (large_s - small_s),
        more / (large_cpu - small_cpu),
        small_anon,
        large_anon,
    )


def table(rows: Sequence[Row], sizes: tuple[int, int]) -> str:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    a, b = (f"{size // MB} MB" for size in sizes)
    lines = [
        f"| what | start-up s | {a} s | {b} s | MB/s | MB/s of processor time | RssAnon {a} MiB | RssAnon {b} MiB | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {r.what} | {number(r.start, '.2f')} | {number(r.small, '.2f')} | {number(r.large, '.2f')} | {number(r.rate, '.0f')} | {number(r.cpu_rate, '.0f')} "
        f"| {number(r.anon_small, '.0f')} | {number(r.anon_large, '.0f')} | {r.note} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def compress(source: Path) -> Path:
    target = source.with_suffix(".log.gz")
    try:
        from isal import igzip as packer
    except ImportError:
        packer = gzip  # type: ignore[assignment]
    with source.open("rb") as raw, packer.open(target, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(raw, packed, 1 << 20)
    return target


def other_parser(folder: Path) -> Path | str:
    """Install xcl-lens in a separate environment, or return the reason of the failure."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    done = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "xcl-lens==0.3.0"],
        capture_output=True,
        text=True,
    )
    return folder / "bin" / "xcl-lens" if done.returncode == 0 else "cannot be installed here"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", type=int, default=100, help="MB")
    parser.add_argument("--large", type=int, default=1000, help="MB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="only psmkit on a plain file")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results.md")
    return parser.parse_args()


def rows_of(
    psmkit: str, plain: tuple[Path, Path, Path], sizes: tuple[int, int], args: argparse.Namespace, folder: Path
) -> Iterator[Row]:
    """A row a way of reading the logs; those of other programs say why where there is no figure."""

    def analysis(path: Path) -> list[str]:
        return [psmkit, "analyze", "--format", "json", str(path)]

    def missing(name: str, why: str) -> Row:
        return Row(name, None, 0.0, None, None, None, 0.0, None, why)

    yield measure("psmkit analyze FILE", analysis, plain, sizes, args.repeat, args.core)
    if args.quick:
        return
    stdin = [psmkit, "analyze", "--format", "json", "-"]
    yield measure("psmkit analyze - (pipe)", lambda _: stdin, plain, sizes, args.repeat, args.core, feed="pipe")
    packed = (compress(plain[0]), compress(plain[1]), compress(plain[2]))
    yield measure("psmkit analyze FILE.gz", analysis, packed, sizes, args.repeat, args.core)
    if shutil.which("rg"):
        grep = ["rg", "-j", "1", "-c", "NCCL INFO"]
        yield measure("rg -c 'NCCL INFO'", lambda p: [*grep, str(p)], plain, sizes, args.repeat, args.core)
    else:
        yield missing("rg -c 'NCCL INFO'", "ripgrep is not installed")
    lens = other_parser(folder / "other")
    if isinstance(lens, Path):
        summary = [str(lens), "--summary"]
        yield measure("xcl-lens --summary FILE", lambda p: [*summary, str(p)], plain, sizes, 1, args.core)
    else:
        yield missing("xcl-lens --summary FILE", lens)


def main() -> int:
    args = arguments()
    psmkit = str(Path(sys.executable).parent / "psmkit")
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        folder = Path(name)
        keep_bytecode(folder)
        made = []
        for label, size in (("tiny", 1), ("small", args.small * MB), ("large", args.large * MB)):
            path = folder / f"{label}.log"
            with path.open("wb") as file:
                made.append((path, write_stream(file, size)))
            print(f"{path.name}: {made[-1][1]:,} bytes", file=sys.stderr, flush=True)
        plain = (made[0][0], made[1][0], made[2][0])
        sizes = (made[1][1], made[2][1])
        first = run([psmkit, "analyze", str(plain[1])], args.core)
        verdict = first.output.decode(errors="replace").splitlines()[0]
        print(f"psmkit says of the small log: {verdict}", file=sys.stderr, flush=True)
        rows: list[Row] = []
        for row in rows_of(psmkit, plain, sizes, args, folder):
            rows.append(row)
            print(table([row], sizes).splitlines()[-1], file=sys.stderr, flush=True)
        text = (
            f"# Benchmark\n\n`make bench`, medians of {args.repeat} runs on one core of {os.cpu_count()} ({processor()}), Linux {platform.release().split('-')[0]}, "
            f"Python {platform.python_version()}. Logs of 64 interleaved ranks, {sizes[0]:,} and {sizes[1]:,} bytes. MB/s is the slope between the two, "
            f"of plain text, by the clock and by processor time. psmkit says of these logs: {verdict}\n\n{table(rows, sizes)}"
        )
        print("\n" + text)
        if not args.quick:
            args.output.write_text(text + kept(args.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
