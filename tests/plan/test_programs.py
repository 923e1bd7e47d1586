"""Task files of a whole job: communicators, and what each rank does."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.plan.programs import WORLD, Member, parse_program, read_program
from psmkit.plan.tasks import TaskFileError, parse

TWO = """comm tp 0-1
allreduce 8 float32 sum
end
comm pp 2,0   # rank 0 of it is rank 2 of the job
0: send 4 int32 to=1
1: recv 4 int32 from=0
end
comm tp 0-1
0: send 1 int8 to=1
1: recv 1 int8 from=0
"""


def test_a_file_without_communicators_is_about_one_of_all_ranks() -> None:
    program = parse_program("allreduce 8 float32 sum\nend\n", 3)
    assert program.comms == (Member(WORLD, (0, 1, 2)),)
    assert [len(steps) for _, steps in program.groups(2)] == [1]


def test_each_rank_has_its_groups_in_the_order_of_the_file() -> None:
    program = parse_program(TWO)
    assert program.ranks == 3
    assert [c.ranks for c in program.comms] == [(0, 1), (2, 0)]
    said = [[(comm, [str(s.task) for s in steps]) for comm, steps in program.groups(rank)] for rank in range(3)]
    assert said[0] == [
        (0, ["allreduce 8 float32 sum"]),
        (1, ["recv 4 int32 from=0"]),
        (0, ["send 1 int8 to=1"]),
    ]
    assert said[2] == [(1, ["send 4 int32 to=1"])]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("comm a\nend\n", 1, "expected comm NAME RANKS"),
        ("comm a 3-1\n", 1, "bad ranks"),
        ("allreduce 1\ncomm a 0-1\nend\n", 2, "before the first"),
        ("comm a 0-1\nallreduce 1\nend\ncomm a 0-2\n", 4, "had other ranks before"),
        ("comm a 0-1\n5: allreduce 1\n", 2, "bad rank 5"),
        ("comm a 0-1\n", 0, "no tasks"),
        ("allreduce 1\n", 0, "give --ranks N"),
    ],
)
def test_a_bad_line_is_cited(text: str, line: int, says: str) -> None:
    with pytest.raises(TaskFileError, match=says) as error:
        parse_program(text, name="f")
    assert error.value.line == line


def test_the_ranks_of_a_job_bound_its_communicators() -> None:
    with pytest.raises(TaskFileError, match="expected ranks 0 to 1"):
        parse_program(TWO, 2)


def test_a_command_for_one_communicator_says_who_takes_several() -> None:
    with pytest.raises(TaskFileError, match="psmkit lab run --tasks"):
        parse(TWO, 3)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tasks").write_text(TWO)
    assert read_program(tmp_path / "a.tasks") == parse_program(TWO)
