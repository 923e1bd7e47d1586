"""Drive a tuner as NCCL does, in several processes, and report where it breaks the contract.

psm_tuner_drive (csrc/plugins/tuner/tools) creates communicators, asks for thousands of collectives, ordinary and strange, and checks every
output. This module reads its reports, handles processes that died or did not end, and compares the answers of the processes: ranks that
decide differently hang. After a process that died, the remaining checks run in fresh ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from psmkit.model import CODES, Finding
from psmkit.model.errors import InputError
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive import AFTER_FAILURE, Drive, Result
from psmkit.plugins.drive_checks import Check
from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS
from psmkit.plugins.driven import kinds_of, symbols, tables_in, without_path, write_log
from psmkit.plugins.faults import advice, explanation, faults
from psmkit.plugins.programs import child, find_program, kill

__all__ = ["TUNER_VERSIONS", "drive_tuner", "tuner_alone", "tuner_versions"]

TUNER_VERSIONS = spoken("tuner")
_MOST = 1 << 20  # bytes of a report
_LOOK = 0.2  # seconds between two looks at the progress of a process
_SETUP = ("load", "slots", "init")
_BY_NAME = {one.name: one for one in TUNER_CHECKS}
#: The code of each kind of failure; of all others, which say what NCCL does with a wrong answer, it is that of the contract.
_CODES = {
    "contract": "PSM941",
    "died": "PSM942",
    "blocked": "PSM943",
    "differ": "PSM944",
    "leak": "PSM945",
    "late": "PSM946",
}
_ALL_CODES = {**_CODES, **{kind: "PSM941" for one in TUNER_CHECKS for kind in one.but if kind not in _CODES}}


def tuner_versions(path: Path) -> tuple[int, ...]:
    """The versions of the tuner table in the library's symbols, newest first.

    Raises:
        InputError: the file is not a library.
    """
    names = symbols(path)
    return tuple(version for version in TUNER_VERSIONS if f"ncclTunerPlugin_v{version}" in names)


def tuner_alone(path: Path) -> bool:
    """Whether the library has tuner tables but none of a net plugin. False also for unreadable files."""
    kinds = kinds_of(path)
    return "ncclTunerPlugin" in kinds and "ncclNetPlugin" not in kinds


def drive_tuner(
    path: Path,
    *,
    ranks: int = 3,
    versions: Sequence[int] | None = None,
    only: Sequence[str] = (),
    timeout: float = 60.0,
    limit_ns: float = 20_000.0,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int, str], None] | None = None,
    log: IO[str] | None = None,
) -> Drive:
    """Run the checks on a library.

    Args:
        path: path of the library.
        ranks: number of processes, whose answers must be equal.
        versions: versions of the table; None: the newest in the library.
        only: names of checks; if empty, all.
        timeout: seconds for all checks of one version, and again for those after one that did not end.
        limit_ns: the maximum time of a call.
        environment: variables to set in the processes.
        watch: called with each version and check when it begins on rank 0.
        log: gets all that the tuner logs and prints.

    Raises:
        InputError: the library has no such table.
    """
    has = tuner_versions(path)
    chosen = tuple(versions) if versions is not None else has[:1]
    missing = [f"v{version}" for version in chosen if version not in has]
    if missing or not chosen:
        there = ", ".join(f"v{version}" for version in has) or tables_in(path)
        raise InputError(str(path), f"no tuner table{' ' if missing else ''}{', '.join(missing)}; it has {there}")
    results: list[Result] = []
    for version in chosen:
        one = _Version(path, version, ranks, timeout, limit_ns, environment or {}, watch, log)
        results += one.run([check.name for check in TUNER_CHECKS if not only or check.name in only])
    found = faults(results, _ALL_CODES, _BY_NAME, ranks)
    return Drive(path, ranks, chosen, tuple(results), tuple(_findings(results, ranks)), tuple(found))


class _Version:
    """The checks with one version of the table."""

    def __init__(
        self,
        path: Path,
        version: int,
        ranks: int,
        timeout: float,
        limit_ns: float,
        environment: Mapping[str, str],
        watch: Callable[[int, str], None] | None,
        log: IO[str] | None,
    ) -> None:
        self.path, self.version, self.ranks, self.limit_ns = path, version, ranks, limit_ns
        self.timeout, self.environment, self.watch, self.log = timeout, environment, watch, log
        self.results: dict[str, Result] = {}
        self.differ = False
        self.whole = True  # whether all processes reached the end of what they ran

    def run(self, names: Sequence[str]) -> list[Result]:
        names = list(dict.fromkeys([*_SETUP, *names]))
        for check in TUNER_CHECKS:
            if self.version < check.since:
                self.results[check.name] = Result(check.name, self.version, "skipped", "this version has none")
        if self.watch is not None:
            self.watch(self.version, "load")
        while pending := [name for name in names if name not in self.results and name not in ("load", "ranks")]:
            lacking = {name: broken for name in pending if (broken := self._lacks(name))}
            for name, broken in lacking.items():
                self._skip(name, f"needs {broken}{AFTER_FAILURE}")
            if not lacking:
                self._batch(pending)
        self.results.setdefault("load", Result("load", self.version, "passed"))
        if self.differ:
            text = (
                f"{self.ranks} processes that were asked the same gave different answers: their collectives would hang"
            )
            self._put("ranks", "differ", text)
        elif not self.whole:
            self._skip("ranks", "needs processes that all end")
        elif broken := self._lacks("ranks"):
            self._skip("ranks", f"needs {broken}{AFTER_FAILURE}")
        self.results.setdefault("ranks", Result("ranks", self.version, "passed"))
        return [self.results[check.name] for check in TUNER_CHECKS if check.name in names]

    def _lacks(self, name: str) -> str | None:
        """A failed check without which this one can try nothing: of the set-up, or one that no process survives."""
        needs = _BY_NAME[name].needs
        while needs is not None:
            failed = self.results.get(needs)
            if failed and failed.kind in (("contract",) * (needs in _SETUP) + ("died", "blocked")):
                return needs
            needs = _BY_NAME[needs].needs
        return None

    def _skip(self, name: str, why: str) -> None:
        self.results[name] = Result(name, self.version, "skipped", why)

    def _put(self, name: str, kind: str, text: str, rank: int | None = None) -> None:
        call = (
            ""
            if name in ("load", "slots", "init", "constants")
            else "getChunkSize"
            if name == "chunk"
            else "getCollInfo"
        )
        grade = _BY_NAME[name].grade_of(kind)
        failed = Result(name, self.version, "failed", text, kind, call, rank, grade=grade)
        self.results.setdefault(name, failed)

    def _batch(self, names: Sequence[str]) -> None:
        """Run checks in fresh processes, until one of these ends early. At least one more check has a result afterwards."""
        reports = self._processes(names)
        digests = set()
        fastest = None
        for rank, (lines, death) in enumerate(reports):
            begun, ended = "", False
            for line in lines:
                begun = line.get("begin", begun)
                if "error" in line:
                    ended = True
                    self._put("load", "contract", without_path(str(line["error"]), self.path))
                elif "check" in line and not line["good"]:
                    kind = "leak" if line["check"] == "memory" and line["kind"] == "contract" else str(line["kind"])
                    self._put(str(line["check"]), kind, str(line["text"]))
                elif "digest" in line:
                    ended = True
                    digests.add(line["digest"])
                    fastest = min(float(line["ns"]), fastest or float(line["ns"]))
            if not ended:
                self.whole = False
                death = death or "ended in the check, as by exit(0)"
                self._put(
                    begun or "load", "blocked" if "did not end" in death else "died", f"rank {rank} {death}", rank
                )
        self.differ |= len(digests) > 1
        done = set.intersection(*({str(line["check"]) for line in lines if line.get("good")} for lines, _ in reports))
        for name in (name for name in names if name in done and name not in self.results):
            if name == "latency" and fastest and fastest > self.limit_ns:
                text = f"a call takes {fastest:.0f} ns at best, {self.limit_ns:.0f} are allowed"
                self._put(name, "late", text)
            else:
                text = f"{fastest:.0f} ns a call at best" if name == "latency" and fastest else ""
                self.results[name] = Result(name, self.version, "passed", text)

    def _processes(self, names: Sequence[str]) -> list[tuple[list[dict[str, Any]], str]]:
        environment = self.environment
        with contextlib.ExitStack() as stack:
            if "PSM_RECORD_DIR" not in environment and (os.environ | dict(environment)).get("PSM_RECORD_KEEP") != "1":
                # The processes end without the destructors of the library, which would remove its record file.
                environment = {**environment, "PSM_RECORD_DIR": stack.enter_context(tempfile.TemporaryDirectory())}
            printed = [
                stack.enter_context(tempfile.NamedTemporaryFile(prefix="psmkit-drive-")) for _ in range(self.ranks)
            ]
            runs = [self._start(stack, rank, names, environment, printed[rank].fileno()) for rank in range(self.ranks)]
            end = time.monotonic() + self.timeout
            if self.watch is not None:
                _follow(*runs[0], end, partial(self.watch, self.version))
            reports = [_finish(process, out, end) for process, out in runs]
            for rank, file in enumerate(printed):
                write_log(self.log, f"v{self.version} rank {rank}", Path(file.name))
        return reports

    def _start(
        self, stack: contextlib.ExitStack, rank: int, names: Sequence[str], environment: Mapping[str, str], stderr: int
    ) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        # Set as by a launcher, to reveal a tuner that depends on its rank.
        launcher = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.ranks,
            "OMPI_COMM_WORLD_RANK": rank,
            "SLURM_PROCID": rank,
            "CUDA_VISIBLE_DEVICES": rank,
        }
        out = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        command: list[str | Path] = [
            find_program("psm_tuner_drive"),
            self.path.absolute(),
            str(self.version),
            *names,
        ]
        env = {**os.environ, **{k: str(v) for k, v in launcher.items()}, **environment}
        return stack.enter_context(child(command, out, env=env, stderr=stderr)), out


def _findings(results: Sequence[Result], ranks: int) -> list[Finding]:
    """One finding for each check and kind; versions that fail in the same way share it."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "failed":
            grouped.setdefault((result.check, result.kind), []).append(result)
    findings = [_finding(_BY_NAME[name], same, ranks) for (name, _), same in grouped.items()]
    return sorted(findings, key=lambda finding: -finding.severity.weight)


