"""Plans beside those that NCCL's own functions made of the same tasks (nccl-2.19.4.txt, nccl-2.26.6.txt)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.csrc.psm.plan.scheduling import RECV, SEND, Driver, Json

HERE = Path(__file__).parent
SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
BROADCAST, ALLGATHER = 0, 2  # counted in bytes


def cases(name: str) -> list[tuple[list[str], list[str]]]:
    """What the driver is told, and NCCL's plans."""
    text = "\n".join(line for line in (HERE / name).read_text("utf-8").splitlines() if not line.startswith("#"))
    found = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        found.append(
            (
                [line[2:] for line in lines if line.startswith("> ")],
                [line for line in lines if not line.startswith("> ")],
            )
        )
    return found


def kind(func: int) -> str:
    return {SEND: "s", RECV: "r"}.get(func, "c")


def ops(plan: Json) -> list[str]:
    return [f"op {op['channel']} {op['count']} {kind(op['func'])}" for op in plan["ops"]]


def slots(plan: Json) -> list[str]:
    """As NCCL up to 2.21 has them: channel by channel, slots, then ops."""
    lines = [f"plan mask {plan['mask']} ubound {plan['ubound']} slots {plan['batches']}"]
    for channel in range(plan["ubound"]):
        elements: dict[int, list[str]] = defaultdict(list)
        for work in plan["works"]:
            if work["channel"] == channel:
                p2p = f"{kind(work['func'])}{work['peer']}:{work['nbytes']}"
                elements[work["place"]].append(f"c{work['task']}" if kind(work["func"]) == "c" else p2p)
        lines += [f"slot {channel} {number} {' '.join(sorted(found))}" for number, found in elements.items()]
        lines += [line for line in ops(plan) if line.startswith(f"op {channel} ")]
    return lines


def batches(plan: Json, tasks: list[list[int]]) -> list[str]:
    """As NCCL from 2.22 has them: batches of each channel, then the merged ops."""
    lines = [f"plan mask {plan['mask']} batches {plan['batches']} bytes {plan['work_bytes']} storage {plan['storage']}"]
    last = None
    for work in plan["works"]:
        where = work["channel"], work["place"]
        if work["first"]:
            lines.append(f"batch {where[0]} {'ext' if work['first'] == 2 else 'new'} base {where[1]}")
        if work["first"] or where != last:  # send and recv of a round are one work
            lines[-1] += f" {where[1]}"
            func, _, datatype, *_ = tasks[work["task"]]
            if kind(func) == "c":
                size = 1 if func in (BROADCAST, ALLGATHER) else SIZES[datatype]
                lines[-1] += f"=t{work['task']}:{work['nbytes'] // size}"
        last = where
    return lines + ops(plan)


@pytest.mark.parametrize("number", range(20))
def test_slots_are_those_of_nccl(scheduler: Driver, number: int) -> None:
    told, expected = cases("nccl-2.19.4.txt")[number]
    (answer,) = scheduler.obey(*told, "drop")
    assert [line for plan in answer["plans"] for line in slots(plan)] == expected


@pytest.mark.parametrize("number", range(20))
def test_batches_are_those_of_nccl(scheduler: Driver, number: int) -> None:
    told, expected = cases("nccl-2.26.6.txt")[number]
    tasks = [[int(word) for word in line.split()[1:]] for line in told if line.startswith("task ")]
    (answer,) = scheduler.obey(*told, "drop")
    assert [line for plan in answer["plans"] for line in batches(plan, tasks)] == expected


def test_the_tables_are_read_whole() -> None:
    for name in ("nccl-2.19.4.txt", "nccl-2.26.6.txt"):
        found = cases(name)
        assert len(found) == 20
        assert sum(sum(line.startswith("plan") for line in plans) > 1 for _, plans in found) == 10
