"""Jobs for the tests: what ranks call, and the logs and dumps that it leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from psmkit.plan.programs import parse_program
from psmkit.plan.types import Config, Scheduler
from psmkit.reproduce import simulator
from psmkit.reproduce.operations import Operations
from psmkit.reproduce.replay import of_program

CONFIG = Config(
    ranks=2, scheduler=Scheduler.PLANNER, release=23007, channels=2, p2p_channels=2, p2p_channels_per_peer=2,
    work_fifo_bytes=1 << 20, pass_sm=False, ll_threshold=16 << 10,
)  # fmt: skip


def operations(text: str, ranks: int | None = None) -> Operations:
    """The operations of a task file."""
    return of_program(parse_program(text, ranks))


def logs(folder: Path, text: str, ranks: int | None = None, *, waits: bool = True, fifo: int = 1 << 20) -> Path:
    """The logs of a job that calls this; with what a runner says of the ranks that wait."""
    ours = operations(text, ranks)
    config = replace(CONFIG, ranks=ours.ranks, work_fifo_bytes=fifo)
    folder.mkdir()
    simulator.write_logs(folder, ours, config, simulator.run(ours, config) if waits else [])
    if fifo != CONFIG.work_fifo_bytes:
        for path in folder.glob("nccl.*"):
            first, _, rest = path.read_text().partition("\n")
            told = first.replace(first.partition("NCCL INFO ")[2], f"CC Off, workFifoBytes {fifo}")
            path.write_text(f"{first}\n{told}\n{rest}")
    return folder


def entry(op: str, seq: int, state: str = "completed", *, count: int = 1024, group: str = "0") -> dict[str, Any]:
    """An entry of a flight recorder."""
    p2p = op.startswith(("send", "recv"))
    return {
        "profiling_name": f"nccl:{op}", "process_group": [group, "default_pg"], "is_p2p": p2p, "state": state,
        "collective_seq_id": 0 if p2p else seq, "p2p_seq_id": seq if p2p else 0, "input_sizes": [[count]], "output_sizes": [[count]],
        "input_dtypes": ["Float"], "record_id": seq,
    }  # fmt: skip


def dumps(folder: Path, entries: Mapping[int, Sequence[dict[str, Any]]], ranks: int) -> list[Path]:
    """Dumps of a flight recorder, as JSON."""
    out = []
    for rank, ours in entries.items():
        path = folder / f"nccl_trace_rank_{rank}.json"
        config = {"0": {"desc": "default_pg", "ranks": json.dumps(list(range(ranks)))}}
        path.write_text(json.dumps({"version": "2.5", "entries": list(ours), "pg_config": config}))
        out.append(path)
    return out
