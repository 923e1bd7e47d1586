"""Run NCCL's copy-engine collectives and one-sided calls over releases that you have built, and write benchmarks/nccl_engine.md.

    python benchmarks/nccl_engine.py LIBRARY [...] [--ranks 2,4,8] [--only "over 2 nodes"] [--output FILE]

LIBRARY is a libnccl of 2.28 or newer, its folder, or a built tree, linked to the shared CUDA runtime (docs/linking.md). Each row is a `psmkit lab nccl`:
every byte is compared, and NCCL's lines must show that each call went by copy engines. In the last kind of row
rank 1 stays away from the second call, and the analysis must name it. Rows over nodes always have 2 ranks a node. Rows of other releases and numbers of
ranks stay in FILE.
"""

from __future__ import annotations

import json
import re
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
OVER = ("--nodes", "2", "--rma", "--windows", "--cta-policy", "zero", "--pattern", "allgather,alltoall-coll,put-signal")
AWAY = "a rank stays away"
PUT, PUT_CAPTURED = "PutSignal, WaitSignal", "PutSignal, WaitSignal, captured"
NODES = "AllGather, AlltoAll, PutSignal and WaitSignal over 2 nodes"
NODES_CAPTURED = "the same over 2 nodes, captured, 3 launches"
KINDS: dict[str, tuple[str, ...]] = {
    "AllGather, AlltoAll, Gather, Scatter": ENGINE,
    "the same, captured, 3 launches": (*ENGINE, *GRAPH),
    PUT: PUTS,
    PUT_CAPTURED: (*PUTS, *GRAPH),
    NODES: OVER,
    NODES_CAPTURED: (*OVER, *GRAPH),
    AWAY: ("--windows", "--cta-policy", "zero", "--pattern", "allgather", "--fault", "lab.iteration:hang,rank=1,nth=2"),
}
FIRST = {PUT: (2, 29), PUT_CAPTURED: (2, 30), NODES: (2, 30), NODES_CAPTURED: (2, 30)}  # releases that have it
RANKS = {NODES: ("4",), NODES_CAPTURED: ("4",)}  # whatever is asked for

_LEAKED = re.compile(r"sanitizer: (\d+) of \S+ leaked")

PAGE = Page(
    (
        "# Copy engines and one-sided calls of NCCL over emulated CUDA",
        "",
        "Made by `benchmarks/nccl_engine.py` from plain trees of which only the host side was compiled (2.31.2 on one node: with psmkit's transport in",
        "it, turned off); no kernel can run. A case is two calls of one collective with messages of 64 bytes, 64 KiB or 1 MiB for each peer; all ranks put to all",
        "others. *Exact*: cases in which every byte was right on all ranks. *Calls*: those that NCCL's lines show to have gone by copy engines, of those",
        "that asked for them; a captured call counts once. A row counts as good only if all calls did. Seconds are those of a busy machine.",
    ),
    (
        Table(
            ("release", "what", "ranks", "exact", "calls", "kernels", "seconds"),
            ("ranks", "exact", "calls", "kernels", "seconds"),
            [kind for kind in KINDS if kind not in (NODES, NODES_CAPTURED, AWAY)],
        ),
        Table(
            ("release", "what", "ranks", "exact", "calls", "hierarchical", "kernels", "left", "seconds"),
            ("ranks", "exact", "calls", "hierarchical", "kernels", "left", "seconds"),
            (NODES, NODES_CAPTURED),
            "Over 2 nodes with 2 ranks each, through psmkit's RMA plugin (`psmkit lab nccl --nodes 2 --rma`, docs/lab_nccl.md). *Hierarchical*: calls with\n"
            "NCCL's line `[Hierarchical CE]`; all of AllGather and AlltoAll have to be. Gather and Scatter have no hierarchical form. Such a run ends as\n"
            "*in doubt*, with status 3, because the analysis calls it *leaking*: NCCL frees all but one allocation of each communicator with windows\n"
            "(`signalOffsetsDev`, made in `ncclGinProxyCreateContext`). *Left*: the allocations that a rank left, of its communicators. A row counts as\n"
            "good only if nothing else is left.",
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
        left = _left(Path(place) / "out" / "logs")
    release, analysis = result["settings"]["version"], result.get("analysis", {})
    verdict = f"{analysis.get('verdict')}: {analysis.get('reason')}"
    if away:
        named = verdict.startswith("hung: rank 1 never entered AllGather #2")
        return Row(kind, {"release": release, "ranks": ranks, "verdict": verdict}, named)
    engine = result["settings"]["engine"]
    reports = [report for rank in result["ranks"] for report in rank["reports"]]
    why = sorted({report["text"] for report in reports if report["status"] != "PSM_OK"} | set(engine["missing"]))
    exact = min((sum(r["status"] == "PSM_OK" for r in rank["reports"]) for rank in result["ranks"]), default=0)
    good = _good_over_nodes(result, left) and not why if kind in RANKS else result["good"]
    cells = {
        "release": release,
        "what": kind,
        "ranks": ranks,
        "exact": f"{exact} of {len(result['cases'])}",
        "calls": f"{engine['shown']} of {engine['asked']}",
        "hierarchical": str(engine["hierarchical"]),
        "kernels": str(engine["kernels"]),
        "left": ", ".join(str(number) for number in sorted(left)) or "0",
        "seconds": f"{result['seconds']:.1f}",
    }
    return Row(kind, cells, good, why or ([] if good else [f"{verdict} ({_codes(analysis)})"]))


def _good_over_nodes(result: dict[str, Any], left: set[int]) -> bool:
    """Whether all ranks are right, each call was hierarchical that can be, no kernel ran, and NCCL left one allocation of each communicator at most."""
    cases, engine = result["cases"], result["settings"]["engine"]
    collective = sum("pattern=put-signal" not in case for case in cases)
    hierarchical = engine["hierarchical"] * len(cases) == engine["asked"] * collective
    right = all(rank["state"] == "good" for rank in result["ranks"]) and not engine["kernels"]
    # each case has a communicator of its own
    return right and hierarchical and result["analysis"]["verdict"] in ("healthy", "leaking") and left <= {len(cases)}


def _left(logs: Path) -> set[int]:
    """How many objects of CUDA of a kind the ranks left, by the handle sanitizer; empty if none."""
    return {
        int(number) for path in logs.glob("rank-*.log") for number in _LEAKED.findall(path.read_text(errors="replace"))
    }


def _codes(analysis: dict[str, Any]) -> str:
    return ", ".join(analysis.get("codes", [])) or "no findings"


def rows(libraries: Sequence[str], numbers: Sequence[str], kinds: Sequence[str], deadline: str) -> Iterator[Row]:
    """All rows of some libraries, without those of what a release does not have."""
    for library in libraries:
        release: list[int] = []
        for kind in kinds:
            for ranks in RANKS.get(kind, numbers):
                if release and tuple(release) < FIRST.get(kind, (0,)):
                    continue
                row = run(library, kind, ranks, deadline)
                release = [int(number) for number in row.cells["release"].split(".")[:2]]
                yield row


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__, "2,4,8", "120")
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows whose kind has this text")
    chosen = parser.parse_args(argv)
    if not (kinds := [kind for kind in KINDS if chosen.only in kind]):
        parser.error(f"no kind of row has the text {chosen.only!r}: {'; '.join(KINDS)}")
    return publish(PAGE, rows(chosen.library, chosen.ranks.split(","), kinds, chosen.deadline), chosen.output)


if __name__ == "__main__":
    sys.exit(main())
