"""Run ranks built with a sanitizer, with and without faults, and fail on the first report. PSM_DIR and PSM_HOSTCUDA_DIR name the builds.

sanitize_lab.py SECONDS [SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from psmkit.lab import elf, matrix, transfer
from psmkit.lab.emulation import Emulation

RANKS = 4
DEADLINE = 120.0  # of a run; generous, because sanitizers are slow on a busy machine
TIMEOUT_MS = 2000
LEAST = 12  # minimum number of faults on a slow machine
# Faults after which a run ends by itself; a hang shows a sanitizer only the wait.
ENDING = ("error", "kill", "drop", "corrupt", "short", "late", "slow")
SIGNS = ("Sanitizer", "runtime error:")


def main(seconds: float, seed: int) -> int:
    end = time.monotonic() + seconds
    for case in _cases():
        _check(case.line(), _run([case], ""))
    apart = transfer.Case(pattern="alltoall", size=300001, channels=2, steps=8, buffer_size=65536)
    _check(f"two nodes: {apart.line()}", _run([apart], "", nodes=2))
    program = transfer.program()
    sites = [s for b in (program.parents[1] / "lib" / "libpsm.so", program) for s in elf.sites(b)]
    strikes = [s for s in matrix.strikes(sites, RANKS) if _ends(s)]
    random.Random(seed).shuffle(strikes)
    struck = 0
    for strike in strikes:
        if struck >= LEAST and time.monotonic() > end:
            break
        case = replace(strike.case, pattern="alltoall", timeout_ms=TIMEOUT_MS, stall_report_ms=500)
        _check(strike.text, _run([case, replace(case, name="after")], strike.text, strike.nodes))
        struck += 1
    print(f"{struck} of {len(strikes)} faults, {RANKS} ranks each: no report of a sanitizer")
    return 0


def _ends(strike: matrix.Strike) -> bool:
    # Only the deadline of a run notices a lost flag of the data plane.
    lost = strike.action == "drop" and strike.site.startswith(("p2p.", "net."))
    return strike.action.startswith(ENDING) and "SIGSTOP" not in strike.action and not lost


def _cases() -> list[transfer.Case]:
    rows = matrix.pairwise({**matrix.AXES, "size": (1, 1 << 20), "app_stream": transfer.STREAMS, "channels": (1, 2)}, 1)
    return [transfer.Case(name=str(number), **row) for number, row in enumerate(rows)]


def _run(cases: list[transfer.Case], fault: str, nodes: int = 1) -> list[str]:
    """The reports of sanitizers. A run without a fault must also be good."""
    with tempfile.TemporaryDirectory(prefix="psm-sanitize-") as name:
        folder = Path(name)
        emulation = Emulation(folder / "records", faults=fault, leaks=True)
        run = transfer.start(
            cases, RANKS, folder / "run", deadline=DEADLINE, emulation=emulation, nodes=nodes, stacks=False
        )
        texts = [path.read_text(errors="replace") for path in (folder / "run" / "output").iterdir()]
        said = [text for text in texts if any(sign in text for sign in SIGNS)]
        if not fault and not run.outcome.good:
            said += [f"rank {rank.rank} {rank.state}: {rank.text}" for rank in run.outcome.ranks]
        if run.outcome.expired:
            said.append(f"the run did not end in {DEADLINE:g} s")
        return said


def _check(what: str, said: list[str]) -> None:
    if said:
        print(f"{what}\n" + "\n".join(said))
        sys.exit(1)
    print(f"clean: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
