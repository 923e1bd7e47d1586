"""Show that the memory of an analysis does not grow with the log, and that logs out of the ordinary stay bounded.

    python benchmarks/bounded.py [--gb 10] [--ranks 1024] [--calls 100000000] [--cases NAME,...] [--output benchmarks/bounded.md]

Each log goes through a pipe into `psmkit analyze -`. Memory is RssAnon of the process. Of the two long logs it is taken after each 500 MB, and drawn:
a job of --ranks in --gb, and --calls proxy calls of as many processes, which print nothing else. The others are smaller, and each would fill the
memory of a program that keeps what it reads: one line of 1 GB, 10^7 ids of calls that nobody answers, lines that no message of the catalogue fits,
100,000 hosts. The table shows what the report says was not kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import load, processor  # noqa: E402
from benchmarks.piped import Fed, feed  # noqa: E402
from psmkit.report.drawing import Sheet, step, ticks  # noqa: E402
from tests.loggen.odd import hosts, job, long_line, unanswered, unmatched  # noqa: E402
from tests.loggen.stream import calls  # noqa: E402

MB = 1_000_000
EVERY = 500 * MB
LIMIT = 256  # MiB
_BYTES_OF_A_CALL = 440
_LEFT, _RIGHT, _TALL = 66.0, 860.0, 260.0

Pieces = Iterator[memoryview]


def picture(long: dict[str, Fed]) -> str:
    """RssAnon of the long logs by the bytes that were read."""
    most = max(fed.size for fed in long.values())
    high = LIMIT * 1.1
    sheet = Sheet(900.0, "Memory of an analysis", "RssAnon of psmkit analyze - against the bytes that it has read.")
    sheet.legend(
        (f'<path d="M0 6H14" class="curve s{at}"/>', f"{name}: {fed.size / 1e9:.1f} GB")
        for at, (name, fed) in enumerate(long.items())
    )
    top = sheet.top + 14
    bottom = top + _TALL

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * value / most

    def y(value: float) -> float:
        return bottom - _TALL * value / high

    for at in ticks(0, most, step(0, most, 10)):
        sheet.line(x(at), top, x(at), bottom + 4, "rule")
        sheet.text(x(at), bottom + 18, f"{at / 1e9:g} GB", "dim", anchor="middle")
    for at in ticks(0, high, 64):
        sheet.line(_LEFT - 4, y(at), _RIGHT, y(at), "rule")
        sheet.text(_LEFT - 9, y(at) + 4, f"{at:g} MiB", "dim", anchor="end")
    sheet.line(_LEFT, y(LIMIT), _RIGHT, y(LIMIT), "curve line error", ' stroke-dasharray="7 3"')
    for number, fed in enumerate(long.values()):
        line = "L".join(f"{x(read):.1f} {y(anon):.1f}" for read, anon in fed.points)
        sheet.path(f"M{line}", f"curve s{number}")
    return sheet.render(bottom + 34)


def row(name: str, fed: Fed) -> str:
    """A line of the table."""
    coverage = fed.report.get("coverage", {})
    dropped = [
        n for n in coverage.get("notes", ()) if any(word in n for word in ("cut", "not kept", "not followed", "beyond"))
    ]
    if coverage.get("unmatched"):
        dropped.append(
            f"{coverage['unmatched']:,} lines fit no message, {len(coverage['shapes'])} of their shapes are shown"
        )
    flat = ""
    if len(fed.points) > 2:
        half = fed.points[len(fed.points) // 2 :]
        flat = f"{max(a for _, a in half) - min(a for _, a in half):.1f}"
    return (
        f"| {name} | {fed.size / MB:,.0f} | {fed.seconds:.0f} | {fed.cpu:.1f} | {fed.anon:.0f} | {flat or '-'} | {fed.verdict} "
        f"| {'; '.join(dropped) or '-'} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=100_000_000)
    parser.add_argument("--cases", default="job,calls,line,unanswered,unmatched,hosts")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "bounded.md")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "bounded.svg")
    args = parser.parse_args()
    cases: dict[str, tuple[str, Callable[[], Pieces]]] = {
        "job": (f"{args.ranks} ranks", lambda: job(args.ranks, int(args.gb * 1e9))),
        "calls": (
            f"{args.calls:,} proxy calls",
            lambda: map(memoryview, calls(args.calls * _BYTES_OF_A_CALL, processes=args.ranks)),
        ),
        "line": ("a line of 1 GB", lambda: long_line(1000 * MB)),
        "unanswered": ("10^7 ids without an answer", lambda: unanswered(10_000_000)),
        "unmatched": ("1 GB of unknown lines", lambda: unmatched(1000 * MB)),
        "hosts": ("100,000 hosts", lambda: hosts(100_000)),
    }
    lines = [
        "| log | MB | s | CPU s | RssAnon MiB | its change in the second half MiB | verdict | what was not kept |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    long: dict[str, Fed] = {}
    failed = False
    loads = [load()]
    for key in args.cases.split(","):
        name, make = cases[key]
        fed = feed(make(), every=EVERY)
        lines.append(row(name, fed))
        print(lines[-1], file=sys.stderr, flush=True)
        loads.append(load())
        if fed.status not in (0, 1, 3):
            print(fed.errors, file=sys.stderr)
            failed = True
        if key in ("job", "calls"):
            long[name] = fed
            failed |= fed.anon > LIMIT
    text = (
        f"# Memory of an analysis\n\n`python benchmarks/bounded.py --gb {args.gb:g} --ranks {args.ranks} --calls {args.calls}` on {os.cpu_count()} cores "
        f"({processor()}), Linux {platform.release().split('-')[0]}, Python {platform.python_version()}; load {' '.join(loads)}.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    if long:
        args.picture.write_text(picture(long))
        text += f"\n![RssAnon by bytes read]({os.path.relpath(args.picture, args.output.parent)})\n"
    args.output.write_text(text)
    print(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
