"""Measure how fast logs are read, whichever way they come, beside what reads the same bytes and does less.

    python benchmarks/reading.py [--mb N] [--repeat N] [--output benchmarks/results.md]

Each row is a process of its own that reads one log: as a file, as 64 files, compressed, through a pipe, with one thread and with one a core. Beside
it are ``rg -c``, the decompressor alone, and hyperscan with the literals of the catalogue (``pip install hyperscan``; its rows say so where it is
missing). MB/s is of plain text: the best of some runs by the clock, and by processor time, which other work on the machine affects less. Two
rows show the two steps of a scan: lines are read ahead by any thread, and booked in order by one, which bounds what further cores can give. The
table replaces the section of the page.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import processor  # noqa: E402
from psmkit.catalogue import load  # noqa: E402
from tests.loggen.stream import calls, stream  # noqa: E402

PAGE = ROOT / "benchmarks" / "results.md"
TITLE = "## Ways to read a log\n"
NEXT = "\n## "
MB = 1_000_000
FILES = 64
LOGS: dict[str, Callable[[int], Iterable[bytes]]] = {"64 ranks": stream, "4,096 processes, calls only": calls}

# Each prints the seconds of the clock, those of the process, and those of its first thread, which books lines.
_TIMED = """
import os, sys, time
import numpy  # a long log needs it: its import is a part of the start
{body}
print(time.perf_counter() - begin, time.process_time() - used, time.thread_time() - of_thread)
"""
_SCAN = """
from psmkit.logparse.scanner import scan
from psmkit.catalogue import load
catalogue = load()
begin, used, of_thread = time.perf_counter(), time.process_time(), time.thread_time()
scan(sys.argv[2:], catalogue=catalogue, jobs=int(sys.argv[1])).close()
"""
_UNPACK = """
from psmkit.logparse.inputs import look
from psmkit.logparse.streams import Input, Reader
path = sys.argv[1]
reader, room = Reader(Input(path, path.rpartition(".")[2], os.path.getsize(path))), memoryview(bytearray(1 << 20))
begin, used, of_thread = time.perf_counter(), time.process_time(), time.thread_time()
while reader.readinto(room):
    pass
reader.close()
"""
# The two steps of a scan, one after the other; the clock runs in one of them.
_STEP = """
from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import load
catalogue = load()
native = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)
ahead = ffi.gc(lib.ls_ahead_new(catalogue.native, 0), lib.ls_ahead_free)
file = lib.ls_scan_file(native, lib.ls_scan_stream(native))
room, spent = bytearray(1 << 18), {"ahead": [0.0, 0.0], "books": [0.0, 0.0]}
at, turns = ffi.from_buffer(room), 0
def step(name, call):
    clock, cpu = time.perf_counter(), time.process_time()
    call()
    spent[name][0] += time.perf_counter() - clock
    spent[name][1] += time.process_time() - cpu
with open(sys.argv[2], "rb", buffering=0) as log:
    while n := log.readinto(room):
        step("ahead", lambda: lib.ls_read_ahead(ahead, 0, at, n))
        step("books", lambda: lib.ls_feed_ahead(native, file, ahead))
        turns += 1
        if turns % 4 == 0:
            step("books", lambda: lib.ls_end_round(native))
clock, cpu = spent[sys.argv[1]]
begin, used, of_thread = time.perf_counter() - clock, time.process_time() - cpu, time.thread_time() - cpu
"""
_HYPERSCAN = """
import json, hyperscan
literals = json.loads(open(sys.argv[1]).read())
database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
database.compile(
    expressions=[literal.encode() for literal in literals],
    ids=list(range(len(literals))),
    flags=[hyperscan.HS_FLAG_SINGLEMATCH] * len(literals),
)
count = [0]
def seen(*_):
    count[0] += 1
room = bytearray(1 << 20)
with open(sys.argv[2], "rb", buffering=0) as file:
    begin, used, of_thread = time.perf_counter(), time.process_time(), time.thread_time()
    while n := file.readinto(room):
        database.scan(room if n == len(room) else room[:n], match_event_handler=seen)
"""


@dataclass(frozen=True)
class Row:
    """A way to read a log: MB/s by the clock and by processor time, and the share of the thread that takes the lines."""

    log: str
    what: str
    clock: float = 0.0
    cpu: float = 0.0
    share: float | None = None
    note: str = ""


def timed(body: str, arguments: list[str], stdin: Path | None = None) -> tuple[float, float, float]:
    """Run a script in a process of its own."""
    script = _TIMED.replace("{body}", body)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    feeder = subprocess.Popen(["cat", str(stdin)], stdout=subprocess.PIPE) if stdin else None
    source = feeder.stdout if feeder else subprocess.DEVNULL
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], stdin=source, capture_output=True, text=True, env=environment
    )
    if feeder is not None:
        feeder.kill()
        feeder.wait()
    if done.returncode:
        raise SystemExit(f"{arguments}: exit {done.returncode}: {done.stderr[-800:]}")
    clock, cpu, thread = map(float, done.stdout.split())
    return clock, cpu, thread


def program(command: list[str]) -> tuple[float, float, float]:
    """Run another program."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, cpu, cpu


def literals() -> list[str]:
    """The longest literal of each pattern, as a regular expression."""
    found: dict[str, None] = {}
    for message in load().messages:
        for pattern in message.patterns:
            parts = re.split(r"\{[^}]*\}", pattern.replace("{{", "\x01").replace("}}", "\x02"))
            longest = max(parts, key=len).replace("\x01", "{").replace("\x02", "}")
            if len(longest) >= 4:
                found[re.escape(longest)] = None
    return list(found)


