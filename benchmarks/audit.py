"""What the audits find in releases of NCCL and in forks, and what they cost. It writes benchmarks/audit.md.

    python benchmarks/audit.py cost LIB...                  libraries with debug information, beside pahole and readelf
    python benchmarks/audit.py findings NAME=TREE...        sources of NCCL, with nccl.h in TREE/build/include or TREE/gen; --cuda, --cflags
    python benchmarks/audit.py contract NAME=TREE...        the same sources, by the audit of contracts

A part that is not run keeps its table. pahole is of Debian's package (sh scripts/debian_tool.sh pahole).
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

from machine import clean, load, processor

HERE = Path(__file__).parent
PAGE = HERE / "audit.md"
PSMKIT = Path(sys.executable).parent / "psmkit"
JUDGED = HERE / "audit.toml"
SOURCES = (
    *("transport/p2p.cc", "transport/shm.cc", "transport/net.cc", "transport/coll_net.cc", "transport/psm_p2p.cc"),
    *("transport/psm_net.cc", "proxy.cc"),
)
ASKED = ("p2pShmProxyInfo", "p2pConnectInfo", "ncclP2pBuff", "shmConnectInfo", "connectMap")
RUNS = 5


def table(name: str, text: str) -> None:
    """Replace a part of the page."""
    page = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(f"{head}{begin}\n{text}\n\n{end}{tail}")


# ---- cost ----


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock and of processors, and MiB of the largest process of a command."""
    code = (
        "import resource, subprocess, sys, time; t = time.monotonic();"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        "t = time.monotonic() - t; u = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(t, u.ru_utime + u.ru_stime, u.ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, env=clean(), check=True
    )
    clock, processors, memory = done.stdout.split()
    return float(clock), float(processors), float(memory)


def cost(libraries: list[Path], pahole: str) -> None:
    rows = ["| library | what | s | processor s | MiB |", "|---|---|---:|---:|---:|"]
    for library in libraries:
        commands = {
            "psmkit audit structs": [str(PSMKIT), "audit", "structs", str(library)],
            f"pahole, {len(ASKED)} types": [pahole, "-C", ",".join(ASKED), str(library)],
            "readelf --debug-dump=info": ["readelf", "--debug-dump=info", str(library)],
        }
        shown = subprocess.run(["readelf", "-SW", str(library)], capture_output=True, text=True, check=True).stdout
        debug = sum(int(found[1], 16) for found in re.finditer(r"\.debug_\w+\s+PROGBITS\s+\w+ \w+ (\w+)", shown))
        version = re.search(rb"NCCL version (\d+\.\d+\.\d+)", library.read_bytes())
        name = f"NCCL {version[1].decode()}" if version else library.name
        label = f"{name}, {library.stat().st_size / 1e6:.0f} MB, of it {debug / 1e6:.0f} MB of debug information"
        for what, command in commands.items():
            runs = [measured(command) for _ in range(RUNS)]
            clock, processors, memory = (statistics.median(values) for values in zip(*runs, strict=True))
            rows.append(f"| {label} | {what} | {clock:.2f} | {processors:.2f} | {memory:.0f} |")
            label = ""
    text = (
        f"{processor()}, 2 cores, load {load()}; medians of {RUNS} runs in turn. psmkit: with the start of both Pythons, all types that it knows, their places, and "
        "the larger of its two processes."
    )
    table("cost", "\n".join([text, "", *rows]))


# ---- findings ----


def audited(what: str, tree: Path, cuda: Path, more: str) -> list[dict[str, object]]:
    """The findings of an audit in the sources of a tree."""
    places = [tree / "src" / name for name in SOURCES]
    folders = [
        tree / "build/include",
        tree / "gen",
        tree / "src/include",
        tree / "src/include/plugin",
        tree / "src",
        cuda,
    ]
    flags = [
        "-x",
        "c++",
        "-std=c++17",
        "-isystem",
        str(cuda),
        *(f"-I{one}" for one in folders if one.is_dir()),
        *shlex.split(more),
    ]
    command = [str(PSMKIT), "audit", what, *(str(one) for one in places if one.is_file())]
    done = subprocess.run(
        [*command, "--cflags", shlex.join(flags), "--format", "json"], capture_output=True, text=True, env=clean()
    )
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return list(json.loads(done.stdout)["findings"])


def findings(what: str, trees: dict[str, Path], cuda: Path, more: str) -> None:
    judged = tomllib.loads(JUDGED.read_text())["judged"]
    seen: dict[tuple[str, str], dict[str, int]] = {}
    errors = dict.fromkeys(trees, 0)
    for name, tree in trees.items():
        for one in audited(what, tree, cuda, more):
            evidence = one["evidence"]
            assert isinstance(evidence, list)
            file = Path(evidence[0]["file"]).name
            title = re.sub(r", as line \d+ does$", "", f"{one['title']}")  # the same in each tree
            key = (title, f"{one['severity']} {one['code']}, {file}")
            seen.setdefault(key, {}).setdefault(name, evidence[0]["line"])
            errors[name] += one["severity"] == "error"
    rows = [f"| finding | level, file | {' | '.join(trees)} | judgement |", f"|---|---|{'---:|' * len(trees)}---|"]
    for (title, what), lines in sorted(seen.items(), key=lambda item: (item[0][1].split(", ")[1], item[0][0])):
        words = next((one for one in judged if re.search(one["finding"], title) and one.get("file", "") in what), None)
        said = f"{words['judgement']}: {words['why']}" if words else "not judged"
        cells = " | ".join(str(lines.get(name, "-")) for name in trees)
        rows.append(f"| {title} | {what} | {cells} | {said} |")
    total = ", ".join(f"{name}: {number}" for name, number in errors.items())
    table(
        "findings" if what == "structs" else what,
        "\n".join([f"Errors: {total}. A number is the line of the finding in that tree.", "", *rows]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "findings", "contract"))
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--pahole", default=str(HERE.parent / "build/tools/usr/bin/pahole"))
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda/include"))
    parser.add_argument("--cflags", default="")
    given = parser.parse_args()
    if given.part == "cost":
        cost([Path(one) for one in given.inputs], given.pahole)
    else:
        findings(
            "structs" if given.part == "findings" else given.part,
            {name: Path(tree) for name, _, tree in (one.partition("=") for one in given.inputs)},
            given.cuda,
            given.cflags,
        )


if __name__ == "__main__":
    main()
