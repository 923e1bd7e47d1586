"""Several communicators together."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.reproduce.case import extract
from psmkit.reproduce.crossed import crossed
from psmkit.reproduce.runs import on_simulator
from tests.reproduce.jobs import logs, operations

TWO = "comm a 0-1\n{one}end\ncomm b 0-1{stream}\n{both}end\ncomm a 0-1\n{two}end\n"


def _crossed(one: str, both: str, two: str, stream: str = "") -> dict[int, list[int]]:
    return crossed(operations(TWO.format(one=one, both=both, two=two, stream=stream)), 1 << 20)


ALL = "allreduce 1K float32 sum\n"


@pytest.mark.parametrize(
    ("one", "both", "two", "found"),
    [
        (f"0: {ALL}", ALL, f"1: {ALL}", {0: [0], 1: [1]}),
        ("0: send 8M float32 to=1\n", ALL, "1: recv 8M float32 from=0\n", {0: [0], 1: [1]}),
        ("0: send 8 float32 to=1\n", ALL, "1: recv 8 float32 from=0\n", {}),
        ("1: recv 8 float32 from=0\n", ALL, "0: send 8 float32 to=1\n", {0: [1], 1: [0]}),
        ("1: broadcast 8 float32 root=1\n", ALL, "0: broadcast 8 float32 root=1\n", {}),
        ("1: broadcast 8M float32 root=1\n", ALL, "0: broadcast 8M float32 root=1\n", {0: [1], 1: [0]}),
        ("0: reduce 8 float32 sum root=1\n", ALL, "1: reduce 8 float32 sum root=1\n", {}),
        ("1: reduce 8 float32 sum root=1\n", ALL, "0: reduce 8 float32 sum root=1\n", {0: [1], 1: [0]}),
        (ALL, ALL, ALL, {}),
    ],
)
def test_communicators_in_two_orders_wait_for_each_other(
    one: str, both: str, two: str, found: dict[int, list[int]]
) -> None:
    assert _crossed(one, both, two) == found
    assert _crossed(one, both, two, " stream=1") == {}


def test_a_job_that_crosses_communicators_stands_still_on_the_simulator(tmp_path: Path) -> None:
    text = TWO.format(one=f"0: {ALL}", both=ALL, two=f"1: {ALL}", stream="")
    case = extract([str(logs(tmp_path / "logs", text))])
    assert case.symptom is not None and case.symptom.kind == "collective"
    done = on_simulator(case)
    assert done.returns is True and "which others use in another order" in done.text
