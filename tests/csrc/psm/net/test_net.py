"""The net transport between two processes: data of all sizes over each table, what does not fit is refused with both values, who dies or fails ends the other."""

from __future__ import annotations

import re

import pytest

from tests.csrc.psm import jobs
from tests.csrc.psm.jobs import ENDED, Runner

#: No byte, one, around a slot of 8192 bytes, an odd size of many.
SIZES = "sizes=0,1,8191,8192,8193,65536,300001"
CHANNEL = ("channel", "PSM_ERR_MISMATCH", r"the channel is 0 at rank 0 and 9 at rank 1")
NETWORK = ("net", "PSM_ERR_MISMATCH", r"the network is PSM at rank 0 and Other at rank 1; set PSM_NET_PLUGIN alike")


@pytest.mark.parametrize("stream", ["legacy", "nonblocking"])
def test_all_sizes_arrive_in_both_directions_whatever_the_stream(run: Runner, stream: str) -> None:
    job = run(SIZES, f"stream={stream}")
    assert job.code == 0 and set(job.results.values()) == {"PSM_OK"}, job.text


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
def test_a_table_that_is_handed_in_is_used(run: Runner, version: int) -> None:
    job = run(SIZES, "iters=1", f"table={version}", PSM_NET_ABI="99", NCCL_DEBUG="INFO")
    assert {status for _, status, _, _ in job.said("use")} == {"PSM_OK"}
    assert job.code == 0 and f"psm net opened: network PSM v{version} " in job.text + job.log


@pytest.mark.parametrize(("steps", "size"), [("1", "64K"), ("64", "64K"), ("33", "33K")])
def test_any_number_of_slots_will_do(run: Runner, steps: str, size: str) -> None:
    """A comm holds 32 requests: what is more is not used."""
    assert run("sizes=0,1,65537,200000", PSM_STEPS=steps, PSM_BUFFER_SIZE=size).code == 0


@pytest.mark.parametrize("settings", [{"PSM_NET": "shm"}, {"PSM_NET_MAX_RECVS": "4"}, {"PSM_NET_STREAMS": "2"}])
def test_networks_of_other_habits_will_do(run: Runner, settings: dict[str, str]) -> None:
    assert run(SIZES, **settings).code == 0


def test_what_a_plugin_cannot_be_is_told(run: Runner) -> None:
    job = run("sizes=1", PSM_NET_PLUGIN="/nowhere/libnccl-net-x.so")
    ((_, status, _, text), *_) = job.said("setup")
    assert status == "PSM_ERR_NOT_FOUND"
    assert 'PSM_NET_PLUGIN is "/nowhere/libnccl-net-x.so"' in text
    job = run("sizes=1", PSM_NET_ABI="7")
    assert any("and PSM_NET_ABI selects v7" in text for _, _, _, text in job.said("setup")), job.text


@jobs.differences(0x50534D4E, CHANNEL, NETWORK)
def test_what_the_peer_assumes_otherwise_is_refused_with_both_values(
    run: Runner, what: str, status: str, text: str
) -> None:
    jobs.check_refusal(run, what, status, text, PSM_TIMEOUT="2")


def test_requests_of_a_wrong_size_or_release_are_refused(run: Runner) -> None:
    job = run("sizes=1", "differ=0:request")
    wanted = {
        "short setup": ("PSM_ERR_PROTOCOL", "bad sizes of request and answer, 31 and 240 bytes, expected 32 and 240"),
        "small answer": ("PSM_ERR_PROTOCOL", "bad sizes of request and answer, 32 and 232 bytes, expected 32 and 240"),
        "magic": ("PSM_ERR_PROTOCOL", "bad magic 0x50534d4f, expected 0x50534d4e"),
        "version": ("PSM_ERR_VERSION", "bad version 9, expected 1"),
        "chunk": ("PSM_ERR_INVALID", "bad buffer of 4 steps of 1000 bytes, 4096 bytes in all"),
        "steps": ("PSM_ERR_INVALID", "65 steps of 1024 bytes"),
        "early connect": ("PSM_ERR_INVALID", "connect of a connection that is not set up"),
        "short connect": ("PSM_ERR_PROTOCOL", "bad sizes of request and answer, 247 and 8 bytes, expected 248 and 8"),
    }
    for what, (status, text) in wanted.items():
        said = job.said(what)
        assert len(said) == 2, (what, job.text)
        for _, seen, _, why in said:
            assert seen == status and text in why
    assert job.code == 0  # what was refused does no harm to what follows


