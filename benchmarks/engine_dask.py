"""Measure `psmkit analyze --engine dask`: the local engine, one worker and two workers on the same logs, and a failing job of 10,240 ranks.

    python benchmarks/engine_dask.py [--mb N] [--ranks N] [--large-ranks N] [--repeat N] [--output benchmarks/engine_dask.md]

A scheduler and its workers run already, as on a cluster; each measured command connects to it. Seconds are of the clock for the whole command:
start-up, scheduler, transfer and report included. Each figure is the least of the runs, because other work on the machine only adds to it: beside it
stands the processor time of the command and of the workers, and the longest path: the command's and that of the busiest worker, which is what the
clock shows where nothing else runs. Memory is the largest RssAnon of the command and of one worker. The commands of a row
take turns, so that what else the machine does meets all of them. The JSON reports of all must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from benchmarks.run import MB, keep_bytecode, rss_anon, run  # noqa: E402
from tests.loggen.crowd import FAULTY  # noqa: E402
from tests.loggen.crowd import write_files as write_crowd  # noqa: E402
from tests.loggen.stream import write_files  # noqa: E402

CORES = os.sched_getaffinity(0)
PSMKIT = str(Path(sys.executable).parent / "psmkit")


@dataclass
class Found:
    """One run: seconds of the clock, those of the longest path, processor seconds of the command and of the workers, MiB of both, the hash of the report, its text, and the load."""

    seconds: float
    path: float
    cpu: float
    workers_cpu: float
    anon: float
    worker_anon: float
    digest: str
    report: bytes
    load: str


class Cluster:
    """A scheduler with workers, each a process."""

    def __init__(self, cluster: Any) -> None:
        self.address = cluster.scheduler_address
        self.pids = [nanny.process.pid for nanny in cluster.workers.values()]

    def cpu(self) -> list[float]:
        """Processor seconds of each worker so far."""
        tick = os.sysconf("SC_CLK_TCK")
        found = []
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found.append((int(fields[11]) + int(fields[12])) / tick)
        return found


@contextmanager
def cluster_of(workers: int) -> Iterator[Cluster]:
    """A scheduler on loopback with so many workers."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as made:
        yield Cluster(made)


def measured(path: Path, cluster: Cluster | None) -> Found:
    """One run of the command."""
    more = [] if cluster is None else ["--engine", "dask", "--scheduler", cluster.address]
    before = [] if cluster is None else cluster.cpu()
    peak = 0.0
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max([peak, *(rss_anon(pid) for pid in (cluster.pids if cluster is not None else []))])

    watcher = threading.Thread(target=watch)
    watcher.start()
    sample = run([PSMKIT, "analyze", str(path), "--format", "json", *more], CORES)
    stop.set()
    watcher.join()
    if sample.status not in (0, 1):
        raise SystemExit(f"psmkit analyze {' '.join(more)}: exit {sample.status}: {sample.output[-500:].decode()}")
    workers = [] if cluster is None else [now - was for now, was in zip(cluster.cpu(), before, strict=True)]
    digest = hashlib.sha256(sample.output).hexdigest()[:16]
    longest = sample.cpu + max(workers, default=0.0)
    return Found(sample.seconds, longest, sample.cpu, sum(workers), sample.anon, peak, digest, sample.output, load())


def best(runs: Sequence[Found]) -> Found:
    """The least of each figure."""
    return Found(
        *(min(getattr(one, name) for one in runs) for name in ("seconds", "path", "cpu", "workers_cpu")),
        *(max(getattr(one, name) for one in runs) for name in ("anon", "worker_anon")),
        runs[0].digest,
        runs[0].report,
        " ".join(one.load for one in runs),
    )


def compared(name: str, path: Path, engines: Sequence[tuple[str, Cluster | None]], repeat: int) -> list[str]:
    """The rows of one job."""
    size = sum(file.stat().st_size for file in path.iterdir()) / MB
    runs: dict[str, list[Found]] = {engine: [] for engine, _ in engines}
    for _ in range(repeat):
        for engine, cluster in engines:
            runs[engine].append(measured(path, cluster))
            print(f"{name}, {engine}: {runs[engine][-1].seconds:.1f} s", file=sys.stderr, flush=True)
    digests = {found.digest for each in runs.values() for found in each}
    if len(digests) != 1:
        raise SystemExit(f"{name}: the reports differ: {digests}")
    report = json.loads(next(iter(runs.values()))[0].report)
    culprits = ", ".join(f"rank {culprit['global_rank']}" for culprit in report["culprits"])
    said = report["verdict"] + (f", {culprits}" if culprits else "")
    rows = []
    for engine, found in ((engine, best(each)) for engine, each in runs.items()):
        one = best(runs["1 worker"])
        two = engine == "2 workers"
        gains = [f"{one.seconds / found.seconds:.2f}", f"{one.path / found.path:.2f}"] if two else ["-", "-"]
        rows.append(
            f"| {name} | {size:.0f} | {engine} | {found.seconds:.2f} | {gains[0]} | {found.path:.2f} | {gains[1]} | {found.cpu:.2f} | {found.workers_cpu:.2f} | {found.anon:.0f} "
            f"| {found.worker_anon:.0f} | {said} | {found.digest} | {found.load} |"
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--large-ranks", type=int, default=10240)
    parser.add_argument("--large-mb", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "engine_dask.md")
    args = parser.parse_args()
    lines = [
        "| job | MB | engine | s | 1 / 2 workers | longest path CPU s | 1 / 2 workers | command CPU s | workers CPU s | command MiB | worker MiB | verdict | sha256 of the report | load |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name, cluster_of(1) as one, cluster_of(2) as two:
        keep_bytecode(Path(name))
        engines = [("local", None), ("1 worker", one), ("2 workers", two)]
        work, crowd = Path(name) / "work", Path(name) / "crowd"
        for folder in (work, crowd):
            folder.mkdir()
        write_crowd(crowd, "abort", 16)
        for _, cluster in engines:
            measured(crowd, cluster)  # loads the catalogue in each process
        write_crowd(crowd, "abort", args.large_ranks, args.large_mb * MB)
        large = compared(f"abort of {args.large_ranks} ranks", crowd, engines, args.repeat)
        if not all(f"failed, rank {FAULTY} |" in line for line in large):
            raise SystemExit(f"the faulty rank is {FAULTY}, and the report says otherwise: {large[0]}")
        write_files(work, args.mb * MB, ranks=args.ranks)
        lines += compared(f"healthy, {args.ranks} ranks at work", work, engines, args.repeat)
        lines += large
    text = (
        f"# The dask engine\n\n`python benchmarks/engine_dask.py`: seconds of the whole command beside a scheduler that runs, the least of "
        f"{args.repeat} runs, on {os.cpu_count()} cores ({processor()}), Linux {platform.release().split('-')[0]}, Python {platform.python_version()}. "
        "longest path: processor seconds of the command and of the busiest worker. load: the average of the last minute after each run; the scheduler, the command and the workers share the cores with it.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    print("\n" + text)
    args.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
