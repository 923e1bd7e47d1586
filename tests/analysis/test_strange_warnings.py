"""Warnings of NCCL in shapes that excerpts of other frameworks show: what the line names is used."""

from __future__ import annotations

from pathlib import Path

import psmkit

DUPLICATE = (
    "node0:{}:{} [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank {} and rank {} both on CUDA device 31000\n"
)
CHAIN = "node0:{0}:{1} [0] NCCL INFO init.cc:1358 -> 5\nnode0:{0}:{1} [0] NCCL INFO group.cc:65 -> 5 [Async thread]\n"


def test_a_duplicate_gpu_names_the_ranks_of_both_processes(tmp_path: Path) -> None:
    text = "".join(
        DUPLICATE.format(pid, pid + 50, rank, other) + CHAIN.format(pid, pid + 50)
        for pid, rank, other in ((4001, 6, 4), (4002, 4, 6))
    )
    (tmp_path / "job.log").write_text(text)
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed"
    assert sorted((c.rank, c.pid) for c in report.culprits) == [(4, 4002), (6, 4001)]


def test_a_network_whose_name_has_a_blank_and_that_is_not_found_fails_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "node0:4001:4051 [1] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.\n"
    )
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed" and "network AWS Libfabric not found" in report.reason
    assert [(c.host, c.pid) for c in report.culprits] == [("node0", 4001)]
