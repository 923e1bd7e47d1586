"""What the record file of a live process says of its open operations: libpsm's step recorder. It needs no symbols, and stops nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psmkit.logparse.records import open_record
from psmkit.model.inspection import Standing, StateObject, Value

__all__ = ["Operation", "objects", "operations", "standings"]

_STEPS = "psm.steps"
_MOST = 4096  # operations that are read
_SHOWN = 8  # standings


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on a connection of libpsm that has not ended; ``seconds`` since its last step. ``values`` is its row."""

    path: str
    rank: int
    peer: int
    channel: int
    sends: bool
    seconds: float
    values: Mapping[str, Any]


def operations(pid: int) -> list[Operation]:
    """The operations that a process has open, the oldest first. Empty without a record."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    found = []
    for path in _paths(pid):
        try:
            record = open_record(path, only=(_STEPS,))
        except OSError:
            continue
        if record.pid != pid or not record.valid:
            continue
        for section in record.sections:
            for row in range(min(len(section), _MOST)):
                values = section.values(row)
                try:
                    if values["stage"] in ("ended", "idle") or not values["seq"]:
                        continue
                    found.append(
                        Operation(
                            path,
                            int(values["rank"]),
                            int(values["peer"]),
                            int(values["channel"]),
                            values["role"] == "send",
                            max(now - int(values["moved"]), 0) / 1e9,
                            values,
                        )
                    )
                except (KeyError, ValueError):  # a row of another release
                    continue
    return sorted(found, key=lambda operation: -operation.seconds)


def _paths(pid: int) -> list[str]:
    """The record files that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
            names = {line.rstrip("\n").partition("/")[2] for line in lines if line.rstrip("\n").endswith(".rec")}
    except OSError:
        return []
    paths = [f"/{name}" for name in sorted(names)]
    return [path if os.path.exists(path) else f"/proc/{pid}/root{path}" for path in paths]


def standings(found: list[Operation]) -> list[Standing]:
    """Where operations stand, one for each peer and direction: those first in which this process has to act, then the oldest."""
    out: dict[tuple[int, bool], Standing] = {}
    for operation in sorted(found, key=lambda operation: not _does(operation).startswith("has ")):
        key = operation.peer, operation.sends
        if key in out or len(out) == _SHOWN:
            continue
        values = operation.values
        where = (
            f"operation {values.get('seq')} {'to' if operation.sends else 'from'} rank {operation.peer}, channel {operation.channel}, "
            f"{values.get('what')} in stage {values.get('stage')}, {values.get('done')} of {values.get('nsteps')} steps done"
        )
        out[key] = Standing(
            "data",
            operation.peer,
            f"rank {operation.rank} {_does(operation)}, for {operation.seconds:.1f} s",
            f"{_STEPS} in {operation.path}: {where}",
            operation.rank,
        )
    return list(out.values())


def _does(operation: Operation) -> str:
    """What the words of the two ends say, in the stage that moves data."""
    values, peer = operation.values, operation.peer
    if values.get("stage") != "fifo" or not values.get("nsteps"):
        return f"waits in data for rank {peer}"
    at = int(values.get("base", 0)) + int(values.get("transmitted", 0))
    left = int(values.get("transmitted", 0)) - int(values.get("done", 0))
    if left > 0:
        return (
            f"waits for copies on its own stream, in a {'send to' if operation.sends else 'receive from'} rank {peer}"
        )
    if operation.sends:
        if int(values.get("recv_tail", 0)) > at:
            return f"has a free slot and does not fill it, in a send to rank {peer}"
        return f"waits in data for rank {peer}, which has to free a slot for step {at}"
    if int(values.get("send_head", 0)) > at:
        return f"has step {at} and does not take it, in a receive from rank {peer}"
    return f"waits in data for rank {peer}, which has to send step {at}"


def objects(found: list[Operation]) -> list[StateObject]:
    """The operations as objects of the state."""
    return [
        StateObject(
            "recorded operation",
            f"record: {'send to' if o.sends else 'receive from'} rank {o.peer}, channel {o.channel}",
            rank=o.rank,
            peer=o.peer,
            channel=o.channel,
            values=tuple(
                Value(name, value if isinstance(value, int) else str(value))
                for name, value in o.values.items()
                if name not in ("rank", "peer", "channel", "role")
            ),
        )
        for o in found
    ]
