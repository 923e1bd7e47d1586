"""Codes of errors and deaths (PSM4xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM401",
        title="error with its origin",
        effect=Effect.FAILS,
        by_text=True,
        meaning="A process reported an error that follows from no other error in the log.",
        next_step="Read the proof line and the lines of the same process just before it, and fix that error first.",
        general=True,
    ),
    Code(
        code="PSM402",
        title="rank crashed",
        effect=Effect.FAILS,
        caused_by_watchdog=True,
        by_text=True,
        dies=True,
        meaning="A process ended with an error: by a signal, an exception or its exit code.",
        next_step="Read the last lines that the process printed (an assertion, what(), glibc), then its core dump (gdb): the top frames show the library that failed.",
    ),
    Code(
        code="PSM403",
        title="peer blamed by others but silent",
        effect=Effect.AS_IT_ENDED,
        precedence=10,
        symptom=True,
        meaning="Other ranks report that this peer closed a connection, refused one or does not answer. Its own log shows no error.",
        next_step="Find out whether that process was killed or stopped: dmesg, the launcher's output and the scheduler's log of its host show it. If it still runs, take its stack, and check the network to its host.",
    ),
    Code(
        code="PSM404",
        title="error swallowed in a progress thread",
        effect=Effect.AS_IT_ENDED,
        precedence=60,
        meaning="A progress or service thread returned an error, and nothing aborted the communicator. The peers wait for ever.",
        next_step="Fix this error, unless another one explains it: peers wait for ever where nothing aborts the communicator. See NVIDIA/nccl#1822.",
    ),
    Code(
        code="PSM405",
        title="CUDA error",
        effect=Effect.FAILS,
        names_origin=True,
        by_text=True,
        meaning="A CUDA call failed.",
        next_step="Look up the error in CUDA's documentation of cudaError_t. An error of a kernel (illegal address, launch failure) is reported by a later call: run again with CUDA_LAUNCH_BLOCKING=1 to see which one fails. Any other error is of the call that reports it.",
    ),
    Code(
        code="PSM406",
        title="network error",
        effect=Effect.FAILS,
        names_origin=True,
        loses_peer=True,
        two_ends=True,
        by_text=True,
        meaning="The network reported a failed operation (a completion with an error, a timeout, an unreachable peer).",
        next_step="Check the links and the error counters of the named device on both hosts.",
    ),
    Code(
        code="PSM407",
        title="peer unresponsive on the RAS network",
        severity=Severity.WARNING,
        effect=Effect.HANGS,
        precedence=20,
        survived=False,
        symptom=True,
        meaning="NCCL's RAS threads lost contact with a process. The RAS peer lines show which rank has that socket address.",
        next_step="Look at the named process: it is stopped, overloaded or dead.",
    ),
    Code(
        code="PSM408",
        title="job ended by its launcher",
        severity=Severity.WARNING,
        effect=Effect.FAILS,
        caused_by_watchdog=True,
        look_first=False,
        from_outside=True,
        meaning="A launcher, a scheduler or a person ended the job (torchrun, mpirun, srun, Ctrl-C).",
        next_step="Look first at the rank that the launcher names first.",
    ),
    Code(
        code="PSM409",
        title="network device of a connection failed",
        severity=Severity.INFO,
        survived=False,
        meaning="A network device of a connection failed, and NCCL moves the connection to another one (port fail-over, NCCL_IB_RESILIENCY_PORT_FAILOVER). If that works, the job goes on.",
        next_step="Check the link, cable and switch port of the named device: the connection has no device to spare until the port is recovered.",
    ),
)
