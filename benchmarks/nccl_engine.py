"""Run NCCL's copy-engine collectives and one-sided calls over releases that you have built, and write benchmarks/nccl_engine.md.

    python benchmarks/nccl_engine.py LIBRARY [...] [--ranks 2,4,8] [--output FILE]

LIBRARY is a libnccl of 2.28 or newer, its folder, or a built tree, linked to the shared CUDA runtime (docs/linking.md). Each row is a `psmkit lab nccl`:
every byte is compared, and NCCL's lines must show that each call went by copy engines. In the last kind of row
rank 1 stays away from the second call, and the analysis must name it. Rows of other releases and numbers of ranks stay in FILE.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.nccl_page import Page, Row, Table, arguments, publish

ENGINE = ("--windows", "--cta-policy", "zero", "--pattern", "allgather,alltoall-coll,gather,scatter")
PUTS = ("--windows", "--pattern", "put-signal")
GRAPH = ("--graph", "3")
AWAY = "a rank stays away"
PUT, PUT_CAPTURED = "PutSignal, WaitSignal", "PutSignal, WaitSignal, captured"
KINDS: dict[str, tuple[str, ...]] = {
    "AllGather, AlltoAll, Gather, Scatter": ENGINE,
    "the same, captured, 3 launches": (*ENGINE, *GRAPH),
    PUT: PUTS,
    PUT_CAPTURED: (*PUTS, *GRAPH),
    AWAY: ("--windows", "--cta-policy", "zero", "--pattern", "allgather", "--fault", "lab.iteration:hang,rank=1,nth=2"),
}
FIRST = {PUT: (2, 29), PUT_CAPTURED: (2, 30)}  # releases that have it

PAGE = Page(
    (
        "# Copy engines and one-sided calls of NCCL over emulated CUDA",
        "",
        "Made by `benchmarks/nccl_engine.py` from plain trees of which only the host side was compiled (2.31.2: with psmkit's transport in it, turned",
        "off); no kernel can run. A case is two calls of one collective with messages of 64 bytes, 64 KiB or 1 MiB for each peer; all ranks put to all",
        "others. *Exact*: cases in which every byte was right on all ranks. *Calls*: those that NCCL's lines show to have gone by copy engines, of those",
        "that asked for them; a captured call counts once. A row counts as good only if all calls did. Seconds are those of a busy machine.",
    ),
    (
        Table(
            ("release", "what", "ranks", "exact", "calls", "kernels", "seconds"),
            ("ranks", "exact", "calls", "kernels", "seconds"),
            [kind for kind in KINDS if kind != AWAY],
        ),
        Table(
            ("release", "ranks", "verdict"),
            ("ranks",),
            (AWAY,),
            "Rank 1 stays away from the second AllGather. What the analysis says:",
        ),
    ),
    (
        "What differs by release, by NCCL's sources; a release without a row above was not run. What copy engines do not take runs in kernels: an",
        "AllGather as one, the other three as sends and recvs.",
        "",
        "| release | copy engines take a collective if | one-sided calls |",
        "|---|---|---|",
        "| 2.28.9 | the policy is exactly `zero`, the ranks are on one node, and both buffers are symmetric windows. On the legacy stream it makes "
        "the batched copy that CUDA refuses there. No line for a call | it has none |",
        "| 2.29.7 | the policy has `zero`, the ranks are on one node, and the receive buffer is a symmetric window; the send buffer need not be one. "
        "On the legacy stream it makes single copies | by copy engine where ranks reach each other's memory. Captured ones write and "
        "await the count of the capture, so that a replay waits for nothing new: not tried |",
        "| 2.30.7, 2.31.0a7 | as 2.29.7, but all ranks reach each other's memory (one LSA team), also over nodes; no window holds host memory. Else "
        "AllGather and AlltoAll of several nodes are hierarchical, with an RMA plugin | captured ones, too: with flags of their own, which are reset. "
        "Refused: windows of several segments or with host memory |",
        "| 2.31.2 | as 2.30.7; a call can have a policy of its own, and NCCL_CTA_POLICY overrides it | as 2.30.7, with several contexts and signals. Refused: "
        "Signal and WaitSignal before a window is registered, without NCCL_RMA_EAGER_INIT=1 |",
    ),
)


def run(library: str, kind: str, ranks: str, deadline: str) -> Row:
    """A row."""
    away = kind == AWAY
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "psmkit", "lab", "nccl", "--lib", library, *KINDS[kind], "--ranks", ranks]
        command += ["--deadline", "20" if away else deadline, "--size", "64K" if away else "64,64K,1M"]
        command += ["--out", f"{place}/out", "--format", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 2:
            raise SystemExit(f"{library}: a run could not start")
        result = json.loads(done.stdout)
    release, analysis = result["settings"]["version"], result.get("analysis", {})
    verdict = f"{analysis.get('verdict')}: {analysis.get('reason')}"
    if away:
        named = verdict.startswith("hung: rank 1 never entered AllGather #2")
        return Row(kind, {"release": release, "ranks": ranks, "verdict": verdict}, named)
    engine = result["settings"]["engine"]
    reports = [report for rank in result["ranks"] for report in rank["reports"]]
    why = sorted({report["text"] for report in reports if report["status"] != "PSM_OK"} | set(engine["missing"]))
    exact = min((sum(r["status"] == "PSM_OK" for r in rank["reports"]) for rank in result["ranks"]), default=0)
    cells = {
        "release": release,
        "what": kind,
        "ranks": ranks,
        "exact": f"{exact} of {len(result['cases'])}",
        "calls": f"{engine['shown']} of {engine['asked']}",
        "kernels": str(engine["kernels"]),
        "seconds": f"{result['seconds']:.1f}",
    }
    return Row(kind, cells, result["good"], why or ([] if result["good"] else [f"{verdict} ({_codes(analysis)})"]))


def _codes(analysis: dict[str, Any]) -> str:
    return ", ".join(analysis.get("codes", [])) or "no findings"


def rows(libraries: Sequence[str], numbers: Sequence[str], deadline: str) -> Iterator[Row]:
    """All rows of some libraries, without those of what a release does not have."""
    for library in libraries:
        release: list[int] = []
        for kind in KINDS:
            for ranks in numbers:
                if release and tuple(release) < FIRST.get(kind, (0,)):
                    continue
                row = run(library, kind, ranks, deadline)
                release = [int(number) for number in row.cells["release"].split(".")[:2]]
                yield row


def main(argv: Sequence[str] | None = None) -> int:
    chosen = arguments(__doc__, "2,4,8", "120").parse_args(argv)
    return publish(PAGE, rows(chosen.library, chosen.ranks.split(","), chosen.deadline), chosen.output)


if __name__ == "__main__":
    sys.exit(main())
