"""Codes of settings and environment (PSM6xx), of the limits of the evidence (PSM7xx), and of what is harmless (PSM8xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM601",
        title="settings that must be equal differ",
        effect=Effect.HANGS,
        explains=True,
        meaning="Ranks run with different values of a setting that both ends of a connection expect to be equal.",
        next_step="Set it to the same value on every rank.",
    ),
    Code(
        code="PSM602",
        title="library versions differ",
        severity=Severity.WARNING,
        # An error where NCCL refuses the releases. A difference alone breaks nothing: it heads no report.
        effect=Effect.FAILS,
        names_origin=True,
        look_first=False,
        meaning="Ranks run different NCCL releases, or the program and its library do. Where they do not fit, NCCL reports an error.",
        next_step="Load the same library on every rank; print it with NCCL_DEBUG=VERSION.",
    ),
    Code(
        code="PSM603",
        title="plugin or network differs between ranks",
        severity=Severity.WARNING,
        effect=Effect.HANGS,
        meaning="Some ranks use another network or another plugin than their peers.",
        next_step="Make the plugin visible on every node (NCCL_NET_PLUGIN, LD_LIBRARY_PATH).",
    ),
    Code(
        code="PSM604",
        title="diagnostic that proves nothing",
        severity=Severity.INFO,
        meaning="A dump or a RAS answer is empty or healthy because of a limit of the tool, not because nothing waits.",
        next_step="Do not conclude that the job is idle. Read the states of all communicators.",
    ),
    Code(
        code="PSM605",
        title="fault injected on purpose",
        severity=Severity.WARNING,
        look_first=True,
        meaning="PSM_FAULTS was set, and psmkit injected a fault into a call of this process. Everything that the process and its peers did later may follow from it.",
        next_step="Run again without PSM_FAULTS before you look for another cause. docs/faults.md describes each action.",
    ),
    Code(
        code="PSM606",
        title="requested plugin is not in use",
        severity=Severity.WARNING,
        look_first=True,
        meaning="A plugin that the settings name, or that is installed, does not load. NCCL reports this at INFO and uses its own implementation.",
        next_step="On every node, fix the reason that the line names: a wrong path, a missing library (ldd), or a build for another release. `psmkit plugin check` shows it.",
    ),
    Code(
        code="PSM607",
        title="check of the machine by NCCL's diagnostics did not pass",
        severity=Severity.WARNING,
        meaning="NCCL checked the machines of the job itself (NCCL_RUN_DIAGNOSTICS, NCCL_RUN_RAS_DIAGNOSTICS, or the RAS client), and reports GPUs, links, a network or hosts that differ or fail. It does not show that this is why the job went wrong.",
        next_step="Do what the line says on the host that it names, before you look further into the job.",
    ),
    Code(
        code="PSM701",
        title="evidence ends",
        severity=Severity.INFO,
        meaning="The log ends before the work or the teardown is complete, and no line shows which rank waits for what.",
        next_step="Re-run with the environment that the report prints.",
    ),
    Code(
        code="PSM702",
        title="ranks missing from the evidence",
        severity=Severity.WARNING,
        meaning="The communicator has ranks whose log was not given.",
        next_step="Give the logs of all ranks: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    Code(
        code="PSM703",
        title="data plane not observed",
        severity=Severity.INFO,
        meaning="Every control-plane exchange in the log is complete. The data path prints no lines, so a hang there is not visible.",
        next_step="Take stacks of the proxy progress threads, a proxy dump or a RAS answer, or use the step recorder.",
    ),
    Code(
        code="PSM704",
        title="response size hints at a whole private struct",
        severity=Severity.INFO,
        aside=True,
        meaning="Setup responses of one role have the size of a transport's private struct. Healthy builds show this, too. Only the types or a trace can prove a leaked handle.",
        next_step="Give the job's NCCL library with debug information: `psmkit analyze --lib LIB` names the type and its streams, events and pointers (docs/audit.md).",
    ),
    Code(
        code="PSM705",
        title="torn or damaged lines",
        severity=Severity.INFO,
        meaning="Lines were cut, joined or overwritten, and a part of their text is lost.",
        next_step="Let every rank write its own file: NCCL_DEBUG_FILE=nccl.%h.%p.log.",
    ),
    Code(
        code="PSM706",
        title="log of a rank lost its end",
        severity=Severity.WARNING,
        headline=True,
        meaning="A peer printed a line that requires a step of this rank, and the log of this rank ends before that step. So the rank did the step, and its log is incomplete.",
        next_step="Find the rest of its log: NCCL_DEBUG_FILE=nccl.%h.%p.log writes one complete file for each rank.",
    ),
    Code(
        code="PSM707",
        title="rank owes a step, or its log was cut",
        severity=Severity.WARNING,
        headline=True,
        while_open=True,
        meaning="Every other rank of the communicator stopped at a later step of the protocol, and this rank waits for no other. A cut log looks the same, so this rank is only a suspect.",
        next_step="Take the stack of this rank, or find the rest of its log. The setting at the end of the report decides between the two.",
    ),
    Code(
        code="PSM709",
        title="stacks of some ranks are missing",
        severity=Severity.WARNING,
        look_first=True,
        meaning="Stacks were given of some ranks only. Where all of these wait for peers, the rank that stays away can be one of the others.",
        next_step="Take the stacks of the missing ranks as well.",
    ),
    Code(
        code="PSM710",
        title="library of another release",
        severity=Severity.INFO,
        aside=True,
        meaning="The library that --lib names says another release of NCCL than the log. The layout of its types can differ from that of the job, so they were not used.",
        next_step="Give the library that the job loaded: the log of rank 0 shows its release, and `psmkit inspect` the file of a running process.",
    ),
    Code(
        code="PSM711",
        title="earlier start in the same file",
        severity=Severity.INFO,
        meaning="The file holds several starts of the job, one after the other. This is how an earlier one ended. The verdict is on the last one.",
        next_step="Read the last start first. Let each start write a file of its own.",
    ),
    Code(
        code="PSM801",
        title="harmless warning",
        severity=Severity.INFO,
        aside=True,
        survived=False,
        meaning="A warning that has no effect by itself.",
        next_step="Ignore it.",
    ),
)
