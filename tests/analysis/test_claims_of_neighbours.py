"""Statements that another line of the same log refutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

SPAWN = (
    "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process {} terminated with the following error:\n"
    'Traceback (most recent call last):\n  File "/opt/site-packages/torch/multiprocessing/spawn.py", line 74, in _wrap\n    fn(i, *args)\n'
    '  File "/srv/moe/check.py", line 61, in exchange\n    buffer.dispatch(tokens)\n    ^^^^^^^^\n{}\n'
)
COUNTS = "Global rank: {}, num_recv_tokens: {}, num_rdma_recv_tokens: {}\nmoe_recv_expert_counter[0]: {}\n"
GAVE_UP = "RuntimeError: DeepEP error: timeout (dispatch CPU)"


def test_of_spawned_processes_that_wait_alike_the_one_seen_first_is_no_culprit(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(COUNTS.format(r, -1, -1, -1) for r in (6, 4, 5)) + SPAWN.format(2, GAVE_UP))
    assert (report.verdict, report.culprits) == ("hung", ())
    assert "ranks 4, 5 and 6 of their group gave up in DeepEP's dispatch CPU" in report.reason
    (end,) = [f for f in report.findings if f.code == "PSM408"]
    assert end.title == f"spawned process 2 was ended by an exception: {GAVE_UP}: a consequence, not the cause"


def test_counts_of_tokens_that_came_are_no_wait(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(COUNTS.format(r, 512, 64, 8) for r in (6, 4, 5)))
    assert not report.findings


def test_the_exception_of_a_spawned_process_is_quoted_whichever_entry_knows_its_words(tmp_path: Path) -> None:
    text = "mylib.BackendError: NIXL_ERR_BACKEND"
    report = analyzed(tmp_path, SPAWN.format(2, text))
    (end,) = [f for f in report.findings if f.code == "PSM402"]
    assert end.title == f"spawned process 2 was ended by an exception: {text}"
    assert not any("does not show" in f.next_step for f in report.findings)
    cut = analyzed(tmp_path, SPAWN.format(2, "")).findings[0]
    assert "which this log does not show" in cut.next_step


def _two_hosts(nodes: int) -> str:
    shape = (
        "a:{0}:{0} [{1}] NCCL INFO comm 0x5{1}10 rank {1} nRanks 4 nNodes {2} localRanks {3} localRank {1} MNNVL 0\n"
    )
    trees = "a:{0}:{0} [{1}] NCCL INFO Trees [0] {2}/-1/-1->{1}->-1\n"
    own = "".join(shape.format(70 + r, r, nodes, 4 // nodes) + trees.format(70 + r, r, r + 1) for r in (0, 1))
    other = "b:80:80 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.8<0>\nb:80:80 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
    return own + other


def test_a_process_on_a_host_that_a_communicator_does_not_reach_is_none_of_its_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_hosts(nodes=1))
    assert report.reason == "the log names 2 of 4 ranks; b:80 is on another host, where this communicator has no rank"


def test_a_process_on_a_host_that_a_communicator_may_reach_may_be_one_of_its_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_hosts(nodes=2))
    assert report.reason == "the log names 2 of 4 ranks; b:80 may be one of the others"


CORE = "ERROR 05-02 11:20:31 [core.py:390] "
WORKER = "(RayWorkerWrapper pid=4402{}) "
PLACED = "INFO 05-02 11:02:07 [parallel_state.py:957] rank 3 in world size 4 is assigned as DP rank 0, PP rank 0, TP rank 3\n"


def _core(head: str) -> str:
    frames = f'{CORE}  File "/opt/engine/core.py", line 40, in step\n{CORE}    out = self.run(x)\n'
    task = f"{CORE}ray.exceptions.RayTaskError(KeyError): ray::RayWorkerWrapper.step() (pid=4402, ip=10.4.0.3, actor_id=9f01, repr=<W>)\n"
    return f"{CORE}{head}Traceback (most recent call last):\n{frames}{task}{frames}{CORE}KeyError: 'mask'\n"


def test_the_rank_that_a_worker_tells_of_itself_is_that_of_its_process(tmp_path: Path) -> None:
    log = WORKER.format("") + PLACED + _core("EngineCore hit an exception: ")
    report = analyzed(tmp_path, log)
    assert [c.rank for c in report.culprits] == [3]
    assert report.findings[0].explanation == "The engine reports this exception as its own failure, and shuts down."


@pytest.mark.parametrize(
    ("others", "rank"), [("", 0), (WORKER.format("").replace("RayWorkerWrapper", "EngineCore_DP1") + PLACED, None)]
)
def test_an_exception_of_an_engine_has_the_rank_that_its_process_tells(
    others: str, rank: int | None, tmp_path: Path
) -> None:
    tag = "(EngineCore_DP0 pid=4402) "
    stack = [
        "Traceback (most recent call last):",
        '  File "/opt/core.py", line 4, in step',
        "    run()",
        "RuntimeError: no kernel image",
    ]
    log = (
        tag
        + PLACED.replace("rank 3", "rank 0")
        + others
        + "".join(f"{tag}ERROR 05-02 11:20:31 [core.py:390] {line}\n" for line in stack)
    )
    assert [(c.rank, c.pid) for c in analyzed(tmp_path, log).culprits] == [(rank, 4402)]


def test_without_the_line_that_tells_the_rank_or_the_end_neither_is_claimed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, WORKER.format("") + "INFO 05-02 11:02:07 [loader.py:9] loaded\n" + _core(""))
    assert [(c.rank, c.pid) for c in report.culprits] == [(None, 4402)]
    assert "does not show whether the program caught it" in report.findings[0].explanation


def _one_of_two(more: str) -> str:
    nccl = "hosta:31:31 [0] {}NCCL {}\n"
    own = nccl.format("", "INFO Bootstrap : Using eth1:10.4.0.3<0>")
    own += nccl.format(
        "", "INFO ncclCommInitRank comm 0x5a10 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x71 - Init START"
    )
    own += "\n" + nccl.format("misc/nvmlwrap.cc:187 ", "WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found")
    return own + nccl.format("", "INFO graph/xml.cc:850 -> 2") + nccl.format("", "INFO init.cc:1837 -> 2") + more


def test_a_worker_that_fails_without_lines_of_nccl_is_no_missing_rank(tmp_path: Path) -> None:
    tag = WORKER.format(", ip=10.4.0.3")
    stack = f'{tag}Traceback (most recent call last):\n{tag}  File "/opt/w.py", line 4, in init\n{tag}    make()\n'
    report = analyzed(tmp_path, _one_of_two(f"{stack}{tag}RuntimeError: NCCL error: unhandled system error\n"))
    rows = [(row.rank, row.host, row.pid, row.stage, row.state) for row in report.ranks]
    assert rows == [(0, "hosta", 31, "topology", "failed"), (None, "hosta", 4402, "no NCCL line", "failed")]
    assert report.coverage.missing_ranks == ()


@pytest.mark.parametrize("line", [WORKER.format("") + "INFO loaded\n", "(Dashboard pid=77) KeyError: 'x'\n", ""])
def test_a_rank_of_which_nothing_is_seen_is_missing(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, _one_of_two(line))
    assert [(row.rank, row.state) for row in report.ranks] == [(0, "failed"), (1, "missing")]


FAILS = "n3:50:50 [1] NCCL INFO transport/net.cc:476 -> 2\nTest NCCL failure sum.cu:88 'internal error'\n"


def test_a_warning_without_its_prefix_is_the_reason_that_a_benchmark_lacks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "NET/OFI Unexpected number of groups 5\n" + FAILS)
    assert report.reason == "nccl-tests stopped: NET/OFI Unexpected number of groups 5"
    assert not any("does not hold" in f.next_step or "not in this log" in f.title for f in report.findings)


@pytest.mark.parametrize("line", ["", "buffers of 5 groups are ready\n", "NET/OFI Initializing aws-ofi-nccl 1.9.1\n"])
def test_a_line_without_a_prefix_that_warns_of_nothing_is_no_reason(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, line + FAILS)
    assert report.reason == "nccl-tests stopped: internal error"
    assert "which this log does not hold" in report.findings[0].next_step


def test_the_first_error_of_any_backend_of_nixl_leads(tmp_path: Path) -> None:
    head = "E0611 08:00:02.104411    3110 libfabric_{}] {}\n"
    log = head.format("rail.cpp:12", "fi_mr_reg failed on rail 0: Bad address") + head.format(
        "backend.cpp:7", "no memory"
    )
    found = analyzed(tmp_path, log + "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n").findings[0]
    assert found.title == "NIXL failed in process 3110: fi_mr_reg failed on rail 0: Bad address"
    assert not found.explanation.endswith("(UCX) before it say why.")


def test_a_backend_of_nixl_that_tells_of_no_error_is_none(tmp_path: Path) -> None:
    log = "I0611 08:00:02.104411    3110 libfabric_rail.cpp:12] rail 0 is ready\n"
    assert not any("NIXL" in f.title for f in analyzed(tmp_path, log).findings)


WRAPPED = (
    'Traceback (most recent call last):\n  File "/srv/fit.py", line 9, in fit\n    for batch in loader:\n'
    '  File "/opt/site-packages/torch/_utils.py", line 440, in reraise\n    raise exception\n'
    "KeyError: Caught KeyError in DataLoader worker process 3.\n{}"
)
ORIGINAL = (
    'Original Traceback (most recent call last):\n  File "/srv/rows.py", line 31, in __getitem__\n    return self.rows[key]\n'
    "KeyError: 'row-17'\n"
)


def test_the_exception_of_a_helper_is_quoted_and_not_the_one_that_passes_it_on(tmp_path: Path) -> None:
    found = analyzed(tmp_path, WRAPPED.format("\n" + ORIGINAL)).findings
    assert len(found) == 1 and found[0].title.endswith(": KeyError: 'row-17'")
    assert "rows.py" in found[0].evidence[1].text
    cut = analyzed(tmp_path, WRAPPED.format("")).findings
    assert "Caught KeyError in DataLoader worker process 3" in cut[0].title


MEMORY = "E0511 09:14:31.500212 8812 rdma_context.cpp:99] Failed to register memory 0x7f4410000000: Bad address [14]\n"
REFUSED = "E0511 09:15:02.101213 8840 worker_pool.cpp:9] Worker: Cannot make connection for endpoint: 10.6.0.9:15333@mlx5_1, mark it inactive\n"
SLICE = (
    "E0511 09:15:04.100001 8840 worker_pool.cpp:9] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f, length: 64, dest_addr: 0x7e, "
    "local_nic: mlx5_0, peer_nic: 10.6.0.9:15333@mlx5_1, dest_rkey: 5, retry_cnt: 0): transport retry counter exceeded\n"
)
REQUEST = (
    "[2026-05-11 09:15:09] Decode transfer failed for request rank=0 decode_req.req.rid='7' decode_req.req.bootstrap_room=5 with exception "
    "KVTransferError(bootstrap_room=5): Failed to get kvcache from prefill instance, it might be dead\n"
)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (MEMORY + REQUEST, "could not register memory with its RDMA device: Bad address"),
        (REFUSED + SLICE + REQUEST, "could not connect to 10.6.0.9"),
        (SLICE + REFUSED + REQUEST, "transfer of Mooncake's transfer engine with 10.6.0.9 failed"),
        (REQUEST, "a transfer between a prefill and a decode instance failed"),
    ],
)
def test_what_failed_first_in_a_transport_leads(log: str, words: str, tmp_path: Path) -> None:
    assert words in analyzed(tmp_path, log).reason


def test_a_transfer_engine_that_works_shows_no_failure(tmp_path: Path) -> None:
    log = "I0511 09:14:31.500212 8812 rdma_context.cpp:99] RDMA device: mlx5_0, LID: 0\n"
    assert not analyzed(tmp_path, log).findings


DEVICE = 'Traceback (most recent call last):\n  File "/srv/w.py", line 5, in place\n    use(3)\nRuntimeError: {} error: invalid device ordinal\n'


@pytest.mark.parametrize(
    ("runtime", "has", "lacks"), [("HIP", "rocm-smi", "nvidia-smi"), ("CUDA", "nvidia-smi", "rocm-smi")]
)
def test_advice_names_the_tools_of_the_gpus_of_the_job(runtime: str, has: str, lacks: str, tmp_path: Path) -> None:
    found = analyzed(tmp_path, DEVICE.format(runtime)).findings[0]
    assert found.title.startswith(f"{runtime} error on ")
    assert has in found.next_step and lacks not in found.next_step and f"{runtime}_VISIBLE_DEVICES" in found.next_step


PART = "[2026-05-04 10:11:12{}] Scheduler hit an exception: Traceback (most recent call last):\n"
SYNC = '  File "/opt/sg/scheduler.py", line 7, in run\n    self.sync()\n{}\n'


@pytest.mark.parametrize(("tag", "who"), [(" TP6", "rank 6"), ("", "a process")])
def test_the_rank_in_the_head_of_a_traceback_is_that_of_the_line_that_ends_it(
    tag: str, who: str, tmp_path: Path
) -> None:
    closed = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.3.0.5]:45410"
    report = analyzed(tmp_path, PART.format(tag) + SYNC.format(closed))
    assert report.reason == f"{who} lost the gloo connection to 10.3.0.5"


def test_a_line_of_another_process_within_a_traceback_has_not_its_rank(tmp_path: Path) -> None:
    closed = "[E] [/b/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.3.0.5]:45410"
    report = analyzed(tmp_path, PART.format(" TP6") + closed + "\n" + SYNC.format("ValueError: no"))
    assert "rank 6 lost" not in report.reason


def test_the_condition_that_an_assertion_quotes_is_about_no_other_rank(tmp_path: Path) -> None:
    text = "RuntimeError: Failed: Assertion error /b/csrc/kernels/setup.cu:77 'split(world, rank % MAX_PEERS) == 0'"
    report = analyzed(tmp_path, PART.format(" TP2") + SYNC.format(text))
    assert [c.rank for c in report.culprits] == [2]
    assert "'split(world, rank % MAX_PEERS) == 0'" in report.reason
    assert "shuts down" in report.findings[0].explanation
    peer = analyzed(tmp_path, PART.format(" TP2") + SYNC.format("RuntimeError: peer 3 went away"))
    assert not peer.culprits


def test_a_long_text_is_cut_without_the_folders_of_a_source_file(tmp_path: Path) -> None:
    folders = "/home/builder/projects/trainer/third_party/kernels/csrc/"
    text = (
        f"RuntimeError: Failed: Assertion error {folders}run.cu:5 'f(a_very_long_name_of_a_constant,{'b' * 90}) == 0'"
    )
    title = analyzed(tmp_path, SYNC.format(text)).findings[0].title
    assert "Assertion error run.cu:5 'f(a_very_long" in title and title.endswith("\N{HORIZONTAL ELLIPSIS}")


WRONG = "\nn5:90:{} [0] socket.cc:446 NCCL WARN socketFinalizeAccept: wrong type 3 != 4\n"
BEGINS = (
    "n5:90:91 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 2 nranks 3 cudaDev 0 busId 31000 commId 0x9c - Init START\n"
)


def test_a_warning_with_which_the_log_ends_is_less_sure_than_one_that_a_process_returned(tmp_path: Path) -> None:
    found = analyzed(tmp_path, BEGINS + WRONG.format(92)).findings[0]
    assert found.title.endswith("wrong type 3 != 4; the log of the process ends there") and found.confidence <= 0.6
    back = "".join(
        f"n5:90:92 [0] NCCL INFO {place} -> 3\n" for place in ("socket.cc:446", "group.cc:75", "init.cc:1900")
    )
    found = analyzed(tmp_path, BEGINS + WRONG.format(92) + back).findings[0]
    assert "ends there" not in found.title and found.confidence > 0.6


GOOD = "SUCCESS:  nhc:  Health check passed:  check_{}: as expected\n"
BAD = "ERROR:  nhc:  Health check failed:  check_fans: Expected 6 and found 5\n"
OVER = "Health checks completed with exit code: {}.\n"


def test_a_node_of_which_all_health_checks_passed_is_healthy(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "Running the checks\n" + GOOD.format("gpus") + GOOD.format("links") + OVER.format(0))
    assert (report.verdict, report.reason) == (
        "healthy",
        "2 health checks of the node passed, and the log shows no job",
    )


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (GOOD.format("gpus") + GOOD.format("links"), "inconclusive"),  # cut
        (GOOD.format("gpus") + OVER.format(1), "inconclusive"),
        (OVER.format(0), "inconclusive"),
        (GOOD.format("gpus") + BAD + OVER.format(1), "failed"),
        (GOOD.format("gpus") + BAD + OVER.format(0), "failed"),
        (GOOD.format("gpus") + OVER.format(0) + DEVICE.format("CUDA"), "failed"),
        (GOOD.format("gpus") + OVER.format(0) + BEGINS, "inconclusive"),
    ],
)
def test_checks_that_did_not_all_pass_or_that_a_job_follows_are_not(log: str, verdict: str, tmp_path: Path) -> None:
    assert analyzed(tmp_path, log).verdict == verdict


STARTED = "(raylet) [2026-05-05 09:00:0{0},1 E 12 12] (raylet) worker_pool.cc:586: Some workers of the worker process(66{0}) have not registered within the timeout. The process is {1}, probably it {2}.\n"


def test_workers_of_ray_that_died_at_their_start_are_named(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(STARTED.format(n, "dead", "crashed during start") for n in (1, 2)))
    assert report.reason == "Ray started worker processes that died before they registered: 661 and 662"
    assert [c.pid for c in report.culprits] == [661, 662]


def test_a_worker_of_ray_that_starts_slowly_is_not_dead(tmp_path: Path) -> None:
    report = analyzed(tmp_path, STARTED.format(1, "still alive", "is hanging during start"))
    assert "died" not in report.reason and not report.culprits
