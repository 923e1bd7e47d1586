"""A warning that an issue tracker wrapped is the cause, and the peer that it names is known by its address."""

from __future__ import annotations

from pathlib import Path

import psmkit


def test_a_wrapped_warning_is_the_cause_and_names_the_peer(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "n2:57:59 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.1.0.7<33092> with error 12, opcode 0, len\n"
        "0, vendor err 129 (Recv)\n"
        "n2:57:59 [0] NCCL INFO transport/net.cc:1134 -> 6\n"
        "n2:57:59 [0] NCCL INFO proxy.cc:679 -> 6\n"
        "n2:57:59 [0] NCCL INFO proxy.cc:858 -> 6 [Proxy Thread]\n"
    )
    report = psmkit.analyze([str(path)])
    assert (report.verdict, [f.code for f in report.findings if f.severity == "error"]) == ("failed", ["PSM406"])
    assert [(c.host, c.either) for c in report.culprits] == [("n2", True), ("10.1.0.7", True)]
