"""Measure ranks that exchange data in all ways (`matrix`), with every fault at every site (`faults`), and with every variant of the transport
(`variants`); writes the tables to build/lab_*.md.

python benchmarks/lab.py matrix [--ranks 2,4] [--most 4M]
python benchmarks/lab.py faults [--site proxy.setup] [--action kill,hang]
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from psmkit import analyze
from psmkit.lab import declared, elf, matrix, transfer
from psmkit.lab.emulation import Emulation

BUILD = Path(__file__).parents[1] / "build"
DEADLINE, TIMEOUT = 4.0, 1.0  # seconds for a run with a fault; for a wait of its control plane


def run_matrix(ranks: list[int], most: int) -> list[str]:
    """The table, and a line for each failed case."""
    lines = ["| ranks | pattern | bytes per peer | " + " | ".join(f"{s}, {z}" for s, z in ways()) + " |"]
    lines.append("|---" * (3 + len(ways())) + "|")
    wrong: list[str] = []
    for count in ranks:
        cases = [case for case in matrix.all_cases(count) if case.size <= most]
        folder = Path(tempfile.mkdtemp(prefix="psm-matrix-"))
        run = transfer.start(cases, count, folder / "run", deadline=3600.0, debug="WARN")
        seconds: dict[tuple[object, ...], str] = {}
        for number, case in enumerate(cases):
            reports = [rank.reports[number] for rank in run.outcome.ranks if len(rank.reports) > number]
            bad = [r for r in reports if r["status"] != "PSM_OK"]
            if bad or len(reports) < count:
                wrong.append(f"{case.line()}: {bad[0]['text'] if bad else 'not all ranks came so far'}")
            moved = sum(r["bytes"] for r in reports)
            slowest = max((r["move_seconds"] for r in reports), default=0.0)
            rate = f"{moved / slowest / 1e9:.2f}" if slowest and not bad else "wrong"
            seconds[case.pattern, case.size, case.share, case.zero_copy] = rate
        for pattern in matrix.AXES["pattern"]:
            for size in [s for s in matrix.AXES["size"] if (pattern, s, *ways()[0]) in seconds]:
                row = [seconds[pattern, size, *way] for way in ways()]
                lines.append(f"| {count} | {pattern} | {size} | " + " | ".join(row) + " |")
        print(f"{count} ranks: {len(cases)} cases, {run.outcome.seconds:.0f} s, good: {run.outcome.good}", flush=True)
        shutil.rmtree(folder)
    return [*lines, "", *(wrong or ["All data was right, and nothing was left behind."])]


def ways() -> list[tuple[str, str]]:
    """The ways of moving data."""
    return [(s, z) for s in matrix.AXES["share"] for z in matrix.AXES["zero_copy"]]


def look(run: transfer.LabRun) -> declared.Found:
    """The findings of the analysis for a run, without the injected faults."""
    report = analyze([str(p) for p in run.evidence()])
    codes = {f.code for f in report.findings if f.severity.weight} - {"PSM605"}
    return declared.found(report.verdict.value, codes, [c.rank for c in report.culprits])


def said(found: declared.Found) -> str:
    """A result as text for a table."""
    who = f"rank {', '.join(map(str, sorted(found.culprits)))}" if found.culprits else ""
    return " ".join(part for part in (found.verdict, *sorted(found.codes), who) if part)


def run_faults(only: str | None, actions: str | None) -> list[str]:
    """The table of faults."""
    program = transfer.program()
    binaries = (program.parents[1] / "lib" / "libpsm.so", program)
    sites = [s for b in binaries for s in elf.sites(b) if only is None or s.name in only.split(",")]
    lines = ["| site | action | rank | ranks end | s | told | left | declared | found | |", "|---" * 10 + "|"]
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for strike in matrix.strikes(sites):
        if actions and strike.action not in actions.split(","):
            continue
        folder = Path(tempfile.mkdtemp(prefix="psm-fault-"))
        emulation = Emulation(folder, faults=strike.text, stall_report=1.0, leaks=True)
        case = replace(strike.case, timeout_ms=round(TIMEOUT * 1000), stall_report_ms=1000)
        run = transfer.start(
            [case], 2, folder / "run", deadline=DEADLINE, emulation=emulation, nodes=strike.nodes, stacks=False
        )
        outcome = run.outcome
        struck = run.struck()
        state = ("" if struck else "not reached: ") + " ".join(rank.state for rank in outcome.ranks)
        found = look(run)
        expected = declared.of_strike(strike)
        missing = expected.missing(found, outcome, struck)
        told = next((r["text"] for rank in outcome.ranks for r in rank.reports if r["text"] and r["by"] != "lab"), "")
        left = len(outcome.shared_memory) + len(outcome.processes)
        ends[state] += 1
        cells = [strike.site, strike.action, str(strike.rank), state, f"{outcome.seconds:.1f}", told[:110], str(left)]
        cells += [expected.text() if struck else "healthy", said(found), missing or "yes"]
        lines.append("| " + " | ".join(c.replace("|", "/") for c in cells) + " |")
        if missing:
            wrong.append(f"{strike.text}: {missing}")
        print(lines[-1], flush=True)
        shutil.rmtree(folder)
    told_all = f"{len(lines) - 2 - len(wrong)} of {len(lines) - 2} are found as declared."
    lines = [*lines, "", told_all, *(f"- {text}" for text in wrong), ""]
    return [*lines, *(f"- {count} x {end}" for end, count in ends.most_common())]


def run_variants() -> list[str]:
    """What each variant declares and what the analysis finds in its run, by application stream and way of moving data."""
    lines = ["| variant | declared | stream, zero-copy | ranks end | found | |", "|---" * 6 + "|"]
    wrong = 0
    for variant in transfer.variants().values():
        for stream, zero_copy in itertools.product(("legacy", "nonblocking"), ("never", "registered")):
            folder = Path(tempfile.mkdtemp(prefix="psm-variant-"))
            case = transfer.Case(size=1 << 20, iters=4, app_stream=stream, zero_copy=zero_copy, variant=variant.name)
            case = replace(case, timeout_ms=round(TIMEOUT * 1000), stall_report_ms=1000)
            emulation = Emulation(folder, stall_report=1.0, leaks=True)
            nodes = 2 if variant.name.startswith("net/") else 1
            run = transfer.start(
                [case], 2, folder / "run", deadline=DEADLINE, emulation=emulation, nodes=nodes, stacks=False
            )
            found = look(run)
            missing = declared.of_variant(variant, case, run.outcome.good).missing(found, run.outcome)
            wrong += bool(missing)
            states = " ".join(rank.state for rank in run.outcome.ranks)
            way = f"{stream}, {zero_copy}"
            cells = [variant.name, variant.outcome or "right", way, states, said(found), missing or "yes"]
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
            shutil.rmtree(folder)
    return [*lines, "", f"{len(lines) - 2 - wrong} of {len(lines) - 2} are found as declared."]


def main() -> int:
    """Run one benchmark and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("matrix", "faults", "variants"))
    parser.add_argument("--ranks", default=",".join(map(str, matrix.RANKS)))
    parser.add_argument("--most", default="64M", type=transfer.size)
    parser.add_argument("--site", help="of faults: only these, NAME[,NAME...]")
    parser.add_argument("--action", help="of faults: only these, such as kill,hang")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    ranks = [int(n) for n in given.ranks.split(",")]
    if given.what == "matrix":
        lines = run_matrix(ranks, given.most)
        title = "# Data in all ways\n\nGB/s through emulated CUDA, all ranks together, two groups; every byte was compared. A rank that waits for\none that still compares is timed, too: benchmarks/fifo.md has the rate of a copy alone.\n"
    elif given.what == "variants":
        lines = run_variants()
        title = "# Every variant of the transport\n\nTwo ranks, four operations of 1 MiB; a stall is told after 1 s.\n"
    else:
        lines = run_faults(given.site, given.action)
        title = "# Every fault at every site\n\nTwo ranks, one case; `told` is what the first rank that failed by itself says. `declared` is what `psmkit analyze` must find.\n"
    out = given.out or BUILD / f"lab_{given.what}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([title, *lines]) + "\n")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
