"""Failures that libpsm reports: the rank that a line names is the suspect, and the majority decides a mismatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.analysis.inference.reports import odd
from psmkit.model import Report, Verdict
from tests.analysis.texts import Rank, of


def ranks(n: int) -> list[Rank]:
    """Ranks of the lab: libpsm prints the start of a communicator and never its end."""
    return [Rank(r, n).start() for r in range(n)]


def refused(log: Rank, peer: int, cause: str, named: int, status: str, reason: str = "see the fields") -> None:
    log.warn(
        "",
        f"psm p2p send rank {log.rank} peer {peer} channel 0 is not connected, connect ended with {status} "
        f"(cause {cause}, rank {named}): {reason}",
    )


def ends(log: Rank, cause: str, named: int, status: str, reason: str = "see the fields") -> None:
    log.warn(
        "", f"psm rank {log.rank} ends the operation on all ranks, {status} (cause {cause}, rank {named}): {reason}"
    )


def report(tmp_path: Path, logs: list[Rank]) -> Report:
    tmp_path.mkdir(exist_ok=True)
    for log in logs:
        (tmp_path / f"rank-{log.rank}.log").write_text("".join(line + "\n" for line in log.lines))
    return analyze([tmp_path])


def culprits(found: Report) -> list[int | None]:
    return [c.rank for c in found.culprits]


def test_rank_that_dead_peer_reports_name_is_the_culprit_and_not_those_that_report(tmp_path: Path) -> None:
    logs = ranks(4)
    for log in logs[:3]:
        refused(log, 3, "peer-died", 3, "PSM_ERR_PEER_DEAD")
        ends(log, "peer-died", 3, "PSM_ERR_PEER_DEAD")
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [3]
    assert "rank 3" in found.reason and "lost its connection to ranks 0, 1 and 2" in found.reason


def test_chain_of_reports_is_followed_to_the_rank_that_names_nobody(tmp_path: Path) -> None:
    logs = ranks(4)
    refused(logs[0], 1, "peer-failed", 1, "PSM_ERR_PEER_CLOSED")
    refused(logs[1], 2, "peer-failed", 2, "PSM_ERR_PEER_CLOSED")
    refused(logs[2], 3, "peer-died", 3, "PSM_ERR_PEER_DEAD")
    assert culprits(report(tmp_path, logs)) == [3]


def test_fields_of_a_report_count_and_not_its_words(tmp_path: Path) -> None:
    logs = ranks(3)
    words = "rank 1, the sender, died or closed its connections in operation 1, stage fifo"
    for log in (logs[0], logs[1]):
        refused(log, 1 - log.rank, "peer-died", 2, "PSM_ERR_PEER_DEAD", words)
    assert culprits(report(tmp_path, logs)) == [2]


@pytest.mark.parametrize(
    ("cause", "status", "said"),
    [
        ("deadline", "PSM_ERR_TIMEOUT", "did not answer ranks 0 and 2 in time"),
        ("peer-closed", "PSM_ERR_PEER_CLOSED", "stopped while ranks 0 and 2 still needed it"),
        ("peer-failed", "PSM_ERR_PEER_CLOSED", "failed first"),
        ("peer-sent", "PSM_ERR_PROTOCOL", "broke the protocol, according to ranks 0 and 2"),
    ],
)
def test_rank_that_is_alive_is_not_called_gone(tmp_path: Path, cause: str, status: str, said: str) -> None:
    logs = ranks(3)
    for log in (logs[0], logs[2]):
        refused(log, 1, cause, 1, status)
    found = report(tmp_path, logs)
    assert culprits(found) == [1] and said in found.reason
    assert not of(found.findings, "PSM403")


def test_rank_that_the_lab_saw_at_work_has_lost_a_connection_and_is_no_culprit(tmp_path: Path) -> None:
    for alive in (True, False):
        logs = ranks(2)
        refused(logs[0], 1, "peer-died", 1, "PSM_ERR_PEER_DEAD")
        ends(logs[0], "peer-died", 1, "PSM_ERR_PEER_DEAD")
        folder = tmp_path / str(alive)
        folder.mkdir()
        if alive:
            line = (
                f"psm lab: rank 1, process node0:{logs[1].pid}, is at work in stage move, which it entered 5.870 s ago"
            )
            (folder / "lab.log").write_text(line + "\n")
        found = report(folder, logs)
        assert culprits(found) == ([] if alive else [1])
        assert ("still at work" if alive else "rank 1 (node0:7101) lost its connection to rank 0") in found.reason


def test_refused_connection_leads_to_the_rank_that_listened(tmp_path: Path) -> None:
    logs = ranks(3)
    logs[0].warn(
        "", "NET/PSM : connecting to 10.0.0.2<45001>, where rank 1 listens failed: Connection refused (ECONNREFUSED)"
    )
    refused(logs[0], 1, "peer-died", 1, "PSM_ERR_PEER_DEAD")
    assert culprits(report(tmp_path, logs)) == [1]


def test_failed_system_call_of_the_net_plugin_is_of_the_rank_that_prints_it(tmp_path: Path) -> None:
    logs = ranks(3)
    logs[0].warn("", "NET/PSM : making a socket failed: Too many open files (EMFILE)")
    refused(logs[0], 1, "other", -1, "PSM_ERR_SYSTEM")
    assert culprits(report(tmp_path, logs)) == [0]


def test_rank_whose_own_proxy_does_not_answer_is_its_own_culprit(tmp_path: Path) -> None:
    logs = ranks(3)
    for log in logs:
        refused(log, 1, "deadline", 1, "PSM_ERR_TIMEOUT")
    assert culprits(report(tmp_path, logs)) == [1]


def test_ranks_whose_proxies_do_not_answer_each_other_are_both_named(tmp_path: Path) -> None:
    logs = ranks(2)
    refused(logs[0], 1, "deadline", 1, "PSM_ERR_TIMEOUT")
    refused(logs[1], 0, "deadline", 0, "PSM_ERR_TIMEOUT")
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [0, 1]


def test_own_error_of_a_rank_comes_before_the_reports_about_it(tmp_path: Path) -> None:
    logs = ranks(3)
    logs[1].warn(
        "",
        "psm p2p send rank 1 peer 2 channel 0 failed in operation 3 at step 12: PSM_ERR_CUDA (cause other, rank -1): cudaMemcpyAsync: invalid argument (1)",
    )
    ends(logs[1], "other", -1, "PSM_ERR_CUDA", "cudaMemcpyAsync: invalid argument (1)")
    for log in (logs[0], logs[2]):
        refused(log, 1, "peer-failed", 1, "PSM_ERR_PEER_CLOSED")
    found = report(tmp_path, logs)
    assert culprits(found) == [1] and "invalid argument" in found.reason


def test_abort_that_a_rank_reports_is_no_cause(tmp_path: Path) -> None:
    logs = ranks(3)
    refused(logs[0], 1, "other", -1, "PSM_ERR_ABORTED")
    refused(logs[2], 1, "peer-died", 1, "PSM_ERR_PEER_DEAD")
    assert culprits(report(tmp_path, logs)) == [1]


def test_majority_decides_a_mismatch(tmp_path: Path) -> None:
    logs = ranks(4)
    for log in logs[:3]:
        refused(
            log,
            3,
            "mismatch",
            3,
            "PSM_ERR_MISMATCH",
            f"the number of steps (PSM_STEPS) is 8 at rank {log.rank} and 4 at rank 3",
        )
        ends(log, "other", -1, "PSM_ERR_ABORTED")
    refused(
        logs[3], 0, "mismatch", 0, "PSM_ERR_MISMATCH", "the number of steps (PSM_STEPS) is 4 at rank 3 and 8 at rank 0"
    )
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [3]
    assert found.reason.startswith("rank 3 disagrees with ranks 0, 1 and 2: ")


def test_mismatch_of_two_ranks_names_both_and_blames_neither(tmp_path: Path) -> None:
    logs = ranks(2)
    refused(logs[0], 1, "mismatch", 1, "PSM_ERR_MISMATCH", "the mode is CUMEM (2) at rank 0 and IPC (3) at rank 1")
    refused(logs[1], 0, "mismatch", 0, "PSM_ERR_MISMATCH", "the mode is IPC (3) at rank 1 and CUMEM (2) at rank 0")
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == []
    assert found.reason.startswith("ranks 0 and 1 disagree: ")


def test_connections_that_were_made_count_for_the_majority(tmp_path: Path) -> None:
    logs = ranks(4)
    refused(logs[2], 3, "mismatch", 3, "PSM_ERR_MISMATCH")
    assert culprits(report(tmp_path / "alone", logs)) == []
    for rank, peer in ((0, 1), (1, 2)):
        logs[rank].line(
            f"psm stream 0x55d8c8020020 created with 8 events for connection 10000000{rank}, send, rank {rank} peer {peer}"
        )
    assert culprits(report(tmp_path / "connected", logs)) == [3]


@pytest.mark.parametrize(
    ("differ", "agree", "nranks", "expected"),
    [
        ([(0, 3), (1, 3), (2, 3)], [], 4, [3]),
        ([(2, 3), (3, 0)], [(0, 1), (1, 2)], 4, [3]),
        ([(2, 3), (3, 0)], [], 4, []),  # ranks 1 and 3 may agree
        ([(0, 2), (1, 3)], [(0, 1)], 4, []),  # two against two
        ([(0, 1), (1, 2), (0, 2)], [], 3, []),  # three values
        ([(0, 1)], [], 2, []),
        ([(0, 7)], [(r, r + 1) for r in range(6)], 8, [7]),
    ],
)
def test_only_a_majority_of_all_ranks_decides(
    differ: list[tuple[int, int]], agree: list[tuple[int, int]], nranks: int, expected: list[int]
) -> None:
    assert odd(differ, agree, nranks) == expected


def test_rank_that_began_the_abort_is_blamed_and_not_one_that_only_passed_it_on(tmp_path: Path) -> None:
    """Rank 2 hears of it from rank 1 before rank 0's message arrives."""
    logs = ranks(3)
    ends(logs[0], "other", -1, "PSM_ERR_ABORTED", "launch.group: Input/output error (EIO)")
    ends(logs[1], "peer-failed", 0, "PSM_ERR_ABORTED")
    ends(
        logs[2], "peer-failed", 1, "PSM_ERR_PEER_CLOSED", "rank 1, the receiver, ended operation 1 with PSM_ERR_ABORTED"
    )
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [0]
    assert "rank 0" in found.reason and "launch.group" in found.reason


