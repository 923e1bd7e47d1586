"""Data comes as it was sent: each mode, FIFO and zero-copy, sizes around a chunk, processes and threads, kinds of stream."""

from __future__ import annotations

import pytest

from tests.csrc.psm.jobs import Runner
from tests.csrc.psm.p2p.conftest import APART

# PSM_BUFFER_SIZE is 64K in 8 steps: a chunk has 8192 bytes.
SIZES = "sizes=0,1,7,8191,8192,8193,65535,65536,65537,300001"
MODES = {"cumem": "CUMEM", "cuda-ipc": "IPC", "memfd": "SHM", "posix": "SHM", "auto": "CUMEM"}


@pytest.mark.parametrize("share", MODES)
def test_sizes_around_a_chunk_arrive_by_each_share(run: Runner, share: str) -> None:
    job = run("ranks=2", SIZES, "offset=3", PSM_SHARE=share)
    assert job.code == 0 and job.modes == {MODES[share]}
    assert job.count("zero_copy") == 0 and job.count("fifo") == 2 * 2 * 10


@pytest.mark.parametrize(
    ("share", "buffers"),
    [
        ("cumem", "vmm"),
        ("cuda-ipc", "device"),
        ("auto", "device"),
        ("auto", "vmm"),
        ("auto", "memfd"),
        ("memfd", "memfd"),
    ],
)
def test_registered_buffers_are_copied_into_once(run: Runner, share: str, buffers: str) -> None:
    job = run("ranks=2", SIZES, "offset=5", "registered=both", f"buffers={buffers}", PSM_SHARE=share)
    assert job.code == 0 and job.count("declined") == 0
    assert job.count("zero_copy") == 2 * 2 * 9  # what has no bytes goes another way
    assert job.most_steps == 20  # one step an operation


@pytest.mark.parametrize("who", ["send", "recv"])
def test_both_ends_have_to_be_registered(run: Runner, who: str) -> None:
    """A receiver that offers its buffer is answered, and both use the FIFO."""
    job = run("ranks=2", SIZES, f"registered={who}")
    assert job.code == 0 and job.count("zero_copy") == 0
    assert job.count("declined") == (2 * 2 * 9 if who == "recv" else 0)


def test_zero_copy_always_registers_what_is_launched(run: Runner) -> None:
    job = run("ranks=2", SIZES, PSM_ZERO_COPY="always")
    assert job.code == 0 and job.count("zero_copy") == 2 * 2 * 9


def test_zero_copy_never_is_never(run: Runner) -> None:
    job = run("ranks=2", "sizes=100", "registered=both", PSM_ZERO_COPY="never")
    assert job.code == 0 and job.count("zero_copy") == 0
    assert {status for _, status, _, _ in job.said("register")} == {"PSM_ERR_UNSUPPORTED"}


@pytest.mark.parametrize(("share", "buffers"), [("auto", "host"), ("cumem", "device")])
def test_what_cannot_be_shared_goes_through_the_fifo(run: Runner, share: str, buffers: str) -> None:
    job = run("ranks=2", SIZES, "registered=both", f"buffers={buffers}", PSM_SHARE=share)
    assert job.code == 0 and job.count("zero_copy") == 0
    assert all("goes through the FIFO" in text for _, _, _, text in job.said("register"))


@pytest.mark.parametrize("registered", [(), ("registered=both",)], ids=["fifo", "zero-copy"])
def test_ranks_of_one_process_use_each_others_pointers(run: Runner, registered: tuple[str, ...]) -> None:
    job = run("ranks=3", "threads=1", SIZES, *registered)
    assert job.code == 0 and job.modes == {"direct pointer"}
    assert (job.count("zero_copy") > 0) == bool(registered)


@pytest.mark.parametrize("share", ["cumem", "memfd", "posix"])
def test_ranks_of_one_process_can_share_as_processes_do(run: Runner, share: str) -> None:
    job = run("ranks=2", "threads=1", SIZES, PSM_SHARE=share)
    assert job.code == 0 and job.modes == {MODES[share]}


def test_a_process_does_not_open_its_own_ipc_handle(run: Runner) -> None:
    job = run("ranks=2", "threads=1", SIZES, PSM_SHARE="cuda-ipc")
    assert job.code == 0 and job.modes == {"SHM"}


@pytest.mark.parametrize("stream", ["legacy", "blocking", "nonblocking"])
def test_any_stream_of_the_application_will_do(run: Runner, stream: str) -> None:
    """The proxy's streams do not wait for the legacy stream, in which the application stands still."""
    assert run("ranks=2", SIZES, f"stream={stream}").code == 0


def test_ranks_on_one_device_are_connected(run: Runner) -> None:
    assert run("ranks=2", "same_device=1", SIZES).code == 0


@pytest.mark.parametrize("registered", [(), ("registered=both",)], ids=["fifo", "zero-copy"])
def test_all_to_all_goes_beyond_320_steps(run: Runner, registered: tuple[str, ...]) -> None:
    job = run("ranks=4", "sizes=1000000,1500000", "iters=2", *registered)
    assert job.code == 0
    assert job.most_steps > 320 if not registered else job.count("zero_copy") == 4 * 3 * 4


@pytest.mark.parametrize("steps", ["1", "2", "64"])
def test_any_number_of_steps_will_do(run: Runner, steps: str) -> None:
    assert run("ranks=2", "sizes=0,1,65537,200000", PSM_STEPS=steps).code == 0


@pytest.mark.parametrize("registered", [(), ("registered=both",)], ids=["fifo", "zero-copy"])
def test_several_operations_on_a_connection_go_in_order(run: Runner, registered: tuple[str, ...]) -> None:
    """Each carries a part of the buffer, in one group."""
    job = run("ranks=3", "sizes=5,100000,300001", "repeat=5", *registered)
    assert job.code == 0
    assert job.count("fifo") + job.count("zero_copy") == 3 * 2 * 2 * 3 * 5


@pytest.mark.parametrize("share", ["cumem", "cuda-ipc"])
def test_a_rank_between_lends_its_memory(run: Runner, share: str) -> None:
    """GPUs 0 and 1 do not reach each other, and both reach GPU 2."""
    job = run("ranks=3", SIZES, "via=1", topology=APART, PSM_SHARE=share, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL")
    assert job.code == 0 and job.modes == {"indirect"}
    assert "Channel 0/0 : 0[0] -> 1[1] via PSM_P2P/indirect/2[2]" in job.text + job.log


def test_without_a_direct_way_data_goes_through_host_memory(run: Runner) -> None:
    job = run("ranks=3", SIZES, "registered=both", topology=APART)
    assert job.code == 0 and job.modes == {"SHM"}
    assert job.count("zero_copy") == 2 * 2 * 2 * 9  # between 2 and the others
