"""What inference engines and RL frameworks print about failed, dead and late processes: a generated log for each form, with its truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit

ERROR = "ERROR 03-01 10:00:00 "
SGL = "[2026-03-01 10:00:00{}] "
TRT = "[03/01/2026-10:00:00] [TRT-LLM] "
TGI = "2026-03-01T10:00:00.000000Z {} text_generation_launcher: "
GLOG = "E0301 10:00:00.719655  4711 "
OWN = "ValueError: bad block table"
CUDA = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
HTTP = "(APIServer pid=5) "
SIGQUIT = SGL.format("") + "Received sigquit from a child process. It usually means the child failed.\n"


def raised(tag: str, text: str, head: str | None = None) -> str:
    lines = ("Traceback (most recent call last):", '  File "/opt/worker.py", line 12, in run', "    x = f(n)", text)
    return "".join(f"{(head if not at and head is not None else tag)}{line}\n" for at, line in enumerate(lines))


def engine(tag: str, text: str) -> str:
    """A worker of vLLM that threw, the engine's core that repeats it, and the server that finds the core dead."""
    core, server = (
        f"(EngineCore_DP0 pid=77) {ERROR}[core.py:700] ",
        f"{HTTP}{ERROR}[async_llm.py:480] ",
    )
    return (
        f"{tag}{ERROR}[multiproc_executor.py:597] WorkerProc hit an exception.\n"
        + raised(f"{tag}{ERROR}[multiproc_executor.py:597] ", text)
        + f"{core}EngineCore encountered a fatal error.\n"
        + raised(
            core,
            f"RuntimeError: Worker failed with error '{text}', please check the stack trace above for the root cause",
        )
        + f"{server}AsyncLLM output_handler failed.\n"
        + raised(
            server,
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )
    )


def scheduler(head: str, text: str) -> str:
    return raised("", text, f"[{head}] Scheduler hit an exception: ") + SIGQUIT


def chain(text: str) -> str:
    """Ray's driver, which repeats the exception of a task that repeats the exception of a worker."""
    kind = text.partition(":")[0].rpartition(".")[2]
    return (
        'Traceback (most recent call last):\n  File "/opt/main_ppo.py", line 80, in main\n    ray.get(runner.run.remote(config))\n'
        f"ray.exceptions.RayTaskError({kind}): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=100, ip=10.0.0.4, actor_id=aa01, repr=<main_ppo.TaskRunner>)\n"
        '  File "/opt/ray_trainer.py", line 900, in fit\n    out = ray.get(x)\n'
        f"ray.exceptions.RayTaskError({kind}): \x1b[36mray::WorkerDict.update_actor()\x1b[39m (pid=903, ip=10.0.0.7, actor_id=aa02, repr=<WorkerDict>)\n"
        f'  File "/opt/fsdp_workers.py", line 500, in update\n    y = g(x)\n{text}\n'
    )


def check(tmp_path: Path, text: str, verdict: str, rank: int | None, host: str | None, pid: int | None) -> None:
    """Compare the verdict and the only culprit. All None: there is none."""
    (tmp_path / "job.log").write_text(text)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    named = [(c.rank, c.host, c.pid) for c in report.culprits]
    assert report.verdict == verdict, report.reason
    if rank is None and host is None and pid is None:
        assert not named, report.reason
        return
    assert len(named) == 1, report.reason
    assert named[0][0] == rank
    assert host is None or named[0][1] == host
    assert pid is None or named[0][2] == pid


# Tags of vLLM, and what they show: the rank, or the process where a number within a group is no rank of the job.
TAGS = [
    ("Worker_TP1", 1),
    ("Worker_TP1_EP1", 1),
    ("Worker_TP1_DCP1", 1),
    ("Worker_DP0_TP1_EP1", 1),
    ("Worker_DP1_TP1_EP3", 3),
    ("Worker_DP1_EP1", 1),
    ("Worker_PP0_TP1", 1),
    ("VllmWorker rank=1", 1),
    ("VllmWorker TP1", 1),
    ("VllmWorker PP1_TP1", None),
    ("Worker_PP1_TP1", None),
    ("Worker_PP1_TP0_EP0", None),
    ("Worker_DP1_TP1", None),
    ("Worker_PCP1_TP0", None),
    ("Worker", None),
    ("VllmWorkerProcess", None),
]


