"""Measure what `psmkit record` costs a job: the same job of the lab with and without it, in turns.

    python benchmarks/record.py [--pairs 10] [--ranks 2] [--iters 2000] [--output benchmarks/record.md]

Both have the same settings: the lab sets them itself. Seconds are those of the ranks, from their start to their end, as the lab counts them.
The agent's CPU time is that of its whole life, with its start and without the packing of the archive.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import mean, median, quantiles, stdev

import zstandard

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean, load, processor  # noqa: E402

PSMKIT = (sys.executable, "-m", "psmkit")


def lab(folder: Path, ranks: int, iters: int, *before: str) -> float:
    """Seconds of the ranks of a job; ``before`` is the command around it."""
    command = [*before, *PSMKIT, "lab", "run", "--ranks", str(ranks), "--size", "1M", "--iters", str(iters)]
    command += ["--deadline", "600", "--format", "json", "--out", str(folder / "lab")]
    done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True, check=True)
    seconds = json.loads(done.stdout)["seconds"]
    assert isinstance(seconds, float)
    return seconds


def agent_cpu(archive: Path) -> tuple[float, float]:
    """CPU seconds of the agent, and the seconds from its start to the end of the command."""
    with (
        archive.open("rb") as raw,
        zstandard.ZstdDecompressor().stream_reader(raw) as data,
        tarfile.open(fileobj=data, mode="r|") as tar,
    ):
        first = tar.next()  # the manifest
        file = tar.extractfile(first) if first is not None else None
        assert file is not None
        document = json.loads(file.read())
    return document["agent_cpu"], document["ended"]["time"] - document["started"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iters", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "record.md")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs: at least 2, for the spread")
    plain, recorded, cpu, life = [], [], [], []
    busy = load()
    for pair in range(options.pairs):
        for with_agent in (False, True) if pair % 2 else (True, False):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                before = (*PSMKIT, "record", "-q", "-o", "a", "--") if with_agent else ()
                seconds = lab(folder, options.ranks, options.iters, *before)
                (recorded if with_agent else plain).append(seconds)
                if with_agent:
                    used, lived = agent_cpu(folder / "a.psmkit.tar.zst")
                    cpu.append(used)
                    life.append(lived)
        print(
            f"pair {pair + 1}: {plain[-1]:.2f} s, recorded {recorded[-1]:.2f} s, agent {cpu[-1]:.3f} s CPU", flush=True
        )
    ratios = [100 * (b / a - 1) for a, b in zip(plain, recorded, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    error = stdev(ratios) / len(ratios) ** 0.5
    share = [100 * used / lived for used, lived in zip(cpu, life, strict=True)]
    text = f"""# What `psmkit record` costs

`python benchmarks/record.py --pairs {options.pairs} --ranks {options.ranks} --iters {options.iters}`, {processor()}, Linux {platform.release()},
Python {platform.python_version()}, load {busy} before. The same job of the lab with and without an agent, in turns; {options.ranks} ranks that send
each other 1 MiB, logged and recorded in both. Seconds are those of the ranks. The agent's CPU time is that of its whole life, its start included.
Where the spread of the pairs is
wider than the cost, that CPU time is the bound: the agent has one thread, and ranks wait for it only where they print faster than it passes on.

| | median |
|---|---:|
| ranks without the agent | {median(plain):.2f} s |
| ranks with it | {median(recorded):.2f} s |
| difference within a pair | {median(ratios):+.2f} % (middle half: {low:+.2f} % to {high:+.2f} %; mean {mean(ratios):+.2f} % with a standard error of {error:.2f} %) |
| CPU time of the agent | {median(cpu):.2f} s, {median(share):.2f} % of one core |
"""
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
