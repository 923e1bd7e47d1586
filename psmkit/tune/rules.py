"""Read and write rules. The plugin's own C code parses them, in a child; there is no second parser."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psmkit.model import programs
from psmkit.model.errors import InputError, PsmkitError

__all__ = ["Decision", "Query", "Rule", "Rules", "RulesError", "decide", "program", "read", "to_csv", "to_toml"]

_MOST = 2**64 - 1
_PATIENCE = 120.0  # seconds for the child
Range = tuple[int, int]
_ALL: Range = (0, _MOST)


class RulesError(InputError):
    """A file of rules is invalid.

    Attributes:
        line: line number, 0 for the whole file.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}" if line else path, reason)
        self.line = line


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Ranges include both ends; algorithm and protocol "default", channels and chunk 0 leave the choice to NCCL."""

    ops: tuple[str, ...]
    bytes: Range = _ALL
    nodes: Range = _ALL
    ranks: Range = _ALL
    nvl_domains: Range = _ALL
    pipe_ops: Range = _ALL
    registered: int = -1
    algorithm: str = "default"
    protocol: str = "default"
    channels: int = 0
    chunk: int = 0
    note: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """A file of rules; ``constants`` by their position in ncclTunerConstants_v5_t."""

    rules: tuple[Rule, ...]
    constants: dict[int, float] = field(default_factory=dict)
    from_call: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """A collective. -1: unknown to that version of the table. ``offered``: pairs such as "ring/simple"; empty means all."""

    op: str
    bytes: int
    ranks: int
    nodes: int
    nvl_domains: int = -1
    pipe_ops: int = 1
    registered: int = 0
    offered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The plugin's answer. ``line`` 0: no rule matched; ``passed``: the first matching rule that could not be applied, 0 for none."""

    line: int
    passed: int
    algorithm: str
    protocol: str
    channels: int
    chunk: int
    note: str


def program(name: str) -> Path:
    """The path of one of psmkit's own programs.

    Raises:
        PsmkitError: the program was not built.
    """
    return programs.find(
        name,
        lambda place: PsmkitError(f"no {place}: build psmkit with CMake (make setup), or set PSM_DIR to its folder"),
    )


def read(path: str | Path) -> Rules:
    """Read the rules in a CSV or, by its suffix, TOML file.

    Raises:
        RulesError: the file is invalid.
    """
    return _run(path, ())[0]


def decide(path: str | Path, queries: Iterable[Query]) -> list[Decision]:
    """Apply a file of rules to collectives.

    Raises:
        RulesError: the file is invalid.
    """
    lines = (
        " ".join(map(str, (q.op, q.bytes, q.ranks, q.nodes, q.nvl_domains, q.pipe_ops, q.registered, *q.offered)))
        for q in queries
    )
    return _run(path, lines)[1]


def _run(path: str | Path, lines: Iterable[str]) -> tuple[Rules, list[Decision]]:
    done = subprocess.run(
        [program("psm_tuner_rules"), Path(path).absolute()],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",  # a quoted word may be cut inside a character
        timeout=_PATIENCE,
    )
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    if answers and "error" in answers[0]:
        raise RulesError(str(path), int(answers[0]["line"]), str(answers[0]["error"]))
    if done.returncode != 0 or not answers:
        raise PsmkitError(f"psm_tuner_rules ended with status {done.returncode}: {done.stderr.strip()[:200]}")
    head = answers[0]
    rules = Rules(
        tuple(_rule(entry) for entry in head["rules"]),
        {int(k): float(v) for k, v in head["constants"].items()},
        int(head["from_call"]),
    )
    return rules, [Decision(**answer) for answer in answers[1:]]


def _rule(entry: dict[str, Any]) -> Rule:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return Rule(**values)


# ---- writing ----


def _range(r: Range) -> str:
    low, high = r
    if r == _ALL:
        return "*"
    if low == high:
        return str(low)
    return f"{low or ''}..{'' if high == _MOST else high}"


_COLUMNS = ("op", "bytes", "nodes", "ranks", "pipe_ops", "registered", "nvl_domains")
_ANSWER = ("algorithm", "protocol", "channels", "chunk", "note")


def _cells(rule: Rule) -> dict[str, str]:
    ranges = {name: _range(getattr(rule, name)) for name in ("bytes", "nodes", "ranks", "pipe_ops", "nvl_domains")}
    return {
        "op": "|".join(rule.ops),
        **ranges,
        "registered": "*" if rule.registered < 0 else str(rule.registered),
        "algorithm": "*" if rule.algorithm == "default" else rule.algorithm,
        "protocol": "*" if rule.protocol == "default" else rule.protocol,
        "channels": str(rule.channels) if rule.channels else "*",
        "chunk": str(rule.chunk) if rule.chunk else "*",
        "note": rule.note,
    }


def to_csv(rules: Sequence[Rule], head: str = "") -> str:
    """Rules as CSV with a header; ``head`` becomes comments."""
    out = io.StringIO()
    for line in head.splitlines():
        out.write(f"# {line}\n")
    names = (*_COLUMNS, *_ANSWER)
    out.write(",".join(names) + "\n")
    for rule in rules:
        cells = _cells(rule)
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow([cells[name] for name in names])
        # A # in a cell would start a comment, so the cell is quoted.
        text = row.getvalue()
        if "#" in text:
            row = io.StringIO()
            csv.writer(row, lineterminator="", quoting=csv.QUOTE_ALL).writerow([cells[name] for name in names])
            text = row.getvalue()
        out.write(text + "\n")
    return out.getvalue()


def to_toml(rules: Sequence[Rule], head: str = "") -> str:
    """Rules as TOML."""
    out = [f"# {line}" for line in head.splitlines()]
    for rule in rules:
        out += ["", "[[rule]]"]
        for name, cell in _cells(rule).items():
            if name == "op":
                out.append("op = [" + ", ".join(f'"{op}"' for op in rule.ops) + "]")
            elif cell not in ("*", ""):
                text = cell.replace("\\", "\\\\").replace('"', '\\"')
                out.append(f"{name} = {cell}" if cell.isdecimal() and name != "note" else f'{name} = "{text}"')
    return "\n".join(out) + "\n"
