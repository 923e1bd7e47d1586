"""What `psmkit lab matrix` shows: the table, why runs did not work, differences in steps, messages that are not known."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from psmkit.cli.output import width
from psmkit.lab.repeated import Candidate, Outcome, Scenario, bounds, chance
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.model.difference import Difference
    from psmkit.model.report import Shape
    from psmkit.report.layout import Page

__all__ = ["Table", "Try"]

_HEAD = ("scenario", "NCCL", "works", "hangs", "fails", "doubt", "seconds", "steps", "unknown")
_OUTCOMES: tuple[Outcome, ...] = ("works", "hangs", "fails", "doubt")
_KINDS = 6  # of steps that only one side has
_SHAPES = 20


@dataclass(frozen=True, slots=True)
class Try:
    """One run: what it shows, how long it took, where its evidence is, why it does not work, the messages that no catalogue entry matches."""

    outcome: Outcome
    seconds: float
    folder: Path
    why: str
    shapes: tuple[Shape, ...] = ()


@dataclass(slots=True)
class Table:
    """All runs, by the names of their scenario and their library."""

    libraries: Sequence[Candidate]
    scenarios: Sequence[Scenario]
    tries: Mapping[tuple[str, str], Sequence[Try]]
    runs: int
    differences: dict[tuple[str, str], Difference | str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for scenario in self.scenarios:
            for before, candidate in zip(self.libraries, self.libraries[1:], strict=False):
                one, other = (self.tries[scenario.name, c.name] for c in (before, candidate))
                self.differences[scenario.name, candidate.name] = _difference(_shown(one), _shown(other))

    @property
    def status(self) -> int:
        """The exit status."""
        seen = {done.outcome for each in self.tries.values() for done in each}
        return 1 if seen & {"hangs", "fails"} else 3 if "doubt" in seen else 0

    def rows(self) -> list[list[str]]:
        """The cells, a row for each scenario and library."""
        out = []
        for scenario in self.scenarios:
            for candidate in self.libraries:
                each = self.tries[scenario.name, candidate.name]
                counts = [_count(each, outcome) for outcome in _OUTCOMES]
                shapes = {shape.shape for done in each for shape in done.shapes}
                steps = _steps(self.differences.get((scenario.name, candidate.name)))
                times = [done.seconds for done in each]
                out.append(
                    [scenario.name, candidate.name, *counts, f"{median(times):.1f}", steps, str(len(shapes) or "-")]
                )
        return out

    def markdown(self) -> str:
        """The table for a page."""
        lines = [" | ".join(row) for row in (_HEAD, ["---"] * len(_HEAD), *self.rows())]
        return "".join(f"| {line} |\n" for line in lines)

    def page(self) -> Page:
        """The table, and what stands behind its numbers."""
        from psmkit.report.layout import Page, Span
        from psmkit.report.ranktable import fit

        page = Page(width(sys.stdout))
        total = Counter(done.outcome for each in self.tries.values() for done in each)
        words = ", ".join(f"{total[outcome]} {outcome}" for outcome in _OUTCOMES if total[outcome])
        page.add(f"{counted(sum(total.values()), 'run')}: {words}")
        for candidate in self.libraries:
            kernels = f", kernels by {candidate.kernels}" if candidate.kernels else ""
            page.wrap(f"{candidate.name}: {candidate.library.path}{kernels}", hang="    ")
        page.blank()
        lines = fit(list(_HEAD), self.rows(), page.width)
        page.add(Span(lines[0], "dim"))
        for line in lines[1:]:
            page.add(line)
        page.blank()
        for text in self._texts():
            page.wrap(text, hang="    ")
        return page

    def _texts(self) -> list[str]:
        out = []
        for scenario in self.scenarios:
            for candidate in self.libraries:
                place = f"{scenario.name}, {candidate.name}"
                each = self.tries[scenario.name, candidate.name]
                reasons: dict[tuple[str, str], list[Try]] = {}
                for done in each:
                    if done.outcome != "works":
                        reasons.setdefault((done.outcome, done.why), []).append(done)
                out += [
                    f"{place}: {len(some)} {what}: {why} ({some[0].folder})" for (what, why), some in reasons.items()
                ]
                if odds := self._odds(scenario, candidate):
                    out.append(f"{place}: {odds}")
                found = self.differences.get((scenario.name, candidate.name))
                if found is not None and (said := _said(found)):
                    out.append(f"{place}: {said}")
        shapes: dict[str, tuple[int, Shape]] = {}
        for done in (done for each in self.tries.values() for done in each):
            for shape in done.shapes:
                shapes[shape.shape] = (shapes.get(shape.shape, (0, shape))[0] + shape.count, shape)
        ordered = sorted(shapes.values(), key=lambda pair: -pair[0])
        out += [f"not in the catalogue, {n} times: {s.shape} ({s.file}:{s.line})" for n, s in ordered[:_SHAPES]]
        if len(ordered) > _SHAPES:
            out.append(f"and {counted(len(ordered) - _SHAPES, 'more message')} (--format json shows all)")
        return out

    def _odds(self, scenario: Scenario, candidate: Candidate) -> str:
        """How the rate of runs that hang or fail differs from that of the first library, if it does."""
        base = self.libraries[0]
        one, other = (_bad(self.tries[scenario.name, c.name]) for c in (base, candidate))
        if candidate is base or one == other:
            return ""
        p = chance((one, self.runs), (other, self.runs))
        return (
            f"{other} of {self.runs} runs hang or fail, and {one} of {self.runs} with {base.name}: if both were alike, a difference of "
            f"this size would be seen with probability {p:.2g}"
        )

    def json(self) -> str:
        """All of it."""
        cells = []
        for scenario in self.scenarios:
            for candidate in self.libraries:
                each = self.tries[scenario.name, candidate.name]
                found = self.differences.get((scenario.name, candidate.name))
                cells.append(
                    {
                        "scenario": scenario.name,
                        "library": candidate.name,
                        "runs": [_as_dict(done) for done in each],
                        "rates": {o: bounds(sum(d.outcome == o for d in each), len(each)) for o in _OUTCOMES},
                        "as_first": chance(
                            (_bad(self.tries[scenario.name, self.libraries[0].name]), self.runs),
                            (_bad(each), self.runs),
                        ),
                        "steps": {"not_compared": found} if isinstance(found, str) else found and asdict(found),
                    }
                )
        document = {
            "schema": "psmkit.matrix/1",
            "libraries": [
                {
                    "name": c.name,
                    "path": str(c.library.path),
                    "version": c.library.version,
                    "cudart": c.library.cudart,
                    "kernels": str(c.kernels) if c.kernels else None,
                }
                for c in self.libraries
            ],
            "scenarios": [
                {"name": s.name, "ranks": s.ranks, "cases": [case.line() for case in s.cases]} for s in self.scenarios
            ],
            "cells": cells,
        }
        return json.dumps(document, indent=1) + "\n"


def _as_dict(done: Try) -> dict[str, Any]:
    return {
        "outcome": done.outcome,
        "seconds": round(done.seconds, 3),
        "folder": str(done.folder),
        "why": done.why,
        "unknown": [{"shape": s.shape, "count": s.count} for s in done.shapes],
    }


def _count(each: Sequence[Try], outcome: Outcome) -> str:
    """How many, and the bounds of the rate, where several runs allow to ask for one."""
    seen, runs = sum(done.outcome == outcome for done in each), len(each)
    if runs == 1 or outcome in ("fails", "doubt"):
        return str(seen)
    least, most = bounds(seen, runs)
    return f"{seen} of {runs} ({100 * least:.0f}-{most:.0%})"


def _bad(each: Sequence[Try]) -> int:
    return sum(done.outcome in ("hangs", "fails") for done in each)


def _shown(each: Sequence[Try]) -> Try:
    """The run whose steps stand for all: the first one that works, else the first one."""
    return next((done for done in each if done.outcome in ("works", "doubt")), each[0])


def _difference(one: Try, other: Try) -> Difference | str:
    """The comparison of two runs by their logs, or why there is none."""
    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inputs import scanned
    from psmkit.analysis.views.diff import compare
    from psmkit.model.errors import PsmkitError

    try:
        with (
            scanned([str(one.folder / "logs")], keep_calls=True) as left,
            scanned([str(other.folder / "logs")], keep_calls=True) as right,
        ):
            return compare(make_job(left), make_job(right))
    except PsmkitError as error:
        return str(error)


def _steps(found: Difference | str | None) -> str:
    if found is None:
        return "-"
    if isinstance(found, str):
        return "not compared"
    return f"{len(found.steps)} differ" if found.steps else "as before"


def _said(found: Difference | str) -> str:
    """The difference from the library before: kinds of steps that one of them has more of, and the first step that differs."""
    if isinstance(found, str):
        return f"steps not compared: {found}"
    more: Counter[str] = Counter()
    for row in found.operations:
        more[row.kind] += row.bad - row.good
    words = [f"{abs(n)} {'more' if n > 0 else 'fewer'} of {kind}" for kind, n in more.items() if n]
    words += [f"other details in {kind}" for kind, n in more.items() if not n]
    parts = [
        ", ".join(words[:_KINDS]) + (f" and {counted(len(words) - _KINDS, 'more kind')}" if len(words) > _KINDS else "")
    ]
    if found.steps:
        first = found.steps[0]
        parts.append(f"first on rank {first.rank}: {first.bad or 'nothing'}, before {first.good or 'nothing'}")
    said = "; ".join(part for part in parts if part)
    return f"steps differ from the library before: {said}" if said else ""
