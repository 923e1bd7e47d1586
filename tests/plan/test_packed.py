"""Steps as arrays: what C gets, who sends what to whom, and groups that are split so that a send stays with its recv."""

from __future__ import annotations

import numpy as np
import pytest

from psmkit._native.psm import ffi
from psmkit.plan import Step, StepKind, Task, packed, parse
from psmkit.plan.types import DataType, Func


def steps(text: str, ranks: int = 3) -> packed.Array:
    return packed.pack(parse(text, ranks))


def shown(array: packed.Array) -> list[str]:
    names = {int(StepKind.GROUP_END): "end"}
    return [
        names.get(int(row["kind"]))
        or f"{row['rank']}{'>' if row['func'] == int(Func.SEND) else '<'}{row['peer']}:{row['count']}"
        for row in array
    ]


def test_a_step_lies_as_c_reads_it() -> None:
    (row,) = packed.pack([Step(StepKind.TASK, Task(Func.SEND, 7, DataType.FLOAT16, peer=2), 1)])
    assert packed.STEP.itemsize == ffi.sizeof("struct psmPlanStep")
    c = ffi.from_buffer("struct psmPlanStep *", row.tobytes())
    assert (c.kind, c.rank, c.task.func, c.task.peer, c.task.datatype, c.task.count) == (0, 1, 6, 2, 6, 7)
    (replay,) = packed.pack([Step(StepKind.REPLAY, count=4)])
    assert (int(replay["rank"]), int(replay["count"])) == (-1, 4)


def test_messages_are_numbered_by_pair_and_direction_in_each_group() -> None:
    array = steps(
        "0: send 1 int8 to=1 times=2\n1: recv 1 int8 from=0 times=2\nend\n0: send 4 to=1\n1: recv 4 from=0\nend"
    )
    found = packed.messages(array, 3)
    assert found.rank.tolist() == [0, 0, 1, 1, 0, 1] and found.peer.tolist() == [1, 1, 0, 0, 1, 0]
    assert found.send.tolist() == [True, True, False, False, True, False]
    assert found.nbytes.tolist() == [1, 1, 1, 1, 16, 16]
    assert found.group.tolist() == [0, 0, 0, 0, 1, 1]
    assert found.index.tolist() == [0, 1, 0, 1, 0, 0]
    assert found.whole.tolist() == [0, 1, 0, 1, 2, 2]


def test_a_step_of_all_ranks_is_one_of_each() -> None:
    found = packed.messages(steps("send 1 to=0\n0: recv 1 from=0\n0: recv 1 from=1\n0: recv 1 from=2"), 3)
    assert found.rank.tolist() == [0, 1, 2, 0, 0, 0]
    assert packed.operations(steps("send 1 to=0\n0: recv 1 from=0"), 3).tolist() == [2, 1, 1]


def test_ends_of_one_rank_count_for_it_alone() -> None:
    array = packed.pack(
        [
            Step(StepKind.TASK, Task(Func.SEND, 1, peer=1), 0),
            Step(StepKind.GROUP_END, None, 0),
            Step(StepKind.TASK, Task(Func.SEND, 1, peer=1), 0),
            Step(StepKind.TASK, Task(Func.RECV, 1, peer=0), 1),
        ]
    )
    assert packed.messages(array, 2).group.tolist() == [0, 1, 0]


def test_no_messages_at_all() -> None:
    found = packed.messages(steps("allreduce 1M"), 3)
    assert len(found.step) == len(found.index) == 0


def test_a_group_is_split_by_the_numbers_of_its_messages() -> None:
    array = steps(
        "0: send 1 to=1 times=3\n0: send 2 to=2\n1: recv 1 from=0 times=3\n2: recv 2 from=0\nallreduce 4\nend\n0: send 9 to=1\n1: recv 9 from=0\nend"
    )
    smaller = packed.split(array, packed.messages(array, 3), 2)
    assert smaller is not None
    assert shown(smaller)[:7] == ["0>1:1", "0>1:1", "0>2:2", "1<0:1", "1<0:1", "2<0:2", "-1<0:4"]
    assert shown(smaller)[7:] == ["end", "0>1:1", "1<0:1", "end", "0>1:9", "1<0:9", "end"]
    whole = packed.split(array, packed.messages(array, 3), 3)
    assert whole is not None and np.array_equal(whole, array)


@pytest.mark.parametrize(
    "text", ["send 1 to=+1\nrecv 1 from=-1\n0: end\nend", "capture\nsend 1 to=+1\nrecv 1 from=-1\ncaptured"]
)
def test_groups_that_cannot_be_split(text: str) -> None:
    array = steps(text)
    assert packed.split(array, packed.messages(array, 3), 1) is None
