"""Codes of errors and deaths (PSM4xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect, Family

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM401",
        title="error with its origin",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.FAILS,
        meaning="A rank reported an error; this is the first cause across all ranks, the other errors follow from it.",
        next_step="Start at the line of the origin.",
    ),
    Code(
        code="PSM402",
        title="rank crashed",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.FAILS,
        caused_by_watchdog=True,
        meaning="A process died by a signal or an uncaught exception.",
        next_step="Take the core dump or the printed backtrace of that process.",
    ),
    Code(
        code="PSM403",
        title="peer blamed by others but silent",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.AS_IT_ENDED,
        precedence=10,
        symptom=True,
        meaning="Other ranks report that this peer closed, refused or does not answer, and its own log says nothing.",
        next_step="The process was killed, stopped or lost its host: look at dmesg, the launcher and the scheduler there.",
    ),
    Code(
        code="PSM404",
        title="error swallowed in a progress thread",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.AS_IT_ENDED,
        precedence=60,
        meaning="A progress or service thread returned an error and nothing aborted the communicator: peers will wait for ever.",
        next_step="Treat it as the cause of the hang; see NVIDIA/nccl#1822.",
    ),
    Code(
        code="PSM405",
        title="CUDA error",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.FAILS,
        names_origin=True,
        meaning="A CUDA call failed.",
        next_step="Look the error up; an asynchronous one was caused by earlier work on that device.",
    ),
    Code(
        code="PSM406",
        title="network error",
        family=Family.ERRORS,
        severity=Severity.ERROR,
        effect=Effect.FAILS,
        names_origin=True,
        loses_peer=True,
        meaning="The network reported a failed operation (a completion with an error, a timeout, an unreachable peer).",
        next_step="Check links and counters of the device that is named, on both hosts.",
    ),
    Code(
        code="PSM407",
        title="peer unresponsive on the RAS network",
        family=Family.ERRORS,
        severity=Severity.WARNING,
        effect=Effect.HANGS,
        precedence=20,
        survived=False,
        symptom=True,
        meaning="NCCL's RAS threads lost contact with a process; the socket address is joined with the RAS peer lines to name the rank.",
        next_step="Look at the process that is named: it is stopped, overloaded or dead.",
    ),
    Code(
        code="PSM408",
        title="job ended by its launcher",
        family=Family.ERRORS,
        severity=Severity.WARNING,
        effect=Effect.FAILS,
        caused_by_watchdog=True,
        meaning="The launcher or scheduler ended the job (torchrun, mpirun, srun, OOM killer).",
        next_step="The rank it names first is the one to look at.",
    ),
)