def test_a_size_that_differs_is_refused_with_both_values(run: Runner) -> None:
    job = run("sizes=100", "one_way=1", "differ=0:nbytes")
    status, _, text = job.said_by(0, "group")
    assert status == "PSM_ERR_MISMATCH" and "operation 1: this rank sends 101 bytes, rank 1 expects 100" in text
    status, _, text = job.said_by(1, "group")
    assert status == "PSM_ERR_PEER_CLOSED" and "rank 0, the sender, ended operation 1 with PSM_ERR_MISMATCH" in text


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("net.send.post:short=40,nth=3", "the message with step 2 from rank 0 has 40 bytes"),
        (
            "net.send.post:short=100,nth=3",
            "rank 0 sent a message of 100 bytes that says 8192, expected 8256 and 8192 bytes",
        ),
        ("net.send.post:corrupt,nth=3", "expected step 2 of operation 1 with 300001: a message was lost or damaged"),
        ("net.send.post:drop,nth=3", "rank 0 sent step 3 of operation 1 with 300001 bytes in all, expected step 2 of"),
        ("net.isend:drop,op=send,nth=12", ": a message was lost or damaged"),
    ],
)
def test_messages_that_are_lost_cut_or_damaged_are_refused(run: Runner, fault: str, text: str) -> None:
    job = run("sizes=300001", "iters=1", "one_way=1", PSM_FAULTS=fault)
    status, _, why = job.said_by(1, "group")
    assert status == "PSM_ERR_PROTOCOL" and text in why, why
    assert job.results[0] in ENDED


@pytest.mark.parametrize(
    "where", ["net.send.step", "net.send.post", "net.recv.step", "net.recv.post", "net.recv.credit", "net.copy"]
)
def test_who_is_killed_at_a_step_is_noticed_by_the_other(run: Runner, where: str) -> None:
    victim = 1 if "recv" in where else 0
    job = run("sizes=1000000", "iters=2", "one_way=1", PSM_FAULTS=f"{where}:kill,rank={victim},nth=20")
    assert f"rank {victim} killed by signal 9" in job.text
    # Whichever of its connections is seen to end first; what it had sent before may end the first operation.
    assert job.results.keys() == {1 - victim} and job.results[1 - victim] in ENDED, job.text
    _, status, _, text = job.said("group")[-1]
    assert status in ENDED and f"rank {victim}" in text, job.text


@pytest.mark.parametrize("where", ["net.copy", "net.send.step", "net.recv.step", "net.recv.credit"])
def test_an_error_in_the_progress_thread_ends_the_operation_at_both_ends(run: Runner, where: str) -> None:
    jobs.check_error_ends_both(run, where)


def test_a_credit_that_cannot_be_sent_ends_the_operation_at_both_ends(run: Runner) -> None:
    """The sender waits for it, and its data connection is fine. The first message of the job is the receiver's credit."""
    job = run("sizes=500000", "one_way=1", PSM_FAULTS="net.isend:error=5,nth=1")
    assert job.results[0] in ENDED and job.results[1] == "PSM_ERR_PROTOCOL", job.text
    assert any(rank == 1 and "isend of a credit" in text for rank, _, _, text in job.said("group")), job.text