def _finding(check: Check, same: Sequence[Result], ranks: int) -> Finding:
    first = same[0]
    code = CODES[_ALL_CODES[first.kind]]
    return Finding(
        code.code,
        f"{check.name} (v{first.version}): {first.text}",
        first.severity,
        1.0,
        explanation(check, first, [result.version for result in same], ranks),
        advice(code.code, first.text, check),
        stage=first.call or None,
    )


def _follow(process: subprocess.Popen[bytes], out: IO[bytes], end: float, tell: Callable[[str], None]) -> None:
    """Tell each check when it begins, until the process ends or the time is over."""
    last = ""
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)
        # the process writes at the offset of this descriptor, so reading must not move it
        begun = [check for line in _lines(os.pread(out.fileno(), _MOST, 0)) if (check := line.get("begin"))]
        if begun and begun[-1] != last:
            last = str(begun[-1])
            tell(last)


def _finish(process: subprocess.Popen[bytes], out: IO[bytes], end: float) -> tuple[list[dict[str, Any]], str]:
    death = ""
    try:
        status = process.wait(max(0.1, end - time.monotonic()))
        if status < 0:
            death = f"died by {signal.Signals(-status).name}"
        elif status != 0:
            death = f"ended with status {status}"
    except subprocess.TimeoutExpired:
        death = "did not end in time: a call waits"
        kill(process)
    out.seek(0)
    lines = _lines(out.read(_MOST))
    if any("error" in line for line in lines):
        death = ""
    return lines, death


def _lines(data: bytes) -> list[dict[str, Any]]:
    lines = []
    for text in data.decode("utf-8", "replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the library may print to standard output as well
        if isinstance(line, dict):
            lines.append(line)
    return lines
