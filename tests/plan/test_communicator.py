"""Groups of collectives, sends and recvs over four processes, by plans: data, rules, pools, graphs, trouble."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from psmkit.lab.emulation import Emulation
from psmkit.plan.types import Config, Scheduler
from psmkit.testing import Ranks, RanksFailedError
from tests.plan import communicator_calls as calls

RANKS = 4
CONFIG = Config(ranks=RANKS, channels=3, p2p_channels=2)
BOTH = pytest.mark.parametrize("scheduler", list(Scheduler), ids=lambda s: s.label)
PASS_SM = pytest.mark.parametrize("pass_sm", [True, False], ids=["pass-sm", "kernels"])
PAIRS = [
    ("cudaStreamCreateWithFlags", "cudaStreamDestroy"),
    ("cudaEventCreateWithFlags", "cudaEventDestroy"),
    ("cudaHostAlloc", "cudaFreeHost"),
]

pytestmark = pytest.mark.ranks(RANKS, deadline=120, cuda=True)


def good(result: calls.Result) -> bool:
    """With a reason where it is not."""
    assert (result.wrong, result.breaches, result.whole) == ([], [], True)
    return True


def nothing_misused_or_left(ranks: Ranks) -> bool:
    """All streams, events and host memory of all processes were given back, and no handle was wrong."""
    lab = Emulation(ranks.folder / "run-1" / "records")
    assert lab.reports() == []
    calls = Counter[tuple[int, str]]()
    for call in lab.calls():
        calls[call.pid, call.function] += call.calls
    processes = {pid for pid, _ in calls}
    for pid in processes:
        for make, end in PAIRS:
            assert calls[pid, make] == calls[pid, end], (make, calls)
    return len(processes) == RANKS and all(calls[pid, "cudaEventCreateWithFlags"] > 0 for pid in processes)


@PASS_SM
@BOTH
def test_mixed_groups_complete_with_right_data_and_whole_pools(
    ranks: Ranks, scheduler: Scheduler, pass_sm: bool
) -> None:
    config = replace(CONFIG, scheduler=scheduler, pass_sm=pass_sm)
    for got in ranks.run(calls.mixed_groups, config, 3, True):
        assert good(got)
        assert got.counters is not None and got.counters.plans >= 3
        assert ("CALLBACK" in got.kinds) == pass_sm and "KERNEL_DONE" in got.kinds
    assert nothing_misused_or_left(ranks)


@PASS_SM
@BOTH
def test_launch_blocking_posts_operations_from_the_host_stream(
    ranks: Ranks, scheduler: Scheduler, pass_sm: bool
) -> None:
    config = replace(CONFIG, scheduler=scheduler, pass_sm=pass_sm, launch_blocking=True)
    for got in ranks.run(calls.mixed_groups, config, 2, False):
        assert good(got)
        assert {event.a for event in got.trace if event.what.name == "HOST_TASK"} == {1}


@PASS_SM
def test_group_on_the_legacy_stream_completes(ranks: Ranks, pass_sm: bool) -> None:
    assert all(map(good, ranks.run(calls.on_the_legacy_stream, replace(CONFIG, pass_sm=pass_sm))))


@pytest.mark.ranks(1, deadline=60, cuda=True)
@PASS_SM
@BOTH
def test_communicator_of_one_rank_copies(ranks: Ranks, scheduler: Scheduler, pass_sm: bool) -> None:
    config = replace(CONFIG, ranks=1, scheduler=scheduler, pass_sm=pass_sm)
    assert all(map(good, ranks.run(calls.alone, config)))


@BOTH
def test_pools_do_not_grow_with_the_number_of_groups(ranks: Ranks, scheduler: Scheduler) -> None:
    for got, (first, last) in ranks.run(calls.many_groups, replace(CONFIG, scheduler=scheduler), 100):
        assert good(got)
        assert last.plans > 5 * first.plans
        assert (last.plans_pool, last.ops_pool, last.tasks_pool) == (first.plans_pool, first.ops_pool, first.tasks_pool)
        assert (last.scoped_bytes, last.permanent_bytes) == (first.scoped_bytes, first.permanent_bytes)


@PASS_SM
@BOTH
def test_group_of_more_work_than_the_fifo_holds_goes_over_several_plans(
    ranks: Ranks, scheduler: Scheduler, pass_sm: bool
) -> None:
    config = replace(
        CONFIG, scheduler=scheduler, pass_sm=pass_sm, work_fifo_depth=16, work_fifo_bytes=4096, work_args_bytes=512
    )
    # The generation that fills slots may cut a plan between the recv and the send of a round, as NCCL 2.19 does: all ranks then wait
    # for sends of plans that come behind.
    pairs = 0 if scheduler is Scheduler.LEGACY else 150
    for got in ranks.run(calls.long_group, config, 150, pairs):
        assert good(got)
        assert got.counters is not None and got.counters.plans > 2


@pytest.mark.parametrize("mode", [0, 2], ids=["global", "relaxed"])
@PASS_SM
@BOTH
def test_captured_group_runs_at_each_launch_and_is_reclaimed_with_its_graph(
    ranks: Ranks, scheduler: Scheduler, pass_sm: bool, mode: int
) -> None:
    config = replace(CONFIG, scheduler=scheduler, pass_sm=pass_sm)
    for held, end in ranks.run(calls.replayed, config, mode):
        assert (held.wrong, held.breaches) == ([], [])
        assert held.counters is not None and held.counters.plans_live == held.counters.persistent_refs >= 2
        assert good(end)
        assert "DESTRUCTOR" in end.kinds
    assert nothing_misused_or_left(ranks)


@PASS_SM
def test_capture_that_fails_gives_back_what_its_group_had(ranks: Ranks, pass_sm: bool) -> None:
    for got in ranks.run(calls.abandoned, replace(CONFIG, pass_sm=pass_sm)):
        assert got.said == ["900", "901"]  # cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated
        assert good(got)


@BOTH
def test_counting_all_operations_hangs_a_mixed_group_and_an_abort_ends_it(ranks: Ranks, scheduler: Scheduler) -> None:
    for got in ranks.run(calls.ended_by_abort, replace(CONFIG, scheduler=scheduler, variant="count-all-ops")):
        assert got.said[0].startswith("WaitTimeoutError: the groups have not ended in 0.3 s")
        assert got.said[1].startswith("AbortedError: ") and "it hangs" in got.said[1]
        assert "count.mismatch" in got.wrong  # told before the abort
        assert got.whole


@BOTH
def test_lost_callback_hangs_and_is_named_when_an_abort_has_ended_it(ranks: Ranks, scheduler: Scheduler) -> None:
    for got in ranks.run(calls.ended_by_abort, replace(CONFIG, scheduler=scheduler, variant="lost-callback")):
        assert got.said[0].startswith("WaitTimeoutError: ")
        assert got.said[1].startswith("AbortedError: ")
        assert "callback.lost" in got.breaches
        assert got.whole


@PASS_SM
def test_killed_rank_ends_the_others_with_its_reason(ranks: Ranks, pass_sm: bool) -> None:
    with pytest.raises(RanksFailedError) as failed:
        ranks.run(calls.killed, replace(CONFIG, pass_sm=pass_sm))
    states = [rank.state for rank in failed.value.outcome.ranks]
    assert states[:3] == ["good"] * 3, str(failed.value)
    got = [calls.value_of(rank) for rank in failed.value.outcome.ranks[:3]]
    assert all(result.whole and result.breaches == [] for result in got)
    said = [result.said[0] for result in got]
    assert any(text.startswith("PeerDeadError: rank 3, ") for text in said), said
    assert not any(text == "nothing" for text in said)


@PASS_SM
@pytest.mark.parametrize("site", ["plan.prepare", "plan.launch", "plan.host_task", "cudaLaunchHostFunc"])
def test_rank_that_cannot_launch_ends_the_others_with_its_reason(ranks: Ranks, site: str, pass_sm: bool) -> None:
    error = "801" if site.startswith("cuda") else "ENOSPC"
    fault = {"PSM_FAULTS": f"{site}:error={error}:rank=1:nth=1"}
    got = ranks.run(calls.one_fails, replace(CONFIG, pass_sm=pass_sm), environment=fault)
    assert all(result.whole and result.breaches == [] for result in got)
    said = [result.said[0] for result in got]
    assert said.pop(1).startswith("CudaCallError: " if site.startswith("cuda") else "NoResourceError: ")
    # The rank gives its connections up when it has said why, and so do those that heard it: a neighbour may see that first.
    gone = ("AbortedError: ", "PeerClosedError: ", "PeerDeadError: ")
    assert all(text.startswith(gone) for text in said), said
    assert any(site in text or "rank 1" in text for text in said), said


def test_what_cannot_be_launched_leaves_nothing_behind(ranks: Ranks) -> None:
    for said, got in ranks.run(calls.refused, CONFIG):
        assert said == [
            "ValueError",
            "BufferError",
            "ValueError",
            "ValueError",
            "TypeError",
            "ValueError",
            "UnsupportedError",
            "UnsupportedError",
            "InvalidError",
        ]
        assert good(got)
