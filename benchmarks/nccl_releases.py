"""Run what psmkit brings to NCCL over releases that you have built, and write the table of benchmarks/nccl_releases.md.

    python benchmarks/nccl_releases.py LIBRARY[,KERNELS] [...] [--ranks 2,4] [--only transport] [--output FILE]

LIBRARY is a libnccl of a tree with the lines of docs/linking.md, linked to libpsm_nccl.a, or a plain one (--only interpreter). KERNELS is the
libpsm_nccl_kernels.so that was built against its tree (docs/kernels.md). Each row is a `psmkit lab matrix`: every byte is compared, and the
analysis must say healthy. Rows of other releases and numbers of ranks stay in FILE.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.nccl_page import Page, Row, Table, arguments, publish
from psmkit.lab import programs

#: By path: with a name NCCL would search the loader's folders, and go on without a plugin that is not there.
PLUGINS = {kind: programs.tree() / "lib" / f"libnccl-{kind}-psm.so" for kind in ("net", "profiler", "tuner")}
#: What each rank of a run with plugins prints: NCCL for a connection, psmkit's profiler and tuner for a communicator.
USED = ("via NET/PSM/", "PROFILER/PSM : ", "TUNER/PSM : ")
KINDS: dict[str, tuple[str, ...]] = {
    "transport": ("--pattern", "pair,ring,alltoall", "--size", "1,64K,1M", "--env", "NCCL_PASS_SM=1"),
    "interpreter": (
        *("--pattern", "allreduce,allgather,reducescatter,broadcast,reduce,alltoall"),
        *("--type", "float32", "--size", "64K"),
    ),
    "plugins": (
        *("--pattern", "allreduce,alltoall", "--type", "float32", "--size", "64K", "--nodes", "2"),
        *(word for kind, path in PLUGINS.items() for word in ("--env", f"NCCL_{kind.upper()}_PLUGIN={path}")),
    ),
}
PAGE = Page(
    (
        "# Releases of NCCL over emulated CUDA",
        "",
        "Made by `benchmarks/nccl_releases.py` from trees of which only the host side was compiled. *Exact*: runs in which every byte",
        "was right, nothing was left behind and the analysis said healthy. Seconds are the median of a run, on a busy machine. *Unknown*:",
        "messages that the catalogue does not have.",
        "",
        "- *transport*: sends and recvs by the proxy and the copy engine (NCCL_PASS_SM=1), messages of 1 byte, 64 KiB and 1 MiB",
        "- *interpreter*: kernels on the CPU, 64 KiB of float32 a rank",
        "- *plugins*: the same on two pretended nodes, with psmkit's net, profiler and tuner plugins; the log of each rank shows all three",
    ),
    (
        Table(
            ("release", "CUDA runtime", "what", "patterns", "ranks", "exact", "seconds", "unknown"),
            ("exact", "seconds", "unknown"),
            list(KINDS),
        ),
    ),
)


def run(libraries: Sequence[str], kind: str, ranks: str, deadline: str) -> Iterator[Row]:
    """A row for each library."""
    chosen = [text.partition(",")[0] if kind == "transport" else text for text in libraries]
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "psmkit", "lab", "matrix", "--nccl", *chosen, *KINDS[kind], "--ranks", ranks]
        command += ["--deadline", deadline, "--out", f"{place}/out", "--format", "json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 2:
            raise SystemExit("a run could not start")
        result = json.loads(done.stdout)
        for one in (run for cell in result["cells"] for run in cell["runs"] if kind == "plugins"):
            if one["outcome"] == "works" and (missing := _missing(Path(one["folder"]))):
                one |= {"outcome": "doubt", "why": f"no line of {', '.join(missing)}"}
    for library in result["libraries"]:
        cells = [cell for cell in result["cells"] if cell["library"] == library["name"]]
        runs = [one for cell in cells for one in cell["runs"]]
        works = sum(one["outcome"] == "works" for one in runs)
        yield Row(
            kind,
            {
                "release": library["version"],
                "CUDA runtime": library["cudart"],
                "what": kind,
                "patterns": ", ".join(dict.fromkeys(cell["scenario"].split(",")[0] for cell in cells)),
                "ranks": ranks.replace(",", ", "),
                "exact": f"{works} of {len(runs)}",
                "seconds": f"{median(one['seconds'] for one in runs):.1f}",
                "unknown": str(len({shape["shape"] for one in runs for shape in one["unknown"]})),
            },
            works == len(runs),
            sorted({f"{cell['scenario']}: {one['why']}" for cell in cells for one in cell["runs"] if one["why"]}),
        )


def _missing(folder: Path) -> list[str]:
    """What some rank of a run does not print of its plugins."""
    logs = [path.read_text(errors="replace") for path in (folder / "logs").glob("rank-*.log")]
    return [words for words in USED if not logs or any(words not in log for log in logs)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__, "2,4", "240")
    parser.add_argument("--only", choices=list(KINDS), action="append", help="of the rows; repeatable")
    chosen = parser.parse_args(argv)
    kinds = (chosen.only or list(KINDS)) if chosen.library else []
    new = (row for kind in kinds for row in run(chosen.library, kind, chosen.ranks, chosen.deadline))
    return publish(PAGE, new, chosen.output)


if __name__ == "__main__":
    sys.exit(main())
