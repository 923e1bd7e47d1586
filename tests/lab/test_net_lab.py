"""Ranks on two pretended nodes: p2p within a node, the net transport between nodes, in one group."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import psmkit
from psmkit.cli.app import main
from psmkit.lab import transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.model import Verdict


def start(folder: Path, ranks: int, *cases: transfer.Case, faults: str = "", **options: object) -> transfer.LabRun:
    lab = Emulation(folder / "unused", leaks=True, faults=faults)
    options = {"nodes": 2, "deadline": 40, "emulation": lab, "stacks": False, **options}
    return transfer.start(cases, ranks, folder / "run", **options)  # type: ignore[arg-type]


def verdict(done: transfer.LabRun) -> tuple[Verdict, str]:
    report = psmkit.analyze([str(path) for path in done.evidence()])
    return report.verdict, report.reason


def test_each_pair_of_ranks_takes_its_own_way_and_every_byte_is_right(tmp_path: Path) -> None:
    sizes = [transfer.Case(name=str(n), pattern="alltoall", size=n, channels=2, iters=2) for n in (0, 1, 300001)]
    done = start(tmp_path, 4, *sizes)
    assert done.outcome.good, done.outcome
    text = "".join((done.folder / "logs" / f"rank-{r}.log").read_text() for r in range(4))
    ways = set(re.findall(r"Channel 0/0 : (\d)\[\d\] -> (\d)\[\d\] via (\w+)/", text))
    near = {("0", "1"), ("1", "0"), ("2", "3"), ("3", "2")}
    assert {(a, b) for a, b, way in ways if way == "PSM_P2P"} == near
    assert {(a, b) for a, b, way in ways if way == "PSM_NET"} == {
        (str(a), str(b)) for a in range(4) for b in range(4) if a // 2 != b // 2
    }
    assert verdict(done)[0] is Verdict.HEALTHY
    assert done.settings["nodes"] == 2


@pytest.mark.parametrize("fault", ["net.send.post:kill,rank=2,nth=3", "net.recv.step:kill,rank=2,nth=3"])
def test_rank_that_dies_is_named_and_the_others_end(tmp_path: Path, fault: str) -> None:
    case = transfer.Case(pattern="alltoall", size=300001, steps=8, buffer_size=65536, iters=2)
    done = start(tmp_path, 4, case, faults=fault)
    states = {rank.rank: rank.state for rank in done.outcome.ranks}
    assert states.pop(2) == "died" and set(states.values()) == {"failed"}, states
    found, reason = verdict(done)
    assert found is Verdict.FAILED and "rank 2 died by SIGKILL" in reason
    assert not done.outcome.processes and not done.outcome.shared_memory


def test_rank_that_does_not_begin_ends_those_beyond_the_network(tmp_path: Path) -> None:
    """They wait for operations that it never began, and share no proxy with it."""
    done = start(tmp_path, 4, transfer.Case(pattern="alltoall", size=300001), faults="launch.group:error=EIO,rank=0")
    assert {rank.state for rank in done.outcome.ranks} == {"failed"}
    found, reason = verdict(done)
    assert found is Verdict.FAILED and reason.startswith("rank 0 failed in stage move: PSM_ERR_SYSTEM"), reason


def test_rank_that_stops_posting_is_named(tmp_path: Path) -> None:
    case = transfer.Case(pattern="ring", size=300001, steps=8, buffer_size=65536, stall_report_ms=300)
    done = start(tmp_path, 2, case, faults="net.recv.post:drop,rank=1,nth=9+", deadline=2.5)
    found, reason = verdict(done)
    assert found is Verdict.HUNG
    assert "rank 1, the receiver, stopped: it lets steps below 16 be filled and published 8" in reason


def test_p2p_that_is_disabled_leaves_the_network(tmp_path: Path) -> None:
    done = start(tmp_path, 2, transfer.Case(size=100001), nodes=1, environment={"PSM_P2P_DISABLE": "1"})
    assert done.outcome.good, done.outcome
    assert "via PSM_NET/PSM/0" in (done.folder / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize("options", [("--variant", "net/whole-struct"), ("--differ", "rank=1,variant=net/no-free")])
def test_net_variant_that_no_connection_would_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str]
) -> None:
    assert main(["lab", "run", *options, "--out", str(tmp_path / "out")]) == 2
    assert re.search(r"variant net/[\w-]+ needs --nodes 2 or more", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_p2p_variant_that_no_connection_would_use_is_refused(tmp_path: Path) -> None:
    case = transfer.Case(variant="whole-struct")
    with pytest.raises(LabError, match="variant whole-struct needs ranks that use p2p: the ranks of different nodes"):
        start(tmp_path, 2, case)
    with pytest.raises(LabError, match="needs ranks that use p2p: PSM_P2P_DISABLE=1 is set"):
        start(tmp_path, 2, case, nodes=1, environment={"PSM_P2P_DISABLE": "1"})


def test_net_variant_runs_on_one_node_without_p2p(tmp_path: Path) -> None:
    case = transfer.Case(size=100001, variant="net/whole-struct")
    done = start(tmp_path, 2, case, nodes=1, environment={"PSM_P2P_DISABLE": "1"})
    assert verdict(done)[0] is Verdict.FAILED


def test_nodes_have_as_many_ranks_each(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="3 ranks on 2 nodes: every node needs the same number of ranks"):
        start(tmp_path, 3, transfer.Case())