def split(path: Path, folder: Path) -> list[str]:
    """A log as files of whole lines, each with the lines of some processes, so that they are read side by side."""
    folder.mkdir()
    files = [(folder / f"{i}.log").open("wb") for i in range(FILES)]
    for line in path.open("rb"):
        found = re.match(rb"[^:]*:(\d+):", line)
        files[(hash(line.partition(b":")[0]) + int(found[1]) if found else 0) % FILES].write(line)
    for file in files:
        file.close()
    return [file.name for file in files]


def packed(path: Path) -> Iterator[tuple[str, Path]]:
    """The log, compressed in each way that can be read here."""
    target = path.with_suffix(".gz")
    with path.open("rb") as raw, gzip.open(target, "wb", compresslevel=1) as file:
        shutil.copyfileobj(raw, file, 1 << 20)
    yield "gzip, isal", target
    try:
        import zstandard
    except ImportError:
        return
    target = path.with_suffix(".zst")
    with path.open("rb") as raw, target.open("wb") as file:
        zstandard.ZstdCompressor(level=3).copy_stream(raw, file)
    yield "zstd", target


def rows(log: str, path: Path, folder: Path, repeat: int) -> Iterator[Row]:
    """A row a way."""
    size = path.stat().st_size
    cores = len(os.sched_getaffinity(0))
    jobs = sorted({1, min(cores, 2), cores})

    def best(what: str, once: Callable[[], tuple[float, float, float]], share: bool = False) -> Row:
        runs = [once() for _ in range(repeat)]
        clock, cpu = min(run[0] for run in runs), min(run[1] for run in runs)
        thread = min(run[2] / run[1] for run in runs) if share else None
        return Row(log, what, size / clock / MB, size / cpu / MB, thread)

    for n in jobs:
        yield best(f"psmkit, file, -j {n}", lambda n=n: timed(_SCAN, [str(n), str(path)]), n > 1)  # type: ignore[misc]
    for name, what in (("ahead", "reading lines ahead, alone"), ("books", "booking them in order, alone")):
        yield best(f"psmkit, {what}", lambda name=name: timed(_STEP, [name, str(path)]))  # type: ignore[misc]
    if shutil.which("rg"):
        yield best("rg -j 1 -c 'opId=0x'", lambda: program(["rg", "-j", "1", "-c", "opId=0x", str(path)]))
    else:
        yield Row(log, "rg -j 1 -c 'opId=0x'", note="ripgrep is not installed")
    known = folder / "literals.json"
    import json

    known.write_text(json.dumps(literals()))
    try:
        import hyperscan  # noqa: F401
    except ImportError:
        yield Row(log, "hyperscan, literals", note="it is not installed")
    else:
        count = len(json.loads(known.read_text()))
        yield best(f"hyperscan, {count:,} literals", lambda: timed(_HYPERSCAN, [str(known), str(path)]))
    files = split(path, folder / f"{path.stem}-files")
    for n in jobs:
        yield best(f"psmkit, {FILES} files, -j {n}", lambda n=n: timed(_SCAN, [str(n), *files]), n > 1)  # type: ignore[misc]
    for n in jobs:
        yield best(f"psmkit, pipe, -j {n}", lambda n=n: timed(_SCAN, [str(n), "-"], path), n > 1)  # type: ignore[misc]
    for name, target in packed(path):
        for n in jobs:
            yield best(
                f"psmkit, {name}, -j {n}",
                lambda n=n, target=target: timed(_SCAN, [str(n), str(target)]),  # type: ignore[misc]
                n > 1,
            )
        yield best(f"{name}, decompressor alone", lambda target=target: timed(_UNPACK, [str(target)]))  # type: ignore[misc]


def section(found: list[Row], mb: int, repeat: int, load: tuple[float, float]) -> str:
    """The section of the page."""
    lines = [
        "| log | way | MB/s by the clock | MB/s of processor time | share of the thread that books |",
        "|---|---|---:|---:|---:|",
    ]
    for r in found:
        share = f"{r.share:.0%}" if r.share is not None else ""
        lines.append(
            f"| {r.log} | {r.what} | {r.clock:.0f} | {r.cpu:.0f} | {share} |"
            if r.clock
            else f"| {r.log} | {r.what} | {r.note} | | |"
        )
    about = (
        f"`benchmarks/reading.py --mb {mb} --repeat {repeat}`: {os.cpu_count()} cores ({processor()}), load {load[0]:.1f} before and {load[1]:.1f} after. The best of "
        f"{repeat} runs, start of the process not counted. Booking is done in order, by one thread, so that further cores can give at most what it "
        "takes alone; that thread also reads lines where it would wait, which its share of the processor time shows. hyperscan reports each literal once a MiB, so that its callback in Python costs nothing; it finds literals, but no field.\n"
    )
    return "\n".join([TITLE, about, *lines, ""])


def replaced(page: str, text: str) -> str:
    """A page with its section replaced, or added before those that other programs write at its end."""
    before, title, rest = page.partition(TITLE)
    after = rest[rest.index(NEXT) + 1 :] if title and NEXT in rest else ""
    if not title and NEXT in page:
        at = page.index(NEXT) + 1
        before, after = page[:at], page[at:]
    return f"{before.rstrip()}\n\n{text}" + (f"\n{after}" if after else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=200, help="MB of each log")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        folder = Path(name)
        for number, (log, make) in enumerate(LOGS.items()):
            path = folder / f"{number}.log"
            with path.open("wb") as file:
                file.writelines(make(args.mb * MB))
            for row in rows(log, path, folder, args.repeat):
                found.append(row)
                print(row, file=sys.stderr, flush=True)
    text = section(found, args.mb, args.repeat, (before, os.getloadavg()[0]))
    print(text)
    args.output.write_text(replaced(args.output.read_text() if args.output.exists() else "", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
