"""The last part of a very long job."""

from __future__ import annotations

from psmkit.reproduce.recent import recent
from psmkit.reproduce.write import tasks
from tests.reproduce.jobs import operations

STEP = """0: send 4 float32 to=1
1: recv 4 float32 from=0
end
allreduce 8 float32 sum
end
"""


def test_a_short_job_stays_whole() -> None:
    ours = operations(STEP, 2)
    assert recent(ours) is ours


def test_a_long_job_begins_where_all_ranks_are_even() -> None:
    last = recent(operations(STEP * 50 + "0: allgather 2 int8\nend\n", 2), most=40)
    assert last is not None and len(last) < 60
    assert "".join(tasks(last)) == STEP * 9 + "0: allgather 2 int8\nend\n"


def test_a_message_without_its_other_end_is_kept() -> None:
    ours = operations(STEP * 3 + "0: send 4 float32 to=1\nend\n" + STEP * 50, 2)
    assert recent(ours, most=40) is None


def test_collectives_that_differ_are_kept() -> None:
    odd = "0: allgather 2 int8\n1: allgather 3 int8\nend\n"
    last = recent(operations(STEP * 50 + odd + STEP, 2), most=40)
    assert last is not None and odd in "".join(tasks(last))
