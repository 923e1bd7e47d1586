"""Drive a tuner as NCCL does, in several processes, and report where it breaks the contract.

psm_tuner_drive (csrc/plugins/tuner/tools) creates communicators, asks for thousands of collectives, ordinary and strange, and checks every
output. This module reads its reports, handles processes that died or did not end, and compares the answers of the processes: ranks that
decide differently hang.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from psmkit.lab.elf import NO_PYELFTOOLS
from psmkit.model import CODES, Finding
from psmkit.model.errors import InputError, PsmkitError
from psmkit.plugins.abi import spoken, tables
from psmkit.plugins.programs import child, find_program, kill

__all__ = [
    "CHECKS",
    "VERSIONS",
    "TunerDrive",
    "TunerResult",
    "drive_tuner",
    "kinds_of",
    "symbols",
    "tuner_alone",
    "tuner_versions",
]

VERSIONS = spoken("tuner")
_MOST = 1 << 20  # bytes of a report
_LOOK = 0.2  # seconds between two looks at the progress of a process
_CODES = {
    "contract": "PSM941",
    "died": "PSM942",
    "blocked": "PSM943",
    "differ": "PSM944",
    "leak": "PSM945",
    "late": "PSM946",
}
# The text of each check, in order.
CHECKS: dict[str, str] = {
    "load": "The library is loaded and has the table of this version.",
    "slots": "No slot is NULL that NCCL calls without a check, and the table has a name.",
    "init": "init returns success for shapes from one rank to 1000 on 125 nodes, and destroy or finalize ends each.",
    "constants": "From v5: init leaves finite constants, and writes nothing beyond their 1152 bytes.",
    "answers": "getCollInfo returns success, does not choose what NCCL does not offer, and writes only to its outputs.",
    "stable": "The same question has the same answer whatever other communicators the process has.",
    "strange": "Rare or new sizes, functions and group sizes do no harm.",
    "chunk": "From v6: getChunkSize returns success and a chunk that does not round to 0.",
    "threads": "Threads may call at the same time, each for its communicator.",
    "memory": "Neither calls nor ended communicators leave memory behind.",
    "latency": "getCollInfo takes no longer than the limit (NCCL calls it for each collective).",
    "ranks": "All processes get the same answers: NCCL uses them without comparing ranks.",
}


@dataclass(frozen=True, slots=True)
class TunerResult:
    """A check with one version: ``passed``, ``failed`` or ``skipped``. ``kind`` of a failure: contract, died, blocked, late, leak or differ."""

    check: str
    version: int
    outcome: str
    text: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class TunerDrive:
    """All checks of all versions; ``nanoseconds`` is the shortest time of a call, by version."""

    path: Path
    ranks: int
    versions: tuple[int, ...]
    results: tuple[TunerResult, ...]
    nanoseconds: dict[int, float]

    @property
    def failed(self) -> tuple[TunerResult, ...]:
        """The failed checks."""
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One finding for each check and kind, errors first; versions that fail in the same way share it."""
        grouped: dict[tuple[str, str], list[TunerResult]] = {}
        for result in self.failed:
            grouped.setdefault((result.check, result.kind), []).append(result)
        findings = [_finding(same, self.ranks) for same in grouped.values()]
        return tuple(sorted(findings, key=lambda finding: -finding.severity.weight))


def _finding(same: Sequence[TunerResult], ranks: int) -> Finding:
    first = same[0]
    code = CODES[_CODES[first.kind]]
    versions = ", ".join(f"v{result.version}" for result in same)
    return Finding(
        code.code,
        f"{first.check} (v{first.version}): {first.text}",
        code.severity,
        1.0,
        f"Check {first.check} with {versions}, {ranks} processes. {CHECKS[first.check]}",
        code.next_step,
        stage="getCollInfo" if first.check in ("answers", "stable", "strange", "latency", "ranks") else None,
    )


def tuner_versions(path: Path) -> tuple[int, ...]:
    """The versions of the tuner table in the library's symbols, newest first.

    Raises:
        InputError: the file is not a library.
    """
    names = symbols(path)
    return tuple(version for version in VERSIONS if f"ncclTunerPlugin_v{version}" in names)


def tuner_alone(path: Path) -> bool:
    """Whether the library has tuner tables but none of a net plugin. False also for unreadable files."""
    kinds = kinds_of(path)
    return "ncclTunerPlugin" in kinds and "ncclNetPlugin" not in kinds


def kinds_of(path: Path) -> set[str]:
    """The symbols of tables in the library without their versions; none of an unreadable file."""
    try:
        names = symbols(path)
    except InputError:
        return set()
    return {name.partition("_v")[0] for name in names}


def tables_in(path: Path) -> str:
    """The tables of the library in words, such as ``net v12, v11; collnet v8``, by its symbols.

    Raises:
        InputError: the file is not a library.
        PsmkitError: pyelftools is missing.
    """
    names = symbols(path)
    kinds: dict[str, list[str]] = {}
    for table in tables():
        if table.symbol in names:
            kinds.setdefault(table.kind, []).append(f"v{table.version}")
    return "; ".join(f"{kind} {', '.join(versions)}" for kind, versions in kinds.items()) or "no table of a plugin"


