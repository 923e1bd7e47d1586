"""Measure getCollInfo of libnccl-tuner-psm.so: nanoseconds per call, by version of the table and number of rules.

    python benchmarks/tuner.py [--calls N] [--repeat N] [--output benchmarks/tuner.md]

psm_tuner_drive asks as NCCL does, and compares all outputs after each call; the last row is the cost of that with a tuner that does nothing.
Each figure is the minimum of all batches, because other work on the machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import clean  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402

LIMIT = 120.0  # seconds for a run
RULES = (0, 10, 1000, 4000)
EMPTY = """
#include "psm_abi/tuner.h"
static ncclResult_t init(void **c, uint64_t i, size_t r, size_t n, ncclDebugLogger_t l, ncclNvlDomainInfo_v5_t *d,
                         ncclTunerConstants_v5_t *k)
{ (void)i; (void)r; (void)n; (void)l; (void)d; (void)k; *c = 0; return ncclSuccess; }
static ncclResult_t get(void *c, ncclFunc_t o, size_t b, int p, float **t, int na, int np, int r, int *n)
{ (void)c; (void)o; (void)b; (void)p; (void)t; (void)na; (void)np; (void)r; (void)n; return ncclSuccess; }
static ncclResult_t end(void *c) { (void)c; return ncclSuccess; }
const ncclTuner_v6_t ncclTunerPlugin_v6 = {.name = "empty", .init = init, .getCollInfo = get, .finalize = end};
"""


def measure(
    place: Path, library: Path, version: int, calls: int, repeat: int, rules: Path | None, size: int = 1 << 19
) -> float:
    """The minimum nanoseconds of a call with that size."""
    with tempfile.TemporaryDirectory() as records:
        env = {**clean(), "PSM_RECORD_DIR": records, **({"PSM_TUNER_CONFIG": str(rules)} if rules else {})}
        questions = "init 16 2 2\n" + f"time 0 4 {size} {calls}\n" * repeat
        done = subprocess.run(
            [place / "bin" / "psm_tuner_drive", library, str(version), "--ask"],
            input=questions,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT,
            env=env,
        )
    return min(float(json.loads(line)["ns"]) for line in done.stdout.splitlines()[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000, help="of a batch")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    place = tree()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for n in RULES:
            path = Path(folder) / f"{n}.csv"
            lines = [f"allreduce,{i << 19}..{((i + 1) << 19) - 1},*,*,ring,simple,8" for i in range(n)]
            path.write_text("\n".join(["op,bytes,nodes,ranks,algorithm,protocol,channels", *lines]) + "\n")
            files[n] = path
        library = place / "lib" / "libnccl-tuner-psm.so"
        for version in range(1, 7):
            times = [
                measure(place, library, version, options.calls, options.repeat, files[n], max(1, n) * 2 // 3 << 19)
                for n in RULES
            ]
            rows.append((f"v{version}", times))
        source = Path(folder) / "empty.c"
        source.write_text(EMPTY)
        empty = source.with_suffix(".so")
        include = ["-I", str(ROOT / "psmkit" / "psm" / "include")]
        subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", *include, source, "-o", empty], check=True
        )
        rows.append(
            ("an empty tuner, v6", [measure(place, empty, 6, options.calls, options.repeat, None)] * len(RULES))
        )
    out = [
        "# getCollInfo of libnccl-tuner-psm.so",
        "",
        f"Nanoseconds a call, the least of {20 * options.repeat} batches of {options.calls}, with a record of each decision; {platform.machine()}, "
        f"{os.cpu_count()} CPUs. `python benchmarks/tuner.py`",
        "",
        "| table | " + " | ".join(f"{n} rules" for n in RULES) + " |",
        "|---|" + "---:|" * len(RULES),
        *(f"| {name} | " + " | ".join(f"{t:.0f}" for t in times) + " |" for name, times in rows),
    ]
    text = "\n".join(out) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
