"""Lines of frameworks that say by themselves who failed or who is late: each format gives the verdict and the process that it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

HEAD = 'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    main()\n'
MEGATRON = "Rank {r}: found NaN in local forward loss calculation. Device: 1, node: n07\n"
RERUN = "Rank 5, node n07, device 1, iteration #12: "
MONITOR = "[2026-01-01 10:00:00,000] [WARNING] [RankMonitorServer4711@n07:{r}] "
UNHEALTHY = (
    "F client.h:80] absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
)
TASK = "/job:jax_worker/replica:0/task:"
BARRIER = f"# of tasks that reached the barrier: {{came}}/{{total}}.\nThe first task at the barrier: {TASK}2. Some timed out task names:\n"
CRASHED = "The tasks have crashed. Check the task logs for an earlier error\n"
UNUSED = "Parameter indices which did not receive grad for rank {r}: 4 5\n"
SHAPES = "RuntimeError: [{r}]: params[0] in this process with sizes [2, 3] appears not to match sizes of the same param in process 0.\n"
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600015 milliseconds before timing out.\n"
)
STEPS = "".join(f" iteration {i:8}/    1000 | consumed samples: {i} | loss: 1.0\n" for i in range(9))

# log, verdict, what each culprit names
FORMATS = {
    "ddp unused": (HEAD + UNUSED.format(r=1), "failed", [{"rank": 1}]),
    "ddp unused names": (
        HEAD + "Parameters which did not receive grad for rank 3: b.weight\n",
        "failed",
        [{"rank": 3}],
    ),
    "ddp unused everywhere": ("".join(f"[rank{r}]: " + UNUSED.format(r=r) for r in range(4)), "failed", []),
    "ddp shapes": (HEAD + SHAPES.format(r=1), "failed", [{"rank": 1}]),
    "ddp shapes of rank 0": ("".join(HEAD + SHAPES.format(r=r) for r in (1, 2, 3)), "failed", []),
    "ddp counts": (
        HEAD
        + "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 338 params, while rank 0 has inconsistent 0 params.\n",
        "failed",
        [],
    ),
    "fsdp order": (
        HEAD
        + "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 2 parameters while rank 3 is all-gathering 1 parameters\n",
        "failed",
        [],
    ),
    "checkpoint": (
        HEAD + "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])\n",
        "failed",
        [{"rank": 3}],
    ),
    "gloo barrier": ("RuntimeError: Rank 0 timed out in monitoredBarrier after 1000 ms.\n", "hung", []),
    "spawn": (
        "Exception: \n\n-- Process 3 terminated with the following error:\n" + HEAD + "ValueError: bad shard\n",
        "failed",
        [{"rank": 3, "rank_basis": "assumed: local rank"}],
    ),
    "cuda out of memory": (
        HEAD
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB\n",
        "failed",
        [{"device": 3}],
    ),
    "cuda out of memory 2.1": (
        HEAD
        + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacty of 79.11 GiB\n",
        "failed",
        [{"device": 3}],
    ),
    "cuda out of memory 1.x": (
        HEAD
        + "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 5; 10.76 GiB total capacity; 9.58 GiB already allocated)\n",
        "failed",
        [{"device": 5}],
    ),
    "out of memory of a tagged rank": (
        "[rank: 2] RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity)\n",
        "failed",
        [{"rank": 2}],
    ),
    "out of memory everywhere": (
        "".join(
            f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU {d} has a total capacity of 79 GiB\n"
            for d in range(4)
        ),
        "failed",
        [],
    ),
    "paddle out of memory": (
        HEAD
        + "Out of memory error on GPU 3. Cannot allocate 1.000000GB memory on GPU 3, available memory is only 716.7MB.\n",
        "failed",
        [{"device": 3}],
    ),
    "cuda 0.4": (
        HEAD
        + "RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/src/THC/x.cu:26\n",
        "failed",
        [],
    ),
    "megatron": (HEAD + "AssertionError: " + MEGATRON.format(r=5), "failed", [{"rank": 5, "device": 1, "host": "n07"}]),
    "megatron validation": (
        HEAD
        + "RuntimeError: Rank 5, node n07, device 1, iteration 12: Unexpected result nan (message='found NaN in local forward loss calculation')\n",
        "failed",
        [{"rank": 5, "device": 1, "host": "n07"}],
    ),
    "megatron rerun": (
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 5 at iteration #12 invocation #1 (message='spiky loss')\n",
        "failed",
        [{"rank": 5}],
    ),
    "megatron persistent": (
        f"ERROR:megatron.core.rerun_state_machine:{RERUN}Possible persistent error!!\n",
        "failed",
        [{"rank": 5, "device": 1, "host": "n07"}],
    ),
    "heartbeat": (
        MONITOR.format(r=5) + "Did not get subsequent heartbeat. Waited 90.00 seconds.\n",
        "hung",
        [],
    ),
    "heartbeat of a cycle": (
        MONITOR.format(r=5) + "[Cycle 0] Did not get initial heartbeat. Waited 90.00 seconds.\n",
        "hung",
        [],
    ),
    "section": (
        MONITOR.format(r=5) + "[Cycle 1] Section 'step' has been open for 91.20 seconds. Timeout is 90.00 seconds.\n",
        "hung",
        [],
    ),
    "out of section": (
        MONITOR.format(r=5) + "Was out of section for 91.20 seconds. Timeout is 90.00 seconds.\n",
        "hung",
        [],
    ),
    "heartbeats of all": (
        "".join(MONITOR.format(r=r) + "Did not get subsequent heartbeat. Waited 90.00 seconds.\n" for r in range(4)),
        "hung",
        [],
    ),
    "in-process": ("[In-process] Interruption.EXCEPTION affecting ranks {3}\n", "failed", [{"rank": 3}]),
    "in-process, two": (
        "[In-process] Interruption.UNRESPONSIVE affecting ranks {3, 5}\n",
        "hung",
        [{"rank": 3}, {"rank": 5}],
    ),
    "gpu health": (
        "2026-01-01 10:00:00 [WARNING] [n07] [workload:5(1) infra:0(0)] health_check.py:416 GPU 1: Requires a reset to recover. "
        "Terminate GPU processes and reset the GPU.\n",
        "failed",
        [{"rank": 5, "device": 1}],
    ),
    "deepspeed": (
        HEAD
        + "RuntimeError: Detected a disagreement on list length between rank0 and rank3: \n rank0: 5 \n rank3: 6\n",
        "failed",
        [{"rank": 3}],
    ),
    "deepspeed, no gradient": (
        HEAD + "AssertionError: rank 3 - Invalid to reduce Param 4 with None gradient\n",
        "failed",
        [{"rank": 3}],
    ),
    "lightning child": (
        "[rank: 3] Child process with PID 4711 terminated with code -9. Forcefully terminating all other processes to avoid zombies\n",
        "failed",
        [{"rank": 3, "pid": 4711}],
    ),
    "lightning deadlock": (
        "pytorch_lightning.utilities.exceptions.DeadlockDetectedException: DeadLock detected from rank: 2 \n" + HEAD,
        "failed",
        [{"rank": 2}],
    ),
    "chainermn": (
        "*****\nUncaught exception was detected on rank 3. \n" + HEAD + "ValueError: bad\n*****\n",
        "failed",
        [{"rank": 3}],
    ),
    "loguru": (
        "2026-01-01 10:00:00 | ERROR | yolox.core.launch:98 - An error has been caught in function 'launch', process 'MainProcess' (4711), "
        "thread 'MainThread' (140245678):\n" + HEAD + "ValueError: bad\n",
        "failed",
        [{"pid": 4711}],
    ),
    "onnx runtime": (
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered ; GPU=3 ; hostname=n07 ; file=x.cc ; line=4\n",
        "failed",
        [{"device": 3, "host": "n07"}],
    ),
    "ucc": (
        "[1700000000.123456] [n07:4711:0]        ucc_team.c:300  UCC  ERROR failed to create tl context for cl hier\n",
        "failed",
        [{"host": "n07", "pid": 4711}],
    ),
    "nvshmem": ("/src/host/init/init.cu:726: non-zero status: 7 nvshmem setup connections failed\n", "failed", []),
    "fabric manager": (
        "[ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33\n",
        "failed",
        [],
    ),
    "xid of a process": (
        "[  812.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n",
        "failed",
        [{"pid": 4711}],
    ),
    "xid of a host": (
        "Nov 23 10:00:00 n07 kernel: [  812.1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
        "failed",
        [{"host": "n07"}],
    ),
    "jax": (UNHEALTHY + TASK + "5\n" + CRASHED, "failed", [{"rank": 5}]),
    "jax, two": (UNHEALTHY + TASK + "5\n" + TASK + "6\n" + CRASHED, "failed", [{"rank": 5}, {"rank": 6}]),
    "jax under srun": (" 0: " + UNHEALTHY + " 0: " + TASK + "8\n 0: " + CRASHED, "failed", [{"rank": 8}]),
    "jax, three": (
        UNHEALTHY + "".join(f"{TASK}{t}\n" for t in (17, 21, 9)) + CRASHED,
        "failed",
        [{"rank": 9}, {"rank": 17}, {"rank": 21}],
    ),
    "jax, three on a line": (
        (UNHEALTHY + "".join(f"{TASK}{t}\n" for t in (17, 21, 9)) + CRASHED).replace("\n", " ") + "\n",
        "failed",
        [{"rank": 9}, {"rank": 17}, {"rank": 21}],
    ),
    "jax, three in JSON": (
        json.dumps({"message": UNHEALTHY + "".join(f"{TASK}{t}\n" for t in (17, 21, 9)) + CRASHED}) + "\n",
        "failed",
        [{"rank": 9}, {"rank": 17}, {"rank": 21}],
    ),
    "jax, others do not poll": (
        f"E x.cc:1] The following 2 tasks in the cluster has not sent request to poll for error. Error will not be propagated to these tasks: {TASK}1,{TASK}2\n"
        + UNHEALTHY
        + TASK
        + "3\n"
        + CRASHED,
        "failed",
        [{"rank": 3}],
    ),
    "jax, all are in error": (
        "".join(
            f"E x.cc:1] {TASK}{t} has been set to ERROR in coordination service: UNAVAILABLE: Task {TASK}5 heartbeat timeout.\n"
            for t in range(4)
        ),
        "failed",
        [{"rank": 5}],
    ),
    "jax barrier, some of the late": (
        BARRIER.format(came=13, total=16) + f"{TASK}5\n{TASK}6\n\n",
        "hung",
        [{"rank": 5}, {"rank": 6}],
    ),
    "jax barrier, half": (
        BARRIER.format(came=2, total=4) + f"{TASK}1\n{TASK}0\n\n",
        "hung",
        [{"rank": 0}, {"rank": 1}],
    ),
    "jax barrier, one came": (BARRIER.format(came=1, total=8) + f"{TASK}3\n{TASK}5\n\n", "hung", []),
    "jax barrier, 2023": (
        f"Barrier timed out. Barrier_id: b0. Timed out task names:\n{TASK}3\n{TASK}0\n\nAdditional error\n",
        "hung",
        [{"rank": 0}, {"rank": 3}],
    ),
    "jax barrier left": (
        f"INTERNAL: Barrier failed because: task disconnected. Barrier Id: s::2, Task: {TASK}3\n",
        "failed",
        [{"rank": 3}],
    ),
    "jax barrier": (
        f"# of tasks that reached the barrier: 7/8.\nThe first task at the barrier: {TASK}0. Some timed out task names:\n{TASK}5\n",
        "hung",
        [{"rank": 5}],
    ),
    "jax, task 0": (
        "E x.cc:1] UNAVAILABLE: Task /job:jax_worker/replica:0/task:0 heartbeat timeout.\n",
        "failed",
        [{"rank": 0}],
    ),
    "paddle": (
        "W comm_task_manager.cc:150] Find timeout start but not finish task:group_key:21,group_ranks:[0, 1],global_rank:3,local_rank:1,"
        "comm_count:12,op:AllReduce,started:1,completed:0,numel:4,nranks:2\n",
        "hung",
        [],
    ),
    "gloo connect": (
        HEAD
        + "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:210] Connect timeout [10.0.0.7]:8811\n",
        "failed",
        [{"host": "10.0.0.7"}],
    ),
    "data parallel": (
        HEAD + "RuntimeError: Caught RuntimeError in replica 1 on device 3.\n",
        "failed",
        [{"device": 3}],
    ),
    "pinned memory": (
        HEAD + "RuntimeError: Caught RuntimeError in pin memory thread for device 2.\n",
        "failed",
        [{"device": 2}],
    ),
    "data loader": (
        HEAD + "RuntimeError: DataLoader worker (pid 27351) is killed by signal: Killed.\n",
        "failed",
        [{"pid": 27351}],
    ),
    "jax restart": (
        f"ABORTED: {TASK}3 unexpectedly tried to connect with a different incarnation. It has likely restarted.\n",
        "failed",
        [{"rank": 3}],
    ),
    "tensorflow check": (
        "ERROR:tensorflow:Cluster check alive failed, /job:worker/replica:0/task:2 is down, aborting collectives: Deadline Exceeded\n",
        "failed",
        [{"rank": 2}],
    ),
    "tensorflow call": (
        "UnavailableError: Collective ops is aborted by: x Additional GRPC error information from remote target /job:worker/replica:0/task:2:\n",
        "failed",
        [{"rank": 2}],
    ),
    "tensorflow out of memory": (
        "OOM when allocating tensor with shape[64,512] and type float on /job:localhost/replica:0/task:0/device:GPU:3 by allocator GPU_3_bfc\n",
        "failed",
        [{"device": 3}],
    ),
    "tensorflow worker out of memory": (
        "OOM when allocating tensor with shape[64,512] and type float on /job:worker/replica:0/task:2/device:GPU:0 by allocator GPU_0_bfc\n",
        "failed",
        [{"rank": 2, "device": 0}],
    ),
    "cupy": (
        HEAD + "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error\n",
        "failed",
        [],
    ),
    "raft": (
        "NCCL error encountered at: file=/x/std_comms.hpp line=70: call='ncclCommInitRank(&c, n, id, r)', Reason=5:invalid usage\n",
        "failed",
        [],
    ),
    "oneflow": ("Check failed: ncclCommInitRank(&comm, 8, id, 3) : unhandled system error (2) \n", "failed", []),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_that_names_who_failed_gives_the_verdict_and_the_culprit(name: str, tmp_path: Path) -> None:
    text, verdict, expected = FORMATS[name]
    report = analyzed(tmp_path, text)
    assert report.verdict == verdict
    assert len(report.culprits) == len(expected)
    for culprit, parts in zip(sorted(report.culprits, key=lambda c: c.rank or 0), expected, strict=True):
        assert {key: getattr(culprit, key) for key in parts} == parts
    assert "{" not in report.reason


def test_a_process_that_works_on_after_such_a_line_has_not_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "AssertionError: " + MEGATRON.format(r=5) + STEPS)
    assert report.verdict == "inconclusive" and not report.culprits
    assert analyzed(tmp_path, STEPS + "AssertionError: " + MEGATRON.format(r=5)).verdict == "failed"


def test_what_a_rank_says_of_itself_explains_the_wait_of_the_others(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "[rank5]: AssertionError: " + MEGATRON.format(r=5) + WATCHDOG)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [5])
    assert "found NaN" in report.reason


def test_what_follows_a_watchdog_is_no_cause(tmp_path: Path) -> None:
    report = analyzed(tmp_path, WATCHDOG + "[rank5]: AssertionError: " + MEGATRON.format(r=5))
    assert report.verdict == "hung" and not report.culprits


def test_the_launcher_confirms_the_rank_that_names_itself(tmp_path: Path) -> None:
    block = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_10:00:00\n  host      : n07\n  rank      : 5 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 812917)\n"
    )
    report = analyzed(tmp_path, HEAD + "AssertionError: " + MEGATRON.format(r=5) + block)
    assert [c.rank for c in report.culprits] == [5] and "unexpected result" in report.reason
    other = analyzed(tmp_path, HEAD + "AssertionError: " + MEGATRON.format(r=5) + block.replace(": 5 (", ": 6 ("))
    assert [c.rank for c in other.culprits] == [6]
