"""Statements that another line of the same log refutes."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

SPAWN = (
    "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process {} terminated with the following error:\n"
    'Traceback (most recent call last):\n  File "/opt/site-packages/torch/multiprocessing/spawn.py", line 74, in _wrap\n    fn(i, *args)\n'
    '  File "/srv/moe/check.py", line 61, in exchange\n    buffer.dispatch(tokens)\n    ^^^^^^^^\n{}\n'
)
COUNTS = "Global rank: {}, num_recv_tokens: {}, num_rdma_recv_tokens: {}\nmoe_recv_expert_counter[0]: {}\n"
GAVE_UP = "RuntimeError: DeepEP error: timeout (dispatch CPU)"


def test_of_spawned_processes_that_wait_alike_the_one_seen_first_is_no_culprit(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(COUNTS.format(r, -1, -1, -1) for r in (6, 4, 5)) + SPAWN.format(2, GAVE_UP))
    assert (report.verdict, report.culprits) == ("hung", ())
    assert "ranks 4, 5 and 6 of their group gave up in DeepEP's dispatch CPU" in report.reason
    (end,) = [f for f in report.findings if f.code == "PSM408"]
    assert end.title == f"spawned process 2 was ended by an exception: {GAVE_UP}: a consequence, not the cause"


def test_counts_of_tokens_that_came_are_no_wait(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(COUNTS.format(r, 512, 64, 8) for r in (6, 4, 5)))
    assert not report.findings


def test_the_exception_of_a_spawned_process_is_quoted_whichever_entry_knows_its_words(tmp_path: Path) -> None:
    text = "mylib.BackendError: NIXL_ERR_BACKEND"
    report = analyzed(tmp_path, SPAWN.format(2, text))
    (end,) = [f for f in report.findings if f.code == "PSM402"]
    assert end.title == f"spawned process 2 was ended by an exception: {text}"
    assert not any("does not show" in f.next_step for f in report.findings)
    cut = analyzed(tmp_path, SPAWN.format(2, "")).findings[0]
    assert "which this log does not show" in cut.next_step


def _two_hosts(nodes: int) -> str:
    shape = (
        "a:{0}:{0} [{1}] NCCL INFO comm 0x5{1}10 rank {1} nRanks 4 nNodes {2} localRanks {3} localRank {1} MNNVL 0\n"
    )
    trees = "a:{0}:{0} [{1}] NCCL INFO Trees [0] {2}/-1/-1->{1}->-1\n"
    own = "".join(shape.format(70 + r, r, nodes, 4 // nodes) + trees.format(70 + r, r, r + 1) for r in (0, 1))
    other = "b:80:80 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.8<0>\nb:80:80 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
    return own + other


def test_a_process_on_a_host_that_a_communicator_does_not_reach_is_none_of_its_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_hosts(nodes=1))
    assert report.reason == "the log names 2 of 4 ranks; b:80 is on another host, where this communicator has no rank"


def test_a_process_on_a_host_that_a_communicator_may_reach_may_be_one_of_its_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_hosts(nodes=2))
    assert report.reason == "the log names 2 of 4 ranks; b:80 may be one of the others"
