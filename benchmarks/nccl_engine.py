"""Run NCCL's copy-engine collectives and one-sided calls over releases that you have built, and write benchmarks/nccl_engine.md.

    python benchmarks/nccl_engine.py LIBRARY [...] [--ranks 2,4,8] [--results FILE] [--output FILE]

LIBRARY is a libnccl of 2.28 or newer, its folder, or a built tree, linked to the shared CUDA runtime (docs/linking.md). Each row is a `psmkit lab nccl`:
every byte is compared, and NCCL's lines must show that each call went by copy engines. In the last kind of row
rank 1 stays away from the second call, and the analysis must name it. --results keeps the runs as lines of JSON, and the page is made from
all of them: the latest run of a row counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGINE = ("--windows", "--cta-policy", "zero", "--pattern", "allgather,alltoall-coll,gather,scatter")
PUTS = ("--windows", "--pattern", "put-signal")
GRAPH = ("--graph", "3")
AWAY = "a rank stays away"
KINDS: dict[str, tuple[str, ...]] = {
    "AllGather, AlltoAll, Gather, Scatter": ENGINE,
    "the same, captured, 3 launches": (*ENGINE, *GRAPH),
    "PutSignal, WaitSignal": PUTS,
    "the same, captured": (*PUTS, *GRAPH),
    AWAY: ("--windows", "--cta-policy", "zero", "--pattern", "allgather", "--fault", "lab.iteration:hang,rank=1,nth=2"),
}
FIRST = {"PutSignal, WaitSignal": (2, 29), "the same, captured": (2, 30)}  # releases that have it
ASKED = ("2.28.9", "2.29.7", "2.30.7")  # and the development branch


def run(library: str, kind: str, ranks: str, deadline: str) -> dict[str, Any]:
    """A row."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "psmkit", "lab", "nccl", "--lib", library, *KINDS[kind], "--ranks", ranks]
        sizes = "64K" if kind == AWAY else "64,64K,1M"
        command += ["--deadline", "20" if kind == AWAY else deadline, "--size", sizes]
        command += ["--out", f"{place}/out", "--format", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 2:
            raise SystemExit(f"{library}: a run could not start")
        result = json.loads(done.stdout)
    engine, analysis = result["settings"]["engine"], result.get("analysis", {})
    reports = [r for rank in result["ranks"] for r in rank["reports"]]
    away = kind == AWAY
    named = analysis.get("verdict") == "hung" and "rank 1 never entered AllGather #2" in analysis.get("reason", "")
    return {
        "release": result["settings"]["version"],
        "cudart": result["settings"]["cudart"],
        "kind": kind,
        "ranks": ranks,
        "cases": len(result["cases"]),
        "exact": min((sum(r["status"] == "PSM_OK" for r in rank["reports"]) for rank in result["ranks"]), default=0),
        "bytes": sum(r["bytes"] for r in reports),
        "asked": engine["asked"],
        "shown": engine["shown"],
        "kernels": engine["kernels"],
        "seconds": result["seconds"],
        "good": named if away else not engine["missing"] and all(r["status"] == "PSM_OK" for r in reports),
        "misuse": sorted(code for code in analysis.get("codes", []) if code.startswith("PSM5") and not away),
        "reason": f"{analysis.get('verdict')}: {analysis.get('reason')}",
        "why": sorted({r["text"] for r in reports if r["status"] != "PSM_OK"} | set(engine["missing"])),
    }


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    latest = {(row["release"], row["kind"], row["ranks"]): row for row in rows}
    order = {kind: number for number, kind in enumerate(KINDS)}
    ordered = sorted(latest.values(), key=lambda r: (r["release"], order[r["kind"]], int(r["ranks"])))
    releases = list(dict.fromkeys(row["release"] for row in ordered))
    out = ["# Copy engines and one-sided calls of NCCL over emulated CUDA", ""]
    out += [
        "Made by `benchmarks/nccl_engine.py` from plain trees of which only the host side was compiled; no kernel can run. A case is two calls of",
        "one collective with messages of 64 bytes, 64 KiB or 1 MiB for each peer; all ranks put to all others. *Exact*: cases in which every byte was",
        "right on all ranks. *Calls*: those that NCCL's lines show to have gone by copy engines, of those that asked for them; a captured call counts once. Seconds are those of a busy machine.",
        "",
        "| release | what | ranks | exact | calls | kernels | seconds |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in ordered:
        if row["kind"] != AWAY:
            cells = [row["release"], row["kind"], row["ranks"], f"{row['exact']} of {row['cases']}"]
            cells += [f"{row['shown']} of {row['asked']}", str(row["kernels"]), f"{row['seconds']:.1f}"]
            out.append(f"| {' | '.join(cells)} |")
    if away := [row for row in ordered if row["kind"] == AWAY]:
        out += ["", "Rank 1 stays away from the second AllGather. What the analysis says:", ""]
        out += ["| release | ranks | verdict |", "|---|---:|---|"]
        out += [f"| {row['release']} | {row['ranks']} | {row['reason']} |" for row in away]
    if bad := [
        f"- {r['release']}, {r['kind']}, {r['ranks']} ranks: {why}"
        for r in ordered
        for why in r["why"]
        if r["kind"] != AWAY
    ]:
        out += ["", "Not exact:", "", *bad]
    misuse = {(row["release"], code) for row in ordered for code in row["misuse"]}
    if misuse:
        out += [
            "",
            "What the handle sanitizer reports of these runs (`psmkit explain CODE`); a warning ends a run in doubt:",
            "",
        ]
        out += [f"- {release}: {code}" for release, code in sorted(misuse)]
    absent = [name for name in ASKED if name not in releases]
    if all(tuple(int(n) for n in name.split(".")[:2]) <= (2, 30) for name in releases):
        absent.append("the development branch")
    if absent:
        out += ["", f"Not built, so not tried: {', '.join(absent)}."]
    return "\n".join(out) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="*")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--deadline", default="120")
    parser.add_argument("--results", type=Path, help="lines of JSON, a row each; new ones are added")
    parser.add_argument("--output", type=Path, help="the page")
    chosen = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    if chosen.results and chosen.results.exists():
        rows = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    before = len(rows)
    for library in chosen.library:
        release: tuple[int, ...] | None = None
        for kind in KINDS:
            for ranks in chosen.ranks.split(","):
                if release is not None and release < FIRST.get(kind, (0,)):
                    continue
                row = run(library, kind, ranks, chosen.deadline)
                release = tuple(int(n) for n in row["release"].split(".")[:2])
                print(
                    f"{row['release']}, {kind}, {ranks} ranks: {'good' if row['good'] else row['reason']}",
                    file=sys.stderr,
                )
                rows.append(row)
                if chosen.results:
                    with chosen.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    page = render(rows)
    if chosen.output:
        chosen.output.write_text(page)
    else:
        print(page, end="")
    return 0 if all(row["good"] for row in rows[before:]) else 1


if __name__ == "__main__":
    sys.exit(main())
