"""What a report claims about processes and ranks that are not all in view."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

COMPLETION = "n7:{0}:{0} [{1}] transport/net_ib.cc:1698 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<{2}> with status=12 opcode=129 len=47104 vendor err 129 (Recv)\n"


def test_a_rank_with_a_network_error_of_its_own_is_no_victim_of_another_one(tmp_path: Path) -> None:
    first, second = COMPLETION.format(4711, 4, 40112), COMPLETION.format(4712, 0, 40113)
    returned = "n7:4711:4711 [4] NCCL INFO transport/net.cc:1298 -> 6\nn7:4711:4711 [4] NCCL INFO proxy.cc:874 -> 6 [Progress Thread]\n"
    report = analyzed(tmp_path, first + returned + second)
    assert {row.pid: row.state for row in report.ranks} == {4711: "failed", 4712: "failed"}


def test_ranks_that_only_the_topology_names_count_as_named(tmp_path: Path) -> None:
    def line(rank: int, text: str) -> str:
        return f"n{rank}:{900 + rank}:{900 + rank} [0] NCCL INFO {text}\n"

    comm = line(0, "comm 0x6426550 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0")
    trees = line(1, "Trees [0] 3/-1/-1->1->0 [1] 3/-1/-1->1->0")
    report = analyzed(tmp_path, comm + trees + line(2, "P2P Chunksize set to 131072"))
    assert report.reason.startswith("the log names 2 of 4 ranks")
