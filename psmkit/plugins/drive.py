"""Drive a net plugin as NCCL does, in separate processes, and report where it breaks the contract.

The ranks are psm_net_drive (csrc/plugins/drive). They run the checks one after the other. After a failed check, a dead or a hung
rank, the remaining checks run in fresh processes.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from psmkit.lab import runner
from psmkit.model import CODES, Finding, Severity
from psmkit.model.errors import PsmkitError
from psmkit.plugins.abi import spoken
from psmkit.plugins.drive_checks import CHECKS, Check, Grade, check
from psmkit.plugins.driven import chosen, tables_of, write_log
from psmkit.plugins.faults import Fault, advice, explanation, faults
from psmkit.plugins.programs import find_program

__all__ = ["AFTER_FAILURE", "VERSIONS", "Drive", "DriveError", "Result", "drive", "program", "versions_of"]

VERSIONS = spoken("net")
_PROGRAM = "psm_net_drive"
# The first checks of every run: they give the rank its devices.
_SETUP = ("load", "init", "slots", "devices")
_CODES = {
    "contract": "PSM911",
    "data": "PSM912",
    "died": "PSM913",
    "blocked": "PSM914",
    "late": "PSM915",
    "leak": "PSM916",
    "truncated": "PSM917",
}
# If ranks fail in several ways, the first of these is the cause: a rank that waits for a message reports later.
_FIRST = ("died", "blocked", "data", "contract", "truncated", "leak", "late")
#: How the reason ends of a check that was skipped because another one failed.
AFTER_FAILURE = ", which failed"
_SLOT = struct.Struct("=QIi40s24s")  # struct slot of drive.h
_SLOT_BYTES = 256
_TAIL = 1 << 16


class DriveError(PsmkitError):
    """The driver could not be run."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check with one version of the table.

    ``outcome`` is ``passed``, ``failed`` or ``skipped``; ``text`` is a note, the error, or why the check was skipped. For a failure, ``kind`` is
    what broke, ``grade`` what that means for a job, ``call`` the plugin's last call on ``rank``, ``warning`` its last message there at WARN.
    """

    check: str
    version: int
    outcome: str
    text: str = ""
    kind: str = ""
    call: str = ""
    rank: int | None = None
    seconds: float = 0.0
    warning: str = ""
    grade: Grade | None = None

    @property
    def severity(self) -> Severity:
        """That of the finding of a failure: no worse than its kind, and no worse than what it means for a job."""
        grade = self.grade.severity if self.grade else Severity.ERROR
        return min(grade, Severity.WARNING if self.weak else Severity.ERROR, key=lambda one: one.weight)

    @property
    def weak(self) -> bool:
        """Whether the check found a weakness: the plugin works, and its finding is a warning. ``outcome`` is ``failed``."""
        return self.outcome == "failed" and self.kind == "weak"

    @property
    def follows(self) -> bool:
        """Whether the check was skipped only because another one failed."""
        return self.outcome == "skipped" and self.text.endswith(AFTER_FAILURE)


@dataclass(frozen=True, slots=True)
class Drive:
    """The result of all checks with all versions. A finding is one check that fails in one way, a fault all checks that saw the same."""

    path: Path
    ranks: int
    versions: tuple[int, ...]
    results: tuple[Result, ...]
    findings: tuple[Finding, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether there are no findings except notes."""
        return not any(finding.severity.weight for finding in self.findings)


def program() -> Path:
    """The path of psm_net_drive.

    Raises:
        LabError: the program does not exist.
    """
    return find_program(_PROGRAM)


