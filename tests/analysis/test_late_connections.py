"""Connections that NCCL 2.22 and later make at the first collective, after the init: who makes none where all others do."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.analysis.outside import nccl

RANKS = range(4)
NETWORK = "Channel 00/{conn} : {rank}[{rank}] -> {peer}[{peer}] [send] via NET/IB/0/GDRDMA"
LOCAL = "Channel 00/{conn} : {rank}[{rank}] -> {peer}[{peer}] via P2P/CUMEM"


def connects(rank: int, form: str = LOCAL, conn: int = 0) -> str:
    text = form.format(conn=conn, rank=rank, peer=(rank + 1) % len(RANKS))
    return f"node0:{1000 + rank}:{1100 + rank} [{rank}] NCCL INFO {text}\n"


def analyzed(folder: Path, text: str, **options: bool) -> Report:
    (folder / "job.log").write_text(nccl(*RANKS, nranks=len(RANKS), **options) + text)  # type: ignore[arg-type]
    return psmkit.analyze([str(folder / "job.log")])


@pytest.mark.parametrize("form", [LOCAL, NETWORK], ids=["P2P", "NET"])
def test_the_only_rank_that_makes_no_connections_is_the_suspect(form: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(connects(r, form) for r in RANKS if r != 2))
    assert report.verdict == "inconclusive" and [s.rank for s in report.suspects] == [2]
    assert report.reason.startswith("rank 2 (node0:1002) owes the connections of the first collective of ")
    assert report.culprits == ()


def test_the_stack_of_a_rank_that_is_gone_is_not_asked_for(tmp_path: Path) -> None:
    kill = "slurmstepd: error: *** JOB 7 ON cn1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    report = analyzed(tmp_path, "".join(connects(r) for r in RANKS if r != 2) + kill)
    (found,) = [f for f in report.findings if f.code == "PSM707"]
    assert [s.rank for s in report.suspects] == [2] and found.next_step.startswith("The job has ended.")
    assert not any(ask.kind == "inspect" for ask in report.next)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "".join(map(connects, RANKS)),
        "".join(connects(r) for r in (0, 1)),  # two may do what the others need not
        "".join(connects(r, conn=1) for r in RANKS if r != 2),  # sends and receives
    ],
    ids=["none", "all", "some", "sends"],
)
def test_other_ranks_that_connect_make_no_suspect(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == "inconclusive" and report.suspects == ()


def test_a_rank_with_another_communicator_is_no_suspect(tmp_path: Path) -> None:
    head = "node0:1002:1002 [2] NCCL INFO ncclCommInitRank comm 0x77 rank 0 nranks 1 cudaDev 2 nvmlDev 2 busId 3000 commId 0xdef0 - Init "
    other = f"{head}START\n{head}COMPLETE\n"
    report = analyzed(tmp_path, other + "".join(connects(r) for r in RANKS if r != 2))
    assert report.suspects == ()


def test_a_job_that_ended_well_has_no_suspect(tmp_path: Path) -> None:
    text = "".join(connects(r) for r in RANKS if r != 2)
    lines = nccl(*RANKS, nranks=4, ended=True).splitlines(keepends=True)
    (tmp_path / "job.log").write_text("".join(lines[:8]) + text + "".join(lines[8:]))
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "healthy"
