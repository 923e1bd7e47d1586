"""The next step rests on what stands in this log: its calls, addresses, warnings and tracebacks; and no statement goes beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Verdict
from psmkit.report import render
from tests.analysis.texts import analyzed, expect_step, first_error

_AT = "n0:70:71 [0] "
_WARN = "\n" + _AT + "misc/ibvwrap.cc:291 NCCL WARN {}\n" + _AT + "NCCL INFO transport/net_ib.cc:1154 -> 2\n"
_QP = "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR"
_GIDS = _QP + ", local GID index 3, local GID ::ffff:10.1.0.5, remote GID ::ffff:10.2.0.9"
_SPAWN = 'Exception: \n\n-- Process 3 terminated with the following error:\nTraceback (most recent call last):\n  File "/a/t.py", line 9, in _wrap\n'
_REFUSED = "n0:70:70 [0] include/socket.h:387 NCCL WARN Connect to 10.0.0.4<5031> failed : Connection refused\n"
_ENDED = "[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\nterminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: unhandled system error, NCCL version 2.14.3\n"
_LAST = "torch.distributed.DistBackendError: NCCL error in: /p/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda error, NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{}\n"
_TIMEOUT = "[rank0]:[E626 16:48:25.440270188 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600025 milliseconds before timing out.\n"
_OLD = "[E ProcessGroupNCCL.cpp:566] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600904 milliseconds before timing out.\n"
_COMM = "n0:70:70 [0] NCCL INFO NCCL version {}+cuda12.2\n"
_NO_RECORD = "[rank0]:[E626 16:48:25.440270199 ProcessGroupNCCL.cpp:667] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.\n"


@pytest.mark.parametrize(
    ("log", "words", "not_words"),
    [
        (_WARN.format(_GIDS), ("ping -I 10.1.0.5 10.2.0.9", "index 3"), ("Check NCCL_IB_GID_INDEX", "{")),
        (_WARN.format(_QP), ("Check NCCL_IB_GID_INDEX",), ("ping",)),
        (_WARN.format("Call to ibv_reg_mr failed"), ("memlock",), ("GID",)),
        (_WARN.format("Call to ibv_query_gid failed with error Invalid argument"), ("show_gids",), ("memlock",)),
        (_WARN.format("Call to ibv_get_async_event failed"), ("ibv_devinfo",), ("memlock", "GID")),
        (_LAST.format("Cuda failure 217 'peer access is not supported between these"), ("NCCL_P2P_DISABLE=1", "IOMMU"), ("CUMEM", "NVLS")),
        (_WARN.format("Cuda failure 801 'operation not supported'"), ("NCCL_CUMEM_ENABLE=0",), ("NCCL's sources",)),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:41077\n", ("same host",), ("with this address",)),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41077\n", ("with this address",), ("same host",)),
        (_TIMEOUT + _NO_RECORD, ("TORCH_NCCL_TRACE_BUFFER_SIZE", "If the processes still run"), ()),
        (_TIMEOUT, ("If the processes still run",), ("TORCH_NCCL_TRACE_BUFFER_SIZE",)),
        (_OLD + _ENDED, ("With PyTorch 2.2 or later, set TORCH_NCCL_TRACE_BUFFER_SIZE",), (". Set TORCH_NCCL", "ncclras")),
        (_TIMEOUT + _ENDED, (". Set TORCH_NCCL_TRACE_BUFFER_SIZE",), ("PyTorch 2.2",)),
        (_TIMEOUT, ("with NCCL 2.24 or later, a RAS answer",), ()),
        (_COMM.format("2.19.3") + _TIMEOUT, ("stacks",), ("RAS",)),
        (_COMM.format("2.27.3") + _TIMEOUT, ("and a RAS answer (ncclras)",), ("or later",)),
        (_WARN.format("failed to open CUDA IPC handle : 1 invalid argument"), ("in containers, give them", "otherwise"), ()),
        ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. \n", ("df -h /dev/shm", "If it is full", "in a container:"), ()),
        (_AT + "NCCL INFO bootstrap.cc:270 -> 2\n" + _AT + "NCCL INFO init.cc:800 -> 2\n", ("a code and no reason",), ("Fix the error",)),
    ],
)  # fmt: skip
def test_the_next_step_rests_on_the_words_of_the_line(
    tmp_path: Path, log: str, words: tuple[str, ...], not_words: tuple[str, ...]
) -> None:
    expect_step(tmp_path, log, words, not_words)


@pytest.mark.parametrize(
    ("gpu", "title"),
    [
        ("0000:3B:00.0: Unknown Error", "nvidia-smi cannot get a handle of the GPU at 0000:3B:00.0: Unknown Error"),
        ("0: 0000:3B:00.0: Unknown Error", "nvidia-smi cannot get a handle of the GPU at 0000:3B:00.0: Unknown Error"),
        (" 0000:3B:00.0: GPU is lost.  Reboot", "the GPU at 0000:3B:00.0 is lost, as nvidia-smi says"),
    ],
)
def test_an_error_of_nvidia_smi_is_told_in_its_own_words(tmp_path: Path, gpu: str, title: str) -> None:
    found = first_error(tmp_path, f"Unable to determine the device handle for GPU{gpu}\n")
    assert found.title == title
    assert "bus" not in found.explanation


def test_a_device_that_cannot_be_opened_is_no_failure(tmp_path: Path) -> None:
    using = _AT + "NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE ; OOB eth0:10.0.0.5<0>\n"
    report = analyzed(tmp_path, f"{_AT}misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n{using}")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "/dev/infiniband" in render(report, "text")


@pytest.mark.parametrize("warns", [True, False])
def test_a_rerun_for_warnings_is_asked_for_only_where_the_log_has_none(tmp_path: Path, warns: bool) -> None:
    head = "[3] enqueue.cc:215 NCCL WARN Cuda failure 'invalid device function'\n" if warns else "step 1\n"
    torch = "RuntimeError: NCCL error in: /p/c10d/ProcessGroupNCCL.cpp:31, unhandled cuda error, NCCL version 2.7.8\n"
    found = next(f for f in analyzed(tmp_path, head + torch).findings if "returned an error to torch" in f.title)
    assert ("Re-run" in found.next_step) is not warns


@pytest.mark.parametrize("ready", [True, False])
def test_a_child_of_spawn_is_a_rank_only_where_a_process_has_that_rank(tmp_path: Path, ready: bool) -> None:
    line = "n0:7{0}:7{0} [{0}] NCCL INFO comm 0x1 rank {0} nranks 4 cudaDev {0} busId {0}000 - Init COMPLETE\n"
    known = "".join(map(line.format, range(4))) if ready else ""
    found = next(f for f in analyzed(tmp_path, known + _REFUSED + _SPAWN).findings if f.code == "PSM402")
    assert "was ended by an exception" in found.title and "code 1" not in found.title
    assert ("spawned process 3" in found.title) is not ready
    assert found.confidence <= 0.7 and "above" not in found.next_step


@pytest.mark.parametrize("after", [True, False])
def test_only_warnings_below_an_exception_follow_from_it(tmp_path: Path, after: bool) -> None:
    raised = 'Traceback (most recent call last):\n  File "/a/t.py", line 9, in main\nValueError: bad batch\n'
    spawn = "-- Process 3 terminated with the following error:\n" + raised
    found = next(
        f for f in analyzed(tmp_path, spawn + (_REFUSED if after else "done\n")).findings if f.code == "PSM402"
    )
    assert ("What NCCL reports after it" in found.next_step) is after
    assert "Read the traceback above this line" in found.next_step


@pytest.mark.parametrize("timeout", [True, False])
def test_failed_or_timed_out_is_no_timeout(tmp_path: Path, timeout: bool) -> None:
    log = _WARN.format("Call to ibv_reg_mr failed") + (_TIMEOUT if timeout else "") + _ENDED
    titles = [f.title for f in analyzed(tmp_path, log).findings if f.code == "PSM408"]
    assert titles and all(("after a timeout" in title) is timeout for title in titles)


@pytest.mark.parametrize("lost", [True, False])
def test_an_error_goes_no_further_only_where_each_step_is_understood(tmp_path: Path, lost: bool) -> None:
    more = _AT + "NCCL INFO init.cc:1549 -> 2      [1,1]<stdout>: x\n" if lost else ""
    lead = first_error(tmp_path, _WARN.format("Call to ibv_reg_mr failed") + more + "done\n")
    assert ("goes no further in this log" in lead.explanation) is not lost
    assert ("may have gone further" in lead.explanation) is lost


@pytest.mark.parametrize("nodes", [("gpu-a",), ("gpu-a", "gpu-b"), ()])
def test_services_are_those_of_the_only_node_that_a_pod_names(tmp_path: Path, nodes: tuple[str, ...]) -> None:
    named = "".join(f'  "node_name": "{node}"\n' for node in nodes)
    step = first_error(
        tmp_path, named + "web-0: Test CUDA failure common.cu:941 'system not yet initialized'\n"
    ).next_step
    assert ("on the node gpu-a" in step) is (len(nodes) == 1) and ("on that host" in step) is (len(nodes) != 1)
