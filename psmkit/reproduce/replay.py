"""A case folder as input: its operations, settings and symptom again."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psmkit.model.arrays.whole import np
from psmkit.model.errors import InputError
from psmkit.plan.programs import Program, read_program
from psmkit.plan.releases import number
from psmkit.plan.types import Config, Scheduler, StepKind
from psmkit.reproduce.case import Case
from psmkit.reproduce.operations import OP, Comm, Operations
from psmkit.reproduce.symptom import Symptom
from psmkit.reproduce.write import SCHEMA, SETTINGS

__all__ = ["folder_of", "of_program", "read"]

_TOML, _TASKS = "case.toml", "case.tasks"
_MOST_STEPS = 4_000_000
_MOST_BYTES, _LARGEST = 16 << 20, 1 << 30


def folder_of(paths: Sequence[str]) -> Path | None:
    """The case folder that the inputs are: the folder, or its case.toml.

    Raises:
        InputError: one of the files of a case is missing.
    """
    if len(paths) != 1:
        return None
    path = Path(paths[0])
    folder = path.parent if path.name == _TOML else path
    has_toml, has_tasks = ((folder / name).is_file() for name in (_TOML, _TASKS))
    if not has_toml and (not has_tasks or path.name == _TOML):
        return None
    if not (has_toml and has_tasks):
        lacks, other = (_TASKS, _TOML) if has_toml else (_TOML, _TASKS)
        raise InputError(str(folder), f"{lacks} is missing beside {other}")
    return folder


def of_program(program: Program) -> Operations:
    """The operations of a task file."""
    out = Operations(program.ranks, tuple(Comm(c.name, c.ranks) for c in program.comms))
    for rank in range(program.ranks):
        rows = []
        for comm, steps in program.groups(rank):
            tasks = [s.task for s in steps if s.kind is StepKind.TASK and s.task is not None]
            for at, t in enumerate(tasks):
                last = int(at == len(tasks) - 1)
                rows.append(
                    (
                        comm,
                        program.comms[comm].stream,
                        int(t.func),
                        int(t.datatype),
                        int(t.redop),
                        last,
                        t.peer,
                        t.count,
                    )
                )
        out.by_rank[rank] = np.array(rows, dtype=OP)
    return out


def read(folder: Path) -> Case:
    """The case of a folder.

    Raises:
        InputError: case.toml is not one that `psmkit reproduce` writes.
        TaskFileError: a line of case.tasks is invalid.
    """
    path = folder / _TOML
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        value = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise InputError(str(path), (error.strerror or str(error)).lower()) from None
    except ValueError as error:
        raise InputError(
            str(path), f"the file is damaged, it is not TOML: {str(error).partition(chr(10))[0]}"
        ) from None
    if "schema" not in value:
        raise InputError(str(path), f"the file is damaged: it has no schema, expected {SCHEMA!r}")
    if value["schema"] != SCHEMA:
        raise InputError(str(path), f"schema {str(value['schema'])[:40]!r}, expected {SCHEMA!r}")
    if "seen" not in value:
        raise InputError(str(path), "the file is damaged: it ends before its table [seen]")
    try:
        job, nccl, symptom, seen = (_table(value, name) for name in ("job", "nccl", "symptom", "seen"))
        ranks, nodes = _int(job, "ranks"), _int(job, "nodes")
        release = number(str(nccl.get("version", "")))
        if release is None:
            raise ValueError(f"version = {str(nccl.get('version'))[:40]}, expected one such as 2.30.7")
        channels, p2p_channels, per_peer, fifo, chunk = (_int(nccl, name) for name in SETTINGS)
        config = Config(
            ranks=ranks, nodes=nodes, scheduler=Scheduler.PLANNER, channels=channels, p2p_channels=p2p_channels, p2p_channels_per_peer=per_peer, pass_sm=False,
            work_fifo_bytes=fifo, p2p_chunk_bytes=chunk, release=release, ll_threshold=16 << 10,
        )  # fmt: skip
        found = None
        if symptom:
            culprits = symptom.get("culprits", [])
            if not isinstance(culprits, list) or not all(isinstance(rank, int) for rank in culprits):
                raise ValueError(f"culprits = {str(culprits)[:40]}, expected a list of ranks")
            verdict, code, stage = (str(symptom.get(name, "")) for name in ("verdict", "code", "stage"))
            found = Symptom(verdict, code, stage, tuple(culprits), (), str(symptom.get("finding", "")))
        notes = {name: tuple(map(str, seen.get(name, ()))) for name in ("faults", "guesses")}
        assumed = tuple(map(str, nccl.get("assumed", ())))
    except (TypeError, ValueError) as error:
        raise InputError(str(path), f"the file is damaged: {error}") from None
    operations = of_program(read_program(folder / _TASKS, ranks, _MOST_STEPS))
    names = [str(comm.get("name", "")) for comm in value.get("communicator", ()) if isinstance(comm, dict)]
    if len(names) == len(operations.comms) == 1:  # a task file of one does not name it
        operations = replace(operations, comms=(replace(operations.comms[0], name=names[0]),))
    return Case(
        operations, config, assumed, (f"the case {folder} is played again",), notes["guesses"], notes["faults"], found,
        job.get("source") == "flight recorder",
    )  # fmt: skip


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"{name} is no table")
    return found


def _int(table: Mapping[str, Any], name: str) -> int:
    found = table.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= _LARGEST:
        raise ValueError(f"{name} = {str(found)[:40]}, expected a number from 1 to {_LARGEST}")
    return found
