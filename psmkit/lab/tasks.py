"""Task files on the lab: ranks that call what a file says, through libpsm's plans, proxy and p2p transport."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from psmkit.lab import faults, runner, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.strangers import Stranger
from psmkit.lab.topology import Machine
from psmkit.plan.programs import Program
from psmkit.plan.types import Config, Func, StepKind, Task

__all__ = ["buffers", "check", "start"]

_CASE = "tasks"


def check(program: Program) -> None:
    """Refuse what ranks cannot play.

    Raises:
        LabError: a step that is for the simulator, or a group that needs more memory than this machine has.
    """
    steps = (s for _, steps in program.parts for s in steps)
    odd = next((s for s in steps if s.kind not in (StepKind.TASK, StepKind.GROUP_END)), None)
    if odd is not None:
        raise LabError(
            f"'{odd}' in the task file: the lab plays tasks and the ends of groups; `psmkit plan simulate` knows the rest"
        )
    most = sum(_largest(program, rank) for rank in range(program.ranks))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if most > there:
        raise LabError(
            f"the largest groups of the ranks need {most / (1 << 30):,.1f} GiB for their buffers, and this machine has {there / (1 << 30):,.1f} GiB"
        )


def _largest(program: Program, rank: int) -> int:
    """The bytes of the buffers of a rank's largest group."""
    most = 0
    for comm, steps in program.groups(rank):
        size = len(program.comms[comm].ranks)
        most = max(most, sum(buffers(s.task, size) for s in steps if s.task is not None))
    return most


def buffers(task: Task, ranks: int) -> int:
    """The bytes of the buffers of a call."""
    nbytes = task.count * task.datatype.size
    if task.func.p2p:
        return nbytes
    return nbytes * (1 + ranks if task.func in (Func.ALLGATHER, Func.REDUCESCATTER) else 2)


def start(
    text: str,
    program: Program,
    config: Config,
    folder: Path,
    *,
    deadline: float = 60.0,
    emulation: Emulation | None = None,
    machine: Machine | None = None,
    variant: str = "split",
    stranger: Stranger | None = None,
    seed: int = 1,
    debug: str = "INFO",
    environment: dict[str, str] | None = None,
    stacks: bool = True,
    watch: Callable[[int, str], None] | None = None,
) -> transfer.LabRun:
    """Run a task file on ranks, and write the result into a folder.

    Args:
        text: the text of the file.
        program: what it says.
        config: of a communicator of all ranks.
        folder: where logs, records, output, stacks and result.json go; new or empty.
        deadline: seconds for the whole run.
        emulation: how the ranks see CUDA; its folder is ``folder / "records"``.
        machine: the emulated GPUs, which the ranks use in turn.
        variant: of the transport.
        stranger: a variant from outside psmkit, in its place.
        seed: of data.
        debug: level of the log.
        environment: further variables of the ranks.
        stacks: collect the stacks of the ranks that have not ended when the deadline passes.
        watch: is called with the rank and the stage that it enters, or ``ended``.

    Raises:
        LabError: the run could not start.
    """
    ranks = program.ranks
    check(program)
    transfer.check_size(1, ranks, 1, ())
    if stranger is not None:
        variant = stranger.variant.name
    elif variant != "split":
        known = transfer.variants()
        if variant not in known or variant.startswith("net/"):
            raise LabError(
                f"unknown variant {variant!r}, expected a variant of the p2p transport: see `psmkit variants`"
            )
    lab = emulation or Emulation(folder / "records")
    asked = faults.check(lab.faults, faults.sites(Path("psm")), ranks) if lab.faults else []
    transfer.fresh(folder)
    lab = replace(lab, folder=folder / "records")
    devices = 8
    if machine is not None:
        (folder / "topology.toml").write_text(machine.toml())
        lab, devices = replace(lab, topology=folder / "topology.toml"), machine.gpus
    (folder / "case.tasks").write_text(text)
    for rank in range(ranks):
        transfer.write_cases(folder, rank, [str((folder / "case.tasks").absolute())])
    values = {"config": asdict(config), "variant": variant, "seed": seed, "devices": devices}
    if stranger is not None:
        values["stranger"] = [stranger.where, stranger.name, stranger.python]
        environment = stranger.environment() | (environment or {})
    log = {"PSM_DEBUG": debug, "NCCL_DEBUG": debug, "PSM_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_SUBSYS": "ALL"}
    command = [sys.executable, "-m", "psmkit.lab.tasks_rank", json.dumps(values)]
    with transfer.own_memory() as shared:
        log |= {"PSM_SHM_DIR": str(shared)}

        def of_rank(rank: int) -> dict[str, str]:
            file = str(transfer.log_file(folder, rank))
            return lab.environment(rank) | {"PSM_LOG_FILE": file, "NCCL_DEBUG_FILE": file} | log | (environment or {})

        made = transfer.job(folder, ranks, command, of_rank, shared, 1, deadline, stacks)
        outcome = runner.run(made, watch)
        reaped = transfer.reap(transfer.program(), shared, outcome)
    settings: dict[str, Any] = {
        "ranks": ranks, "nodes": 1, "deadline": deadline, "cuda": "emulated", "faults": lab.faults, "differs": {},
        "tasks": "case.tasks", "config": asdict(config), "processors": len(os.sched_getaffinity(0)), "reaped": reaped, "idle": faults.idle(asked, folder),
    }  # fmt: skip
    line = f"name={_CASE} tasks=case.tasks ranks={ranks} variant={variant}"
    return transfer.finish(transfer.LabRun(folder, [line], outcome, settings))
