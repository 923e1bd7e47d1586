"""Ranks of one communicator that print the same bus id."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report, Severity, Verdict
from tests.analysis.texts import analyzed


def _init(rank: int, bus: str, *, host: str = "n0", state: str = "START", nranks: int = 2) -> str:
    return (
        f"{host}:{500 + rank}:{500 + rank} [0] NCCL INFO ncclCommInitRank comm 0x{rank + 1}000 rank {rank} nranks {nranks} "
        f"cudaDev 0 nvmlDev 0 busId {bus} commId 0xaa9becea043c4e6c - Init {state}\n"
    )


def _shared(report: Report) -> list[str]:
    return [f.title for f in report.findings if "use one GPU" in f.title]


BOTH = _init(0, "100000") + _init(1, "100000")


def test_two_ranks_on_one_gpu_are_named_where_init_stops(tmp_path: Path) -> None:
    report = analyzed(tmp_path, BOTH)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "look first at this: ranks 0 and 1 of 0xaa9becea043c4e6c use one GPU (busId 100000 on n0)" in report.reason
    (finding,) = (f for f in report.findings if "use one GPU" in f.title)
    assert finding.severity is Severity.WARNING
    assert finding.ranks == (0, 1)
    assert not report.culprits


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_init(0, "100000") + _init(1, "200000"), id="two GPUs"),
        pytest.param(_init(0, "100000") + _init(1, "100000", host="n1"), id="two hosts"),
        pytest.param(BOTH + _init(0, "100000", state="COMPLETE"), id="init went on"),
        pytest.param(BOTH + "n0:500:500 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/IPC\n", id="connections"),
        pytest.param(
            "n0:500:500 [0] NCCL INFO NCCL_MULTI_RANK_GPU_ENABLE set by environment to 1.\n" + BOTH, id="allowed"
        ),
        pytest.param(
            BOTH + "n0:501:501 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 100000\n",
            id="reported by NCCL",
        ),
    ],
)  # fmt: skip
def test_ranks_that_may_be_there_are_not_named(text: str, tmp_path: Path) -> None:
    assert not _shared(analyzed(tmp_path, text))