def versions_of(path: Path, environment: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The versions of the net table in the library, newest first, as a separate process sees them.

    Raises:
        InputError: no process can load the library, or it has no such table.
    """
    return tables_of(_PROGRAM, path, environment, "a net plugin", VERSIONS)


def drive(
    path: Path,
    *,
    ranks: int = 2,
    versions: Sequence[int] | None = None,
    only: Sequence[str] = (),
    timeout: float = 20.0,
    environment: Mapping[str, str] | None = None,
    cuda: str | None = None,
    watch: Callable[[int, str], None] | None = None,
    log: IO[str] | None = None,
) -> Drive:
    """Run the checks on a library.

    Args:
        path: path of the library.
        ranks: number of processes.
        versions: versions of the table; None: the newest in the library.
        only: names of checks; if empty, all.
        timeout: seconds for a call, and without progress.
        environment: additional variables of the ranks.
        cuda: a CUDA runtime that provides memory for the checks of GPU memory.
        watch: called with each version and check when it begins.
        log: gets all that the plugin logs and prints.

    Raises:
        InputError: no process can load the library, or it lacks the version.
        DriveError: the ranks could not be run.
    """
    wanted = chosen(path, versions_of(path, environment), versions, "ncclNetPlugin")
    results: list[Result] = []
    for version in wanted:
        one = _Version(path.absolute(), version, ranks, timeout, dict(environment or {}), cuda, watch, log)
        results += one.run([c.name for c in CHECKS if not only or c.name in only])
    return Drive(path, ranks, wanted, tuple(results), tuple(_findings(path, ranks, results)), _faults(results, ranks))


class _Version:
    """The checks with one version of the table."""

    def __init__(
        self,
        path: Path,
        version: int,
        ranks: int,
        timeout: float,
        environment: dict[str, str],
        cuda: str | None,
        watch: Callable[[int, str], None] | None,
        log: IO[str] | None,
    ) -> None:
        self.path, self.version, self.ranks, self.timeout = path, version, ranks, timeout
        self.environment, self.cuda, self.watch = environment, cuda, watch
        self.log = log
        self.host = False  # it moves host memory only
        self.results: dict[str, Result] = {}

    def run(self, names: Sequence[str]) -> list[Result]:
        pending = list(dict.fromkeys([*_SETUP, *names]))
        while pending:
            self._batch([*(name for name in _SETUP if name not in pending), *pending])
            pending = [name for name in pending if name not in self.results]
            # Without the first of them a run cannot begin.
            broken = next((name for name in _SETUP if self._failed(name)), None)
            for name in list(pending):
                if cause := broken or self._lacks(name):
                    self._skip(name, f"needs {cause}{AFTER_FAILURE}")
                    pending.remove(name)
        return [self.results[c.name] for c in CHECKS if c.name in self.results]

    def _skip(self, name: str, why: str) -> None:
        self.results[name] = Result(name, self.version, "skipped", why)

    def _failed(self, name: str) -> bool:
        return name in self.results and self.results[name].outcome == "failed"

    def _lacks(self, name: str) -> str | None:
        """A failed check without which this one can try nothing."""
        needs = check(name).needs
        while needs is not None:
            if self._failed(needs) and self._stops(self.results[needs]):
                return needs
            needs = check(needs).needs
        return None

    @staticmethod
    def _stops(failed: Result) -> bool:
        """Whether other checks would end at the same point: not if the calls worked and their effect was wrong."""
        return failed.grade is Grade.BREAKS and failed.kind not in ("data", "leak", "truncated")

    def _batch(self, names: list[str]) -> None:
        """Run until a check fails. At least one more check has a result afterwards."""
        with tempfile.TemporaryDirectory(prefix="psmkit-drive-") as name:
            folder = Path(name)
            state = folder / "state"
            state.write_bytes(bytes(self.ranks * _SLOT_BYTES))
            outcome = runner.run(self._job(folder, state, names), self._stage)
            for rank in outcome.ranks:
                write_log(self.log, f"v{self.version} rank {rank.rank}", Path(rank.output))
            slots = [_SLOT.unpack_from(state.read_bytes(), rank * _SLOT_BYTES)[3:] for rank in range(self.ranks)]
            self._judge(names, outcome, [(_text(c), _text(call)) for c, call in slots])

    def _job(self, folder: Path, state: Path, names: list[str]) -> runner.Job:
        settings = {
            **os.environ,
            **self.environment,
            "PSM_DRIVE_STATE": str(state),
            "PSM_DRIVE_TIMEOUT_MS": str(max(1, round(self.timeout * 1000))),
            "PSM_DRIVE_CUDA": self.cuda or "",
        }
        shared = folder / "shared"  # not /dev/shm, which other programs share
        shared.mkdir()
        return runner.Job(
            self.ranks,
            lambda _rank: [str(program()), str(self.path), str(self.version), *names],
            lambda _rank: settings,
            folder,
            # Each rank watches its own calls; this deadline is for a rank whose watcher cannot run.
            deadline=self.timeout * (2 + len(names)) + 10.0,
            stacks=False,
            shared_memory=shared,
        )

    def _stage(self, rank: int, stage: str) -> None:
        if self.watch is not None and rank == 0 and stage != "ended":
            self.watch(self.version, stage)

    def _judge(self, names: list[str], outcome: runner.Outcome, slots: list[tuple[str, str]]) -> None:
        told: list[dict[str, dict[str, Any]]] = [
            {str(report["check"]): report for report in rank.reports} for rank in outcome.ranks
        ]
        for name in names:
            reports = [of_rank.get(name) for of_rank in told]
            good = [report for report in reports if report is not None and report["outcome"] in ("passed", "skipped")]
            if len(good) == self.ranks:
                first = next((report for report in good if report["outcome"] == "skipped"), good[0])
                seconds = max(float(report["seconds"]) for report in good)
                self.host |= bool(first["host"])
                self.results.setdefault(
                    name, Result(name, self.version, first["outcome"], first["text"], seconds=seconds)
                )
                continue
            self._fail(name, outcome, slots, reports)
            return
        # All checks are done: what remains is process exit.
        for rank in outcome.ranks:
            if rank.state != "good":
                text = f"after the last check, at the end of the process: {rank.text}"
                self._put(
                    Result(names[-1], self.version, "failed", text, "died", "exit", rank.rank, warning=_warning(rank))
                )
                return
        if outcome.processes:
            text = f"processes are left behind: {', '.join(outcome.processes)}"
            self._put(Result(names[-1], self.version, "failed", text, "leak"))

    def _fail(
        self,
        name: str,
        outcome: runner.Outcome,
        slots: list[tuple[str, str]],
        reports: list[dict[str, Any] | None],
    ) -> None:
        found: list[tuple[bool, int, Result]] = []
        for rank, report in zip(outcome.ranks, reports, strict=True):
            _, call = slots[rank.rank]
            if report is not None and report["outcome"] == "failed":
                kind, text, call = str(report["kind"]), str(report["text"]), str(report["call"])
            elif report is None and rank.state in ("hung", "waiting"):
                if rank.state == "waiting":
                    continue
                kind, text = "blocked", f"{call or name} did not return within {outcome.deadline:g} s"
            elif report is None and rank.signal is not None:
                kind, text = "died", f"the process died by {_signal(rank)} in {call or 'no call of the plugin'}"
            elif report is None and rank.exit_status is not None and slots[rank.rank][0] == name:
                kind, text = "died", f"the process ended with status {rank.exit_status} in {call}"
                if rank.exit_status == 2 and not call:
                    raise DriveError(f"psm_net_drive: {rank.text}")
            else:
                continue
            self.host |= report is not None and bool(report["host"])
            # A dead rank causes errors in its peers; a blocking call is a cause of its own.
            # SIGPIPE is one of them.
            after = kind != "blocked" and (bool(report["after"]) if report else "SIGPIPE" in text)
            result = Result(name, self.version, "failed", text, kind, call, rank.rank, warning=_warning(rank))
            found.append((after, _FIRST.index(kind), result))
        if not found:
            said = "; ".join(rank.text for rank in outcome.ranks if rank.text) or "no rank says why"
            raise DriveError(f"psm_net_drive ended in {name}: {said}")
        self._put(min(found, key=lambda one: one[:2])[2])

    def _put(self, failed: Result) -> None:
        self.results[failed.check] = replace(failed, grade=check(failed.check).grade_of(failed.kind, self.host))


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")


def _signal(rank: runner.RankOutcome) -> str:
    words = rank.text.split()
    return words[2] if rank.text.startswith("killed by") and len(words) > 2 else f"signal {rank.signal}"


def _warning(rank: runner.RankOutcome) -> str:
    """The plugin's last message at WARN through NCCL's logger."""
    try:
        with open(rank.output, "rb") as file:
            file.seek(max(0, os.path.getsize(rank.output) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line[5:].strip() for line in reversed(lines) if line.startswith("WARN ")), "")


def _findings(path: Path, ranks: int, results: Sequence[Result]) -> list[Finding]:
    """One finding for each check and kind; versions that fail in the same way share it."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "failed":
            grouped.setdefault((result.check, result.kind), []).append(result)
    findings = [_finding(check(name), same, ranks) for (name, _), same in grouped.items()]
    return sorted(findings, key=lambda finding: -finding.severity.weight)


def _faults(results: Sequence[Result], ranks: int) -> tuple[Fault, ...]:
    return tuple(faults(results, _CODES, {one.name: one for one in CHECKS}, ranks))


def _finding(one: Check, same: Sequence[Result], ranks: int) -> Finding:
    first = same[0]
    code = CODES[_CODES[first.kind]]
    return Finding(
        code.code,
        f"{one.name} (v{first.version}): {first.text}",
        first.severity,
        1.0,
        explanation(one, first, [result.version for result in same], ranks),
        advice(code.code, first.text, one),
        ranks=() if first.rank is None else (first.rank,),
        stage=first.call or None,
        culprits=() if first.rank is None else (first.rank,),
    )
