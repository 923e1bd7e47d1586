"""Measure libnccl-net-psm.so against plain TCP, and its shared memory against libpsm's FIFO.

    python benchmarks/net.py [--quick] [--library FOLDER] [--output benchmarks/net.md]

benchmarks/net.c and fifo.c do the work, compiled with $CC (cc) against the libraries of psmkit (--library: a folder with lib and
include). Two processes are pinned to processors 0 and 1 and use the loopback interface. All ways take turns of some milliseconds.
A figure is the best turn: the rate on a quiet machine. The median beside it shows the effect of other work.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import fifo

from benchmarks.machine import clean, load, processor

MIB = 1 << 20
LIMIT = 120.0  # seconds for a program
CONGESTION = Path("/proc/sys/net/ipv4")


@dataclass
class Way:
    """One way of moving messages: its command, and the nanoseconds of its turns."""

    text: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.turns)


def build(place: Path, target: Path) -> Path:
    """Compile the C programs."""
    program = target / "net"
    include = fifo.ROOT / "psmkit" / "psm" / "include"
    command = [
        os.environ.get("CC", "cc"),
        "-O2",
        "-std=gnu11",
        f"-I{include}",
        fifo.HERE / "net.c",
        "-o",
        program,
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return program


def measure(ways: list[Way], size: int, rounds: int, env: dict[str, str], turns: int) -> None:
    """All ways in turn, ``rounds`` times."""
    for _ in range(rounds):
        for way in ways:
            command = [*way.command, str(size), str(turns)]
            done = subprocess.run(
                command, env={**env, **way.env}, capture_output=True, text=True, timeout=LIMIT, check=False
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
            # The way without a record also prints a warning.
            way.turns += [float(line) for line in done.stdout.splitlines() if line[:1].isdigit()]


def tcp_ways(program: Path, kind: str) -> list[Way]:
    """TCP with each congestion control that is available to a user."""
    available = (CONGESTION / "tcp_available_congestion_control").read_text().split()
    system = (CONGESTION / "tcp_congestion_control").read_text().strip()
    names = []
    for name in sorted(available):
        with socket.socket() as trial, contextlib.suppress(OSError):  # some need privileges
            trial.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            names.append(name)
    return [
        Way(f"TCP, {name}{' (the default here)' if name == system else ''}, {text}", [str(program), name, what])
        for name in names
        for what, text in ((f"tcp-{kind}", "blocking calls"), (f"tcp-spin-{kind}", "polled"))
    ]


def plugin_ways(program: Path, library: Path, kind: str) -> list[Way]:
    """The plugin with default and other settings."""
    command = [str(program), str(library), f"plugin-{kind}"]
    ways = [
        Way("plugin, socket", command),
        Way("plugin, socket, maxRecvs 8", command, {"PSM_NET_MAX_RECVS": "8"}),
        Way("plugin, shm", command, {"PSM_NET": "shm"}),
        Way("plugin, shm, no record", command, {"PSM_NET": "shm", "PSM_RECORD_DIR": "/proc/no-such-folder"}),
    ]
    if kind == "stream":
        ways[2:2] = [
            Way("plugin, socket, 4 streams", command, {"PSM_NET_STREAMS": "4"}),
            Way("plugin, socket, the system's congestion control", command, {"PSM_NET_CONGESTION": "system"}),
        ]
    return ways


def table(ways: list[Way], size: int, kind: str) -> list[str]:
    """The plugin is compared with the best plain way; its shared memory with libpsm's FIFO."""
    tcp = min(way.best for way in ways if way.text.startswith("TCP"))
    own = [way.best for way in ways if way.text.startswith("libpsm")]
    small = kind == "pingpong"
    unit = "best ns, one way | median ns" if small else "best GB/s | median GB/s"
    title = "8 bytes" if small else f"{size // MIB} MiB, 4 in flight"
    lines = [f"| {title} | {unit} | |", "|---|---:|---:|---|"]
    for way in ways:
        base = own[0] if "shm" in way.text and own else tcp
        ratio = way.best / base if small else base / way.best
        name = "libpsm's FIFO" if base != tcp else "the best of TCP"
        note = f"{ratio:.2f} x {name}" if way.text.startswith("plugin") else ""
        middle = statistics.median(way.turns)
        figures = (way.best, middle) if small else (size / way.best, size / middle)
        shown = [f"{figure:.0f}" if small else f"{figure:.1f}" for figure in figures]
        lines.append(f"| {way.text} | {shown[0]} | {shown[1]} | {note} |")
    return lines