def no_answer(by: int, call: str, of: int) -> str:
    to = f"from rank {of}" if call == "GetFd" else f"to the proxy of rank {of}"
    return f"rank {by} got no answer to {call} {to} (process 77) in 2000 ms: check what that process is doing, or raise PSM_TIMEOUT"


@pytest.mark.parametrize(("call", "code"), [("Setup", "PSM101"), ("GetFd", "PSM102")])
def test_call_without_an_answer_heads_the_report_with_its_own_code(tmp_path: Path, call: str, code: str) -> None:
    logs = ranks(3)
    refused(logs[0], 1, "deadline", 1, "PSM_ERR_TIMEOUT", no_answer(0, call, 1))
    ends(logs[2], "peer-failed", 0, "PSM_ERR_ABORTED")
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [1]
    head = found.findings[found.causes[0].finding]
    assert head.code == code and head.title == found.reason
    assert f"did not answer rank 0 in time: rank 0 got no answer to {call} " in found.reason
    assert "PSM_TIMEOUT" not in found.reason  # the advice stands in the line
    assert call in head.evidence[0].text and "take the stack" in head.next_step


def test_rank_whose_own_proxy_did_not_answer_is_named(tmp_path: Path) -> None:
    logs = ranks(2)
    refused(logs[0], 1, "deadline", 0, "PSM_ERR_TIMEOUT", no_answer(0, "Connect", 0))
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [0]
    assert found.findings[found.causes[0].finding].code == "PSM101"
    assert "got no answer from its own proxy" in found.reason


