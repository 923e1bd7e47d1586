"""Measure hostcuda: copies against memcpy, small calls with and without the sanitizer, the start of many processes.

    python benchmarks/hostcuda.py [--repeat N] [--processes N] [--streams N] [--quick] [--output benchmarks/hostcuda.md]

benchmarks/hostcuda.c does the work, compiled with $CC (cc) into a temporary folder, against the libraries that psmkit.lab.cuda finds
(PSM_HOSTCUDA_DIR names others). Copies and memcpy take turns on the same kind of memory, and a ratio is the median of the turns'
ratios, so that other work on the machine affects both. Memory is the largest VmRSS of a process, including shared libraries.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from psmkit.lab.cuda import LIBRARIES, environment, folder  # noqa: E402

MIB = 1 << 20
LIMIT = 120.0  # seconds for a run
COPIES = {
    "pinned-device": "64 MiB, pinned to device",
    "device-pinned": "64 MiB, device to pinned",
    "device-device": "64 MiB, device to device",
    "pageable-device": "64 MiB, pageable to device",
    "pinned-untouched-device": "64 MiB, pinned to device memory that nobody has touched",
}


def build(target: Path) -> None:
    """Compile the C side."""
    command = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", "-I", str(ROOT / "csrc" / "cuda")]
    subprocess.run([*command, str(ROOT / "benchmarks" / "hostcuda.c"), "-o", str(target), "-ldl"], check=True)


def environ(**more: str) -> dict[str, str]:
    return {**environment(), "PSM_HOSTCUDA_BANNER": "0", **more}


def run(program: Path, *arguments: object, **more: str) -> dict[str, list[float]]:
    """Seconds by name, in order of measurement."""
    command = [str(program), str(folder() / LIBRARIES["cudart13"]), *map(str, arguments)]
    done = subprocess.run(command, env=environ(**more), capture_output=True, text=True, timeout=LIMIT, check=True)
    found: dict[str, list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, seconds = line.split()
        found[name].append(float(seconds))
    return found


def copies(program: Path, repeat: int) -> list[list[str]]:
    seen = run(program, "copy", 64 * MIB, 10 * repeat)
    rows = []
    for name, text in COPIES.items():
        plain = seen["memcpy-untouched" if "untouched" in name else "memcpy"]
        ratio = statistics.median(p / c for p, c in zip(plain, seen[name], strict=True))
        times = [1e3 * statistics.median(seconds) for seconds in (plain, seen[name])]
        fastest = min(plain) / min(seen[name])
        rows.append([text, f"{times[0]:.1f}", f"{times[1]:.1f}", f"{ratio:.2f}", f"{fastest:.2f}"])
    return rows


def small_calls(program: Path, repeat: int) -> list[list[str]]:
    """Microseconds without and with the sanitizer; processes take turns."""
    modes = {"off": {"PSM_HOSTCUDA_SANITIZE": "off"}, "warn": {"PSM_HOSTCUDA_SANITIZE": "warn"}}
    modes["worker"] = {**modes["off"], "PSM_HOSTCUDA_INLINE": "0"}
    found: dict[str, dict[str, list[float]]] = {mode: defaultdict(list) for mode in modes}
    for _ in range(repeat):
        for mode, more in modes.items():
            for name, seconds in run(program, "small", 3 if mode == "worker" else 10, **more).items():
                found[mode][name] += seconds
    rows = []
    for name in found["off"]:
        off, warn, worker = (1e6 * statistics.median(found[mode][name]) for mode in modes)
        text = "8 B cudaMemcpyAsync, cudaEventRecord, cudaEventQuery until done" if name == "round-trip" else name
        rows.append([text, f"{off:.2f}", f"{warn:.2f}", f"{warn / off:.1f}", f"{worker:.2f}"])
    return rows


def resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def start(program: Path, processes: int, streams: int) -> tuple[float, float]:
    """Seconds until all processes have used their streams, and the MiB of the largest."""
    command = [str(program), str(folder() / LIBRARIES["cudart13"]), "start", str(streams)]
    running: list[subprocess.Popen[bytes]] = []
    begin = time.monotonic()
    try:
        for _ in range(processes):
            running.append(subprocess.Popen(command, env=environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout
            if process.stdout.readline() != b"ready\n":
                raise SystemExit(f"a process of {processes} did not start")
        return time.monotonic() - begin, max(resident(process.pid) for process in running)
    finally:
        for process in running:
            process.communicate()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="one round, and the file stays as it is")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "hostcuda.md")
    args = parser.parse_args()
    repeat = 1 if args.quick else args.repeat
    before = load()
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        program = Path(name) / "hostcuda"
        build(program)
        large = copies(program, repeat)
        small = small_calls(program, repeat)
        seconds, rss = start(program, args.processes, args.streams)
    limits = [
        ["64 MiB cudaMemcpyAsync beside memcpy, slowest", ">= 0.9", min(row[3] for row in large)],
        ["8 B copy and event, there and back, us", "<= 5", small[0][1]],
        ["sanitizer on small calls, slowest", "<= 2 x", max((row[3] for row in small), key=float) + " x"],
        [f"start of {args.processes} processes with {args.streams} streams, s", "<= 10", f"{seconds:.1f}"],
        ["the largest of them, MiB", "<= 30", f"{rss:.1f}"],
    ]
    text = (
        f"# hostcuda\n\n`python benchmarks/hostcuda.py`, medians of {repeat} rounds on {os.cpu_count()} cores ({processor()}), "
        f"Linux {platform.release().split('-')[0]}. Load of the machine before: {before}.\n\n"
        + table(["what", "wanted", "measured"], limits)
        + "\nCopies of 64 MiB by `cudaMemcpyAsync` and `cudaStreamSynchronize`; `memcpy` between pinned buffers of the same size.\n\n"
        + table(["copy", "memcpy ms", "copy ms", "memcpy / copy", "of the fastest"], large)
        + "\nSmall calls in microseconds: alone, with PSM_HOSTCUDA_SANITIZE=warn, and with all work on workers (PSM_HOSTCUDA_INLINE=0).\n\n"
        + table(["call", "us", "sanitizer us", "ratio", "worker us"], small)
    )
    print(text)
    if not args.quick:
        args.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
