"""Measure one way from a buffer in one process to a buffer in another: libpsm's FIFO in host memory, its p2p path over hostcuda, and peers.

    python benchmarks/fifo.py [--quick] [--library FOLDER] [--output benchmarks/fifo.md]

benchmarks/fifo.c and fifo_p2p.c do the work, compiled with $CC (cc) against the libpsm of psmkit (--library: a folder with lib and
include) and the libraries that psmkit.lab.cuda finds. OpenMPI and UCX are measured if mpicc, mpirun and ucx_perftest exist. The two
processes are pinned to processors 0 and 1. All programs take turns, and a figure is the median of its turns; the best turn beside it
shows the cost of other work on the machine.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import compiled, load, processor  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402
from psmkit.lab.cuda import LIBRARIES, environment, folder  # noqa: E402

HERE = Path(__file__).parent
MIB = 1 << 20
LIMIT = 120.0  # seconds for a program
SMALL_BYTES = 8
SIZES = (4 * MIB, 64 * MIB)
PORT = 13337  # port on which the ends of ucx_perftest meet
Found = dict[str, list[float]]  # seconds by name, one for each turn

MPI = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,vader", "-n", "2"]


def build(place: Path, target: Path) -> dict[str, Path]:
    """Compile the C programs; MPI's only if its compiler exists."""
    made = {name: compiled(name, place, target, "-lpthread", "-ldl") for name in ("fifo", "fifo_p2p")}
    if shutil.which("mpicc") and shutil.which("mpirun"):
        made["mpi"] = target / "fifo_mpi"
        subprocess.run(["mpicc", "-O2", "-std=gnu11", str(HERE / "fifo_mpi.c"), "-o", str(made["mpi"])], check=True)
    return made


def run(command: Sequence[object], env: Mapping[str, str]) -> Found:
    """The output of a program: NAME SECONDS, one line for each turn."""
    done = subprocess.run(
        [str(word) for word in command], env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()}")
    found: Found = defaultdict(list)
    for line in done.stdout.splitlines():
        name, seconds = line.split()
        found[name].append(float(seconds))
    return found


