"""What ranks need to connect: requests to each other, descriptors, and what they report of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.lab import transfer


@pytest.mark.parametrize("channels", [1, 4])
def test_a_pair_of_ranks_has_one_connection_for_all_descriptors(tmp_path: Path, channels: int) -> None:
    case = transfer.Case(pattern="alltoall", size=64, iters=1, channels=channels)
    run = transfer.start([case], 3, tmp_path / "run", deadline=60.0)
    assert run.outcome.good, run.outcome
    for rank in range(3):
        log = transfer.log_file(tmp_path / "run", rank).read_text()
        made = [int(r) for r in re.findall(r"New proxy (?:send|recv) connection \d+ from local rank (\d+)", log)]
        others = [r for r in range(3) if r != rank]
        assert sorted(r for r in made if r != rank) == others
        assert made.count(rank) == 2 * 2 * channels  # its own ends
        # each sending end asks for a FIFO, each receiving end for a control segment
        assert log.count("ncclProxyMsgGetFd rank") == 2 * 2 * channels


def test_ranks_report_what_their_connections_took(tmp_path: Path) -> None:
    cases = [
        transfer.Case(name=str(n), pattern=p, size=64, iters=1, channels=2) for n, p in enumerate(("pair", "alltoall"))
    ]
    run = transfer.start(cases, 4, tmp_path / "run", deadline=60.0, nodes=2)
    assert run.outcome.good, run.outcome
    for rank in run.outcome.ranks:
        pair, everyone = rank.reports
        assert (pair["peers"], pair["ends"], pair["far_peers"], pair["far_ends"]) == (1, 4, 0, 0)
        assert (everyone["peers"], everyone["ends"], everyone["far_peers"], everyone["far_ends"]) == (1, 4, 2, 8)
        # listening sockets, a socket in each direction, a control segment for each connection
        assert pair["held"] == 2 + 2 + 2
        assert everyone["held"] > pair["held"]
    assert run.settings["processors"] >= 1
