"""Drive a profiler as NCCL does, and report where it breaks the contract.

psm_profiler_drive (csrc/plugins/drive/profiler) plays NCCL: one process for each check, which reports one line. This module reads
the lines, and handles processes that died or did not end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from psmkit.model import CODES, Finding
from psmkit.model.errors import InputError
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive import AFTER_FAILURE, Drive, DriveError, Result
from psmkit.plugins.drive_checks import Check
from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
from psmkit.plugins.driven import chosen, kinds_of, tables_of, write_log
from psmkit.plugins.faults import Fault, advice, explanation, faults
from psmkit.plugins.programs import child, find_program

__all__ = ["PROFILER_VERSIONS", "drive_profiler", "profiler_alone", "profiler_versions"]

PROFILER_VERSIONS = spoken("profiler")
_PROGRAM = "psm_profiler_drive"
_SETUP = ("load", "slots", "init")
_CALLS = ("init", "startEvent", "stopEvent", "recordEventState", "finalize")
_CODES = {"contract": "PSM921", "died": "PSM923", "blocked": "PSM924", "leak": "PSM925", "weak": "PSM926"}
_PATIENCE = 60.0  # seconds for a check beyond its calls
_LEAVE_OPEN = "PSM_DRIVE_LEAVE_OPEN"  # set, the checks do not call finalize
#: Checks about finalize and what it leaves.
_FINALIZES = frozenset({"open-end", "communicators", "leaks", "unload", "finalize"})
_MOST = 1 << 16  # bytes of a report


def profiler_alone(path: Path) -> bool:
    """Whether the library has profiler tables but none of a net plugin or tuner. False also for unreadable files."""
    kinds = kinds_of(path)
    return "ncclProfiler" in kinds and not kinds & {"ncclNetPlugin", "ncclTunerPlugin"}


def profiler_versions(path: Path, environment: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The versions of the profiler table in the library, newest first, as a separate process sees them.

    Raises:
        InputError: no process can load the library, or it has no such table.
    """
    return tables_of(_PROGRAM, path, environment, "a profiler", PROFILER_VERSIONS)


def drive_profiler(
    path: Path,
    *,
    versions: Sequence[int] | None = None,
    only: Sequence[str] = (),
    timeout: float = 20.0,
    environment: Mapping[str, str] | None = None,
    stream: Path | None = None,
    watch: Callable[[int, str], None] | None = None,
    log: IO[str] | None = None,
) -> Drive:
    """Run the checks on a library.

    Args:
        path: path of the library.
        versions: versions of the table; None: the newest in the library.
        only: names of checks; if empty, all.
        timeout: seconds for a call.
        environment: additional variables of the processes.
        stream: a recorded stream to replay as well.
        watch: called with each version and check when it begins.
        log: gets all that the profiler logs and prints.

    Raises:
        InputError: no process can load the library, it lacks the version, or the stream cannot be read.
        DriveError: the checks could not be run.
    """
    wanted = chosen(path, profiler_versions(path, environment), versions, "ncclProfiler")
    if stream is not None and not stream.is_file():
        raise InputError(str(stream), "no such file")
    settings = {**os.environ, **(environment or {}), "PSM_DRIVE_TIMEOUT_MS": str(max(1, round(timeout * 1000)))}
    results: list[Result] = []
    for version in wanted:
        broken = blocks = ""
        settings.pop(_LEAVE_OPEN, None)
        for check in PROFILER_CHECKS:
            if only and check.name not in only and check.name not in _SETUP:
                continue
            if check.name == "stream" and stream is None and "stream" not in only:
                continue
            if broken:
                results.append(Result(check.name, version, "skipped", f"needs {broken}{AFTER_FAILURE}"))
                continue
            if watch is not None:
                watch(version, check.name)
            if blocks and check.name in _FINALIZES:
                results.append(Result(check.name, version, "skipped", f"needs finalize, which blocked in {blocks}"))
                continue
            result = _run(path.absolute(), version, check, timeout, settings, stream, log)
            results.append(result)
            # with events that are open, finalize may block for these only
            if result.kind == "blocked" and result.call == "finalize" and check.name != "open-end":
                blocks, settings = check.name, {**settings, _LEAVE_OPEN: "1"}
            if check.name in _SETUP and result.outcome == "failed" and result.kind != "weak":
                broken = check.name
    return Drive(path, 1, wanted, tuple(results), tuple(_findings(results)), _faults(results))


def _run(
    path: Path,
    version: int,
    check: Check,
    timeout: float,
    settings: Mapping[str, str],
    stream: Path | None,
    log: IO[str] | None,
) -> Result:
    command = [
        str(find_program(_PROGRAM)),
        str(path),
        str(version),
        check.name,
        *([str(stream.absolute())] if stream else []),
    ]
    late = False
    with tempfile.TemporaryFile() as out, tempfile.NamedTemporaryFile(prefix="psmkit-drive-") as printed:
        with child(command, out, env=settings, stderr=printed.fileno()) as process:
            try:
                status = process.wait(timeout + _PATIENCE)
            except subprocess.TimeoutExpired:
                late, status = True, 0
        write_log(log, f"v{version} {check.name}", Path(printed.name))
        out.seek(0)
        report = _report(out.read(_MOST))
    return _judge(report, version, check, status, timeout + _PATIENCE if late else None)


def _judge(report: dict[str, Any], version: int, check: Check, status: int, late: float | None) -> Result:
    seconds, warning = float(report.get("seconds", 0.0)), str(report.get("warning", ""))

    def failed(kind: str, text: str) -> Result:
        words = [] if kind in ("leak", "weak") else [*text.partition(" in ")[2].split()[:1], *text.split()[:1]]
        named = next((call for word in words if (call := word.rstrip(":,;")) in _CALLS), "")
        grade = check.grade_of(kind)
        return Result(check.name, version, "failed", text, kind, named, None, seconds, warning, grade)

    if report and report["outcome"] == "failed":
        kind, text = str(report["kind"]), str(report["text"])
        if kind == "stream":
            raise InputError("stream", text)
        if kind not in _CODES:
            raise DriveError(text)
        return failed(kind, text)
    if late is not None:
        where = "after the check, at the end of the process" if report else "outside of its calls"
        return failed("blocked", f"the process did not end within {late:.0f} s, {where}")
    if status != 0:
        where = "after the check, at its exit" if report else "in the check"
        return failed("died", f"the process {_end(status)} {where}")
    if not report:
        return failed("died", "the process ended in the check, as by exit(0)")
    return Result(check.name, version, str(report["outcome"]), str(report["text"]), seconds=seconds)


def _end(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _report(data: bytes) -> dict[str, Any]:
    for line in data.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "outcome" in found:
                return found
    return {}


def _faults(results: Sequence[Result]) -> tuple[Fault, ...]:
    return tuple(faults(results, _CODES, {check.name: check for check in PROFILER_CHECKS}))


def _findings(results: Sequence[Result]) -> list[Finding]:
    """One finding for each check and kind; versions that fail in the same way share it."""
    of = {check.name: check for check in PROFILER_CHECKS}
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "failed":
            grouped.setdefault((result.check, result.kind), []).append(result)
    findings = []
    for (name, kind), same in grouped.items():
        first, check, code = same[0], of[name], CODES[_CODES[kind]]
        findings.append(
            Finding(
                code.code,
                f"{name} (v{first.version}): {first.text}",
                first.severity,
                1.0,
                explanation(check, first, [one.version for one in same], None),
                advice(code.code, first.text, check),
                stage=first.call or None,
            )
        )
    return sorted(findings, key=lambda finding: -finding.severity.weight)