def ucx(size: int, rounds: int, env: Mapping[str, str]) -> Found:
    """The one-way median that ucx_perftest prints; it has no line for each turn."""
    env = {**env, "UCX_TLS": "posix,self", "UCX_LOG_LEVEL": "error"}
    with subprocess.Popen(
        ["ucx_perftest", "-p", str(PORT), "-c", "1"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            ask = ["ucx_perftest", "127.0.0.1", "-p", str(PORT), "-c", "0", "-t", "tag_lat", "-s", str(size)]
            ask += ["-n", str(rounds), "-w", str(max(1, rounds // 10)), "-f", "-v"]
            until = time.monotonic() + 10
            while True:
                done = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
                if done.returncode == 0 or time.monotonic() > until:
                    break
                time.sleep(0.05)  # the server is not ready yet
            server.wait(timeout=10)
        finally:
            server.kill()
    lines = [line.split(",") for line in done.stdout.splitlines() if "," in line]
    if done.returncode or len(lines) < 2:
        raise SystemExit(f"ucx_perftest ended with {done.returncode}: {done.stderr.strip()}")
    return {"ucx": [float(lines[1][1]) * 1e-6]}


class Bench:
    """The programs, and what they need."""

    def __init__(self, place: Path, target: Path) -> None:
        self.made = build(place, target)
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("PSM_", "NCCL_", "UCX_", "OMPI_"))}
        clean |= {n: v for n, v in os.environ.items() if n == "PSM_HOSTCUDA_DIR"}
        self.plain = {**clean, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.cuda = {**environment(clean), "PSM_HOSTCUDA_BANNER": "0", "PSM_HOSTCUDA_SANITIZE": "off"}
        self.cuda["PSM_RECORD_DIR"] = str(target / "records")
        (target / "records").mkdir(mode=0o700)
        self.missing = [] if "mpi" in self.made else ["OpenMPI (no mpicc and mpirun)"]
        self.has_ucx = shutil.which("ucx_perftest") is not None
        if not self.has_ucx:
            self.missing.append("UCX (no ucx_perftest)")

    def p2p(self, *arguments: object, **settings: str) -> Found:
        return run([self.made["fifo_p2p"], folder() / LIBRARIES["cudart13"], *arguments], {**self.cuda, **settings})

    def fifo(self, *arguments: object) -> Found:
        return run([self.made["fifo"], *arguments], self.plain)

    def peers(self, size: int, turns: int, rounds: int) -> Found:
        found: Found = {}
        if "mpi" in self.made:
            found |= run([*MPI, self.made["mpi"], size, turns, rounds], self.plain)
        if self.has_ucx:
            found |= ucx(size, turns * rounds, self.plain)
        return found


def collect(repeat: int, programs: Sequence[Callable[[], Found]]) -> Found:
    """The programs take turns."""
    all_found: Found = defaultdict(list)
    for _ in range(repeat):
        for program in programs:
            for name, seconds in program().items():
                all_found[name] += seconds
    return all_found


SMALL = {
    "bare": "bare word on a cache line",
    "fifo": "FIFO in host memory (psm_fifo.h)",
    "mpi": "OpenMPI",
    "ucx": "UCX posix (median of ucx_perftest)",
    "copy-event": "hostcuda: a copy, its event, queries until it is done",
    "p2p-step": "p2p transport over hostcuda, its progress functions alone",
    "group": "p2p transport over hostcuda, a group on a stream, to the end of both ends",
}


def small(bench: Bench, repeat: int, turns: int) -> list[str]:
    found = collect(
        repeat,
        [
            lambda: bench.fifo("small", turns),
            lambda: bench.peers(SMALL_BYTES, turns, 500),
            lambda: bench.p2p("small", turns),
            lambda: bench.p2p("group", turns),
        ],
    )
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    aims = {
        "fifo": f"<= 100 ns; {middle['fifo'] / middle['bare']:.2f} x the bare word",
        "p2p-step": f"<= 3 x hostcuda's own copy; {middle['p2p-step'] / middle['copy-event']:.1f} x",
    }
    lines = ["| 8 bytes, one way | median ns | best ns | wanted |", "|---|---:|---:|---|"]
    for name, text in SMALL.items():
        if name in found:
            best = min(found[name]) * 1e9
            lines.append(f"| {text} | {middle[name] * 1e9:.0f} | {best:.0f} | {aims.get(name, '')} |")
    return lines


LARGE = {
    "memcpy": "memcpy in one process",
    "bare-fifo": "a bare FIFO of 8 x 256 KiB in a memfd",
    "fifo": "FIFO in host memory (psm_fifo.h), 8 x 256 KiB",
    "bare-fifo-128": "a bare FIFO of 8 x 128 KiB in a memfd",
    "fifo-128": "FIFO in host memory (psm_fifo.h), 8 x 128 KiB",
    "process_vm_readv": "process_vm_readv",
    "mpi": "OpenMPI",
    "ucx": "UCX posix (median of ucx_perftest)",
    "p2p-memcpy": "memcpy in one process, hostcuda's pinned memory",
    "p2p-copy": "hostcuda's own copy in one process",
    "p2p-fifo": "p2p transport over hostcuda, FIFO of 8 x 256 KiB",
    "p2p-fifo-128": "p2p transport over hostcuda, FIFO of 8 x 128 KiB",
    "p2p-zero-copy": "p2p transport over hostcuda, zero-copy",
}


def large(bench: Bench, size: int, repeat: int, turns: int) -> list[str]:
    def move() -> Found:
        found = bench.p2p("move", size, turns)
        found["p2p-memcpy"], found["p2p-copy"] = found.pop("memcpy"), found.pop("copy")
        found["p2p-fifo-128"] = bench.p2p("move", size, turns, PSM_BUFFER_SIZE=str(MIB))["p2p-fifo"]
        return found

    found = collect(repeat, [lambda: bench.fifo("bandwidth", size, turns), lambda: bench.peers(size, turns, 1), move])
    ours = ("fifo", "fifo-128", "p2p-fifo", "p2p-fifo-128", "p2p-zero-copy")
    aims = dict.fromkeys(ours, ">= 0.75" if size == 64 * MIB else ">= 15 GB/s")
    if size == 64 * MIB:
        aims["p2p-zero-copy"] = ">= 0.95"
    lines = [
        f"| {size // MIB} MiB, one way | median GB/s | best GB/s | x memcpy | best x best memcpy | wanted |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, text in LARGE.items():
        if name not in found:
            continue
        seconds, plain = found[name], found["p2p-memcpy" if name.startswith("p2p") else "memcpy"]
        ratios = (statistics.median(plain) / statistics.median(seconds), min(plain) / min(seconds))
        rates = (size / statistics.median(seconds) / 1e9, size / min(seconds) / 1e9)
        lines.append(
            f"| {text} | {rates[0]:.1f} | {rates[1]:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {aims.get(name, '')} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns: within 20 seconds")
    parser.add_argument("--library", type=Path, default=None, help="folder with lib and include of libpsm")
    parser.add_argument("--output", type=Path, default=None, help="write the tables there, too")
    options = parser.parse_args()
    repeat, turns, idle = (1, 5, 1) if options.quick else (3, 10, 5)
    before = load()
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(options.library or tree(), Path(place))
        rows = small(bench, repeat, 10 * turns)
        for size in SIZES:
            rows += ["", *large(bench, size, repeat, turns if size < 64 * MIB else max(3, turns // 2))]
        used = bench.p2p("idle", idle)["idle"]
        rows += [
            "",
            f"A connected pair that has nothing to do uses {1e3 * sum(used) / idle:.2f} ms of processor time a second.",
        ]
        rows += [f"Not measured: {peer}." for peer in bench.missing]
    head = [
        "# One way from process to process\n",
        f"`python benchmarks/fifo.py`, medians, on {os.cpu_count()} processors ({processor()}), Linux {platform.release()}. Load of",
        f"the machine before: {before}, after: {load()}.\n",
    ]
    text = "\n".join([*head, *rows]) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
