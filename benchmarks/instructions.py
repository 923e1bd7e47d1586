"""Count what the scanner costs for each byte of a log, in instructions and cache misses, which no other work on the machine changes.

    python benchmarks/instructions.py [--mb N] [--check] [--output benchmarks/results.md]

callgrind counts what ``ls_feed`` and all that it calls execute, while one process scans each log once. Both logs come from
tests/loggen/stream.py, seeded. Misses are those of a simulated processor, whose caches do not depend on this machine. The table replaces the
section of the page. --check compares with the page instead, and exits with 1 if a log costs more than 3 % more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.loggen.stream import calls, stream  # noqa: E402

PAGE = ROOT / "benchmarks" / "results.md"
TITLE = "## Instructions for a byte\n"
MB = 1_000_000
TOLERANCE = 0.03
FUNCTIONS = 8  # of each log in the table
CACHES = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=49152,12,64", "--LL=2097152,16,64")
LOGS: dict[str, Callable[[int], Iterable[bytes]]] = {
    "64 ranks, all subsystems": stream,
    "4,096 processes, proxy calls only": calls,
}
SCAN = "import sys; from psmkit.logparse.scanner import scan; [scan(path, jobs=1) for path in sys.argv[1:]]"


@dataclass(frozen=True)
class Cost:
    """What a log costs: totals by callgrind's names of events, and instructions by function."""

    log: str
    size: int
    lines: int
    events: dict[str, int]
    functions: Counter[str]

    @property
    def per_byte(self) -> float:
        return self.events["Ir"] / self.size

    @property
    def misses(self) -> tuple[float, float]:
        """Data misses of the first and of the last cache, for each line."""
        first, last = (sum(self.events[f"{cache}m{way}"] for way in "rw") for cache in ("D1", "DL"))
        return first / self.lines, last / self.lines


def read_dump(text: str) -> tuple[dict[str, int], Counter[str]]:
    """The totals and the instructions of each function in a file of callgrind's."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    events: list[str] = []
    totals: dict[str, int] = {}
    function, called = "", False
    for line in text.splitlines():
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith(("totals:", "summary:")):
            totals = dict(zip(events, map(int, line.split()[1:]), strict=False))
        elif found := re.fullmatch(r"c?fn=(\(\d+\))(?: (.+))?", line):
            if found[2]:
                names[found[1]] = found[2]
            if not line.startswith("c"):
                function = names[found[1]].split("'", 1)[0]
        elif line.startswith("calls="):
            called = True
        elif line[:1] in "0123456789+-*" and line:
            if not called:
                own[function] += int(line.split()[1]) if " " in line else 0
            called = False
    return {name: totals.get(name, 0) for name in events}, own


def costs(size: int) -> Iterator[Cost]:
    """Scan the logs under callgrind; a dump at the end of each scan."""
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        folder = Path(name)
        logs = []
        for number, make in enumerate(LOGS.values()):
            path = folder / f"{number}.log"
            path.write_bytes(b"".join(make(size)))
            logs.append(path)
        tool = ["sh", str(ROOT / "scripts" / "debian_tool.sh"), "valgrind"]
        valgrind = subprocess.run(tool, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
        options = ["--tool=callgrind", "--toggle-collect=ls_feed", "--dump-after=ls_finish", *CACHES]
        target = f"--callgrind-out-file={folder / 'dump'}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
        command = [valgrind, *options, target, sys.executable, "-c", SCAN, *map(str, logs)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"callgrind: exit {done.returncode}: {done.stderr[-500:]}")
        for number, (title, path) in enumerate(zip(LOGS, logs, strict=True), 1):
            events, functions = read_dump((folder / f"dump.{number}").read_text())
            text = path.read_bytes()
            yield Cost(title, len(text), text.count(b"\n"), events, functions)


def section(found: list[Cost]) -> str:
    """The section of the page."""
    rows = [
        f"| {c.log} | {c.size:,} | {c.per_byte:.2f} | {c.events['Ir'] / c.lines:.0f} | {c.misses[0]:.2f} | {c.misses[1]:.2f} |"
        for c in found
    ]
    parts = []
    for c in found:
        most = c.functions.most_common(FUNCTIONS)
        parts.append(f"{c.log}: " + ", ".join(f"`{name}` {count / c.size:.2f}" for name, count in most) + ".\n")
    head = [
        "| log | bytes | instructions a byte | instructions a line | misses of 48 KiB a line | misses of 2 MiB a line |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    about = (
        "`benchmarks/instructions.py`: callgrind counts `ls_feed` and what it calls, and simulates the caches. These figures do not depend on other work "
        "on the machine, and little on the machine. `--check` compares a tree with them.\n"
    )
    return "\n".join([TITLE, about, *head, *rows, "", "Instructions a byte by function:\n", *parts])


def kept(page: Path) -> str:
    """The section of a page, for those who write the rest of it."""
    _, title, text = (page.read_text() if page.exists() else "").partition(TITLE)
    return f"\n{title}{text}" if title else ""


def recorded(page: str) -> dict[str, float]:
    """The instructions a byte of each log in a page."""
    _, _, text = page.partition(TITLE)
    return {
        log: float(value) for log, value in re.findall(r"^\| (.+?) \| [\d,]+ \| ([\d.]+) \|", text, flags=re.MULTILINE)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=12, help="MB of each log")
    parser.add_argument("--check", action="store_true", help="compare with the page")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    found = list(costs(args.mb * MB))
    text = section(found)
    print(text)
    page = args.output.read_text() if args.output.exists() else ""
    if args.check:
        known = recorded(page)
        # Nothing counted is no good figure: the functions have other names.
        worse = [c for c in found if not 0 < c.per_byte <= known.get(c.log, 0.0) * (1 + TOLERANCE)]
        for c in worse:
            print(
                f"{c.log}: {c.per_byte:.2f} instructions a byte, expected {known.get(c.log, 0.0):.2f}", file=sys.stderr
            )
        return 1 if worse else 0
    before = page.partition(TITLE)[0].rstrip()
    args.output.write_text(f"{before}\n\n{text}" if before else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