def symbols(path: Path) -> set[str]:
    """The names of all dynamic symbols that the library defines.

    Raises:
        InputError: the file is not a library.
        PsmkitError: pyelftools is missing.
    """
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise PsmkitError(NO_PYELFTOOLS) from None
    try:
        with path.open("rb") as file:
            table: Any = ELFFile(file).get_section_by_name(".dynsym")
            return {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"} if table else set()
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    except ELFError as error:
        raise InputError(str(path), f"not a shared library: {error}") from None


def drive_tuner(
    path: Path,
    *,
    ranks: int = 3,
    versions: Sequence[int] | None = None,
    timeout: float = 60.0,
    limit_ns: float = 20_000.0,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int, str], None] | None = None,
) -> TunerDrive:
    """Run all checks.

    Args:
        path: path of the library.
        ranks: number of processes, whose answers must be equal.
        versions: versions of the table; None: the newest in the library.
        timeout: seconds for all checks of one version.
        limit_ns: the maximum time of a call.
        environment: variables to set in the processes.
        watch: called with each version and check when it begins on rank 0.

    Raises:
        InputError: the library has no such table.
    """
    has = tuner_versions(path)
    chosen = tuple(versions) if versions is not None else has[:1]
    missing = [f"v{version}" for version in chosen if version not in has]
    if missing or not chosen:
        there = ", ".join(f"v{version}" for version in has) or tables_in(path)
        raise InputError(str(path), f"no tuner table{' ' if missing else ''}{', '.join(missing)}; it has {there}")
    results: list[TunerResult] = []
    times: dict[int, float] = {}
    for version in chosen:
        tell = partial(watch, version) if watch is not None else None
        found, nanoseconds = _version(path, version, ranks, timeout, limit_ns, environment or {}, tell)
        results += found
        if nanoseconds is not None:
            times[version] = nanoseconds
    return TunerDrive(path, ranks, chosen, tuple(results), times)


def _version(
    path: Path,
    version: int,
    ranks: int,
    timeout: float,
    limit_ns: float,
    environment: Mapping[str, str],
    tell: Callable[[str], None] | None,
) -> tuple[list[TunerResult], float | None]:
    with contextlib.ExitStack() as stack:
        if "PSM_RECORD_DIR" not in environment and (os.environ | dict(environment)).get("PSM_RECORD_KEEP") != "1":
            # The processes end without the destructors of the library, which would remove its record file.
            environment = {**environment, "PSM_RECORD_DIR": stack.enter_context(tempfile.TemporaryDirectory())}
        runs = [_start(stack, path, version, rank, ranks, environment) for rank in range(ranks)]
        end = time.monotonic() + timeout
        if tell is not None and runs:
            _follow(*runs[0], end, tell)
        reports = [_finish(process, out, end) for process, out in runs]
    found: dict[str, TunerResult] = {}
    digests = set()
    fastest = None
    for rank, (lines, death) in enumerate(reports):
        begun = ""
        for line in lines:
            begun = line.get("begin", begun)
            if "error" in line:
                found["load"] = TunerResult("load", version, "failed", str(line["error"]), "contract")
            elif "check" in line and not line["good"]:
                name = str(line["check"])
                kind = "leak" if name == "memory" else "contract"
                found.setdefault(name, TunerResult(name, version, "failed", str(line["text"]), kind))
            elif "digest" in line:
                digests.add(line["digest"])
                fastest = min(float(line["ns"]), fastest or float(line["ns"]))
        if death:
            name = begun or "load"
            kind = "blocked" if "did not end" in death else "died"
            found[name] = TunerResult(name, version, "failed", f"rank {rank} {death}", kind)
    if len(digests) > 1:
        text = f"{ranks} processes that were asked the same gave {len(digests)} different answers: their collectives would hang"
        found["ranks"] = TunerResult("ranks", version, "failed", text, "differ")
    done = {str(line["check"]) for lines, _ in reports for line in lines if line.get("good")}
    whole = len(digests) >= 1 and not any(death for _, death in reports)
    if fastest and fastest > limit_ns and "latency" in done:
        text = f"a call takes {fastest:.0f} ns at best, {limit_ns:.0f} are allowed"
        found["latency"] = TunerResult("latency", version, "failed", text, "late")
    results = []
    for name in CHECKS:
        if name in found:
            results.append(found[name])
        elif (name == "constants" and version < 5) or (name == "chunk" and version < 6):
            results.append(TunerResult(name, version, "skipped", "this version has none"))
        elif name in done or (name == "load" and done | found.keys() != {"load"}) or (name == "ranks" and whole):
            text = f"{fastest:.0f} ns a call at best" if name == "latency" and fastest else ""
            results.append(TunerResult(name, version, "passed", text))
        else:
            results.append(TunerResult(name, version, "skipped", "a check before it failed"))
    return results, fastest


def _start(
    stack: contextlib.ExitStack, path: Path, version: int, rank: int, ranks: int, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    # Set as by a launcher, to reveal a tuner that depends on its rank.
    launcher = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "OMPI_COMM_WORLD_RANK": rank,
        "SLURM_PROCID": rank,
        "CUDA_VISIBLE_DEVICES": rank,
    }
    out = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    command: list[str | Path] = [find_program("psm_tuner_drive"), path.absolute(), str(version)]
    env = {**os.environ, **{k: str(v) for k, v in launcher.items()}, **environment}
    return stack.enter_context(child(command, out, env=env)), out


def _follow(process: subprocess.Popen[bytes], out: IO[bytes], end: float, tell: Callable[[str], None]) -> None:
    """Tell each check when it begins, until the process ends or the time is over."""
    last = "load"
    tell(last)
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
