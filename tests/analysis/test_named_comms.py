"""Communicators that lines only name, and headlines of logs without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Verdict
from tests.analysis.texts import analyzed


def _log(*texts: str, pid: int = 700, dev: int = 0) -> str:
    return "".join(f"n0:{pid}:{pid} [{dev}] NCCL INFO {text}\n" for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        "comm 0x55d0c0 rank 7 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0",
        "ncclCommSplit comm 0x55d0c0 rank 7 nranks 8 cudaDev 1 nvmlDev 1 busId 3b0",
        "commSuspend comm 0x55d0c0 rank 7 nRanks 8 - DONE",
        "bootstrapSplit: comm 0x55d0c0 parent 0x1 rank 7 nranks 8 color 1 key 0 prev 6 next 0 - DONE",
    ],
)
def test_line_with_comm_rank_and_nranks_makes_a_communicator(tmp_path: Path, text: str) -> None:
    report = analyzed(tmp_path, _log(text, dev=7))
    assert report.runs[0].nranks == 8
    assert [(row.rank, row.communicators != ()) for row in report.ranks if row.pid] == [(7, True)]
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "start of a communicator" not in report.reason


def test_number_of_ranks_without_a_communicator_makes_none(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _log("Connected all rings comm 0x55d0c0 nRanks 8 busId 3b000"))
    assert report.runs[0].nranks is None
    assert report.reason == "the log is an excerpt: the lines that create its communicators are missing"


_INIT = "ncclCommInitRank comm 0x55d0c{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {r}b000 commId 0xabc - Init {what}"
_SHAPE = "comm 0x55d0c{r} rank {r} nRanks 2 nNodes 1 localRanks 2 localRank {r} MNNVL 0"
_END = "comm 0x55d0c{r} rank {r} nranks 2 cudaDev {r} busId {r}b000 - Destroy COMPLETE"


def _rank(r: int, *texts: str) -> str:
    return _log(
        *(t.format(r=r, what=("COMPLETE" if at else "START")) for at, t in enumerate(texts)), pid=700 + r, dev=r
    )


def test_named_member_is_no_second_communicator(tmp_path: Path) -> None:
    whole = "".join(_rank(r, _INIT, _INIT, _END) for r in (0, 1))
    early = "".join(_rank(r, _SHAPE, _INIT, _END, _SHAPE) for r in (0, 1))
    for log in (whole, early):
        report = analyzed(tmp_path, log)
        assert len({name for row in report.ranks for name in row.communicators}) == 1
        assert report.verdict is Verdict.HEALTHY


def test_named_rank_belongs_to_the_communicator_that_lacks_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _rank(0, _INIT, _INIT) + _rank(1, _SHAPE))
    assert len({name for row in report.ranks for name in row.communicators}) == 1
    assert report.reason == "the log does not show whether rank 1 finished init"


def test_init_timings_prove_that_init_ended(tmp_path: Path) -> None:
    times = "total 2.46 (kernels 0.18, bootstrap 1.60, allgathers 0.00, topo 0.52, graphs 0.01, connections 0.12, rest 0.02)"
    log = "".join(_log(f"Init timings: rank {r} nranks 8 {times}", pid=700 + r, dev=r) for r in (1, 2, 5))
    assert analyzed(tmp_path, log).reason == "ranks 1, 2, 5 finished init, and the log shows neither work nor teardown"


_RAS = """Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         1         2         1   RUNNING  INCOMPLETE

Errors
======

#0-0 (c3398875b8b2a063) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 60104 on node 10.4.109.14
"""


def test_headline_is_a_warning_rather_than_no_communicator(tmp_path: Path) -> None:
    for log in (
        _RAS,
        "\nn0:1:1 [0] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument\n",
    ):
        report = analyzed(tmp_path, log)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "neither the start nor the end" not in report.reason
    assert (
        analyzed(tmp_path, _log("NCCL version 2.21.5+cuda12.4")).reason
        == "the log shows neither the start nor the end of an NCCL communicator"
    )
