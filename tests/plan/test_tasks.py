"""Task files and tasks from a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.model.errors import PsmkitError
from psmkit.plan import (
    DataType,
    Func,
    RedOp,
    Step,
    StepKind,
    Task,
    TaskFileError,
    dump,
    generate,
    graph,
    groups,
    parse,
    read,
)
from psmkit.plan.tasks import MAX_BYTES, MAX_STEPS

END = Step(StepKind.GROUP_END)


def task(func: Func, count: int, *, rank: int | None = None, peer: int = 0, **more: object) -> Step:
    return Step(StepKind.TASK, Task(func, count, peer=peer, **more), rank)  # type: ignore[arg-type]


def test_a_line_is_a_task_of_every_rank_unless_it_names_ranks() -> None:
    text = "allreduce 1M bfloat16 max\n1,3: broadcast 5 root=2\nend"
    assert parse(text, 4) == (
        task(Func.ALLREDUCE, 1 << 20, datatype=DataType.BFLOAT16, redop=RedOp.MAX),
        task(Func.BROADCAST, 5, rank=1, peer=2),
        task(Func.BROADCAST, 5, rank=3, peer=2),
        END,
    )


def test_relative_peers_make_a_ring() -> None:
    assert parse("send 4K to=+1\nrecv 4K from=-1\nend", 3) == (
        *(task(Func.SEND, 4096, rank=r, peer=(r + 1) % 3) for r in range(3)),
        *(task(Func.RECV, 4096, rank=r, peer=(r - 1) % 3) for r in range(3)),
        END,
    )


def test_alltoall_stands_for_sends_and_recvs_of_all_pairs() -> None:
    steps = parse("alltoall 8 int8\nend", 3)
    pairs = {(s.task.func, s.rank, s.task.peer) for s in steps if s.task is not None}
    assert pairs == {(func, a, b) for func in (Func.SEND, Func.RECV) for a in range(3) for b in range(3)}


def test_steps_of_graphs_and_of_the_main_thread() -> None:
    text = "capture\nallgather 1\nend\ncaptured\nreplay 3\ndrop\npoll\n0-1: poll wait\n2: abort"
    assert [(s.kind, s.rank, s.count) for s in parse(text, 3)] == [
        (StepKind.CAPTURE, None, 0),
        (StepKind.TASK, None, 0),
        (StepKind.GROUP_END, None, 0),
        (StepKind.CAPTURED, None, 0),
        (StepKind.REPLAY, None, 3),
        (StepKind.DROP_GRAPH, None, 0),
        (StepKind.POLL, None, 0),
        (StepKind.POLL, 0, 1),
        (StepKind.POLL, 1, 1),
        (StepKind.ABORT, 2, 0),
    ]


def test_comments_and_blank_lines_say_nothing() -> None:
    assert parse("# a\n\n  allreduce 8  # b\n\tend\n", 2) == (task(Func.ALLREDUCE, 8), END)


def test_groups_are_those_of_each_rank() -> None:
    text = "0: send 1 to=1\n1: recv 1 from=0\nend\n0: end\n1: send 2 to=0\n0: recv 2 from=1\n0: recv 3 from=1\nend\n"
    found = groups(parse(text, 2), 2)
    assert [[[str(task) for task in group] for group in mine] for mine in found] == [
        [["send 1 float32 to=1"], [], ["recv 2 float32 from=1", "recv 3 float32 from=1"]],
        [["recv 1 float32 from=0"], ["send 2 float32 to=0"], []],
    ]
    assert groups([], 2) == ((), ())
    with pytest.raises(ValueError, match="'poll' is neither a task nor the end of a group"):
        groups(parse("send 1 to=+1\npoll\n", 2), 2)


def test_a_group_that_is_open_at_the_end_is_ended() -> None:
    assert parse("allreduce 8", 2) == parse("allreduce 8\nend\n", 2)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("allreduce 1\nallreduse 1", 2, "'allreduse': no such step, expected one of broadcast"),
        ("allreduce", 1, "needs a count of elements"),
        ("allreduce 0", 1, "expected a number of elements"),
        ("allreduce 1.5M", 1, "expected a number of elements"),
        ("allreduce 99999999999999999", 1, "expected a number of elements"),
        ("allreduce 1 float33", 1, "bad argument 'float33', expected a type (int8"),
        ("allreduce 1 sum max", 1, "op is given twice"),
        ("allreduce 1 root=1", 1, "'root=1'"),
        ("allgather 1 sum", 1, "allgather takes no operator"),
        ("broadcast 1 root=4", 1, "bad rank 4, expected 0 to 3"),
        ("broadcast 1 root=+1", 1, "expected the same root on all ranks"),
        ("send 1", 1, "send needs to=RANK"),
        ("0: send 1 to=x", 1, "expected a rank"),
        ("4: send 1 to=0", 1, "bad rank 4, expected 0 to 3"),
        ("2-1: send 1 to=0", 1, "the last rank is before the first"),
        ("1,,2: poll", 1, "expected a list such as 0,2-3"),
        ("end 1", 1, "end takes no arguments"),
        ("replay 0", 1, "expected 1 to 10000"),
        ("replay 1 2", 1, "replay takes 1 argument"),
        ("poll now", 1, "expected nothing or 'wait'"),
        ("alltoall 1 sum", 1, "alltoall takes no operator"),
        ("\x1b[31m", 1, "expected [RANKS:] WORD"),
        ("capture\nallreduce 1\nend\n\n", 4, "add a line 'captured'"),
        ("capture\nallreduce 1\nend\ncapture", 4, "a capture is already in progress"),
        ("allreduce 1\nend\ncaptured", 3, "no capture is in progress"),
        ("allreduce 1\nend\nreplay", 3, "no graph was captured before"),
        ("capture\nallreduce 1\nend\nreplay", 4, "no graph was captured before"),
        ("capture\nallreduce 1\nend\ncaptured\ndrop\ndrop", 6, "no graph was captured before"),
        ("# nothing", 0, "no tasks in the file"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_meant(text: str, line: int, told: str) -> None:
    with pytest.raises(TaskFileError) as caught:
        parse(text, 4, "my.tasks")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"my.tasks:{line}: " if line else "my.tasks: ")
    assert told in str(caught.value)


def test_a_file_is_bounded() -> None:
    with pytest.raises(TaskFileError, match="more than 200,000 steps"):
        parse("alltoall 1\n" * 2, 300)
    with pytest.raises(TaskFileError, match="more than 200,000 steps"):
        parse("alltoall 1", 1024)
    with pytest.raises(TaskFileError, match="expected 1 to 1024"):
        parse("allreduce 1", 1025)
    assert MAX_STEPS == 200_000


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="no such file"):
        read(tmp_path / "none", 2)
    large = tmp_path / "large"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(TaskFileError, match="at most 4 MiB"):
        read(large, 2)
    strange = tmp_path / "strange"
    strange.write_bytes(b"allreduce 1\n\xff")
    with pytest.raises(TaskFileError, match="strange:2: not UTF-8"):
        read(strange, 2)
    assert issubclass(TaskFileError, PsmkitError)


@given(seed=st.integers(0, 2**64), ranks=st.integers(1, 9), groups=st.integers(1, 4), tasks=st.integers(1, 12))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_what_a_seed_makes_is_the_same_again_and_can_be_written_down(
    seed: int, ranks: int, groups: int, tasks: int
) -> None:
    steps = generate(seed, ranks, groups, tasks)
    assert steps == generate(seed, ranks, groups, tasks)
    assert parse(dump(steps), ranks) == steps
    assert sum(s.kind is StepKind.GROUP_END for s in steps) == groups


@given(seed=st.integers(0, 1000), ranks=st.integers(1, 6))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_send_of_a_seed_has_its_recv_in_order(seed: int, ranks: int) -> None:
    sends: dict[tuple[int, int], list[int]] = {}
    recvs: dict[tuple[int, int], list[int]] = {}
    for step in generate(seed, ranks):
        if step.task is not None and step.task.func.p2p:
            assert step.rank is not None
            if step.task.func is Func.SEND:
                sends.setdefault((step.rank, step.task.peer), []).append(step.task.count)
            else:
                recvs.setdefault((step.task.peer, step.rank), []).append(step.task.count)
    assert sends == recvs


def test_tasks_are_put_into_a_graph_once() -> None:
    steps = graph(parse("allreduce 1", 2), 3)
    kinds = [s.kind for s in steps]
    assert kinds[0] is StepKind.CAPTURE and kinds[-3:] == [StepKind.CAPTURED, StepKind.REPLAY, StepKind.DROP_GRAPH]
    assert steps[-2].count == 3
    with pytest.raises(ValueError, match="already use a graph"):
        graph(steps, 1)
