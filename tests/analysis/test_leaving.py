"""Communicators that some ranks leave while others use them: aborts, revokes, shrinks, grows and early destroys, in the words of several releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.cases.story import Story
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.texts import analyzed, of

CALLS = "all calls AllReduce 1024 x3\n"
WAITS = "all calls AllReduce 1024\n"


def told(tmp_path: Path, story: str, nccl: str = "2.30.7+cuda12.9", ranks: int = 4, size: int | None = None) -> Report:
    """The report on a job of ``ranks`` ranks, the first ``size`` of which form its first communicator."""
    first = "all" if size is None else f"0-{size - 1}"
    head = f"nccl {nccl}\nranks {ranks}\n{first} starts\n{first} begins\n{first} completes\n"
    return analyzed(
        tmp_path, Story().tell(head + story.replace("all calls AllReduce 1024 x3", f"{first} calls AllReduce 1024 x3"))
    )


def only(report: Report, code: str) -> Finding:
    (found,) = of(report.findings, code)
    return found


# -- aborts and revokes


@pytest.mark.parametrize("how", ["Abort", "Revoke"])
def test_a_rank_that_does_not_follow_and_reports_a_wait_is_the_culprit(tmp_path: Path, how: str) -> None:
    report = told(tmp_path, CALLS + WAITS + f"0-2 leaves by {how}\n3 times out ALLREDUCE 4\n")
    found = only(report, "PSM318")
    assert (report.verdict, found.culprits) == (Verdict.HUNG, (3,))
    assert found.title.startswith(
        f"rank 3 did not {how.lower()} communicator 0x5eed0228, which ranks 0, 1 and 2 {how.lower()}"
    )
    assert "rank 0 first in the log" in found.title and "call 4 (AllReduce)" in found.title
    assert f"- {how} START" in found.evidence[0].text


def test_a_release_that_prints_only_the_end_of_an_abort_shows_it_too(tmp_path: Path) -> None:
    identity = "comm 0x7f00000a1000 rank 0 nranks 4 cudaDev 0 busId 10000"
    story = CALLS + WAITS + f"0 says {identity} - Abort COMPLETE\n1-3 times out ALLREDUCE 4\n"
    found = only(told(tmp_path, story, nccl="2.27.7+cuda12.9"), "PSM318")
    assert found.culprits == (1, 2, 3) and "which rank 0 aborted:" in found.title


def test_a_rank_whose_log_ends_is_a_suspect_and_no_culprit(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + WAITS + "0-2 leaves by Abort\n")
    found = only(report, "PSM318")
    assert (report.verdict, found.severity) == (Verdict.INCONCLUSIVE, Severity.WARNING)
    assert found.culprits == () and found.suspects == (3,) and not report.culprits


def test_an_abort_that_all_ranks_make_is_no_finding(tmp_path: Path) -> None:
    assert not of(told(tmp_path, CALLS + "all leaves by Abort\n").findings, "PSM318")


def test_an_abort_after_a_timeout_is_a_note(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + WAITS + "0-2 times out ALLREDUCE 4\n0-2 leaves by Abort\n")
    found = only(report, "PSM318")
    assert found.severity is Severity.INFO and not report.culprits
    assert "elsewhere" in found.explanation


def test_an_abort_after_an_error_is_a_note(tmp_path: Path) -> None:
    failure = "2 warns include/alloc.h:228 Cuda failure 2 'out of memory'\n2 fails 1 include/alloc.h:245 transport/p2p.cc:484 group.cc:133 group.cc:581\n"
    report = told(tmp_path, CALLS + failure + "0-2 leaves by Abort\n")
    assert only(report, "PSM318").severity is Severity.INFO
    assert [c.global_rank for c in report.culprits] == [2]


def test_a_rank_that_lags_behind_those_that_abort_is_not_blamed_for_the_abort(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + "0-2 calls AllReduce 1024\n0-1 leaves by Abort\n2 times out ALLREDUCE 4\n")
    found = only(report, "PSM318")
    assert found.severity is Severity.INFO and "Rank 3 made fewer calls" in found.explanation


def test_a_rank_that_died_did_not_refuse_to_abort(tmp_path: Path) -> None:
    story = CALLS + WAITS + "0-2 leaves by Abort\n- prints srun: error: node0: task 3: Segmentation fault\n"
    assert all(f.severity is Severity.INFO or 3 not in f.culprits for f in of(told(tmp_path, story).findings, "PSM318"))


def test_a_revoked_communicator_that_is_destroyed_does_not_show_that_its_work_is_complete(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + "all leaves by Revoke\nall ends\n")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "ranks 0-3 revoked the communicator" in report.reason


# -- destroys


def test_a_rank_that_destroys_before_its_last_call_is_the_culprit(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + "1 ends\n0,2,3 calls AllReduce 1024\n")
    found = only(report, "PSM319")
    assert (report.verdict, found.culprits) == (Verdict.HUNG, (1,))
    assert found.title.endswith("ranks 0, 2 and 3 wait for it in call 4 (AllReduce)")
    assert "Destroy COMPLETE" in found.evidence[0].text


def test_a_receive_from_a_rank_that_destroyed_needs_a_proof_that_time_passed(tmp_path: Path) -> None:
    story = "0 sends 64 to 1\n1 receives 64 from 0\n1 sends 64 to 2\n2 receives 64 from 1 x2\n0,1,3 ends\n"
    found = only(told(tmp_path, story), "PSM319")
    assert (found.severity, found.culprits, found.suspects) == (Severity.WARNING, (), (1,))
    (tmp_path / "again").mkdir()
    found = only(told(tmp_path / "again", story + "2 times out RECV 2\n"), "PSM319")
    assert found.culprits == (1,) and "a receive from rank 1" in found.title


def test_one_waiting_rank_may_have_lost_its_end(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + "3 calls AllReduce 1024\n0-2 ends\n")
    found = only(report, "PSM319")
    assert found.severity is Severity.WARNING and not report.culprits and "A lost line" in found.explanation


def test_a_broadcast_ends_without_those_that_only_receive(tmp_path: Path) -> None:
    story = CALLS + "1 ends\n0,2,3 calls Broadcast 1024\n"
    assert not of(told(tmp_path, story).findings, "PSM319")


def test_a_destroy_that_waits_for_its_host_shows_that_the_peers_destroyed_too(tmp_path: Path) -> None:
    story = CALLS + "1 ends\n0,2,3 calls AllReduce 1024\n"
    assert not of(told(tmp_path, story, nccl="2.31.2+cuda13.0").findings, "PSM319")


def test_ranks_that_exchange_descriptors_keep_a_destroy_of_their_host_open(tmp_path: Path) -> None:
    exchange = "0 asks 1 for 0x50 as 0x40f06cb450b4d01\n1 hears 0 for 0x50 as 0x40f06cb450b4d01\n1 answers 0 for 0x50 as 0x40f06cb450b4d01\n0 gets 1 for 0x50 as 0x40f06cb450b4d01\n"
    assert not of(told(tmp_path, exchange + CALLS + "1 ends\n0,2,3 calls AllReduce 1024\n").findings, "PSM319")


STACK = (
    "stands accept (libc.so.6); ncclSocketAccept (misc/socket.cc:900); bootstrapIntraNodeBarrier (bootstrap.cc:1200); "
    "commDestroySync (init.cc:2800); ncclCommFinalize (init.cc:2850); <module> (train.py:40)\n"
)


def test_a_destroy_waits_for_a_rank_of_its_host_that_aborted(tmp_path: Path) -> None:
    story = CALLS + "3 leaves by Abort\n0-2 shrinks world to small\n0-2 shrunk world to small\n0-2 " + STACK
    report = told(tmp_path, story, nccl="2.31.2+cuda13.0")
    found = only(report, "PSM318")
    assert (report.verdict, found.culprits) == (Verdict.HUNG, (0, 1, 2))
    assert found.title.endswith("which rank 3 aborted: the destroy waits for it")


def test_a_destroy_before_2_31_waits_for_nobody(tmp_path: Path) -> None:
    story = CALLS + "3 leaves by Abort\n0-2 " + STACK
    assert not [f for f in told(tmp_path, story).findings if f.code == "PSM318" and f.severity is Severity.ERROR]


# -- shrinks

SHRINK = "0-2 shrinks world to small\n0-2 shrunk world to small\n"


def test_a_rank_outside_a_shrink_that_calls_its_parent_is_the_culprit(tmp_path: Path) -> None:
    story = CALLS + SHRINK + "3 calls AllReduce 1024\n0-2 calls AllReduce 64 x2 of small\n3 times out ALLREDUCE 4\n"
    report = told(tmp_path, story)
    found = only(report, "PSM320")
    assert (report.verdict, found.culprits) == (Verdict.HUNG, (3,))
    assert {c.global_rank for c in report.culprits} == {3}
    assert not of(report.findings, "PSM302"), "the ranks that went on do not lag behind"


def test_without_a_proof_of_time_a_rank_outside_a_shrink_is_a_suspect(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + SHRINK + "3 calls AllReduce 1024\n0-2 calls AllReduce 64 x2 of small\n")
    found = only(report, "PSM320")
    assert (found.severity, found.suspects, report.culprits) == (Severity.WARNING, (3,), ())


def test_a_shrink_without_a_rank_that_calls_no_more_is_healthy(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + SHRINK + "0-2 calls AllReduce 64 x2 of small\n0-2 ends small\nall ends\n")
    assert report.verdict is Verdict.HEALTHY and not of(report.findings, "PSM320")


def test_a_shrink_whose_members_are_not_all_visible_excludes_nobody(tmp_path: Path) -> None:
    story = CALLS + "0-2 shrinks world to small\n3 calls AllReduce 1024\n3 times out ALLREDUCE 4\n"
    log = Story().tell("ranks 4\nall starts\nall begins\nall completes\n" + story)
    lines = [line for line in log.splitlines() if not ("ncclCommShrink" in line and "node0:7081:" in line)]
    assert not of(analyzed(tmp_path, "\n".join(lines) + "\n").findings, "PSM320")


# -- grows

GROW = "0-3 grows world to big\n4 missing in big\n"


def test_a_new_rank_that_never_joins_a_grow_is_named(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + GROW + "0-3 times out ALLREDUCE 4\n", ranks=5, size=4)
    found = only(report, "PSM201")
    assert found.culprits == (4,) and found.title.startswith("new rank 4 of 5 has no line in the input")
    assert "ncclCommGrow" in found.explanation


def test_a_new_rank_without_a_log_is_not_blamed(tmp_path: Path) -> None:
    report = told(tmp_path, CALLS + GROW, ranks=5, size=4)
    found = only(report, "PSM201")
    assert (found.severity, found.culprits, report.culprits) == (Severity.WARNING, (), ())
    assert not of(report.findings, "PSM702"), "nothing shows that the new rank ran"


def test_a_grow_that_all_ranks_join_is_healthy(tmp_path: Path) -> None:
    story = (
        CALLS
        + "4 starts\nall grows world to big\nall grown world to big\nall calls AllReduce 64 x3 of big\nall ends big\n0-3 ends\n"
    )
    report = told(tmp_path, story, ranks=5, size=4)
    assert report.verdict is Verdict.HEALTHY and not of(report.findings, "PSM201")
