"""Measure what `psmkit watch` costs while many logs grow, and how soon it names a rank that stops.

    python benchmarks/watch.py [--files 1000] [--rate 10] [--seconds 60] [--output benchmarks/watch.md]

The logs are those of tests/loggen/stream.py, a file for each rank, written in pieces that end within lines. After ``--seconds`` one rank stops in the middle of a round, and the others when they have written theirs: from then on they wait. Processor time is
that of the watch and of its judgements. Memory is the largest sum of Pss, and of RssAnon, of these processes: a judgement is a fork, and shares most of its pages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean, load, processor  # noqa: E402
from tests.loggen.stream import stream  # noqa: E402

MB = 1_000_000
_TICK = 0.1
_SETTLE = 10
_PATIENCE = 120.0  # seconds until it must have named the rank
_PREFIX = re.compile(rb"([^\s:]+):(\d+):\d+ ")
_CLOCK = os.sysconf("SC_CLK_TCK")


_Process = tuple[bytes, int]


def split(piece: bytes) -> dict[_Process, bytes]:
    """The lines of each process of a woven text."""
    found: dict[_Process, list[bytes]] = defaultdict(list)
    process = (b"", 0)
    for line in piece.splitlines(keepends=True):
        if (match := _PREFIX.match(line)) is not None:
            process = match[1], int(match[2])
        found[process].append(line)
    return {process: b"".join(lines) for process, lines in found.items()}


class Logs:
    """The files, and what is written to them."""

    def __init__(self, folder: Path, files: int, size: int) -> None:
        """``size``: of what a rank writes at work; there are two rounds more."""
        pieces = stream(1 << 50, ranks=files)
        first = split(next(pieces))
        rows = [split(next(pieces)) for _ in range(2)]
        more = size
        while more > 0:
            rows.append(split(next(pieces)))
            more -= min(map(len, rows[-1].values()))
        self.processes = sorted(first, key=lambda process: (int(process[0][4:]), process[1]))
        self.rounds = {process: b"".join(row[process] for row in rows) for process in self.processes}
        self.files = {
            process: (folder / f"rank{rank}.log").open("wb", buffering=0) for rank, process in enumerate(self.processes)
        }
        self.at = dict.fromkeys(self.processes, 0)
        self.written = 0
        for process, data in first.items():
            self._write(process, data)

    def _write(self, process: _Process, data: bytes) -> None:
        self.files[process].write(data)
        self.written += len(data)

    def go_on(self, size: int) -> None:
        """Write the next ``size`` bytes of each rank."""
        for process in self.processes:
            data, at = self.rounds[process], self.at[process]
            self._write(process, data[at : at + size])
            self.at[process] = min(at + size, len(data))

    def stop(self, rank: int) -> None:
        """This rank stops in the middle, and the others at the end of what they have."""
        for number, process in enumerate(self.processes):
            data, at = self.rounds[process], self.at[process]
            if number != rank:
                self._write(process, data[at:])
            else:
                self._write(process, data[at : data.index(b"\n", at + (len(data) - at) // 2) + 1])


class Meter:
    """Memory of a process and of its children, sampled; and their processor time."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pss = self.anon = 0.0
        self.samples = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Processor time so far, with that of the children that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _CLOCK

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.05):
            pids = [self.pid]
            try:
                pids += map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
            except OSError:
                return
            self.pss = max(self.pss, sum(_memory(pid, "smaps_rollup", "Pss:") for pid in pids))
            self.anon = max(self.anon, sum(_memory(pid, "status", "RssAnon:") for pid in pids))
            self.samples += 1


def _memory(pid: int, name: str, key: str) -> float:
    try:
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="MB/s of all files")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "watch.md")
    given = parser.parse_args()
    loaded = load()
    with tempfile.TemporaryDirectory() as folder:
        logs = Logs(Path(folder), given.files, int(given.rate * MB * given.seconds / given.files))
        command = [sys.executable, "-m", "psmkit", "watch", folder, "--jsonl", "--no-inspect", "--settle", str(_SETTLE)]
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean())
        assert watch.stdout is not None
        meter = Meter(watch.pid)
        time.sleep(5.0)  # its start is not the work that is measured
        before, begun, size = meter.seconds(), time.monotonic(), int(given.rate * MB * _TICK / given.files)
        ticks = 0
        while (now := time.monotonic()) - begun < given.seconds:
            logs.go_on(size)
            ticks += 1
            time.sleep(max(begun + ticks * _TICK - time.monotonic(), 0.0))
        passed, used = now - begun, meter.seconds() - before
        written = ticks * size * given.files
        logs.stop(given.files // 2)
        stopped = time.time()
        named, said, last = -1.0, "", {}
        patience = threading.Timer(_PATIENCE, watch.send_signal, (signal.SIGINT,))
        patience.start()
        for line in watch.stdout:
            last = json.loads(line)
            if named < 0 and re.search(rf"rank {given.files // 2}\b", last["reason"]) and time.time() - stopped > 1:
                named, said = time.time() - stopped, last["reason"]
                watch.send_signal(signal.SIGINT)
        patience.cancel()
        watch.wait()
        meter.close()
        assert last["bytes"] == logs.written, (last["bytes"], logs.written)
    text = f"""# What `psmkit watch` costs

`python benchmarks/watch.py --files {given.files} --rate {given.rate:g} --seconds {given.seconds:g}`, {processor()}, Linux {platform.release()},
Python {platform.python_version()}, load {loaded} before. {given.files:,} files of as many ranks on one folder grow by {given.rate:g} MB/s in all; then one rank stops. Processor time is that of the watch and of
its judgements, without its start: looking at files is bounded by 5 % of a core and judging by 15 %, and on a busy machine both happen less often. A judgement is
a fork, which shares most of its pages: Pss counts a shared page once.

| | |
|---|---:|
| written while it was measured | {written / MB:.0f} MB in {passed:.0f} s, {written / MB / passed:.1f} MB/s |
| processor time | {used:.1f} s, {100 * used / passed:.0f} % of one core |
| largest memory (sum of Pss, {meter.samples} samples) | {meter.pss:.0f} MiB |
| largest sum of RssAnon | {meter.anon:.0f} MiB |
| bytes that the watch read, of {logs.written:,} written | {last["bytes"]:,} |
| it names the rank that stopped | {named:.1f} s after the last line ({_SETTLE} s of them --settle) |

It says: {said.replace(folder + "/", "")}
"""
    given.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
