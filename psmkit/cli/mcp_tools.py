"""The tools of ``psmkit mcp``: plain functions whose answers are small, whatever the size of the logs."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psmkit.model.errors import InputError, PsmkitError

if TYPE_CHECKING:
    from psmkit.logparse import Input
    from psmkit.model import Finding, Report

__all__ = ["Tools"]

#: How much an answer holds at most.
_FINDINGS, _EVIDENCE, _TEXT, _NAMES = 20, 3, 600, 20
_OPS, _LINES, _LINE = 200, 200, 2000
_EXPLAINED = 10
_KEPT = 4  # analyses whose result is kept
_PIECE = 1 << 20


class Tools:
    """What an assistant may ask. Each path must lie in one of the folders, or be one of the files, that the user named.

    Args:
        roots: these folders and files.

    Raises:
        InputError: one does not exist.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        self.roots: list[Path] = []
        for root in roots:
            if not os.path.exists(root):
                raise InputError(os.fspath(root), "no such file or folder")
            self.roots.append(Path(os.path.realpath(root)))
        # A scan switches the collection of garbage off, so one at a time; the SDK calls each tool in a thread.
        self._lock = threading.Lock()
        self._reports: OrderedDict[tuple[object, ...], Report] = OrderedDict()

    # ---- the tools ----

    def analyze(self, paths: list[str] | None = None, code: str | None = None, offset: int = 0) -> dict[str, Any]:
        """Say why a job hung or failed: verdict, the ranks to blame, the line that proves it, the next step, and findings, worst first.

        Args:
            paths: files, folders or globs of the logs of ONE job; all that the user named if left out.
            code: only findings of this code, such as PSM102.
            offset: skip so many findings; an answer holds 20.
        """
        from psmkit.report.data import finding_dict
        from psmkit.report.summary import (
            behind,
            by_weight,
            culprit_name,
            culprit_why,
            next_step,
            sentence,
            suspect_name,
        )

        report = self._report(paths)
        found = [f for f in by_weight(report) if code is None or f.code == code.upper()]
        offset = max(offset, 0)
        main = behind(report)
        coverage = report.coverage
        return _bounded(
            {
                "verdict": report.verdict.value,
                "sentence": sentence(report),
                "confidence": round(report.confidence, 4),
                "who": [
                    {"name": culprit_name(culprit), "rank": culprit.global_rank, "why": culprit_why(culprit, report)}
                    for culprit in report.culprits[:_NAMES]
                ],
                "suspects": [{"name": suspect_name(s), "owes": s.owes} for s in report.suspects[:_NAMES]],
                "proof": _proof(main),
                "do_this": next_step(report),
                "runs": len(report.runs),
                "ranks": _states(report),
                "findings": [_small(finding_dict(f)) for f in found[offset : offset + _FINDINGS]],
                "findings_in_all": len(found),
                "read": {"files": coverage.files, "bytes": coverage.bytes, "lines": coverage.lines},
                "ranks_without_a_log": len(coverage.missing_ranks),
                "notes": list(coverage.notes[:_NAMES]),
                "next": [{"when": a.when, "command": a.command, "why": a.why} for a in report.next[:_NAMES]],
            }
        )

    def ops(
        self,
        paths: list[str] | None = None,
        pending: bool = True,
        ranks: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> dict[str, Any]:
        """List proxy calls and fd exchanges: caller, opId, type, the last stage that each reached, and its lines.

        Args:
            paths: as for analyze.
            pending: only calls that are not complete.
            ranks: only calls that these ranks make or answer, such as 0-3,7.
            offset: skip so many rows.
            limit: at most so many rows, up to 200.
        """
        from psmkit.analysis.facts.job import make_job
        from psmkit.analysis.inputs import scanned
        from psmkit.analysis.views import ops
        from psmkit.cli.ops import chosen, plain
        from psmkit.cli.ranks import check_ranks, wanted_ranks

        wanted = wanted_ranks(ranks)
        offset, limit = max(offset, 0), min(max(limit, 1), _OPS)
        with self._lock, scanned(self._inside(paths), keep_calls=True) as scan:
            job = make_job(scan)
            rows = ops.rows(job)
            if wanted is not None:
                check_ranks(wanted, ops.ranks(job, rows))
            found = [row for row in rows if chosen(row, wanted, pending)]
            files = [file.path for file in scan.files]
            shown = [plain(row, files) for row in found[offset : offset + limit]]
        return _bounded({"ops": shown, "ops_in_all": len(found)})

    def explain(self, what: str) -> dict[str, Any]:
        """Explain a finding code (PSM102), a message of the catalogue (proxy.call.done), or a pasted log line.

        Args:
            what: one of these; a line can come with or without its prefix.
        """
        from psmkit.catalogue import load
        from psmkit.cli.explain import explained
        from psmkit.report.layout import Page

        if not what.strip():
            raise PsmkitError("nothing to explain: give a code, the name of a message, or a log line")
        return _bounded({"explained": explained(Page(100), what[: _LINE * 4], load(()))[:_EXPLAINED]})

    def lines(self, file: str, line: int, before: int = 3, after: int = 20) -> dict[str, Any]:
        """Show lines of a log around one, such as the evidence of a finding.

        Args:
            file: its name as the findings give it, also of a compressed file or of a member of an archive (logs.tar:rank0.log).
            line: the number of the line, from 1.
            before: lines above it; an answer holds 200 lines.
            after: lines below it.
        """
        item = self._input(file)
        first = max(1, line - max(min(before, _LINES - 1), 0))
        last = min(max(line, 1) + max(after, 0), first + _LINES - 1)
        shown = [{"line": number, "text": _text(text, _LINE)} for number, text in _between(item, first, last)]
        if not shown:
            raise InputError(file, f"it has no line {line}")
        return {"file": file, "lines": shown}

    # ---- confinement ----

    def _inside(self, paths: list[str] | None) -> list[str]:
        """The paths, each checked: it, and what lies below it, is inside the roots."""
        import glob

        out: list[str] = []
        for path in paths or map(str, self.roots):
            if path == "-":
                raise InputError(path, "standard input belongs to the protocol; give a file or a folder")
            whole = path if os.path.isabs(path) else os.path.join(self._base(path), path)
            names = [whole] if os.path.exists(whole) else glob.glob(whole, recursive=True)
            if not names:
                self._check(whole, path)
                raise InputError(path, f"no such file or folder in {', '.join(map(str, self.roots))}")
            for name in names:
                self._check(name, path)
                if os.path.isdir(name):
                    for below in _links(name):
                        self._check(below, path)
            out += sorted(names)
        return out

    def _base(self, path: str) -> str:
        """The folder that a relative path is relative to: the first root that has it."""
        folders = [str(root if root.is_dir() else root.parent) for root in self.roots]
        return next((folder for folder in folders if os.path.exists(os.path.join(folder, path))), folders[0])

    def _check(self, name: str, path: str) -> None:
        real = Path(os.path.realpath(name))
        if not any(real == root or root in real.parents for root in self.roots):
            allowed = ", ".join(map(str, self.roots))
            what = f"{name} is a link to {real}, and " if os.path.islink(name) else ""
            raise InputError(path, f"{what}this server reads only {allowed}; the user chooses that when it is started")

    def _input(self, file: str) -> Input:
        """The input that reports call ``file``."""
        from psmkit.logparse import discover

        whole = file if os.path.isabs(file) else os.path.join(self._base(file), file)
        container = next((part for part in _containers(whole) if os.path.isfile(part)), None)
        if container is None:
            self._check(whole, file)
            raise InputError(file, "no such file")
        self._check(container, file)
        found = discover([container])
        item = next((item for item in found if item.path == whole), None)
        if item is None:
            names = ", ".join(item.path for item in found[:3])
            raise InputError(file, f"it is not in {container}, which has {names}")
        return item

    def _report(self, paths: list[str] | None) -> Report:
        from psmkit.analysis import analyze

        inputs = self._inside(paths)
        with self._lock:
            key = (*inputs, *_states_of(inputs))
            if key in self._reports:
                self._reports.move_to_end(key)
            else:
                self._reports[key] = analyze(inputs)
                while len(self._reports) > _KEPT:
                    self._reports.popitem(last=False)
            return self._reports[key]


def _links(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if os.path.islink(path := os.path.join(root, name)):
                yield path


def _states_of(inputs: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """What changes when a file does."""
    for name in inputs:
        below = (os.path.join(root, n) for root, _, names in os.walk(name) for n in names)
        for path in below if os.path.isdir(name) else (name,):
            try:
                state = os.stat(path)
            except OSError:
                continue
            yield path, state.st_size, state.st_mtime_ns


def _containers(path: str) -> Iterator[str]:
    """``a.tar:b:c``, ``a.tar:b``, ``a.tar``: the file that may hold a member of this name."""
    yield path
    while ":" in path:
        path = path.rpartition(":")[0]
        yield path


def _between(item: Input, first: int, last: int) -> Iterator[tuple[int, str]]:
    """The lines of an input with these numbers. What is before them is only counted."""
    from psmkit.logparse.inputs import Reader

    reader = Reader(item)
    try:
        number, rest = 1, b""
        while piece := reader.read(_PIECE):
            rest += piece
            ends = rest.count(b"\n")
            if number + ends < first:
                number += ends
                rest = rest[rest.rfind(b"\n") + 1 :][-_LINE:] if ends else rest[:_LINE]
                continue
            *whole, rest = rest.split(b"\n")
            for text in whole:
                if number > last:
                    return
                if number >= first:
                    yield number, text.decode("utf-8", "replace")
                number += 1
            # Of a line without an end only what is shown is kept.
            rest = rest[: _LINE * 4]
        if rest and first <= number <= last:
            yield number, rest.decode("utf-8", "replace")
    finally:
        reader.close()


def _proof(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None or not finding.evidence:
        return None
    item = finding.evidence[0]
    return {"code": finding.code, "file": item.file, "line": item.line, "text": _text(item.text, _TEXT)}


def _states(report: Report) -> dict[str, int]:
    """How many ranks are in each state."""
    from collections import Counter

    return dict(Counter(row.state for row in report.ranks))


def _small(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding whose lists are cut; the numbers say how long they were."""
    out: dict[str, Any] = {key: value for key, value in finding.items() if value not in (None, "", [], ())}
    for key, most in (("evidence", _EVIDENCE), ("ranks", _NAMES), ("culprits", _NAMES), ("named", _NAMES),
                      ("suspects", _NAMES), ("processes", _NAMES)):  # fmt: skip
        if len(values := out.get(key, ())) > most:
            out[key] = values[:most]
            out[f"{key}_in_all"] = len(values)
    return out


def _bounded(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with each text made visible and cut."""

    def walk(value: Any, cut: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return cut(value)
        if isinstance(value, dict):
            return {key: walk(item, cut) for key, item in value.items()}
        return [walk(item, cut) for item in value] if isinstance(value, list | tuple) else value

    whole: dict[str, Any] = walk(answer, lambda text: _text(text, _LINE))
    return whole


def _text(text: str, most: int) -> str:
    from psmkit.report.escape import shorten, visible

    return shorten(visible(text), most)
