"""Ends in the words of others: libraries beside NCCL, exceptions, and the program itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psmkit.cli.app import main
from tests.analysis.outside import nccl
from tests.analysis.test_program import steps
from tests.analysis.test_watchdog import timeout
from tests.analysis.texts import analyzed

JOB = nccl(0, 1, nranks=2)
GLOO = "[/build/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:{}\n"
OFI = "libfabric:1001:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr: fi_addr_efa://[fe80::1]:0:107 My host id: i-0aa Peer EFA addr: fi_addr_efa://[fe80::2]:0:947 Peer host id: i-0bb (7)\n"
UCX = "[1784273406.684686] [node7:{}:0]      ib_mlx5_dv.c:452  UCX  {}   create_cq failed on mlx5_1: Remote I/O error\n"
NIXL = "E0717 07:30:06.719655    4711 nixl_agent.cpp:359] createBackend: backend 'UCX' encountered error with status NIXL_ERR_BACKEND\n"
FAILED = "2026-03-01 10:00:00.123\tnode0:{}\tlib.trainer:648\tERROR\tTraining failed due to:\n"
OLD = "[rank1]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
TAKEN = "[rank1]:[E624 04:14:29.22 ProcessGroupNCCL.cpp:698] [Rank 1] To avoid data inconsistency, we are taking the entire process down.\n"
HEAD = 'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(GLOO.format(4011) + GLOO.format(4012), "gloo connection to 10.0.0.7", id="gloo"),
        pytest.param("RuntimeError: [/p/gloo/gloo/transport/tcp/pair.cc:538] Read error [10.0.0.7]:40112$3: Connection reset by peer\n", "gloo connection to 10.0.0.7", id="gloo numbered"),
        pytest.param("RuntimeError: Gloo connectFullMesh failed with [/p/gloo/gloo/transport/tcp/pair.cc:152] SO_ERROR: Connection refused, remote=[10.0.0.7]:811\n", "could not connect to 10.0.0.7 by gloo: Connection refused", id="gloo refused"),
        pytest.param("RuntimeError: Gloo connectFullMesh failed with [/p/gloo/gloo/transport/tcp/pair.cc:144] no error\n", "could not connect to the other processes by gloo", id="gloo mesh"),
        pytest.param("/s/host/topo/topo.cpp:469: [GPU 1] Peer GPU 8 is not accessible, exiting ...\n/s/host/init/init.cu:998: non-zero status: 3 building transport map failed\n", "no way from element 1 to element 8", id="NVSHMEM"),
        pytest.param(OFI, "libfabric failed in rank 1", id="libfabric"),
        pytest.param(UCX.format(4711, "ERROR") + NIXL, "UCX failed in node7:4711", id="UCX"),
        pytest.param(NIXL, "NIXL failed in process 4711", id="NIXL"),
        pytest.param(FAILED.format(1) + "disk is full\n", "its training failed: disk is full", id="program"),
        pytest.param(OLD, "NCCL returned an error to the framework on rank 1", id="old torch"),
        pytest.param("[rank1]: ValueError: bad shard\n", "rank 1 ended by an uncaught exception", id="tagged exception"),
        pytest.param(HEAD + "RuntimeError: store is gone\n", "ended by an uncaught exception", id="exception"),
    ],
)  # fmt: skip
def test_an_end_that_only_others_report_decides_a_run(text: str, words: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + text)
    assert report.verdict == "failed", report.reason
    assert words in report.reason and len(report.reason) < 130
    assert report.confidence <= 0.85


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(UCX.format(4711, "ERROR") + JOB, id="before init"),
        pytest.param(JOB + UCX.format(4711, "WARN"), id="a warning of UCX"),
        pytest.param(JOB + UCX.format(4711, "ERROR") + steps(1, 9), id="steps follow"),
        pytest.param(JOB + FAILED.format(1).replace("failed due to", "never failed due to").replace("ERROR", "INFO"), id="negated"),
        pytest.param(JOB + "libfabric:1001:17:a:efa:core:efa_open():12<warn> no device\n", id="a warning of libfabric"),
        pytest.param(JOB + "[rank1]: see ValueError: bad shard\n", id="a text about an exception"),
        pytest.param(HEAD + "ImportError: no module named fast\n" + nccl(0, 1, nranks=2), id="an optional import"),
    ],
)  # fmt: skip
def test_a_line_that_did_not_end_the_work_decides_nothing(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == "inconclusive", report.reason


def test_an_orderly_end_refutes_the_errors_of_others(tmp_path: Path) -> None:
    for text in (UCX.format(4711, "ERROR"), OFI, GLOO.format(4011)):
        assert analyzed(tmp_path, text + nccl(0, 1, nranks=2, ended=True)).verdict == "healthy"


def test_a_watchdog_explains_what_others_print_after_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + timeout(1) + GLOO.format(4011) + FAILED.format(1))
    assert report.verdict == "hung"


def test_ends_of_others_name_whom_their_lines_name(tmp_path: Path) -> None:
    (gloo,) = analyzed(tmp_path, JOB + GLOO.format(4011)).culprits
    assert (gloo.host, gloo.rank) == ("10.0.0.7", None)
    assert analyzed(tmp_path, JOB + GLOO.format(1) + GLOO.format(2).replace("0.7", "0.8")).culprits == ()
    (ofi,) = analyzed(tmp_path, JOB + OFI).culprits
    assert (ofi.rank, ofi.pid) == (1, 1001)
    ucx = analyzed(tmp_path, UCX.format(4711, "ERROR") + UCX.format(4712, "ERROR") + NIXL).culprits
    assert [(c.host, c.pid) for c in ucx] == [("node7", 4711), ("node7", 4712)]


def test_the_line_of_ucx_explains_the_warning_of_its_plugin(tmp_path: Path) -> None:
    warn = (
        "\nnode7:4711:4712 [0] ucx_plugin.c:498 NCCL WARN Failed: UCX error ucx_plugin.c:498 '-5' Invalid parameter\n"
    )
    report = analyzed(tmp_path, UCX.format(4711, "ERROR") + warn)
    assert report.reason.startswith("UCX failed in node7:4711"), report.reason
    assert report.findings[0].evidence[0].line == 1
    alone = analyzed(tmp_path, warn)
    assert alone.verdict == "failed" and [c.pid for c in alone.culprits] == [4711]


def test_a_log_of_ucx_and_nixl_alone_gives_a_verdict_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(UCX.format(4711, "ERROR") + NIXL)
    assert main(["analyze", "--format", "json", str(tmp_path / "job.log")]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "failed"


def test_a_warning_that_ended_nothing_does_not_hide_the_error_that_torch_prints(tmp_path: Path) -> None:
    warn = "\nnode0:1001:1001 [1] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument\n"
    report = analyzed(tmp_path, JOB + OLD + warn)
    assert report.verdict == "failed" and "NCCL warned: Call to ibv_reg_mr_iova2" in str(report.findings[0].explanation)
    assert analyzed(tmp_path, JOB + warn).verdict == "inconclusive"


def test_a_rank_that_torch_takes_down_shows_a_watchdog_that_gave_up(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + TAKEN)
    assert report.verdict == "hung" and "torch ended rank 1" in report.reason
    # a rank that another signal ended explains it
    report = analyzed(
        tmp_path,
        JOB + TAKEN + "[node0:1000] *** Process received signal ***\n[node0:1000] Signal: Segmentation fault (11)\n",
    )
    assert report.verdict == "failed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RuntimeError: [/b/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n", "1800 s in a gloo recv"),
        ("[rank1]: RuntimeError: NCCL communicator was aborted on rank 1.\n", "torch ended rank 1"),
        ("RuntimeError: Timed out initializing process group in store based barrier on rank: 1\n", "torch's store"),
    ],
)  # fmt: skip
def test_a_wait_that_only_others_report_is_a_hang(text: str, words: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + text)
    assert report.verdict == "hung" and words in report.reason
    assert report.culprits == ()


def test_a_loopback_address_is_one_end_of_a_connection_on_that_host(tmp_path: Path) -> None:
    line = "RuntimeError: [/p/gloo/gloo/transport/tcp/pair.cc:152] SO_ERROR: Connection refused, remote=[{}]:17308$2\n"
    (refused,) = analyzed(tmp_path, JOB + line.format("10.0.0.7")).culprits
    assert refused.host == "10.0.0.7"
    report = analyzed(tmp_path, JOB + line.format("127.0.1.1"))
    assert report.verdict == "failed" and "127.0.1.1" in report.reason
    assert [(c.host, c.either, c.peer_unnamed) for c in report.culprits] == [("127.0.1.1", True, True)]


def test_a_peer_that_is_silent_on_gloo_is_named(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, JOB + "RuntimeError: [/p/gloo/transport/tcp/buffer.cc:72] Read timeout [10.0.0.7]:4011$3\n"
    )
    assert (report.verdict, [c.host for c in report.culprits]) == ("hung", ["10.0.0.7"])


def test_a_traceback_that_is_cut_leads_the_headline(tmp_path: Path) -> None:
    job = nccl(0, 1, nranks=3)
    report = analyzed(tmp_path, job + HEAD)
    assert report.verdict == "failed"
    assert report.reason.startswith(
        "a process printed a Python traceback; the log ends before the line that names the exception"
    )
    # an exception that the program survived is none
    report = analyzed(tmp_path, HEAD + job)
    assert "traceback" not in report.reason


DEEPEP = "DeepEP timeout check failed: rank = {}, thread = {}, value = {})\n"
STUCK = "E0301 10:00:00.1 395 rendezvous.cc:100] [id=1] This thread has been waiting for `acquire clique for rank 3` for 10 seconds and may be stuck. Expected 4 threads to join the rendezvous, but not all of them arrived on time.\n"
UNSTUCK = "E0301 10:00:09.1 395 rendezvous.cc:120] [id=1] Thread is unstuck! Warning above was a false-positive.\n"
EXITS = "F0301 10:00:40.1 395 rendezvous.cc:130] [id=1] Termination timeout for `acquire clique for rank 3` of 40 seconds exceeded. Exiting to ensure a consistent program state.\n"
ENGINE = "(EngineCore_DP0 pid=77) ERROR 03-01 10:00:00 [core.py:1138] EngineCore encountered a fatal error.\n"
WORKERS = "INFO 03-01 10:00:00 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds.\n"


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        pytest.param(DEEPEP.format(6, 4, 0) + DEEPEP.format(6, 5, 1024), "hung", "rank 5 did not come", id="DeepEP"),
        pytest.param("DeepEP combine forwarder (NVL check) timeout, channel: 1, RDMA: 0\n", "hung", "DeepEP gave up", id="DeepEP's kernel"),
        pytest.param(STUCK + EXITS, "hung", "XLA ended a process after 40 s", id="XLA"),
        pytest.param(STUCK, "inconclusive", "it is slow or it hangs", id="XLA waits"),
        pytest.param(STUCK + UNSTUCK, "inconclusive", "the log shows neither the start nor the end of an NCCL communicator", id="XLA goes on"),
        pytest.param(WORKERS + ENGINE, "failed", "the inference engine reports that process 77 failed", id="vLLM"),
        pytest.param(WORKERS, "inconclusive", "it is slow or it hangs", id="vLLM waits"),
        pytest.param(UCX.format("760  ", "ERROR").replace("  :0]", "  :a]"), "failed", "UCX failed in node7:760", id="UCX"),
    ],
)  # fmt: skip
def test_a_log_without_a_line_of_nccl_is_judged_by_what_others_say(
    text: str, verdict: str, words: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict == verdict and words in report.reason, report.reason


def test_a_job_that_goes_on_after_a_wait_of_others_is_not_blamed(tmp_path: Path) -> None:
    for text in (STUCK, WORKERS, ENGINE):
        report = analyzed(tmp_path, JOB + text + steps(1, 9))
        assert report.verdict != "failed" and report.verdict != "hung"
        assert "hangs" not in report.reason and "engine" not in report.reason


BARRIER = "INFO:root:Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:1 (world_size=4, worker_count={}, timeout=0:30:00)\n"
PASSED = "INFO:torch.distributed.distributed_c10d:Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.\n"


def test_ranks_that_wait_in_torchs_store_name_the_only_rank_that_is_late(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(BARRIER.format(rank, 3) for rank in (0, 1, 3)))
    assert report.verdict == "inconclusive" and "for rank 2" in report.reason
    unknown = analyzed(tmp_path, "".join(BARRIER.format(rank, 3) for rank in (0, 1)))
    assert "for 1 of 4 ranks" in unknown.reason


def test_more_workers_than_ranks_in_torchs_store_are_those_of_another_start(tmp_path: Path) -> None:
    report = analyzed(tmp_path, BARRIER.format(0, 7) * 3)
    assert "which counts 7 workers for a world of 4" in report.reason and "for -" not in report.reason
    assert "earlier start" in (report.findings[0].next_step or "")


def test_a_barrier_of_torchs_store_that_passed_is_no_wait(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(BARRIER.format(rank, 3) for rank in (0, 1, 3)) + PASSED)
    assert report.verdict == "inconclusive" and not report.findings


@pytest.mark.parametrize("thrown", ["jaxlib.xla_extension.XlaRuntimeError", "jax.errors.JaxRuntimeError"])
def test_the_exception_of_a_barrier_of_jax_is_the_report_of_the_tasks_that_did_not_come(
    thrown: str, tmp_path: Path
) -> None:
    head = 'Traceback (most recent call last):\n  File "train.py", line 146, in <module>\n    main()\n'
    line = f"{thrown}: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: sync0. Timed out task names:\n"
    report = analyzed(tmp_path, head + line + "/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n")
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [0, 3])
    other = analyzed(tmp_path, head + f"{thrown}: INVALID_ARGUMENT: no such barrier\n")
    assert other.verdict == "failed" and not other.culprits
