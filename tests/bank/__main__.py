"""``python -m tests.bank``: judge the bank, and write benchmarks/score.md."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import psmkit
from psmkit.report import render
from tests.bank.cases import cases, in_sample
from tests.bank.judge import judged
from tests.bank.table import PAGE, figures, page, read, worse


def main() -> int:
    """Judge and write; the exit status is 1 when a figure is worse than the committed one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--misses", action="store_true", help="print each miss")
    parser.add_argument("--only", default="", help="judge the cases whose name contains this, and write nothing")
    parser.add_argument("--show", metavar="ID", help="write this case to build/bank, and print its report")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    bank = list(cases())
    if options.show:
        case = next(case for case in bank if case.id == options.show)
        folder = Path("build") / "bank" / options.show.replace("/", "_").replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        case.write(folder)
        print(f"{folder}: {case.subject.truth}\n")
        print(render(psmkit.analyze([folder]), "text"))
        return 0
    chosen = [case for case in bank if options.only in case.id]
    outcomes = judged(chosen, options.processes)
    if options.misses or options.only:
        for outcome in outcomes:
            if outcome.missed:
                print(f"{', '.join(outcome.missed)}: {outcome.id}: {outcome.first}")
    now = figures(outcomes)
    for name, (count, total) in now.items():
        print(f"{name}: {count} of {total}")
    if options.only:
        return 0
    before, _ = read(PAGE.read_text()) if PAGE.exists() else ({}, {})
    dropped = [name for name in now if worse(name, now, before)]
    sample = {case.id for case in bank if in_sample(case)}
    PAGE.write_text(page(outcomes, [o for o in outcomes if o.id in sample]))
    for name in dropped:
        print(f"worse than the committed page: {name}: {before[name]} -> {now[name]}")
    return 1 if dropped else 0


if __name__ == "__main__":
    sys.exit(main())
