"""The smallest case that still shows a symptom."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.reproduce.case import extract
from psmkit.reproduce.shrink import Shrunk, shrink
from psmkit.reproduce.write import tasks
from tests.reproduce.jobs import logs

ROUND = """allreduce 1M float32 sum
end
0-3: send 4M float32 to=+1
0-3: recv 4M float32 from=-1
end
"""
OVERFLOW = """0-1: send 16 float32 to=+1 times=2800
0-1: recv 16 float32 from=-1 times=2800
end
"""


def _shrunk(tmp_path: Path, text: str, ranks: int = 4) -> Shrunk:
    found = shrink(extract([str(logs(tmp_path / "logs", text, ranks))]), 1)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("fault", "ranks", "most"),
    [
        ("0-1,3: allgather 1K float32\nend\n", (2, 3), 1),
        ("0-1,3: allgather 1K float32\n2: allgather 2K float32\nend\n", None, 3),
        ("0: send 8M float32 to=1\n1: recv 4M float32 from=0\nend\n", (0, 1), 2),
        ("0-1,3: send 4M float32 to=+1\n0-3: recv 4M float32 from=-1\nend\n" + ROUND, None, 5),
    ],
)
def test_a_fault_behind_many_rounds(tmp_path: Path, fault: str, ranks: tuple[int, ...] | None, most: int) -> None:
    found = _shrunk(tmp_path, ROUND * 5 + fault)
    assert len(found.case.operations) <= most and found.case.operations.ranks <= 3
    assert ranks is None or 2 in found.ranks or found.ranks == ranks


def test_the_same_seed_gives_the_same_case(tmp_path: Path) -> None:
    case = extract([str(logs(tmp_path / "logs", ROUND * 3 + "0-1,3: allgather 1K float32\nend\n", 4))])
    one, two = shrink(case, 7), shrink(case, 7)
    assert one is not None and two is not None
    assert "".join(tasks(one.case.operations)) == "".join(tasks(two.case.operations))


def test_an_overflow_keeps_two_ranks_and_a_smaller_fifo(tmp_path: Path) -> None:
    case = extract([str(logs(tmp_path / "logs", OVERFLOW, 2, fifo=1 << 17))])
    assert case.config.work_fifo_bytes == 1 << 17
    found = shrink(case)
    assert found is not None
    assert found.case.symptom is not None and found.case.symptom.code == "PSM314"
    assert found.case.config.work_fifo_bytes == 1 << 16
    assert found.case.operations.ranks == 2 and len(found.case.operations) == 2 * (65536 // 48 + 1)


def test_a_job_without_a_symptom_is_not_shrunk(tmp_path: Path) -> None:
    assert shrink(extract([str(logs(tmp_path / "logs", ROUND, 4))])) is None
