"""Ranks and stages that a line of the log shows are not called unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report.ranktable import legend
from tests.analysis.texts import analyzed

_IB = (
    "\n{0} [0] transport/net_ib.cc:788 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
    "{0} [0] NCCL INFO include/net.h:34 -> 2\n{0} [0] NCCL INFO transport.cc:163 -> 2 [Proxy Thread]\n"
)
_MTL = "[n1:70] mtl_ofi_endpoint.h:49: *** The Open MPI OFI MTL is aborting the MPI job (via exit(3)).\n"


def test_line_of_a_destroyed_communicator_names_the_rank_of_its_device(tmp_path: Path) -> None:
    log = (
        _IB.format("n0:60:61")
        + _IB.format("n1:70:71")
        + "n1:70:70 [0] NCCL INFO Destroyed comm 0x7f61b4001af0 rank 4\n"
    )
    log += "n0:60:60 [0] NCCL INFO Destroyed comm 0x7fae24001af0 rank 0\n"
    assert sorted(c.rank for c in analyzed(tmp_path, log).culprits if c.rank is not None) == [0, 4]
    # another device of the process is another rank
    log += "\nn1:70:75 [1] enqueue.cc:194 NCCL WARN Something odd\nn1:70:75 [1] NCCL INFO enqueue.cc:1143 -> 3\n"
    assert sorted(c.rank for c in analyzed(tmp_path, log).culprits if c.rank is not None and c.device == 0) == [0, 4]


def test_two_ranks_of_one_process_leave_its_rank_open(tmp_path: Path) -> None:
    log = _IB.format("n1:70:71") + "n1:70:70 [0] NCCL INFO Destroyed comm 0x7f61b4001af0 rank 4\n"
    log += "n1:70:70 [0] NCCL INFO Destroyed comm 0x7f61b4002bf0 rank 1\n"
    assert [c.rank for c in analyzed(tmp_path, log).culprits] == [None]


def test_host_with_one_rank_of_an_mpi_program_names_its_rank(tmp_path: Path) -> None:
    placed = "Process 0 of 2 is on n0\nProcess 1 of 2 is on n1\n"
    assert [c.rank for c in analyzed(tmp_path, placed + _MTL).culprits] == [1]
    assert [c.rank for c in analyzed(tmp_path, placed + "Process 2 of 3 is on n1\n" + _MTL).culprits] == [None]


@pytest.mark.parametrize(
    ("way", "stage"),
    [
        (["bootstrap.cc:100", "bootstrap.cc:326", "init.cc:695"], "bootstrap"),
        (["graph/xml.cc:648", "graph/topo.cc:523", "init.cc:581"], "topology"),
        (["transport/p2p.cc:240", "transport.cc:148", "init.cc:1117"], "connect"),
        (["bootstrap.cc:75", "transport.cc:99", "init.cc:1117"], "connect"),
        (["transport/net.cc:1298", "proxy.cc:694"], "-"),
        (["/build/src/bootstrap.cc:100", "/build/src/init.cc:695"], "bootstrap"),
    ],
)
def test_source_files_of_a_way_show_the_stage(tmp_path: Path, way: list[str], stage: str) -> None:
    lines = "".join(f"n0:60:61 [0] NCCL INFO {place} -> 2\n" for place in way)
    report = analyzed(tmp_path, "\nn0:60:61 [0] odd.cc:12 NCCL WARN Something odd\n" + lines)
    assert [row.stage for row in report.ranks] == [stage]
    assert "stage" not in legend(report.ranks)


def test_place_of_a_warning_shows_the_stage_where_no_line_does(tmp_path: Path) -> None:
    warn = "\nn0:60:61 [0] transport/nvls.cc:223 NCCL WARN Cuda failure 999 'unknown error'\n"
    assert [row.stage for row in analyzed(tmp_path, warn).ranks] == ["connect"]
    start = "n0:60:60 [0] NCCL INFO ncclCommInitRank comm 0x7f0 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init START\n"
    assert next(row.stage for row in analyzed(tmp_path, start + warn).ranks) == "init"