def calls(target: Path, library: Path, rounds: int, env: dict[str, str]) -> list[str]:
    """The overhead of this plugin and its record on a call of a plugin that returns at once (net_null.c), called directly in the same turn."""
    null, program = target / "libnccl-net-null.so", target / "net_calls"
    compiler = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", f"-I{fifo.ROOT / 'psmkit' / 'psm' / 'include'}"]
    subprocess.run([*compiler, "-shared", "-fPIC", fifo.HERE / "net_null.c", "-o", null], check=True)
    subprocess.run([*compiler, fifo.HERE / "net_calls.c", "-o", program, "-ldl"], check=True)
    chained = {"PSM_NET": f"chain:{null}"}
    ways: dict[str, tuple[Path, dict[str, str]]] = {
        "the other plugin alone": (null, {}),
        "chain, no record": (library, {**chained, "PSM_RECORD_DIR": "/proc/no-such-folder"}),
        "chain": (library, chained),
    }
    turns: dict[str, list[list[float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, (path, more) in ways.items():
            done = subprocess.run(
                [program, path, "10"], env={**env, **more}, capture_output=True, text=True, timeout=LIMIT, check=True
            )
            turns[name] += [[float(n) for n in line.split()] for line in done.stdout.splitlines() if line[:1].isdigit()]
    best = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in turns.items()}
    bare, plain, full = best.values()
    lines = ["| a call, best ns | isend | irecv | test |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | " + " | ".join(f"{ns:.1f}" for ns in row) + " |" for name, row in best.items()]
    for text, low, high in (("chain adds, with the record", bare, full), ("of that the record", plain, full)):
        lines.append(f"| {text} | " + " | ".join(f"{b - a:.1f}" for a, b in zip(low, high, strict=True)) + " |")
    return lines


def own_fifo(made: dict[str, Path], size: int, rounds: int, env: dict[str, str]) -> Way:
    """libpsm's FIFO, measured by the program of benchmarks/fifo.py."""
    way = Way("libpsm's FIFO, 8 x 256 KiB", [])
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        arguments = ("small", 20) if size == 8 else ("bandwidth", size, 5)
        for name, seconds in fifo.run([made["fifo"], *arguments], env).items():
            found[name] += seconds
    way.turns = [seconds * 1e9 for seconds in found["fifo"]]
    return way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--library", type=Path, default=None, help="a folder with lib and include")
    parser.add_argument("--output", type=Path, help="write the tables there")
    arguments = parser.parse_args()
    place = (arguments.library or fifo.tree()).resolve()
    rounds = 2 if arguments.quick else 6
    before = load()
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        program, made = build(place, target), fifo.build(place, target)
        (target / "records").mkdir(mode=0o700)
        env = clean() | {"PSM_RECORD_DIR": str(target / "records"), "NCCL_SOCKET_IFNAME": "=lo"}
        library = place / "lib" / "libnccl-net-psm.so"
        sections = []
        for kind, size, turns in (("stream", MIB, 40), ("stream", 64 * MIB, 8), ("pingpong", 8, 60)):
            ways = [*tcp_ways(program, kind), *plugin_ways(program, library, kind)]
            measure(ways, size, rounds, env, turns)
            ways.append(own_fifo(made, size, rounds, env))
            sections.append(table(ways, size, kind))
        sections.append(calls(target, library, rounds, env))
    text = "\n\n".join(
        [
            "# The net plugin beside TCP alone",
            f"`python benchmarks/net.py`, on {os.cpu_count()} processors ({processor()}), Linux {platform.release()}, loopback.\n"
            f"Load of the machine before: {before}, after: {load()}.",
            *("\n".join(lines) for lines in sections),
        ]
    )
    if arguments.output:
        arguments.output.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    sys.exit(main())
