"""Compare the results of the interpreter of NCCL's device work byte by byte: release, collective, type, op, size, ranks, protocol.

    python benchmarks/nccl.py NAME=LIBRARY,KERNELS [...] [--ranks 2,3,4,8] [--settings "ring, Simple;tree"] [--results FILE] [--output FILE]

LIBRARY is a libnccl linked to the shared CUDA runtime, or the stock binary of 2.21.5; KERNELS is the libpsm_nccl_kernels.so that was
built against its tree (docs/kernels.md). In each run the processes of one communicator do all cases in turn, so that the counters of
connections continue from case to case. The data makes each result exact in any order (csrc/lab/nccl_data.c); tests/csrc/nccl compares
the order and rounding of inexact sums with numpy. A refused case is shown as refused, with the line that says so; a wrong byte ends
this program with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from psmkit.lab import nccl, nccl_library  # noqa: E402
from psmkit.lab.emulation import Emulation  # noqa: E402

SIZES = {  # bytes of an element
    **dict.fromkeys(("int8", "uint8", "float8e4m3", "float8e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
ELEMENTS = {
    "1": lambda each: 1,
    "odd": lambda each: 1021,
    "4 KiB": lambda each: 4096 // each,
    "1 MiB + 3": lambda each: (1 << 20) // each + 3,
}
REDUCING = ("allreduce", "reducescatter", "reduce")
MOVING = ("allgather", "broadcast", "alltoall", "ring")
QUICK = "NCCL_P2P_LL_THRESHOLD"
SETTINGS = {
    "ring, Simple": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", QUICK: "0"},
    "ring, LL": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
    "ring, LL128": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"},
    "tree": {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "Simple"},
    "as NCCL chooses": {},
}
_REFUSED = re.compile(r"kernels: (\S+) is refused: (.*)")


@dataclass(slots=True)
class Row:
    """The cases of one collective and type in a run."""

    right: int = 0
    wrong: int = 0
    refused: int = 0
    other: int = 0


def types(library: nccl_library.Library) -> list[str]:
    """The cases that the release supports: 8-bit floats came with 2.24."""
    old = library.version and tuple(map(int, library.version.split(".")[:2])) < (2, 24)
    return [kind for kind in SIZES if not (old and kind.startswith("float8"))]


def cases(library: nccl_library.Library, ranks: int, setting: str) -> Iterator[nccl.NcclCase]:
    """All cases of a run, on one communicator."""
    number = 0
    for pattern in (*REDUCING, *MOVING):
        if setting == "tree" and pattern != "allreduce":
            continue
        for kind in types(library) if pattern in REDUCING else ("uint8",):
            for op in nccl.OPS if pattern in REDUCING else ("sum",):
                for elements in ELEMENTS.values():
                    size = elements(SIZES[kind]) * SIZES[kind]
                    root = number % ranks
                    yield nccl.NcclCase(str(number), pattern, size, 2, kind, op, root, seed=number + 1, keep=1)
                    number += 1


def key(case: nccl.NcclCase) -> tuple[str, str]:
    return case.pattern, case.type


def go(
    library: nccl_library.Library, kernels: Path, ranks: int, setting: str, log: list[str]
) -> dict[tuple[str, str], Row]:
    """Run all cases; after a refused or failed case, run the rest in new processes."""
    rows: dict[tuple[str, str], Row] = {}
    left = list(cases(library, ranks, setting))
    while left:
        left[-1] = replace(left[-1], keep=0)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "out"
            run = nccl.start(
                library,
                left,
                ranks,
                folder,
                deadline=90 + 1.5 * len(left),
                emulation=Emulation(folder / "records"),
                environment=SETTINGS[setting] | {"PSM_HOSTCUDA_KERNELS": str(kernels.absolute())},
                debug="WARN",
                stacks=False,
            )
            good = min(sum(r["status"] == "PSM_OK" for r in rank.reports) for rank in run.outcome.ranks)
            for case in left[:good]:
                rows.setdefault(key(case), Row()).right += 1
            if good == len(left):
                break
            case = left[good]
            row = rows.setdefault(key(case), Row())
            texts = "".join(path.read_text(errors="replace") for path in (folder / "logs").iterdir())
            bad = [r for rank in run.outcome.ranks for r in rank.reports if r["status"] != "PSM_OK"]
            if found := _REFUSED.search(texts):
                row.refused += 1
                log.append(f"{ranks} ranks, {setting}: `{case.pattern}` of {case.type}, {case.op}: {found[2]}")
            elif any(r["status"] == "wrong data" for r in bad):
                row.wrong += 1
                log.append(f"WRONG: {ranks} ranks, {setting}: {case.line()}: {[r['text'] for r in bad]}")
            else:
                row.other += 1
                why = [r["text"] for r in bad] or [rank.text for rank in run.outcome.ranks]
                log.append(f"FAILED: {ranks} ranks, {setting}: {case.line()}: {why[0]}")
            print(log[-1], file=sys.stderr, flush=True)
            # If a type and op is refused, so are its sizes.
            left = [c for c in left[good:] if (c.pattern, c.type, c.op) != (case.pattern, case.type, case.op)]
    return rows


def cell(row: Row | None) -> str:
    if row is None:
        return ""
    words = [f"{row.right}" if row.right else ""]
    words += [f"{n} {name}" for n, name in ((row.refused, "refused"), (row.wrong, "WRONG"), (row.other, "failed")) if n]
    return ", ".join(word for word in words if word)


def table(results: Mapping[tuple[str, int], Mapping[tuple[str, str], Row]]) -> Iterator[str]:
    """Rows: collective and type; columns: setting and ranks; cells: number of cases with all bytes right."""
    columns = list(results)
    names = [f"{setting}, {ranks}" for setting, ranks in columns]
    yield "| collective | type | " + " | ".join(names) + " |"
    yield "|---|---|" + "---:|" * len(columns)
    for line in dict.fromkeys(k for rows in results.values() for k in rows):
        yield f"| {line[0]} | {line[1]} | " + " | ".join(cell(results[c].get(line)) for c in columns) + " |"


def render(runs: Sequence[dict[str, Any]]) -> str:
    """The page of all runs."""
    out = ["# The interpreter of NCCL's device work", ""]
    out += [
        "Made by `benchmarks/nccl.py`: cases in which every byte was right, on emulated GPUs. Each is 2 iterations of 1, 1021, 4096 bytes' "
        "or 1 MiB's and 3 elements, with each of the ops sum, prod, max, min, avg where it reduces (20 cases), or with bytes (4). Columns: what "
        "NCCL was told (NCCL_ALGO, NCCL_PROTO), and ranks. Refused and wrong cases would be named in the cells.",
        "",
    ]
    for release in dict.fromkeys(run["release"] for run in runs):
        mine = sorted(
            (run for run in runs if run["release"] == release),
            key=lambda run: (list(SETTINGS).index(run["setting"]), run["ranks"]),
        )
        results = {(run["setting"], run["ranks"]): {(p, t): Row(*row) for p, t, *row in run["rows"]} for run in mine}
        total = [sum(row) for row in zip(*(row[2:] for run in mine for row in run["rows"]), strict=True)]
        out += [f"## {release}", ""]
        out += [
            f"{total[0]} cases right, {total[1]} with wrong data, {total[2]} refused, {total[3]} that failed otherwise.",
            "",
        ]
        out += [*table(results), ""]
        if log := [line for run in mine for line in run["log"]]:
            out += ["Not right:", "", *(f"- {line}" for line in log), ""]
    return "\n".join(out)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="*", help="NAME=LIBRARY,KERNELS")
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--settings", default=";".join(SETTINGS), help="separated by ;")
    parser.add_argument("--results", type=Path, help="lines of JSON, a run each; new ones are added")
    parser.add_argument("--output", type=Path, help="the page of all results")
    chosen = parser.parse_args(argv)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    runs: list[dict[str, Any]] = []
    if chosen.results and chosen.results.exists():
        runs = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    for release in chosen.release:
        name, _, places = release.partition("=")
        place, _, kernels = places.partition(",")
        library = nccl_library.find(Path(place))
        for setting in chosen.settings.split(";"):
            for ranks in map(int, chosen.ranks.split(",")):
                log: list[str] = []
                begun = time.monotonic()
                rows = go(library, Path(kernels), ranks, setting, log)
                runs.append(
                    {
                        "release": f"{name}, NCCL {library.version}",
                        "setting": setting,
                        "ranks": ranks,
                        "rows": [[*key, row.right, row.wrong, row.refused, row.other] for key, row in rows.items()],
                        "log": log,
                    }
                )
                if chosen.results:
                    with chosen.results.open("a") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
                print(
                    f"{name}: {setting}, {ranks} ranks: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True
                )
    if chosen.output:
        chosen.output.write_text(render(runs))
    else:
        print(render(runs))
    return 1 if any(row[3] or row[5] for run in runs for row in run["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
