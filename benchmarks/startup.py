"""How long a short command takes: startup.py [--runs N] [--output FILE].

Shows the time of `python -c pass` beside that of each command, in a process of its own, as wall and as processor time: the least of N runs. The
catalogue's cache is filled before. Needs a quiet machine; a test counts modules instead (tests/cli/test_startup.py).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests" / "data" / "logs" / "passsm-8gpu.log"
PSMKIT = Path(sys.executable).with_name("psmkit")


def least(command: list[str], env: dict[str, str], runs: int) -> tuple[float, float]:
    """Milliseconds of the clock and of the processor, each of the fastest run."""
    wall, work = [], []
    for _ in range(runs + 1):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False, timeout=120)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        work.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1e3 * min(wall[1:]), 1e3 * min(work[1:])  # the first run may fill caches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        large = Path(name) / "1M.log"
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"XDG_CACHE_HOME": name}
        subprocess.run(
            [PSMKIT, "lab", "synth", "--ranks", "16", "--bytes", "1M", "--fault", "setup-fails", "-o", large],
            env=env, check=True, timeout=120,
        )  # fmt: skip
        psmkit = str(PSMKIT)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "psmkit --help": [psmkit, "--help"],
            "psmkit analyze, 22 kB": [psmkit, "analyze", str(LOG)],
            "psmkit analyze, 1 MB": [psmkit, "analyze", str(large)],
            "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
        }
        lines = ["| command | ms | ms of the processor |", "|---|---|---|"]
        for title, command in commands.items():
            wall, work = least(command, env, given.runs)
            lines.append(f"| `{title}` | {wall:.0f} | {work:.0f} |")
    print("\n".join(lines))
    if given.output:
        given.output.write_text("# Start-up\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