def test_timeout_of_anything_but_a_call_keeps_the_general_code(tmp_path: Path) -> None:
    logs = ranks(2)
    refused(logs[0], 1, "other", -1, "PSM_ERR_TIMEOUT", "the device of rank 0 did not become ready in 2000 ms")
    found = report(tmp_path, logs)
    assert found.findings[found.causes[0].finding].code == "PSM401"


def test_ranks_that_wait_for_each_other_are_named_together(tmp_path: Path) -> None:
    logs = ranks(2)
    for rank in (0, 1):
        refused(logs[rank], 1 - rank, "deadline", 1 - rank, "PSM_ERR_TIMEOUT", no_answer(rank, "GetFd", 1 - rank))
    found = report(tmp_path, logs)
    assert culprits(found) == [0, 1]
    assert "did not answer each other" in found.reason
    assert found.findings[found.causes[0].finding].code == "PSM102"


def test_rank_that_ends_the_operation_for_a_missing_answer_leads_to_the_rank_that_owes_it(tmp_path: Path) -> None:
    """The line of the abort has no cause of its own: the reason repeats the failed call."""
    logs = ranks(2)
    logs[0].warn("", "Proxy Call to rank 1 failed (SharedInit)")
    ends(logs[0], "other", -1, "PSM_ERR_ABORTED", no_answer(0, "SharedInit", 1))
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and culprits(found) == [1]


