"""Codes of a running job: PSM93x what a profiler plugin sees, PSM95x requests of the net plugin."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM951",
        title="net send without a receive",
        effect=Effect.HANGS,
        meaning="The record of the net plugin shows a send for which the other rank posted no receive. That rank is behind, or never called the matching operation.",
        next_step="Find out what that rank is doing: read its last lines, its stack and its collectives.",
    ),
    Code(
        code="PSM952",
        title="net receive without a send",
        effect=Effect.HANGS,
        meaning="The record of the net plugin shows a receive for which no message arrived. The sender is behind or has died, or the message was lost.",
        next_step="Find out what the sending rank is doing. If its record shows that it sent the message, check the network between the two ranks.",
    ),
    Code(
        code="PSM953",
        title="tags of a net send and receive differ",
        effect=Effect.HANGS,
        meaning="A send waits for a receive with its tag, and the posted receives have other tags, so neither completes. Without groups, the message went into a receive with another tag.",
        next_step="Compare the order of operations on the two ranks, and check the code that assigns the tags: NCCL, or the program that calls the plugin.",
    ),
    Code(
        code="PSM954",
        title="net message larger than its receive",
        effect=Effect.FAILS,
        meaning="The two ranks run different operations, sizes or settings. The message is larger than the posted receive.",
        next_step="Compare the operation, its size and the NCCL settings of both ranks.",
    ),
    Code(
        code="PSM955",
        title="net request done on one side only",
        effect=Effect.HANGS,
        meaning="One side of a connection saw a request complete. The other side did not: it tests without success, or it stopped testing.",
        next_step="Look at the thread that must call test. If it calls test without success, check the network between the two ranks.",
    ),
    Code(
        code="PSM956",
        title="net connection failed",
        effect=Effect.HANGS,
        meaning="A call of the net plugin returned an error. The finding compares time and cause of the errors on both ends and names the side that failed first.",
        next_step="Look at the side that failed first. The error of the other side follows from it.",
    ),
    Code(
        code="PSM957",
        title="one side of a net connection stopped",
        effect=Effect.HANGS,
        meaning="Its requests are posted and the other side has completed its part, but this side no longer calls test. Its proxy thread waits elsewhere, or does not run.",
        next_step="Take the stack of that rank's proxy progress thread (gdb), and check that its process runs.",
    ),
    Code(
        code="PSM958",
        title="net connection never closed",
        severity=Severity.INFO,
        meaning="A process ended without an error while a connection of its net plugin was open. Its communicator was neither destroyed nor aborted.",
        next_step="Call ncclCommDestroy, or ncclCommAbort after an error, before the process ends.",
    ),
    Code(
        code="PSM931",
        title="operation makes no progress",
        effect=Effect.HANGS,
        symptom=True,
        meaning="A profiler event (an operation, or a step of a transfer) has been open for longer than the stall limit. psmkit followed the waits from rank to rank; the named rank waits for no other.",
        next_step="Look at the named rank: the stack of its program, its GPU and its log. The other ranks wait for it.",
    ),
    Code(
        code="PSM932",
        title="rank starts its collectives late",
        severity=Severity.WARNING,
        meaning="Collectives end on all ranks at the same time. On this rank they are repeatedly shorter than on the others, so it starts them late and the others wait.",
        next_step="Find out what the rank does between collectives: input, checkpoints, a slow or hot GPU, other programs on its CPU cores.",
    ),
    Code(
        code="PSM933",
        title="link is slow",
        severity=Severity.WARNING,
        meaning="Transfers between these two ranks take at least three times as long as those of the other links of the communicator, by a fit of time over size.",
        next_step="Compare cable, port, PCI link width and settings of the two ends with those of a good link. If the receiver is slow, all links to it are slow, and psmkit reports the rank instead.",
    ),
    Code(
        code="PSM934",
        title="profiler loses events",
        severity=Severity.WARNING,
        meaning="The windows were full, or events were overwritten before a reader took them. The figures of that time are too low. psmkit counts the lost events exactly.",
        next_step="Run `psmkit telemetry` beside the job with a shorter interval, select fewer kinds of events (PSM_PROFILER_EVENTS), or use more slots (PSM_PROFILER_SLOTS).",
    ),
    Code(
        code="PSM935",
        title="calls to the profiler break its contract",
        severity=Severity.WARNING,
        meaning="Events were stopped twice, changed after their stop, or belong to no existing communicator. NCCL, or the transport that calls the profiler, lost track of an event.",
        next_step="Load libnccl-profiler-check.so in front of the profiler (PSM_PROFILER_WRAP). It names the first wrong call and the parents of its event.",
    ),
    Code(
        code="PSM936",
        title="process ended within an operation",
        effect=Effect.FAILS,
        meaning="The process of this rank has ended, and its windows still show open operations.",
        next_step="The open events show what it did last. Run `psmkit analyze` on its log and record to see why it ended.",
    ),
)
