"""The score as a page: figures of the whole bank and of its sample, precision and recall of each code, and what misses the targets."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.bank.cases import CLASSES
from tests.bank.judge import Outcome
from tests.bank.subjects import SUBJECTS
from tests.mutilate import DRESS, SCORED

__all__ = ["PAGE", "contents", "figures", "listed", "page", "read", "removed", "worse"]

PAGE = Path(__file__).parents[2] / "benchmarks" / "score.md"
REMOVED = Path(__file__).with_name("removed.toml")
_MISSES = 12
_CONTENTS = "## Logs and ways"
#: The count of each figure, and of how many.
Figures = dict[str, tuple[int, int]]
#: These figures count mistakes: fewer are better.
_BAD = ("false healthy", "false alarm", "wrong culprit", "wrong verdict")
_TARGETS = {
    "whole": "verdict >= 98 %, culprit >= 95 %, no false healthy, no false alarm",
    "dressed": "as whole",
    "damaged": "no false healthy, wrong culprit <= 1 %",
}


def removed() -> dict[str, str]:
    """Subjects and ways that are no longer in the bank, with the reason."""
    return {str(k): str(v) for k, v in tomllib.loads(REMOVED.read_text()).items()}


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Each figure as (count, of how many). The name begins with the class and the origin."""
    found: Figures = {}
    for kind in CLASSES:
        for origin in ("real", "generated"):
            some = [o for o in outcomes if o.kind == kind and o.origin == origin]
            name = f"{kind}, {origin}"
            found[f"{name}: cases"] = (len(some), len(some))
            found[f"{name}: right verdict"] = (sum(o.right is True for o in some), len(some))
            for label, flags in (
                ("decided", [o.decided for o in some]),
                ("right culprit", [o.culprit for o in some]),
                ("right first line", [o.line for o in some]),
                ("right stage", [o.stage for o in some]),
                ("right code", [o.code in o.wanted if o.wanted else None for o in some]),
            ):
                judged = [flag for flag in flags if flag is not None]
                if judged:
                    found[f"{name}: {label}"] = (sum(judged), len(judged))
            for label in _BAD:
                found[f"{name}: {label}"] = (sum(label in o.missed for o in some), len(some))
    return found


def worse(name: str, now: Figures, before: Figures) -> bool:
    """Whether a figure dropped: whether more of the cases of its class miss it. Shares are compared, since the bank grows."""
    if name not in now or name not in before or name.endswith(": cases"):
        return False
    cases = f"{name.rpartition(': ')[0]}: cases"
    return _missing(name, now) * before[cases][0] > _missing(name, before) * now[cases][0]


def _missing(name: str, found: Figures) -> int:
    count, total = found[name]
    return count if name.rpartition(": ")[2] in _BAD else total - count


def _share(figure: tuple[int, int] | None) -> str:
    if figure is None or not figure[1]:
        return "-"
    return f"{figure[0]} of {figure[1]} ({100 * figure[0] / figure[1]:.1f} %)"


def _figure_rows(whole: Figures, sample: Figures) -> list[str]:
    rows = ["| figure | whole bank | sample |", "|---|---:|---:|"]
    for name in whole:
        if name.endswith(": cases"):
            rows.append(f"| {name} | {whole[name][0]} | {sample[name][0] if name in sample else 0} |")
        else:
            rows.append(f"| {name} | {_share(whole[name])} | {_share(sample.get(name))} |")
    return rows


