"""Codes of settings and environment (PSM6xx), of the limits of the evidence (PSM7xx), and of what is harmless (PSM8xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect, Family

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM601",
        title="settings that must be equal differ",
        family=Family.SETTINGS,
        severity=Severity.ERROR,
        effect=Effect.HANGS,
        meaning="Ranks run with different values of a setting that both ends of a connection assume to be equal.",
        next_step="Set it to the same value on every rank.",
    ),
    Code(
        code="PSM602",
        title="library versions differ",
        family=Family.SETTINGS,
        severity=Severity.WARNING,
        meaning="Ranks run different NCCL releases.",
        next_step="Load the same library on every rank; print it with NCCL_DEBUG=VERSION.",
    ),
    Code(
        code="PSM603",
        title="plugin or network differs between ranks",
        family=Family.SETTINGS,
        severity=Severity.WARNING,
        effect=Effect.HANGS,
        meaning="Ranks chose another network or found another plugin than their peers.",
        next_step="Make the plugin visible on every node (NCCL_NET_PLUGIN, LD_LIBRARY_PATH).",
    ),
    Code(
        code="PSM604",
        title="diagnostic that does not tell",
        family=Family.SETTINGS,
        severity=Severity.INFO,
        meaning="A dump or a RAS answer is empty or healthy because of a limit of the tool, not because nothing waits.",
        next_step="Do not take it for idleness; read the states of all communicators.",
    ),
    Code(
        code="PSM605",
        title="fault injected on purpose",
        family=Family.SETTINGS,
        severity=Severity.WARNING,
        look_first=True,
        meaning="PSM_FAULTS was set, and a call of this process met the fault that it asks for. What the process and its peers did afterwards may be nothing else than the consequence.",
        next_step="Run again without PSM_FAULTS before anything else is blamed; docs/faults.md says what each action does.",
    ),
    Code(
        code="PSM701",
        title="evidence ends",
        family=Family.EVIDENCE,
        severity=Severity.INFO,
        meaning="The log stops before the work or the teardown is complete, and nothing in it shows who waits for what.",
        next_step="Re-run with the environment that the report prints.",
    ),
    Code(
        code="PSM702",
        title="ranks missing from the evidence",
        family=Family.EVIDENCE,
        severity=Severity.WARNING,
        meaning="The communicator has ranks whose log was not given.",
        next_step="Give the logs of all ranks: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    Code(
        code="PSM703",
        title="data plane not observed",
        family=Family.EVIDENCE,
        severity=Severity.INFO,
        meaning="Every control-plane exchange in the log is complete; the data path, where a hang may be, prints nothing.",
        next_step="Use stacks of the proxy progress threads, a proxy dump, RAS or the step recorder.",
    ),
    Code(
        code="PSM704",
        title="response size hints at a whole private struct",
        family=Family.EVIDENCE,
        severity=Severity.INFO,
        meaning="Setup answers of one role are as large as a transport's private struct. Healthy builds show it too: only the types or a trace can prove a leaked handle.",
        next_step="Check the type that is copied into the response buffer for streams, events and pointers.",
    ),
    Code(
        code="PSM705",
        title="torn or damaged lines",
        family=Family.EVIDENCE,
        severity=Severity.INFO,
        meaning="Lines were cut, glued or overwritten; what they said is not known.",
        next_step="Let every rank write its own file: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    Code(
        code="PSM801",
        title="harmless warning",
        family=Family.HARMLESS,
        severity=Severity.INFO,
        survived=False,
        meaning="A warning that does not matter by itself.",
        next_step="Nothing.",
    ),
)
