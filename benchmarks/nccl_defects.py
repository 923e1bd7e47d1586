"""Compare a fork's own transport, which has defects, with ours: the same runs with both libraries.

`python benchmarks/nccl_defects.py --fork DIR --ours DIR [--only NAME]` runs `psmkit lab nccl` for each case and library,
and writes benchmarks/nccl_defects.md. Both libraries are built outside this repository: docs/linking.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PSMKIT = Path(sys.executable).parent / "psmkit"
BASE = ["--ranks", "4", "--gpus", "4", "--pattern", "alltoall", "--iters", "4", "--env", "NCCL_PASS_SM=1"]
# name: arguments; expected of ours: every byte right, or a failure that the analysis names
CASES: dict[str, tuple[list[str], bool]] = {
    "cuMem": (["--size", "1M"], True),
    "cuMem, registered": (["--size", "1M", "--memory", "nccl", "--register"], True),
    "no cuMem": (["--size", "1M", "--env", "NCCL_CUMEM_ENABLE=0"], True),
    "no cuMem, registered": (["--size", "1M", "--env", "NCCL_CUMEM_ENABLE=0", "--register"], True),
    "no path between devices": (["--size", "1M", "--link", "pcie", "--env", "NCCL_P2P_LEVEL=LOC"], True),
    "two nodes": (["--size", "1M", "--gpus", "2", "--nodes", "2"], True),
    "a rank is killed": (["--size", "1M", "--fault", "lab.iteration:kill,rank=1,nth=3"], False),
    "a shorter send": (["--size", "64K", "--differ", "rank=1,shorter=4K"], False),
    "another buffer size": (["--size", "64K", "--differ", "rank=1,NCCL_PSM_BUFFER_SIZE=262144"], False),
    "a copy fails": (["--size", "64K", "--fault", "cudaMemcpyAsync:error=700,rank=1,nth=5"], False),
    "a missing recv": (["--size", "64K", "--differ", "rank=1,skip=recv"], False),
}


def run(library: Path, arguments: list[str], folder: Path, deadline: float) -> dict[str, Any]:
    """The result of the run, from `psmkit lab nccl --format json`."""
    done = subprocess.run(
        [
            *(PSMKIT, "lab", "nccl", "--lib", library, *BASE, *arguments),
            *("--deadline", str(deadline), "--out", folder, "--format", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=deadline * 4 + 120,
    )
    if done.returncode == 2 or not done.stdout:
        raise SystemExit(f"{library}: {done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def tell(result: dict[str, Any]) -> str:
    """Summary of data, how the ranks ended, and the verdict."""
    states = [rank["state"] for rank in result["ranks"]]
    ends = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    analysis = result.get("analysis") or {}
    reason = str(analysis.get("reason") or "").replace("|", "/")[:160]
    codes = " ".join(code for code in analysis.get("codes", []) if not code.startswith("PSM8"))
    return f"{'right' if result['good'] else 'not good'}; {ends}; {analysis.get('verdict')} {codes}: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fork", type=Path, required=True)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--only", action="append")
    parser.add_argument("--deadline", type=float, default=25)
    given = parser.parse_args()
    lines = [
        "# A fork's own transport, and ours in its place\n",
        "`python benchmarks/nccl_defects.py`: 4 ranks, all to all, 4 groups, on emulated CUDA in strict mode.\n",
        "| run | the fork's own | ours |",
        "|---|---|---|",
    ]
    for name, (arguments, _good) in CASES.items():
        if given.only and name not in given.only:
            continue
        told = []
        for library in (given.fork, given.ours):
            with tempfile.TemporaryDirectory() as folder:
                told.append(tell(run(library, arguments, Path(folder) / "out", given.deadline)))
        lines.append(f"| {name} | {told[0]} | {told[1]} |")
        print(lines[-1], flush=True)
    if not given.only:
        (HERE / "nccl_defects.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