def read(text: str) -> tuple[Figures, Figures]:
    """The figures of the whole bank and of the sample in a page."""
    whole: Figures = {}
    sample: Figures = {}
    for row in re.findall(r"^\| ((?:whole|dressed|damaged), .*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE):
        for figures_of, cell in ((whole, row[1]), (sample, row[2])):
            numbers = [int(n) for n in re.findall(r"(?<![.\d])\d+(?![.\d])", cell.partition("(")[0])]
            if numbers:
                figures_of[row[0]] = (numbers[0], numbers[-1])
    return whole, sample


def _codes(outcomes: Sequence[Outcome]) -> list[str]:
    judged = [o for o in outcomes if o.wanted]
    said: Counter[str] = Counter(o.code for o in judged)
    well: Counter[str] = Counter(o.code for o in judged if o.code in o.wanted)
    due: Counter[str] = Counter(o.wanted[0] for o in judged)
    met: Counter[str] = Counter(o.wanted[0] for o in judged if o.code in o.wanted)
    rows = ["| code | heads | rightly | precision | due | met | recall |", "|---|---:|---:|---:|---:|---:|---:|"]
    for code in sorted({*said, *due} - {""}):
        precision = f"{100 * well[code] / said[code]:.0f} %" if said[code] else "-"
        recall = f"{100 * met[code] / due[code]:.0f} %" if due[code] else "-"
        rows.append(f"| {code} | {said[code]} | {well[code]} | {precision} | {due[code]} | {met[code]} | {recall} |")
    return rows


def _misses(outcomes: Iterable[Outcome]) -> list[str]:
    classes: dict[str, dict[str, list[str]]] = {}
    for o in outcomes:
        for label in o.missed:
            subject, _, way = o.id.rpartition(":")
            classes.setdefault(f"{o.kind}: {label}", {}).setdefault(subject, []).append(way)
    rows = []
    for label in sorted(classes, key=lambda c: (CLASSES.index(c.partition(":")[0]), c)):
        subjects = classes[label]
        rows += ["", f"**{label}** ({sum(map(len, subjects.values()))} cases of {len(subjects)} logs)", ""]
        worst = sorted(subjects, key=lambda s: (-len(subjects[s]), s))
        rows += [
            f"- {s}: {', '.join(subjects[s][:8])}{' ...' if len(subjects[s]) > 8 else ''}" for s in worst[:_MISSES]
        ]
        if len(worst) > _MISSES:
            rows.append(f"- and {len(worst) - _MISSES} more")
    return rows


def contents() -> dict[str, list[str]]:
    """What the bank is made of: runs by folder, dialects by scenario, ways."""
    found: dict[str, list[str]] = {}
    for subject in SUBJECTS:
        group, _, name = subject.name.partition("/")
        # A group of many has its names in two parts: site and action, scenario and dialect.
        name = name if "/" not in name or group in ("near", "crowd") else name.partition("/")[0]
        if name not in found.setdefault(group, []):
            found[group].append(name)
    return {**found, "ways": [*DRESS, *SCORED]}


def listed(text: str) -> dict[str, list[str]]:
    """The :func:`contents` that a page lists."""
    part = text.partition(_CONTENTS)[2].partition("\n## ")[0]
    return {group: names.split(", ") for group, names in re.findall(r"^- (.*?): (.*)$", part, re.MULTILINE)}


def page(outcomes: Sequence[Outcome], sample: Sequence[Outcome]) -> str:
    """The page of the score."""
    origins = Counter(o.origin for o in outcomes)
    rows = [
        "# The score",
        "",
        "Written by `make score` (tests/bank). Each case is a log with a known truth: verdict, culprit, stage, and the code that may head the report.",
        f"{origins['real']} of {len(outcomes)} cases are from real runs, {origins['generated']} from simulated jobs.",
        "`make test` judges the sample and fails when a share of this page gets worse; `make nightly` judges the whole bank.",
        "",
        "*dressed*: launcher prefixes, colours, CRLF, noise: nothing is lost. *damaged*: lines are lost, torn, glued or reordered, or a rank is missing;",
        'then "inconclusive" is right, too. *decided*: a job that failed or hung is not called inconclusive. A wrong culprit counts only where the verdict is failed or hung.',
        "",
        *(f"- target, {kind}: {text}" for kind, text in _TARGETS.items()),
        "",
        "## Figures",
        "",
        *_figure_rows(figures(outcomes), figures(sample)),
        "",
        "## Codes that head a report",
        "",
        "Of the cases whose verdict is right: how often a code heads the report, and how often that is right; how often it is the best code, and how",
        "often a right one heads the report then.",
        "",
        *_codes(outcomes),
        "",
        _CONTENTS,
        "",
        *(f"- {group}: {', '.join(names)}" for group, names in contents().items()),
        "",
        "## Removed",
        "",
        *([f"- {name}: {why}" for name, why in removed().items()] or ["None."]),
        "",
        "## Misses by class",
        *_misses(outcomes),
    ]
    return "\n".join(rows) + "\n"
