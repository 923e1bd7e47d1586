"""Run what is too long for .ci/run, and write a summary: nightly.py [STEP ...], every step without arguments.

The summary, benchmarks/nightly.md, names the commit of each step and is committed next; steps that do not run keep their line. The output of each step is in build/nightly.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "nightly.md"
OUTPUT = ROOT / "build" / "nightly"
# Step -> the arguments of make, and whether other programs load every core meanwhile.
STEPS: dict[str, tuple[list[str], bool]] = {
    "tests": (["test"], False),
    "tests-under-load": (["test"], True),
    "asan": (["sanitize", "SANITIZE=test"], False),
    "asan-lab": (["sanitize", "SANITIZE=lab", "LAB_SECONDS=300"], False),
    "tsan": (["sanitize", "SANITIZE=thread"], False),
    "tsan-lab": (["sanitize", "SANITIZE=thread-lab", "LAB_SECONDS=300"], False),
    "losses": (["losses"], False),
    "fuzz": (["fuzz", "FUZZ_SECONDS=1200"], False),
    "matrix": (["matrix"], False),
    "score": (["score"], False),
    "model": (["model", "MODEL_ARGS=--thorough"], False),
    "stock-nccl": (["test-nccl"], False),
    "wheel": (["wheel-check"], False),
}
_COUNTS = re.compile(r"(\d+ (?:passed|failed|skipped|deselected|errors?)\b.*?) in [\d.]+s")


@contextlib.contextmanager
def load(wanted: bool) -> Iterator[None]:
    """One busy process for each core."""
    count = (os.cpu_count() or 1) if wanted else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(name: str) -> tuple[bool, float, str]:
    """Run a step: whether it passed, its seconds, and the counts that it printed last."""
    arguments, loaded = STEPS[name]
    log = OUTPUT / f"{name}.log"
    begun = time.monotonic()
    with load(loaded), log.open("wb") as out:
        done = subprocess.run(["make", *arguments], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace").replace(f"{ROOT}/", "")
    counts = _COUNTS.findall(text)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return done.returncode == 0, time.monotonic() - begun, "; ".join(counts) or f"last line: {last[:120]}"


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def row(name: str, good: bool, seconds: float, counts: str, commit: str) -> str:
    """A line of the table."""
    arguments, loaded = STEPS[name]
    command = f"`make {' '.join(arguments)}`{', every core busy' if loaded else ''}"
    cells = (name, command, "passed" if good else "**failed**", f"{seconds / 60:.1f}", commit, counts.replace("|", "/"))
    return f"| {' | '.join(cells)} |"


def rows_of(text: str) -> dict[str, str]:
    """The lines of the table in an older page by step: a step that runs alone leaves those of the others."""
    found = ((line.split(" | ", 1)[0].removeprefix("| "), line) for line in text.splitlines() if line.startswith("| "))
    return {name: line for name, line in found if name in STEPS}


def page(rows: Mapping[str, str]) -> str:
    """The summary."""
    lines = [
        "# Nightly run",
        "",
        "Written by `make nightly` (scripts/nightly.py); each step names the commit that it ran at, and is committed after it.",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "",
        "| step | command | result | minutes | commit | counts |",
        "|---|---|---|---:|---|---|",
        *(rows[name] for name in STEPS if name in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the steps, and write the page after each, so that an interrupted run leaves what it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"one of {', '.join(STEPS)}")
    chosen: list[str] = parser.parse_args().steps or list(STEPS)
    if unknown := [name for name in chosen if name not in STEPS]:
        parser.error(f"unknown step {unknown[0]!r}, expected one of {', '.join(STEPS)}")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "--short=10", "HEAD")
    if git("status", "--porcelain", "--", ".", ":!benchmarks/nightly.md"):
        commit += " with uncommitted changes"
    rows = rows_of(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    all_good = True
    for name in chosen:
        print(f"{name}: make {' '.join(STEPS[name][0])}", flush=True)
        good, seconds, counts = run(name)
        rows[name] = row(name, good, seconds, counts, commit)
        all_good &= good
        print(f"  {'passed' if good else 'FAILED'} after {seconds:.0f} s: {counts}", flush=True)
        PAGE.write_text(page(rows), "utf-8")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