def test_handle_that_cuda_does_not_know_has_its_code_and_the_error_in_the_headline(tmp_path: Path) -> None:
    for error, code in (
        ("cudaErrorInvalidResourceHandle (400): invalid resource handle", "PSM507"),
        ("cudaErrorIllegalAddress (700): an illegal memory access", "PSM401"),
    ):
        logs = ranks(2)
        call = "cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, local->stream)"
        logs[1].warn(
            "",
            "psm p2p send rank 1 peer 0 channel 0 failed in operation 1 at step 0: PSM_ERR_CUDA "
            f"(cause other, rank -1): {call}: {error}",
        )
        found = report(tmp_path / code, logs)
        head = found.findings[found.causes[0].finding]
        assert head.code == code and culprits(found) == [1]
        assert f"PSM_ERR_CUDA: cudaMemcpyAsync: {error}" in found.reason


def test_failed_call_is_said_of_the_rank_that_made_it(tmp_path: Path) -> None:
    logs = ranks(2)
    logs[0].warn("", "Proxy Call to rank 1 failed (Close)")
    found = report(tmp_path, logs)
    titles = [f.title for f in found.findings if f.code == "PSM107"]
    assert titles and all("of rank 0" in t and "to the proxy of rank 1 failed" in t for t in titles)


def test_step_of_a_chain_that_carries_a_status_about_a_peer_is_no_failure_of_its_own(tmp_path: Path) -> None:
    """A collector may put the step before the warning."""
    logs = ranks(2)
    logs[0].line("progress.c:302 -> -21 [Progress Thread]", "progress")
    why = "PSM_ERR_PEER_DEAD (cause peer-died, rank 1): rank 1, the receiver, died"
    logs[0].warn("", f"psm rank 0 ends the operation on all ranks, {why}", "progress")
    assert culprits(report(tmp_path, logs)) == [1]


def test_of_ranks_that_name_each_other_in_a_circle_the_first_one_named_counts(tmp_path: Path) -> None:
    """Each rank repeats what it heard of the one before, and its connections close; only rank 2 saw the failure itself."""
    logs = ranks(4)
    refused(logs[2], 3, "peer-failed", 3, "PSM_ERR_NO_MEMORY")
    for rank in (2, 1, 0, 3):
        ends(logs[rank], "peer-failed", (rank + 1) % 4, "PSM_ERR_ABORTED")
        logs[rank].line(f"[Service thread] Connection closed by localRank {(rank + 1) % 4}", "service")
    assert culprits(report(tmp_path, logs)) == [3]


def test_a_rank_that_passes_on_the_failure_of_others_is_not_the_first(tmp_path: Path) -> None:
    """Ranks 1 and 2 lose their connection and name each other; rank 3 hears of it from rank 2, and rank 0 from rank 3."""
    logs = ranks(4)
    refused(logs[2], 1, "peer-died", 1, "PSM_ERR_PEER_DEAD")
    refused(logs[1], 2, "peer-failed", 2, "PSM_ERR_PEER_CLOSED")
    ends(logs[3], "peer-failed", 2, "PSM_ERR_ABORTED")
    refused(logs[0], 3, "peer-failed", 3, "PSM_ERR_PEER_CLOSED")
    found = report(tmp_path, logs)
    assert found.verdict == "failed"
    assert not {0, 3} & {*culprits(found)}


DIED = "the proxy of rank 1 (process 7101) closed the socket without a bye: the process has died"


@pytest.mark.parametrize(
    ("reason", "guilty"),
    [
        (f"rank 2 ended the operation: {DIED}", 1),
        (f"the proxy of rank 2 ended the operation: rank 0 ended the operation: {DIED}", 1),
        ("rank 2 ended the operation: rank 1 answered: proxy.getfd: no memory", 1),
        ("rank 2 ended the operation: rank 2 got no answer to Setup to the proxy of rank 1 (process 7101) in 2 ms", 1),
        ("rank 2 ended the operation: no memory", 2),
    ],
)
def test_reason_that_passed_through_a_rank_without_a_log_leads_to_its_origin(
    tmp_path: Path, reason: str, guilty: int
) -> None:
    logs = ranks(4)
    ends(logs[3], "peer-failed", 2, "PSM_ERR_ABORTED", reason)
    assert culprits(report(tmp_path, [log for log in logs if log.rank != 2])) == [guilty]