@pytest.mark.parametrize(
    "where",
    ["net.open", "net.send.setup", "net.recv.setup", "net.recv.connect", "net.proxy.setup", "net.proxy.connect"],
)
def test_a_control_step_that_fails_leaves_nothing(run: Runner, where: str) -> None:
    job = run("sizes=1", PSM_TIMEOUT="1", PSM_FAULTS=f"{where}:error=NO_RESOURCE,nth=1")
    assert "PSM_ERR_NO_RESOURCE" in job.results.values(), job.text


@pytest.mark.parametrize(("call", "error"), [("cudaMemcpyAsync", 719), ("cudaEventQuery", 719), ("cudaHostAlloc", 2)])
def test_a_cuda_call_that_fails_ends_the_operation(run: Runner, call: str, error: int) -> None:
    job = run("sizes=200000", "one_way=1", PSM_TIMEOUT="1", PSM_FAULTS=f"{call}:error={error},nth=1")
    assert any(
        status == "PSM_ERR_CUDA" and call in text
        for what in ("group", "connect")
        for _, status, _, text in job.said(what)
    ), job.text


def test_who_does_not_come_is_told_when_the_deadline_has_passed(run: Runner) -> None:
    job = run("sizes=1", "one_way=1", "differ=1:handle", PSM_TIMEOUT="1")
    said = {rank: (status, text) for rank, status, _, text in job.said("connect")}
    assert said[0][0] in {"PSM_ERR_TIMEOUT", "PSM_ERR_SYSTEM", "PSM_ERR_PEER_DEAD", "PSM_ERR_PROTOCOL"}, job.text
    assert "network PSM" in said[0][1]


def test_an_abort_frees_the_application_stream(run: Runner) -> None:
    jobs.check_abort(run)


@pytest.mark.parametrize(
    ("fault", "role", "stage", "words"),
    [
        ("net.recv.step:slow=400ms,rank=1,nth=9", "send", "fifo", "rank 1, the receiver, to post a receive for step"),
        ("net.send.step:slow=400ms,rank=0,nth=9", "recv", "fifo", "the message from rank 0, the sender, with step 8"),
        ("net.recv.credit:slow=400ms,rank=1,nth=1", "send", "offer", "rank 1, the receiver, to post its recv"),
    ],
)
def test_a_stall_says_which_side_is_waited_for(run: Runner, fault: str, role: str, stage: str, words: str) -> None:
    job = run(
        "sizes=500000", "one_way=1", "iters=1", PSM_STALL_REPORT="0.05", PSM_FAULTS=fault, NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="NET",
    )  # fmt: skip
    assert job.code == 0
    lines = re.findall(rf"psm net {role} .* stalled for \d+ ms in stage {stage}: (.*)", job.text + job.log)
    assert lines, job.text + job.log
    assert "recvTail=" in lines[0] and words in lines[0].partition("waits for ")[2], lines


def test_the_log_tells_each_connection_from_birth_to_end(run: Runner) -> None:
    job = run("sizes=100", "one_way=1", "iters=1", NCCL_DEBUG="TRACE", NCCL_DEBUG_SUBSYS="ALL")
    text = job.text + job.log
    pairs = re.findall(
        r"psm net connection \w+, (\w+), rank (\d) peer \d connected in network PSM, pair (\w+): 8 slots of", text
    )
    assert sorted((role, rank) for role, rank, _ in pairs) == [("recv", "1"), ("send", "0")]
    assert len({pair for _, _, pair in pairs}) == 1
    assert text.count("closed after 1 operations") == 2
    assert "Channel 0/0 : 0[0] -> 1[1] via PSM_NET/PSM/0" in text
    assert re.search(
        r"psm net send rank 0 peer 1 channel 0 copying: step=0 slot=0 recvTail=1 sendHead=0 posted=1", text
    )
    assert re.search(
        r"psm net recv rank 1 peer 0 channel 0 offered: step=0 slot=0 recvTail=8 sendHead=0 posted=1", text
    )
