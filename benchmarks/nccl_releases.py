"""Run what psmkit brings to NCCL over releases that you have built, and write the table of benchmarks/nccl_releases.md.

    python benchmarks/nccl_releases.py LIBRARY[,KERNELS] [...] [--ranks 2,4] [--only transport] [--results FILE] [--output FILE]

LIBRARY is a libnccl of a tree with the lines of docs/linking.md, linked to libpsm_nccl.a, or a plain one (--only interpreter). KERNELS is the
libpsm_nccl_kernels.so that was built against its tree (docs/kernels.md). Each row is a `psmkit lab matrix`: every byte is compared, and the
analysis must say healthy. --results keeps the runs as lines of JSON, and the table is made from all of them: the latest run of a row counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PLUGINS = ("NET", "PROFILER", "TUNER")
KINDS: dict[str, tuple[str, ...]] = {
    "transport": ("--pattern", "pair,ring,alltoall", "--size", "1,64K,1M", "--env", "NCCL_PASS_SM=1"),
    "interpreter": (
        *("--pattern", "allreduce,allgather,reducescatter,broadcast,reduce,alltoall"),
        *("--type", "float32", "--size", "64K"),
    ),
    "plugins": (
        *("--pattern", "allreduce,alltoall", "--type", "float32", "--size", "64K", "--nodes", "2"),
        *(word for name in PLUGINS for word in ("--env", f"NCCL_{name}_PLUGIN=psm")),
    ),
}
ABOUT = {
    "transport": "sends and recvs by the proxy and the copy engine (NCCL_PASS_SM=1), messages of 1 byte, 64 KiB and 1 MiB",
    "interpreter": "kernels on the CPU, 64 KiB of float32 a rank",
    "plugins": "the same on two pretended nodes, with psmkit's net, profiler and tuner plugins",
}


def run(libraries: Sequence[str], kind: str, ranks: str, deadline: str) -> Iterator[dict[str, Any]]:
    """A row for each library."""
    chosen = [text.partition(",")[0] if kind == "transport" else text for text in libraries]
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "psmkit", "lab", "matrix", "--nccl", *chosen, *KINDS[kind], "--ranks", ranks]
        command += ["--deadline", deadline, "--out", f"{place}/out", "--format", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 2:
            raise SystemExit("a run could not start")
        result = json.loads(done.stdout)
    for library in result["libraries"]:
        cells = [cell for cell in result["cells"] if cell["library"] == library["name"]]
        yield {
            "release": library["version"],
            "cudart": library["cudart"],
            "kind": kind,
            "ranks": ranks,
            "patterns": list(dict.fromkeys(cell["scenario"].split(",")[0] for cell in cells)),
            "outcomes": [one["outcome"] for cell in cells for one in cell["runs"]],
            "seconds": median(one["seconds"] for cell in cells for one in cell["runs"]),
            "why": sorted(
                {f"{cell['scenario']}: {one['why']}" for cell in cells for one in cell["runs"] if one["why"]}
            ),
            "unknown": len({shape["shape"] for cell in cells for one in cell["runs"] for shape in one["unknown"]}),
        }


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    out = ["# Releases of NCCL over emulated CUDA", ""]
    out += [
        "Made by `benchmarks/nccl_releases.py` from trees of which only the host side was compiled. *Exact*: runs in which every byte"
    ]
    out += [
        "was right, nothing was left behind and the analysis said healthy. Seconds are the median of a run, on a busy machine. *Unknown*:"
    ]
    out += ["messages that the catalogue does not have.", ""]
    out += [f"- *{kind}*: {about}" for kind, about in ABOUT.items()]
    out += [
        "",
        "| release | CUDA runtime | what | patterns | ranks | exact | seconds | unknown |",
        "|---|---|---|---|---|---:|---:|---:|",
    ]
    latest = {(row["release"], row["kind"], row["ranks"]): row for row in rows}
    order = {kind: number for number, kind in enumerate(KINDS)}
    for row in sorted(latest.values(), key=lambda r: ([int(n) for n in r["release"].split(".")[:2]], order[r["kind"]])):
        exact, runs = row["outcomes"].count("works"), len(row["outcomes"])
        cells = [
            row["release"],
            row["cudart"],
            row["kind"],
            ", ".join(row["patterns"]),
            row["ranks"].replace(",", ", "),
        ]
        out.append(f"| {' | '.join(cells)} | {exact} of {runs} | {row['seconds']:.1f} | {row['unknown']} |")
    if notes := [f"- {r['release']}, {r['kind']}, {why}" for r in latest.values() for why in r["why"]]:
        out += ["", "Not exact:", "", *notes]
    return "\n".join(out) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="*", help="LIBRARY[,KERNELS]")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--deadline", default="240")
    parser.add_argument("--only", choices=list(KINDS), action="append", help="of the rows; repeatable")
    parser.add_argument("--results", type=Path, help="lines of JSON, a row each; new ones are added")
    parser.add_argument("--output", type=Path, help="the page")
    chosen = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    if chosen.results and chosen.results.exists():
        rows = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    for kind in chosen.only or list(KINDS):
        for row in run(chosen.library, kind, chosen.ranks, chosen.deadline) if chosen.library else ():
            rows.append(row)
            if chosen.results:
                with chosen.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    page = render(rows)
    if chosen.output:
        chosen.output.write_text(page)
    else:
        print(page, end="")
    return 0 if all(outcome == "works" for row in rows for outcome in row["outcomes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
