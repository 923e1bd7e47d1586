"""What a report says of an error fits the error: its cause, who it is about, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from psmkit.report import render
from psmkit.report.summary import sentence
from tests.analysis.test_program import steps
from tests.analysis.texts import analyzed, first_error

_TERMINATE = (
    "terminate called after throwing an instance of '{}'\n  what():  {}\nframe #0: c10::Error::Error() + 0x57\n"
)
_CUDA = "\nn0:70:70 [3] transport/net.cc:99 NCCL WARN Cuda failure {}'{}'\nn0:70:70 [3] NCCL INFO init.cc:872 -> 1\n"


def test_the_reason_below_a_cpp_exception_is_the_cause_of_the_abort(tmp_path: Path) -> None:
    found = analyzed(tmp_path, "step 3\n" + _TERMINATE.format("c10::Error", "CUDA error: out of memory")).findings
    assert [f.code for f in found if f.severity is Severity.ERROR] == ["PSM509"]
    assert "nvidia-smi" in found[0].next_step and "core dump" not in found[0].next_step


def test_the_abort_of_a_named_rank_carries_its_reason(tmp_path: Path) -> None:
    tagged = "".join(
        f"[rank2]:{line}\n"
        for line in _TERMINATE.format("c10::Error", "CUDA error: an illegal memory access was encountered").splitlines()
    )
    found = first_error(tmp_path, "step 3\n" + tagged)
    assert found.culprits == (2,) and "illegal memory access" in found.title
    assert "compute-sanitizer" in found.next_step


def test_a_cpp_exception_of_another_kind_stays_a_death_with_its_text(tmp_path: Path) -> None:
    found = first_error(tmp_path, "step 3\n" + _TERMINATE.format("std::runtime_error", "shard index 7 is out of range"))
    assert found.code == "PSM402" and "shard index 7" in found.title and "where it was thrown" in found.next_step


@pytest.mark.parametrize(
    ("error", "words", "late"),
    [
        ("an illegal memory access was encountered", "compute-sanitizer", True),
        ("misaligned address", "compute-sanitizer", True),
        ("an illegal instruction was encountered", "to find the kernel", True),
        ("the launch timed out and was terminated", "to find the kernel", True),
        ("unknown error", "Xid", True),
        ("peer mapping resources exhausted", "fewer devices", False),
        ("named symbol not found", "architectures of the build", False),
        ("no kernel image is available for execution on the device", "architectures of the build", False),
        ("CUDA-capable device(s) is/are busy or unavailable", "compute mode", False),
        ("operation not supported", "NCCL_CUMEM_ENABLE=0", False),
        ("system not yet initialized", "fabricmanager", False),
        ("invalid argument", "failed itself", False),
    ],
)
@pytest.mark.parametrize("number", ["", "7 "])
def test_only_errors_of_kernels_get_the_advice_to_launch_blocking(
    tmp_path: Path, error: str, words: str, late: bool, number: str
) -> None:
    step = first_error(tmp_path, _CUDA.format(number, error)).next_step
    assert words in step and ("CUDA_LAUNCH_BLOCKING" in step) is late


def test_signal_in_the_words_of_an_engine_is_how_its_process_died(tmp_path: Path) -> None:
    line = "2026-01-01T00:00:0{}.000000Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal {} rank={}\n"
    found = first_error(tmp_path, line.format(1, 7, 2))
    assert "SIGBUS" in found.title and found.culprits == (2,)
    assert "/dev/shm" in found.next_step and "traceback" not in found.next_step
    ended = analyzed(tmp_path, line.format(1, 11, 3) + line.format(2, 15, 0)).findings
    assert [f.named[0].rank for f in ended if f.severity is Severity.ERROR] == [3]


def test_engine_without_a_traceback_is_asked_for_no_traceback_alone(tmp_path: Path) -> None:
    log = "ERROR 07-04 18:20:50 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"
    found = first_error(tmp_path, log)
    assert "dmesg" in found.next_step and "If it printed none" in found.next_step


def test_root_of_a_dead_communicator_is_a_consequence(tmp_path: Path) -> None:
    warn = (
        "\nn0:70:71 [1] misc/argcheck.cc:39 NCCL WARN Broadcast : invalid root {} (root should be in the 0..{} range)\n"
    )
    chain = "n0:70:71 [1] NCCL INFO enqueue.cc:1450 -> 4\nn0:70:71 [1] NCCL INFO enqueue.cc:1462 -> 4\n"
    dead = first_error(tmp_path, warn.format(0, -1) + chain)
    assert "Look above" in dead.next_step and "consequence" in dead.explanation and dead.confidence <= 0.7
    wrong = first_error(tmp_path, warn.format(8, 7) + chain)
    assert "rank in the group" in wrong.next_step


def test_resource_that_the_network_device_refuses_has_no_peer(tmp_path: Path) -> None:
    one = "\nn0:70:8{0} [{0}] ibvwrap.c:118 NCCL WARN Call to ibv_create_{1} failed\nn0:70:8{0} [{0}] NCCL INFO init.cc:310 -> 2\n"
    found = first_error(
        tmp_path, "n0:70:89 [0] NCCL INFO group.cc:72 -> 2 [Async thread]\n" + one.format(3, "cq") + one.format(4, "qp")
    )
    assert "memlock" in found.next_step and "GID" not in found.next_step
    assert "peer is probably" not in found.explanation and "devices 3 and 4" in found.title
    assert "GID" in first_error(tmp_path, one.format(3, "x").replace("create_x", "query_gid")).next_step


@pytest.mark.parametrize(
    ("address", "words"), [("127.0.0.1, 29500", "same host"), ("10.0.0.7, 29500", "MASTER_ADDR and MASTER_PORT")]
)
def test_process_that_cannot_reach_the_store_was_launched(tmp_path: Path, address: str, words: str) -> None:
    line = f"[E socket.cpp:793] [c10d] The client socket has timed out after 1800s while trying to connect to ({address}).\n"
    found = first_error(tmp_path, "starting\n" + line)
    assert address in found.title and words in found.next_step
    assert "communicator has" not in found.explanation and "was launched" not in found.next_step


@pytest.mark.parametrize(("number", "closed"), [(1, True), (15, False)])
def test_hangup_of_torchrun_is_the_end_of_its_terminal(tmp_path: Path, number: int, closed: bool) -> None:
    log = f"iter 3: loss 2.1\nWARNING:torch.distributed.elastic.agent.server.api:Received {number} death signal, shutting down workers\n"
    report = analyzed(tmp_path, log)
    (found,) = [f for f in report.findings if f.code == "PSM408"]
    assert ("SIGHUP" in found.title and "tmux" in found.next_step) is closed
    assert ("who sent" in found.next_step) is not closed
    assert report.verdict.value == "failed"


def test_error_that_names_two_causes_is_told_with_both(tmp_path: Path) -> None:
    line = "2026-01-11 07:19:{}: E xla/nccl_utils.cc:219] INTERNAL: NCCL operation async_err failed: remote process exited or there was a network error\n"
    found = first_error(tmp_path, line.format("26.4") + line.format("13.1"))
    assert "or the network" in found.explanation and "blames" not in found.explanation


def test_kernel_of_deepep_that_gave_up_names_no_single_absent_rank(tmp_path: Path) -> None:
    line = "DeepEP dispatch NVL receiver timeout, channel: 10, RDMA: 0, nvl: 7, src RDMA: {}, src nvl: {}, start: 0, end: 0\n"
    found = first_error(tmp_path, "".join(line.format(a, b) for a in (0, 1) for b in (1, 3)))
    assert "another rank did not come" not in found.title and "the rank that" not in found.next_step
    assert "RDMA" in found.next_step and found.culprits == () and found.named == ()


def test_stack_of_a_launcher_asks_for_no_exception(tmp_path: Path) -> None:
    head = "RuntimeError: CUDA error: out of memory\nTraceback (most recent call last):\n"
    frame = '  File "/opt/site-packages/{}", line 340, in <module>\n    main()\n'
    stack = "Traceback (most recent call last):\n" + frame.format("torch/nn/x.py") + head
    launcher = analyzed(tmp_path, stack + frame.format("torch/distributed/launch.py")).findings
    assert [f.code for f in launcher] == ["PSM509"]
    own = analyzed(tmp_path, stack + frame.format("trainer/loop.py")).findings
    assert any("the log ends before the line that names the exception" in f.title for f in own)


def test_rank_that_waited_for_others_to_load_the_model_is_a_witness(tmp_path: Path) -> None:
    head = "[2026-01-01 18:40:21 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    frame = '  File "/srv/sglang/scheduler.py", line 17, in run\n    raise ValueError(\n'
    waited = "ValueError: TP rank 1 could finish the model loading, but there are other ranks th"
    report = analyzed(tmp_path, head + frame + waited)
    found = next(f for f in report.findings if f.severity is Severity.ERROR)
    assert report.verdict.value == "failed" and found.culprits == () and found.named == ()
    assert "other ranks were not" in found.title and "OOM" in found.next_step
    below = analyzed(
        tmp_path,
        head
        + frame
        + waited
        + "\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5 GiB. GPU 3 has a total capacity of 79 GiB\n",
    )
    assert any(f.culprits == (3,) for f in below.findings if f.severity is Severity.ERROR)
    other = head + frame + "ValueError: layer 7 has a shape that differs from that of other ranks\n"
    assert first_error(tmp_path, other).culprits == (1,)


def test_rows_of_a_benchmark_without_its_header_are_counted(tmp_path: Path) -> None:
    row = "     {:>8}         16384     float     sum      -1    18.90    3.47    6.07       {}    18.31    3.58    6.26       0\n"
    good = analyzed(tmp_path, "".join(row.format(1 << at, 0) for at in range(16, 27)))
    assert good.verdict.value == "inconclusive"
    assert good.reason.startswith("nccl-tests printed 11 rows with no wrong value but no summary")
    tagged = analyzed(tmp_path, "".join("[1,0]<stdout>:" + row.format(1 << at, 0) for at in range(16, 19)))
    assert tagged.reason.startswith("nccl-tests printed 3 rows")
    wrong = analyzed(tmp_path, row.format(65536, 0) + row.format(131072, 12))
    assert "wrong values in 1 row (12)" in wrong.reason and wrong.verdict.value == "failed"


def test_launcher_of_tgi_names_the_shards_that_it_waits_for(tmp_path: Path) -> None:
    line = "2026-01-01T00:00:0{}.5Z  INFO shard-manager: text_generation_launcher: {} rank={}\n"
    waits = "".join(line.format(1, "Waiting for shard to be ready...", rank) for rank in range(4))
    report = analyzed(tmp_path, waits + line.format(2, "Shard ready in 181.02240571s", 0))
    assert "waits for ranks 1, 2 and 3" in report.reason and "rank 0 ready" in report.reason
    ready = waits + "".join(line.format(2, "Shard ready in 18.1s", rank) for rank in range(4))
    assert "waits for" not in analyzed(tmp_path, ready).reason


def test_headline_says_once_that_a_rank_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _CUDA.format("1 ", "invalid argument"))
    assert sentence(report).startswith("failed: n0:70 at transport/net.cc:99: Cuda failure 1")
    assert report.reason.startswith("n0:70 failed at")


def test_counts_of_lines_leave_out_empty_ones_and_count_no_line_twice(tmp_path: Path) -> None:
    assert (
        "none of the 3 lines"
        in analyzed(
            tmp_path,
            "[2026-03-01 10:00:00] starting\n\n[2026-03-01 10:00:01] loading\n\n[2026-03-01 10:00:02] still loading\n",
        ).reason
    )
    twice = "RuntimeError: NCCL communicator was aborted on rank 2.  Original reason for failure was: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=10, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1803911 milliseconds before timing out."
    assert analyzed(tmp_path, twice + "\n").coverage.beside == 1


def test_an_xid_whose_text_numbers_the_gpu_blames_the_gpu_and_not_who_asked_it(tmp_path: Path) -> None:
    line = "[Thu Jan 1 00:00:00 2026] NVRM: Xid (PCI:0001:6c:00): 119, pid=418, name=nvtask, Timeout after 45s of waiting for RPC response from GPU{} GSP! Expected function 76.\n"
    report = analyzed(tmp_path, line.format(5))
    assert [(c.device, c.pid) for c in report.culprits] == [(5, None)]
    assert "who:     device 5 " in render(report)
    assert [(c.device, c.pid) for c in analyzed(tmp_path, line.format("")).culprits] == [(None, 418)]


def test_a_gpu_that_the_driver_cannot_reach_needs_no_lookup_of_a_cuda_error(tmp_path: Path) -> None:
    found = first_error(tmp_path, "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n")
    assert "0000:03:00.0" in found.title and "cudaError_t" not in found.next_step


@pytest.mark.parametrize(
    ("log", "verdict", "culprits"),
    [
        pytest.param(
            '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 7, in run\n[rank0]:     asse',
            "failed",
            [0],
            id="torch's hook",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 7, in <module>\n    ma',
            "failed",
            [],
            id="the top of the program",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 7, in run\n    ma',
            "inconclusive",
            [],
            id="a part that something may catch",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 7, in <module>\n    main()\n' + steps(1, 4),
            "inconclusive",
            [],
            id="the program goes on",
        ),
    ],
)
def test_a_stack_that_nothing_caught_fails_the_run_though_it_is_cut(
    tmp_path: Path, log: str, verdict: str, culprits: list[int]
) -> None:
    report = analyzed(tmp_path, log)
    assert (report.verdict, [c.rank for c in report.culprits]) == (verdict, culprits)


def test_a_last_error_whose_exception_is_cut_off_is_of_the_host_that_pdsh_names(tmp_path: Path) -> None:
    told = "n2: Last error:\nn2: Net : Call to recv from 10.0.0.7<51219> failed : Connection refused\n"
    other = "n1: n1:218:232 [4] NCCL INFO Channel 00 : 4[61000] -> 3[42000] via SHM/direct/direct\n"
    report = analyzed(tmp_path, told + other)
    assert report.verdict == "failed" and "rank 4" not in report.reason
    assert [c.host for c in report.culprits] == ["10.0.0.7"]
    assert "rank 4" in analyzed(tmp_path, told + other.replace("n1", "n2")).reason


def test_a_number_that_no_device_can_have_is_no_device(tmp_path: Path) -> None:
    line = "n1:352:352 [{}] misc/cudawrap.cc:182 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'\n"
    (unknown,) = analyzed(tmp_path, line.format(32523)).culprits
    assert (unknown.host, unknown.pid, unknown.device, unknown.rank) == ("n1", 352, None, None)
    assert analyzed(tmp_path, line.format(7)).culprits[0].device == 7
