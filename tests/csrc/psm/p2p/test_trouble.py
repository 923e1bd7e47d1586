"""What does not fit is refused with both values; who dies, fails or is aborted ends the other end's operation, and all is given back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.csrc.psm import jobs
from tests.csrc.psm.jobs import ENDED, Runner

MODE = ("mode", "PSM_ERR_MISMATCH", r"the mode is CUMEM \(2\) at rank 0 and IPC \(3\) at rank 1")
KIND = ("kind", "PSM_ERR_MISMATCH", r"rank 1 shares its FIFO as cuda-ipc \(5\), expected cumem \(4\)")


def test_can_connect_is_symmetric_and_pure(driver: Path) -> None:
    done = subprocess.run([driver, "canconnect", "200000"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    seen = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert set(seen) == {"none", "direct pointer", "CUMEM", "IPC", "SHM"}
    assert all(int(n) > 1000 for n in seen.values())


@jobs.differences(0x50534D50, MODE, KIND)
def test_what_the_peer_assumes_otherwise_is_refused_with_both_values(
    run: Runner, what: str, status: str, text: str
) -> None:
    jobs.check_refusal(run, what, status, text)


def test_a_size_that_differs_is_refused_with_both_values(run: Runner) -> None:
    job = run("ranks=2", "sizes=100", "one_way=1", "differ=0:nbytes")
    status, _, text = job.said_by(0, "group")
    assert status == "PSM_ERR_MISMATCH" and "sends 101 bytes, rank 1 expects 100" in text
    status, _, text = job.said_by(1, "group")
    assert status in ENDED and ("PSM_ERR_MISMATCH" in text or "101" in text)


@pytest.mark.parametrize(
    "where", ["p2p.send.step", "p2p.send.publish", "p2p.recv.step", "p2p.recv.publish", "p2p.recv.offer"]
)
@pytest.mark.parametrize("share", ["cumem", "memfd"])
def test_who_is_killed_at_a_step_is_noticed_by_the_other(run: Runner, where: str, share: str) -> None:
    victim = 0 if "send" in where else 1
    nth = 2 if "offer" in where else 20
    job = run(
        "ranks=2",
        "sizes=1000000",
        "iters=2",
        "one_way=1",
        PSM_SHARE=share,
        PSM_FAULTS=f"{where}:kill,rank={victim},nth={nth}",
    )
    assert f"rank {victim} killed by signal 9" in job.text
    assert job.results == {1 - victim: "PSM_ERR_PEER_DEAD"}, job.text
    ((_, status, _, text),) = job.said("group")
    assert status == "PSM_ERR_PEER_DEAD" and f"rank {victim}" in text


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("share", ["cumem", "cuda-ipc"])
def test_who_is_killed_in_zero_copy_is_noticed_by_the_other(run: Runner, victim: int, share: str) -> None:
    where = "p2p.send.step" if victim == 0 else "p2p.recv.offer"
    buffers = "vmm" if share == "cumem" else "device"
    job = run(
        "ranks=2",
        "sizes=1000000",
        "iters=3",
        "one_way=1",
        "registered=both",
        f"buffers={buffers}",
        PSM_SHARE=share,
        PSM_FAULTS=f"{where}:kill,rank={victim},nth=2",
    )
    assert job.results == {1 - victim: "PSM_ERR_PEER_DEAD"}, job.text


@pytest.mark.parametrize("where", ["p2p.copy", "p2p.send.step", "p2p.recv.step", "p2p.recv.offer"])
def test_an_error_in_the_progress_thread_ends_the_operation_at_both_ends(run: Runner, where: str) -> None:
    jobs.check_error_ends_both(run, where)


@pytest.mark.parametrize(
    "where", ["p2p.setup", "p2p.connect", "p2p.proxy.setup", "p2p.proxy.connect", "p2p.memory.make", "p2p.memory.map"]
)
def test_a_control_step_that_fails_leaves_nothing(run: Runner, where: str) -> None:
    job = run("ranks=2", "sizes=1", PSM_FAULTS=f"{where}:error=NO_RESOURCE,rank=0")
    assert job.results[0] == "PSM_ERR_NO_RESOURCE", job.text


@pytest.mark.parametrize("where", ["p2p.proxy.setup", "p2p.proxy.connect"])
def test_a_fault_of_the_proxy_strikes_the_connection_to_the_peer_that_it_names(run: Runner, where: str) -> None:
    job = run("ranks=3", "sizes=1", PSM_FAULTS=f"{where}:error=NO_RESOURCE,rank=0,peer=1")
    assert job.results[0] == "PSM_ERR_NO_RESOURCE", job.text


@pytest.mark.parametrize("where", ["p2p.register", "p2p.proxy.register"])
def test_a_registration_that_fails_leaves_nothing(run: Runner, where: str) -> None:
    job = run("ranks=2", "sizes=1", "registered=both", PSM_FAULTS=f"{where}:error=NO_RESOURCE,rank=1")
    assert "PSM_ERR_NO_RESOURCE" in job.results.values(), job.text


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery"])
def test_a_cuda_call_that_fails_ends_the_operation(run: Runner, call: str) -> None:
    """The host function comes back, and the group says which call it was."""
    job = run("ranks=2", "sizes=200000", "one_way=1", PSM_FAULTS=f"{call}:error=719,nth=9")
    assert job.code != 0
    assert any(status == "PSM_ERR_CUDA" and call in text for _, status, _, text in job.said("group")), job.text


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"])
def test_a_share_that_fails_is_told_by_its_call(run: Runner, call: str) -> None:
    job = run("ranks=2", "sizes=1", "one_way=1", PSM_SHARE="cumem", PSM_FAULTS=f"{call}:error=2,nth=1")
    assert "PSM_ERR_CUDA" in job.results.values(), job.text


@pytest.mark.parametrize("stream", ["blocking", "nonblocking"])
def test_a_stream_that_is_captured_is_refused_and_can_be_used_behind_it(run: Runner, stream: str) -> None:
    job = run("captured=1", "sizes=8193", f"stream={stream}", "iters=2")
    said = job.said("captured")
    assert len(said) == 4, job.text + job.log  # two groups of two ranks
    for _, status, stage, text in said:
        assert (status, stage) == ("PSM_ERR_UNSUPPORTED", "launch")
        assert "is being captured into a graph" in text and "before or after the capture" in text
    assert job.text.count("capture ended with 0, group none") == 4
    assert set(job.results.values()) == {"PSM_OK"}


def test_an_abort_frees_the_application_stream(run: Runner) -> None:
    jobs.check_abort(run)


def test_a_stall_says_which_side_is_waited_for(run: Runner) -> None:
    """Rank 1 posts nothing: rank 0 stands before its first step until the hang of the fault is over."""
    job = run(
        "ranks=2",
        "sizes=500000",
        "one_way=1",
        "iters=1",
        PSM_STALL_REPORT="0.05",
        PSM_FAULTS="p2p.recv.step:slow=400ms,rank=1,nth=9",
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="P2P",
    )
    assert job.code == 0
    lines = re.findall(r"psm p2p (\w+) rank 0 peer 1 .* stalled for \d+ ms in stage (\w+): (.*)", job.text + job.log)
    # A busy machine delays other steps, too, and adds their reports.
    in_fifo = [rest for role, stage, rest in lines if (role, stage) == ("send", "fifo") and "canSend=NO" in rest]
    assert in_fifo, job.text + job.log
    assert "recvTail=" in in_fifo[0]
    assert any(rest.endswith("waits for rank 1, the receiver, to empty a slot") for rest in in_fifo)


def test_the_log_tells_each_handle_from_birth_to_end(run: Runner) -> None:
    job = run("ranks=2", "sizes=100", "registered=both", NCCL_DEBUG="TRACE", NCCL_DEBUG_SUBSYS="ALL")
    text = job.text + job.log
    made = set(re.findall(r"psm memory (\w+) made: cumem", text))
    assert len(made) == 2
    for memory in made:
        lines = [
            line.split(f"psm memory {memory} ")[1] for line in text.splitlines() if f"psm memory {memory} " in line
        ]
        verbs = [re.sub(r"of process \d+ ", "", line).split()[0].strip(":") for line in lines]
        assert sorted(verbs) == ["closed", "closed", "exported", "imported", "made"]
        assert {line.split()[1] for line in lines if line.startswith("closed:")} == {"freed", "unmapped"}
    streams = re.findall(r"psm stream (\w+) created with 8 events for connection (\w+)", text)
    assert len(streams) == 4
    for stream, connection in streams:
        assert f"psm stream {stream} of connection {connection} destroyed" in text
    assert re.search(r"Channel 0/0 : 0\[0\] -> 1\[1\] via PSM_P2P/CUMEM", text)
    assert re.search(r"psm p2p send rank 0 peer 1 channel 0 copying: step=0 slot=0 recvTail=8 sendHead=0 ", text)


def test_what_a_connection_holds_ends_in_order(run: Runner) -> None:
    """Stream and events, then memory, then the segment; on the side that made it and on the side that mapped it."""
    job = run("ranks=2", "sizes=100", "iters=1", "one_way=1", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL")
    text = job.text + job.log
    for rank, fifo, segment in ((0, "unmapped", "destroyed"), (1, "freed", "detached")):
        (process,) = set(re.findall(rf"(\w+:\d+):\d+ \[\d+\] NCCL INFO psm stream .* rank {rank} peer", text))
        own = [line for line in text.splitlines() if f"{process}:" in line]
        wanted = [r"psm stream .* destroyed", rf"psm memory \w+ closed: {fifo}", rf"psm segment \w+ closed: {segment}"]
        places = [[i for i, line in enumerate(own) if re.search(what, line)] for what in wanted]
        assert all(len(found) == 1 for found in places), own
        assert places == sorted(places)
