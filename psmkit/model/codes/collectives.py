"""Codes of collectives, sends and recvs, plans and progress (PSM3xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM301",
        title="collective mismatch",
        effect=Effect.HANGS,
        precedence=100,
        outlasts_end=True,
        meaning="Ranks of one communicator called different collectives at the same position, or the same collective with another count, type, op or root.",
        next_step="Compare the code of the ranks at this call. The usual cause is a branch that depends on data.",
    ),
    Code(
        code="PSM302",
        title="rank lags behind in collectives",
        effect=Effect.HANGS,
        precedence=70,
        symptom=True,
        meaning="A rank called fewer collectives than its peers, and they wait for it.",
        next_step="Find out what this rank is doing: take its stack (py-spy dump, gdb) and read its last lines.",
    ),
    Code(
        code="PSM303",
        title="send and recv do not pair",
        effect=Effect.HANGS,
        precedence=80,
        meaning="A send has no matching recv on the peer, or a recv has no matching send, or their byte counts differ.",
        next_step="Compare the sends and recvs of the two ranks. Put all sends and recvs of one exchange between ncclGroupStart and ncclGroupEnd.",
    ),
    Code(
        code="PSM304",
        title="rank stopped while its peers went on",
        effect=Effect.HANGS,
        precedence=50,
        symptom=True,
        meaning="A rank made less progress than its peers and then stopped.",
        next_step="Look at this rank first: take its stack, check its host for Xid and OOM messages, and check whether the process is stopped.",
    ),
    Code(
        code="PSM305",
        title="watchdog timeout",
        effect=Effect.HANGS,
        reported_by_watchdog=True,
        meaning="A framework watchdog (PyTorch ProcessGroupNCCL) saw a collective that did not finish in time.",
        next_step="Look at the rank that never joined the collective, not at the rank that reports the timeout.",
    ),
    Code(
        code="PSM306",
        title="plan reclaimed or cut out of order",
        effect=Effect.HANGS,
        meaning="Plans of different ranks have different channels or ops, or a plan was reclaimed before its proxy ops finished.",
        next_step="Run `psmkit plan check` on this log.",
    ),
    Code(
        code="PSM307",
        title="connection between two ranks makes no progress",
        effect=Effect.HANGS,
        precedence=90,
        symptom=True,
        meaning="A send and its recv made no progress for longer than the stall limit. The records of both ends show which end must act next. It is an error only if both records prove it.",
        next_step="Look at the progress thread of the named rank: its stack, the stream of its copies, and whether its process runs.",
    ),
    Code(
        code="PSM308",
        title="plan freed twice, or used after it was freed",
        effect=Effect.FAILS,
        meaning="A kernel plan, or the sync condition of its launch, was freed while it was still in use: its reclaimer was enqueued twice, or a thread or a replayed graph used it after the free.",
        next_step="Enqueue the reclaimer of a plan exactly once: in hostStreamPlanTask, in LaunchKernelAfter (not persistent, no proxy ops) or in the graph's destructor. Free what a callback uses with its plan, never in the callback.",
    ),
    Code(
        code="PSM309",
        title="sync condition never reaches 0",
        effect=Effect.HANGS,
        symptom=True,
        meaning="The count of a plan's sync condition differs from the number of ops that decrement it. The host function waits for ever, or returns while data still moves.",
        next_step="Count only the ops whose progress decrements the condition, not the ops of collectives in the same group.",
    ),
    Code(
        code="PSM310",
        title="host function of a plan never ran",
        effect=Effect.HANGS,
        symptom=True,
        meaning="A plan was put on a stream and its callback did not run. The proxy ops that wait for the callback never start, and nothing reclaims the plan.",
        next_step="Launch a plan without a kernel, too: put its host function on the launch stream, after the copies to self.",
    ),
    Code(
        code="PSM311",
        title="plan never reclaimed",
        severity=Severity.WARNING,
        effect=Effect.LEAKS,
        meaning="A communicator was destroyed before its plans, their ops or their graph references were released.",
        next_step="Find the plan that was created and not reclaimed, and the code that should have enqueued its reclaimer. A plan that leaves its queue early must be launched, too.",
    ),
    Code(
        code="PSM312",
        title="plan launched out of order",
        severity=Severity.WARNING,
        meaning="CUDA was called between the intra-process barrier and the launch, or the end of the launch left frames on the scoped memory stack.",
        next_step="Call CUDA before the barrier or after the launch. Pop the scoped stack at the end of a launch and when its preparation fails.",
    ),
)