@pytest.mark.parametrize("text", [OWN, CUDA], ids=["exception", "cuda"])
@pytest.mark.parametrize(("tag", "rank"), TAGS)
def test_worker_of_vllm_that_threw_is_named_and_not_those_that_repeat_it(
    tag: str, rank: int | None, text: str, tmp_path: Path
) -> None:
    check(tmp_path, engine(f"({tag} pid=903) ", text), "failed", rank, None, None if rank is not None else 903)


def test_colours_and_other_tags_around_a_tag_of_vllm_do_not_hide_it(tmp_path: Path) -> None:
    check(tmp_path, engine("\x1b[1;36m(VllmWorker rank=1 pid=903)\x1b[0;0m ", OWN), "failed", 1, None, None)
    check(tmp_path, raised("2026-03-01 10:00:00.053 | (Worker_PP1_TP1 pid=903) ", OWN), "failed", None, None, 903)
    nested = "(EngineCore_0 pid=77) (RayWorkerWrapper pid=903) ERROR 03-01 10:00:00 [worker_base.py:619] "
    check(tmp_path, raised(nested, OWN), "failed", None, None, 903)


# Heads of SGLang's lines: releases differ in the form of the time and in the groups that they name.
HEADS = [
    ("2026-03-01 10:00:00 TP3", 3),
    ("2026-03-01 10:00:00 DP0 TP3", 3),
    ("2026-03-01 10:00:00 DP1 TP5 EP5", 5),
    ("2026-03-01 10:00:00 PP0 TP3", 3),
    ("2026-03-01 10:00:00 DP0 PP0 TP3 EP3", 3),
    ("2026-03-01 10:00:00 ATTN_CP0 MOE_DP0 TP3 EP3", 3),
    ("2026-03-01 10:00:00.123 TP3", 3),
    ("03-01 10:00:00 TP3", 3),
    ("10:00:00 TP3", 3),
    ("2026-03-01 10:00:00 PP1 TP3", None),
    ("2026-03-01 10:00:00", None),
]


@pytest.mark.parametrize("text", [OWN, CUDA], ids=["exception", "cuda"])
@pytest.mark.parametrize(("head", "rank"), HEADS)
def test_scheduler_of_sglang_that_threw_is_named(head: str, rank: int | None, text: str, tmp_path: Path) -> None:
    check(tmp_path, scheduler(head, text), "failed", rank, None, None)


@pytest.mark.parametrize("text", [OWN, CUDA], ids=["exception", "cuda"])
@pytest.mark.parametrize(
    ("log", "host"),
    [
        (chain, "10.0.0.7"),
        (lambda text: raised("(WorkerDict pid=903, ip=10.0.0.7) ", text), "10.0.0.7"),
        (lambda text: raised("(MegatronTrainRayActor pid=903) ", text), None),
        (lambda text: raised("(SGLangEngine pid=903, ip=10.0.0.7) ", text), "10.0.0.7"),
        (lambda text: "".join(f"(TaskRunner pid=100) {line}\n" for line in chain(text).splitlines()), "10.0.0.7"),
        (lambda text: raised("(WorkerDict pid=903, ip=10.0.0.7) ", text) + chain(text), "10.0.0.7"),
    ],
    ids=["chain", "worker", "no address", "engine", "tagged chain", "worker and chain"],
)  # fmt: skip
def test_last_task_of_a_chain_of_ray_threw_and_the_others_repeat_it(
    log: object, host: str | None, text: str, tmp_path: Path
) -> None:
    assert callable(log)
    check(tmp_path, log(text), "failed", None, host, 903)


FOLDED = raised("(WorkerDict pid=903, ip=10.0.0.7) ", f"{OWN} [repeated 7x across cluster]")
TWO = raised("(Worker_PP1_TP0 pid=903) ", OWN) + raised("(Worker_PP1_TP1 pid=904) ", "{}")
PEER = raised(
    "(Worker_PP1_TP1 pid=904) ", "RuntimeError: NCCL error: remote process exited or there was a network error"
)


