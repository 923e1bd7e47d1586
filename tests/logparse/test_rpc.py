"""Proxy calls: pairs of lines, reuse of addresses, lost lines, answers from another process."""

from __future__ import annotations

from psmkit.logparse import ScanResult
from psmkit.logparse.types import Call
from tests.logparse.conftest import Scan


def served(op: int, kind: int = 3, pid: int = 1, size: int = 80) -> str:
    return f"n:{pid}:{pid}1 [0] NCCL INFO proxyProgressAsync opId={op:#x} op.type={kind} op.reqBuff=(nil) op.respSize={size} done\n"


def received(op: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}2 [0] NCCL INFO ncclPollProxyResponse Received new opId={op:#x}\n"


def matched(op: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}2 [0] NCCL INFO resp.opId={op:#x} matches expected opId={op:#x}\n"


def queued(op: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}2 [0] NCCL INFO Queuing opId={op:#x} respBuff=0x1 respSize=80\n"


def dequeued(op: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}2 [0] NCCL INFO ncclPollProxyResponse Dequeued cached opId={op:#x}\n"


def begun(operation: str, res: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}1 [0] NCCL INFO Received and initiated operation={operation} res={res}\n"


def noise(n: int, pid: int = 1) -> str:
    return f"n:{pid}:{pid}1 [0] NCCL INFO Mem Realloc old size 1, new size 2 pointer 0x1\n" * n


def whole(op: int, kind: int = 3, pid: int = 1) -> str:
    return served(op, kind, pid) + received(op, pid) + matched(op, pid)


def states(result: ScanResult) -> list[tuple[int, str]]:
    return [(c.op, c.state) for c in result.calls]


def test_one_address_stands_for_many_calls(scan_text: Scan) -> None:
    result = scan_text("".join(whole(0x10, kind) for kind in (1, 3, 4)) * 5)
    assert (result.totals.calls_matched, result.calls) == (15, [])


def test_kept_calls_count_their_generations(scan_text: Scan) -> None:
    result = scan_text("".join(whole(0x10, kind) for kind in (1, 3, 4)) + whole(0x20), keep_calls=True)
    assert [(c.op, c.generation, c.stage, c.state) for c in result.calls] == [
        (0x10, 1, "Init", "matched"),
        (0x10, 2, "Setup", "matched"),
        (0x10, 3, "Connect", "matched"),
        (0x20, 1, "Setup", "matched"),
    ]


def test_a_served_call_that_nobody_fetches_is_served_with_its_age(scan_text: Scan) -> None:
    result = scan_text(served(0x10) + noise(7))
    (call,) = result.calls
    assert (call.state, call.stage, call.resp_size, call.age, call.service, call.caller) == (
        "served",
        "Setup",
        80,
        7,
        0,
        None,
    )


def test_answers_may_come_out_of_order_and_wait_in_a_queue(scan_text: Scan) -> None:
    result = scan_text(
        served(0xA) + served(0xB) + received(0xB) + queued(0xB) + received(0xA) + matched(0xA) + dequeued(0xB)
    )
    assert (result.totals.calls_matched, result.calls) == (2, [])


def test_an_answer_that_stays_in_the_queue_is_pending(scan_text: Scan) -> None:
    result = scan_text(served(0xB) + received(0xB) + queued(0xB) + noise(3))
    (call,) = result.calls
    assert call.state == "served"
    assert call.received is not None


def test_a_lost_line_of_the_caller_does_not_leave_a_call_behind(scan_text: Scan) -> None:
    assert states(scan_text(served(0xA) + received(0xA))) == []
    assert states(scan_text(served(0xA) + matched(0xA))) == []
    assert states(scan_text(served(0xA) + received(0xA) + whole(0xA))) == []


def test_a_later_answer_to_the_same_address_closes_an_earlier_call(scan_text: Scan) -> None:
    result = scan_text(served(0xA) + noise(2) + whole(0xA))
    assert states(result) == []
    assert result.totals.calls_matched == 1


def test_an_answer_without_a_service_is_received(scan_text: Scan) -> None:
    result = scan_text(received(0xA) + matched(0xA))
    (call,) = result.calls
    assert (call.state, call.caller, call.service) == ("received", 0, None)
    assert call.matched is not None


def test_another_process_of_the_host_may_answer(scan_text: Scan) -> None:
    result = scan_text(
        noise(1) + served(0xA, 1, pid=1), noise(1, pid=2) + received(0xA, pid=2) + matched(0xA, pid=2), keep_calls=True
    )
    (call,) = result.calls
    assert (call.state, result.processes[call.service or 0].pid, result.processes[call.caller or 0].pid) == (
        "matched",
        1,
        2,
    )


def test_the_rounds_of_reading_do_not_part_a_call_from_its_answer(scan_text: Scan) -> None:
    text = served(0xA, 1, pid=1) + received(0xA, pid=2) + noise(700) + matched(0xA, pid=2)
    for chunk in (300, 1 << 20):
        result = scan_text(text, chunk=chunk)
        assert (result.totals.calls_matched, states(result)) == (1, [])


def test_equal_addresses_in_two_processes_are_two_calls(scan_text: Scan) -> None:
    """Process 2 never fetches its answer; the answer of process 1 must not count for it."""
    result = scan_text(served(0xA, pid=1) + served(0xA, pid=2) + received(0xA, pid=1) + matched(0xA, pid=1))
    (call,) = result.calls
    assert (call.state, result.processes[call.service or 0].pid) == ("served", 2)


def test_a_handler_in_progress_is_begun_until_it_is_served(scan_text: Scan) -> None:
    pending = scan_text(begun("Setup", 7) + noise(4))
    (call,) = pending.calls
    assert (call.state, call.stage, call.service, call.age) == ("begun", "Setup", 0, 4)
    assert states(scan_text(begun("Setup", 7) + noise(4) + whole(0xA, 3))) == []


def test_a_call_served_at_once_does_not_end_one_in_progress(scan_text: Scan) -> None:
    result = scan_text(begun("Setup", 7) + served(0xB, 3) + begun("Setup", 0) + received(0xB) + matched(0xB))
    assert [(c.state, c.stage) for c in result.calls] == [("begun", "Setup")]


def test_a_request_that_failed_is_an_event(scan_text: Scan) -> None:
    result = scan_text(begun("Connect", 3) + begun("Setup", 0))
    assert [(e.name, e.fields) for e in result.events] == [("begun", {"operation": "Connect", "res": 3})]


def test_the_largest_distance_of_a_completed_call_is_known(scan_text: Scan) -> None:
    result = scan_text(served(0xA) + noise(9) + received(0xA) + matched(0xA) + whole(0xB))
    assert result.totals.max_call_age == 10


def test_services_are_tallied(scan_text: Scan) -> None:
    conn = "n:1:11 [0] NCCL INFO New proxy send connection 4 from local rank 2, transport 0\n"
    result = scan_text(conn + served(0xA, 1) + begun("Init", 0) + conn + served(0xA, 3))
    (tally,) = result.services
    assert (dict(tally.opened), dict(tally.served)) == ({("send", 0, 2): 2}, {1: 1, 3: 1})
    assert (tally.opened_as, tally.served_type, tally.begun_operation) == (("send", 0, 2), 3, "Init")
    assert _init(result.calls).peer_local_rank == 2


def _init(calls: object) -> Call:
    assert isinstance(calls, list)
    return next(c for c in calls if c.type == 1)


def test_a_connection_with_an_absurd_number_counts_as_a_gap(scan_text: Scan) -> None:
    conn = "n:1:11 [0] NCCL INFO New proxy send connection 99999999999999999999 from local rank 2, transport 0\n"
    assert [s.gaps for s in scan_text(conn + conn).services] == [1]