def test_both_workers_that_throw_the_same_are_named(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(TWO.format(OWN))
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert report.verdict == "failed" and [c.pid for c in report.culprits] == [903, 904]


@pytest.mark.parametrize(
    "text", [FOLDED, TWO.format("KeyError: 7"), PEER], ids=["folded", "two exceptions", "a peer's end"]
)
def test_no_process_is_named_where_several_threw_or_a_peer_is_blamed(text: str, tmp_path: Path) -> None:
    check(tmp_path, text, "failed", None, None, None)


# What a parent reports of a process that ended: log, verdict, rank, pid.
V0 = ERROR + "multiproc_worker_utils.py:123] Worker VllmWorkerProcess pid {} died, exit code: {}\n"
V1 = ERROR + "[multiproc_executor.py:150] Worker proc VllmWorker-{} died unexpectedly{}, shutting down executor.\n"
ENDS = {
    "vllm 0": (V0.format(903, -9), "failed", None, 903),
    "vllm 0, two": (V0.format(903, -9) + V0.format(904, -15), "failed", None, 903),
    "vllm 0, ended": (V0.format(903, -15), "inconclusive", None, None),
    "vllm 1": (f"(EngineCore pid=77) {V1.format(1, '')}", "failed", 1, None),
    "vllm 1 with a code": (f"(EngineCore pid=77) {V1.format(3, ' (exit code: -9)')}", "failed", 3, None),
    "vllm 1 of another engine": (f"(EngineCore_DP1 pid=77) {V1.format(1, '')}", "failed", None, None),
    "vllm 1 after an exception": (engine("(Worker_TP2 pid=903) ", OWN) + V1.format(1, ""), "failed", 2, None),
    "vllm core": (f"{HTTP}{ERROR}[core_client.py:600] Engine core proc EngineCore_DP1 died unexpectedly, shutting down client.\n", "failed", 1, None),
    "vllm core alone": (f"(EngineCore_2 pid=903) {ERROR}[core.py:390] EngineCore hit an exception: Traceback (most recent call last):\n", "failed", None, 903),
    "vllm start": (raised(HTTP, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"), "failed", None, None),
    "vllm start of a worker": (raised("(EngineCore pid=77) ", "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."), "failed", None, None),
    "vllm queue": (raised("", "vllm.engine.multiprocessing.MQEngineDeadError: Engine loop is not running. Inspect the stacktrace to find the original error: x"), "failed", None, None),
    "vllm loop": (raised("", "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already."), "failed", None, None),
    "sglang start": (raised("", "RuntimeError: Rank 2 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer."), "failed", 2, None),
    "sglang start, ended": (raised("", "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3)."), "inconclusive", None, None),
    "sglang start, asked first": (raised("", "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)."), "failed", None, None),
    "sglang dead": (f"{SGL.format('')}Rank 2 scheduler is dead. Please check if there are relevant logs.\n{SGL.format('')}Exit code: -9\n", "failed", 2, None),
    "sglang dead, asked first": (f"{SGL.format('')}Rank 0 scheduler is dead. Please check if there are relevant logs.\n{SGL.format('')}Exit code: 1\n", "failed", None, None),
    "sglang terminated": ("".join(f"{SGL.format('')}Scheduler or DataParallelController {pid} terminated with {code}\n" for pid, code in ((902, -9), (903, -11))), "failed", None, 903),
    "sglang subprocess": (f"{SGL.format('')}Subprocess scheduler_2 (pid=903) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n", "failed", 2, 903),
    "sglang cut": (f"{SGL.format('')}Received sigquit from a child proces. It usually means the child failed.\n{SGL.format(' TP2')}Scheduler hit an exception: Traceback (most recent call last):\n", "failed", 2, None),
    "tgi": (TGI.format("ERROR shard-manager:") + "Shard complete standard error output:\n\n" + raised("", f"{OWN} rank=1") + TGI.format("ERROR") + "Shard 1 failed to start\nError: ShardCannotStart\n", "failed", 1, None),
    "tgi, cuda": (TGI.format("ERROR shard-manager:") + "Shard complete standard error output:\n\n" + raised("", f"{CUDA} rank=1") + TGI.format("ERROR") + "Shard 1 crashed\n", "failed", 1, None),
    "tgi signal": (TGI.format("ERROR shard-manager:") + "Shard process was signaled to shutdown with signal 9 rank=1\n" + TGI.format("ERROR") + "Shard 1 crashed\n", "failed", 1, None),
    "tgi json": ('{"level":"ERROR","fields":{"message":"Shard 1 crashed"}}\n{"level":"INFO","fields":{"message":"Terminating webserver"}}\n', "failed", 1, None),
    "trt-llm tag": (f"{TRT}[RANK 2] [E] Error in event loop: x\n" + raised("", OWN, f"{TRT}[RANK 2] [E] "), "failed", 2, None),
    "trt-llm number": ("[TensorRT-LLM][ERROR][2] Assertion failed: x\n" + raised("", CUDA, "[TensorRT-LLM][ERROR][2] "), "failed", 2, None),
    "trt-llm start": (f"{TRT}[E] Failed to initialize executor on rank 2: bad block table\n" + raised("", OWN, f"{TRT}[E] "), "failed", 2, None),
    "trt-llm start, alone": (f"{TRT}[E] [executor] Failed to initialize executor on rank 2: bad block table\n", "failed", 2, None),
    "lmdeploy": ("2026-03-01 10:00:00,123 - lmdeploy - ERROR - mp_executor.py:282 - Received custom termination signal from sub processing, exiting...\n", "failed", None, None),
    "lmdeploy zmq": ("2026-03-01 10:00:00,123 - lmdeploy - ERROR - zmq_rpc.py:62 - PyTorch ZMQ engine process is not alive.\n", "failed", None, None),
    "verl": ("(TaskRunner pid=100) WARNING:root:worker Actor(WorkerDict, 9c72) is not alive sending signal to main thread\n(TaskRunner pid=100) Fatal Python error: Aborted\n", "failed", None, None),
    "driver alone": ("(TaskRunner pid=100) Fatal Python error: Aborted\n", "failed", None, 100),
    "nvshmem": ("/src/host/init/init.cu:1008: non-zero status: 7 nvshmemi_init_thread/initialize failed\n", "failed", None, None),
    "nvshmem abort": ("node7:903:903 [1] init.cpp:312 NVSHMEM ABORT\n", "failed", None, 903),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_process_of_which_a_parent_reports_the_end(name: str, tmp_path: Path) -> None:
    text, verdict, rank, pid = ENDS[name]
    check(tmp_path, text, verdict, rank, None, pid)


# Who waits reports; it is never the culprit: log, verdict, rank, host.
BLOCK = "(EngineCore_DP0 pid=77) INFO 03-01 10:00:00 [shm_broadcast.py:542] No available shared memory broadcast block found in 60 seconds.\n"
CHECK = "DeepEP timeout check failed: rank = {}, thread = {}, value = 1024)\n"
LOW = "Warning: DeepEP timeout for {} receive, rank {}, local_expert_idx 0, src_rank {}\n"
WAITS = {
    "vllm": (BLOCK + raised(f"(EngineCore_DP0 pid=77) {ERROR}", "TimeoutError: RPC call to execute_model timed out."), "hung", None, None),
    "vllm, with a cause": (raised("(Worker_PP1_TP1 pid=903, ip=10.0.0.7) ", OWN) + raised(f"(EngineCore_DP0 pid=77) {ERROR}", "TimeoutError: RPC call to execute_model timed out."), "failed", None, "10.0.0.7"),
    "vllm, a rank threw before": (raised("(Worker_TP1 pid=903) ", OWN) + raised(f"(EngineCore_DP0 pid=77) {ERROR}", "TimeoutError: RPC call to execute_model timed out."), "failed", 1, None),
    "sglang, a rank threw before": (raised("[rank3]:", OWN) + f"{SGL.format(' TP0')}Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n", "failed", 3, None),
    "sglang, a rank threw after it": (f"{SGL.format(' TP0')}Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n" + raised("[rank3]:", OWN), "hung", None, None),
    "vllm compiles": (BLOCK, "inconclusive", None, None),
    "sglang": ("".join(f"{SGL.format(f' TP{r}')}Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n" for r in range(2)), "hung", None, None),
    "sglang warns": (f"{SGL.format(' TP0')}Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)\n", "inconclusive", None, None),
    "trt-llm": (f"{TRT}[RANK 2] [E] Hang detected on rank 2 in PyExecutor.\n", "hung", None, None),
    "sglang heartbeat": (f"{SGL.format(' TP0')}Losing connection with prefill instance (bootstrap_addr: 10.0.0.3:8998), affected 3 requests\n", "failed", None, "10.0.0.3"),
    "sglang transfer": (f"{SGL.format(' TP3')}Prefill transfer failed for request rank=3 req.rid='05' req.bootstrap_room=88 with exception KVTransferError(bootstrap_room=88): Decode instance could be dead, remote mooncake session 10.0.0.3:16581 is not alive\n", "failed", None, None),
    "nixl": (raised("(Worker_TP1 pid=903) ", "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT"), "failed", None, None),
    "mooncake transfer": (f"{GLOG}worker_pool.cpp:274] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f, length: 65536, local_nic: mlx5_1, peer_nic: 10.0.0.3:15555@mlx5_2, dest_rkey: 12, retry_cnt: 0): transport retry counter exceeded\n", "failed", None, "10.0.0.3"),
    "mooncake group": (f"{GLOG}p2p_proxy.cpp:355] Rank 0: P2P SendOp to peer 3 (global=3) failed.\n{GLOG}p2p_proxy.cpp:366] Rank 1: P2P RecvOp from peer 3 (global=3) failed.\n", "failed", 3, None),
    "mooncake data": ("".join(f"{GLOG}mooncake_worker_thread.cpp:248] Rank {r} [DATA] transfer to peer 3 (global=3) failed for op 2 status=5 diff_us=6\n" for r in (0, 1)), "failed", 3, None),
    "deepep": ("".join(LOW.format("dispatch", r, 3) for r in (0, 1, 2)), "hung", 3, None),
    "deepep barrier": ("".join(f"Warning: DeepEP timeout for barrier, rank {r}, dst_rank 3\n" for r in (0, 1)), "hung", 3, None),
    "deepep notify": ("".join(f"DeepEP notify timeout, rank: {r}, thread: 3, count: 0\n" for r in (0, 1)), "hung", 3, None),
    "deepep, one waits": (LOW.format("combine", 0, 3), "hung", None, None),
    "deepep, each for the other": (LOW.format("combine", 0, 1) + LOW.format("combine", 1, 0), "hung", None, None),
    "deepep, two absent": (LOW.format("combine", 0, 2) + LOW.format("combine", 1, 3), "hung", None, None),
    "deepep check": (CHECK.format(0, 3) + CHECK.format(1, 3), "hung", None, None),
    **{f"deepep {text[:30]}": (f"DeepEP {text}\n", "hung", None, None) for text in (
        "timeout for dispatch senders, rank 2, responsible_channel = 3",
        "timeout for combine receivers, rank 2, responsible_channel = 3, expect = 4",
        "RDMA sender coordinator timeout, channel: 4, IB: 0, nvl 3, dst IB: 1, tail: 3, remaining: 2",
        "NVLink barrier timeout, tag: 1, nvl: 2, thread: 0, status: 0, signal: 7, phase: 0, target: 8, counter: 5",
        "Gin barrier timeout, tag: 1, scaleout: 0, scaleup: 3, thread: 1, signal: 3, target: 4",
        "notify (GPU reduction) timeout, rank: 1/8, thread: 0, status: 0 | 0, expected: 3",
        "hybrid notify (scale-up reduction) timeout,scale-out: 0/2, scale-up: 1/8, thread: 0, status: 0 | 0, expected: 3",
        "combine (scale-up wait) timeout, scale-out: 0/2, scale-up: 1/8, channel: 0, lane: 0, recv: 0, tail: 0 (wait=1)",
        "hybrid dispatch (forwarding) timeout, scale-out: 0, scale-up: 1, channel: 0, lane: 1, old scale-out tail: 0, scale-out tail: (0, 1)",
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_process_that_waits_is_no_culprit_and_the_only_absent_one_is(name: str, tmp_path: Path) -> None:
    text, verdict, rank, host = WAITS[name]
    check(tmp_path, text, verdict, rank, host, None)
