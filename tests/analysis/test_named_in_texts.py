"""Who the lines name that are not NCCL's: pods and workers before the lines, process ids, hosts, addresses and GPUs in their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.test_unknown_words import who
from tests.analysis.texts import analyzed

STACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 71, in main\n    step(batch)\n'
START = "reading the configuration\nstarting 4 workers\nall workers are up\n"


def tagged(tag: str, text: str) -> str:
    return "".join(f"{tag}{line}\n" for line in text.splitlines())


# what a launcher or a program puts before its lines; rank, host, pid
BEFORE = {
    "program": ("[Rank 3] ", 3, None, None),
    "program with a time": ("2026-03-01 10:00:00 [rank3] ", 3, None, None),
    "program with a bar": ("rank 3 | ", 3, None, None),
    "program with a short name": ("[R3] ", 3, None, None),
    "torchrun's local rank": ("[default3]:", 3, None, None),
    "kubectl": ("[pod/train-worker-3/main] ", None, "train-worker-3", None),
    "stern": ("train-worker-3 pytorch ", None, "train-worker-3", None),
    "Docker Compose": ("worker3-1  | ", None, "worker3-1", None),
    "pdsh": ("node7: ", None, "node7", None),
    "syslog": ("Mar  1 10:00:00 node7 trainer[4711]: ", None, "node7", 4711),
}


@pytest.mark.parametrize("name", [n for n in BEFORE if n != "syslog"])
def test_an_exception_is_that_of_who_stands_before_its_lines(name: str, tmp_path: Path) -> None:
    tag, *expected = BEFORE[name]
    assert who(tagged(tag, STACK + "ValueError: bad shard"), tmp_path) == ("failed", [tuple(expected)])


def test_a_local_rank_is_marked_as_an_assumption(tmp_path: Path) -> None:
    (culprit,) = analyzed(tmp_path, tagged("[default3]:", STACK + "ValueError: bad shard")).culprits
    assert culprit.rank_basis == "assumed: local rank"


# text, rank, host, pid, device
TEXTS = {
    "a GPU": ("ERROR cuda:3: kernel launch failed\n", None, None, None, 3),
    "a GPU in brackets": ("[GPU3] ERROR: kernel launch failed\n", None, None, None, 3),
    "a worker that ended": ("ERROR launcher: worker 3 exited with status 9\n", 3, None, None, None),
    "a worker with its code": ("ERROR worker 3 exited with code 139, stopping the others\n", 3, None, None, None),
    "a child with its id": ("ERROR: child process 4711 died with status 9\n", None, None, 4711, None),
    "an id in brackets": ("ERROR supervisor: worker (pid 4711) was killed\n", None, None, 4711, None),
    "JSON with a host": ('{"level":"error","host":"node7","msg":"cannot open shard 17"}\n', None, "node7", None, None),
    "JSON with an id": ('{"level":"error","pid":4711,"msg":"cannot open shard 17"}\n', None, None, 4711, None),
    "a refused login": ("ubuntu@node7: Permission denied (publickey).\n", None, "node7", None, None),
    "libmlx5": ("mlx5: node7: got completion with error:\n00000000 00008716\n", None, "node7", None, None),
    "UCX with a short id": ("[node7:471  :0:471] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n", None, "node7", 471, None),
    "clush": ("clush: node7: exited with exit code 1\n", None, "node7", None, None),
    "a pod of an operator": ("Warning  ExitedWithCode  5s  pytorchjob-controller  Pod: ml.llama-worker-3 exited with code 137\n", None, "llama-worker-3", None, None),
    "an evicted pod": ("12s  Warning  Evicted  pod/llama-worker-3  The node was low on resource: memory.\n", None, "llama-worker-3", None, None),
    "slurmstepd": ("slurmstepd-node7: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed.\n", None, "node7", None, None),
    "nvidia-smi": ("Unable to determine the device handle for GPU3: 0000:3B:00.0: Unknown Error\n", None, None, None, 3),
    "an exception about a rank": (STACK + "ValueError: loss became NaN on rank 3 at step 812\n", 3, None, None, None),
    "an exception about a URL": (STACK + "requests.exceptions.ConnectionError: HTTPConnectionPool(host='node7', port=8000): Max retries exceeded\n", None, "node7", None, None),
    "an exception about an address": (STACK + "ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.3', 5000)\n", None, "10.0.0.3", None, None),
    "a worker of vLLM": ("(VllmWorkerProcess pid=812) ERROR 03-01 10:00:00 multiproc_worker_utils.py:226] Exception in worker VllmWorkerProcess while processing method init_device: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), Traceback (most recent call last):\n", None, None, 812, None),
    "a process without memory on its GPU": (tagged("(WorkerDict pid=4711) ", STACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.20 GiB is free."), None, None, 4711, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_names_who_failed(name: str, tmp_path: Path) -> None:
    text, *expected = TEXTS[name]
    report = analyzed(tmp_path, START + text)
    assert report.verdict == "failed"
    assert [(c.rank, c.host, c.pid, c.device) for c in report.culprits] == [tuple(expected)], report.reason


@pytest.mark.parametrize(
    "text",
    [
        "ERROR http: Socket '0.0.0.0:8000' already in use\n",
        STACK + "ValueError: expected a tensor of rank 3\n",
        STACK + "ValueError: the weights must have rank 4\n",
        "ERROR: 3 tests failed, 17 passed\n",
        "0.1s: shell exited with code 1\n",
        "ERROR launcher: workers 1 and 2 failed, worker 3 exited, worker 4 exited\n",
    ],
)
def test_a_text_that_names_nobody_has_no_culprit(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, START + text)
    assert report.verdict == "failed" and not report.culprits, report.culprits


def test_an_equal_line_of_several_processes_names_none_of_them(tmp_path: Path) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.20 GiB is free."
    log = tagged("(WorkerDict pid=4711) ", STACK + f"{oom} [repeated 3x across cluster]")
    assert all(c.pid is None for c in analyzed(tmp_path, START + log).culprits)


@pytest.mark.parametrize(
    "log",
    [
        "srun: error: node7: tasks 1,3: Out Of Memory\n",
        "srun: error: node7: task 1: Out Of Memory\nsrun: error: node8: task 3: Out Of Memory\nslurmstepd: error: Detected 2 oom_kill events in StepId=12.0. Some of the step tasks have been OOM Killed.\n",
    ],
    ids=["one line", "a line each"],
)
def test_each_task_that_ran_out_of_memory_is_named(log: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, START + log)
    assert [c.rank for c in report.culprits] == [1, 3] and report.reason.startswith(
        "ranks 1 and 3 ran out of host memory"
    )
    assert sum(f.severity == "error" for f in report.findings) == 1


def test_a_line_that_names_nobody_is_not_the_end_of_others(tmp_path: Path) -> None:
    log = "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
    assert not any("others" in f.explanation for f in analyzed(tmp_path, START + log).findings)


def test_both_ends_of_a_transfer_that_failed_are_named(tmp_path: Path) -> None:
    log = "E0301 10:00:00.719655  4711 worker_pool.cpp:274] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f, length: 64, dest_addr: 0x7e, local_nic: mlx5_1, peer_nic: 10.0.0.3:15555@mlx5_2, dest_rkey: 12, retry_cnt: 0): transport retry counter exceeded\n"
    report = analyzed(tmp_path, START + log)
    assert [c.host for c in report.culprits] == ["10.0.0.3"] and "prefill" not in report.reason


@pytest.mark.parametrize("red", ["\x1b[31m", "\\x1b[31m", "\\033[1;31m", "\\u001b[31m"])
def test_a_title_has_no_colours(red: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, START + f"{red}ERROR{red[:-3]}0m frobnicator: {red}queue 4 overran\n")
    assert report.reason.endswith(": ERROR frobnicator: queue 4 overran")


TOP = STACK.replace("in main", "in <module>")


@pytest.mark.parametrize(
    ("log", "how"),
    [
        (TOP + "ValueError: bad shard\n", "ended by an uncaught exception"),
        (tagged("[rank3]: ", STACK + "ValueError: bad shard"), "ended by an uncaught exception"),
        (STACK + "ValueError: bad shard\n", "raised an exception"),
        ("ERROR:root:the step failed\n" + TOP + "ValueError: bad shard\n", "raised an exception"),
        (tagged("[Rank 3] ", STACK + "ValueError: bad shard"), "raised an exception"),
    ],
    ids=["the top of the program", "torch's hook", "a part of the program", "below a logged error", "a logger's tag"],
)
def test_an_exception_is_uncaught_only_where_the_lines_show_it(log: str, how: str, tmp_path: Path) -> None:
    assert f" {how}: ValueError: bad shard" in analyzed(tmp_path, START + log).reason


def init(host: str, address: str, rank: int, pid: int, device: int, nranks: int) -> str:
    head = f"{host}:{pid}:{pid} [{device}] NCCL INFO"
    comm = f"ncclCommInitRank comm 0x55aa{rank}0 rank {rank} nranks {nranks} cudaDev {device} nvmlDev {device} busId {device + 1}b000 commId 0x99"
    return f"{head} Bootstrap : Using eth0:{address}<0>\n{head} {comm} - Init START\n{head} {comm} - Init COMPLETE\n"


ONE_EACH = init("n1", "10.0.0.1", 0, 100, 0, 2) + init("n2", "10.0.0.2", 1, 201, 0, 2)
CLOSED = (
    STACK
    + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41077\n"
)


def test_an_address_is_that_of_the_only_rank_that_takes_it_for_itself(tmp_path: Path) -> None:
    assert [(c.rank, c.pid) for c in analyzed(tmp_path, ONE_EACH + CLOSED).culprits] == [(1, 201)]


@pytest.mark.parametrize("nranks", [2, 3], ids=["two ranks there", "a rank is not in view"])
def test_an_address_of_several_processes_stays_an_address(nranks: int, tmp_path: Path) -> None:
    log = init("n1", "10.0.0.1", 0, 100, 0, 3) + init("n2", "10.0.0.2", 1, 201, 0, 3)
    log += init("n2", "10.0.0.2", 2, 202, 1, 3) if nranks == 2 else ""
    assert [(c.rank, c.host) for c in analyzed(tmp_path, log + CLOSED).culprits] == [(None, "10.0.0.2")]


def test_a_process_id_in_a_text_is_that_of_a_rank(tmp_path: Path) -> None:
    log = (
        ONE_EACH
        + "[1772354400.123456] [n2:201  :0]   ib_mlx5_log.c:177  UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15)\n"
    )
    (culprit,) = analyzed(tmp_path, log).culprits
    assert (culprit.rank, culprit.either, culprit.peer_unnamed) == (1, True, True)  # the peer may be at fault


def test_a_bus_address_on_a_host_is_that_of_the_rank_there(tmp_path: Path) -> None:
    xid = "Mar  1 10:00:00 n2 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    assert [c.rank for c in analyzed(tmp_path, ONE_EACH + xid).culprits] == [1]
    # without its host, the address may be that of a GPU on each
    assert [(c.rank, c.gpu) for c in analyzed(tmp_path, ONE_EACH + xid[xid.index("NVRM") :]).culprits] == [
        (None, "0000:1b:00")
    ]


@pytest.mark.parametrize(
    ("log", "words", "others"),
    [
        ("Memory on the node (IP: 10.0.0.3, ID: 0a) where the task (actor ID: 9, name=T, pid=58, memory used=61.20GB) was running was 243.10GB / 251.50GB (0.966), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 11)\n", "because memory ran out", "OOM killer"),
        ("srun: error: Node failure on node7\n", "Slurm lost the node node7", "process"),
        ("launcher: rank 3 exited with code 1\n", "rank 3 exited", "(launcher)"),
        ("prterun noticed that process rank 3 with PID 4711 on node n2 exited on\nsignal 11 (Segmentation fault).\n", "died by SIGSEGV", "exited"),
        (tagged("[1,3]<stderr>:", STACK + "ValueError: bad shard"), ": ValueError: bad shard", "<stderr>"),
        ("2026-03-01 10:00:00.1: E tensorflow/tsl/coordination_service.cc:529] Task /job:worker/replica:0/task:3 heartbeat timeout.\n", "the coordination service", "JAX"),
        (STACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.25 GiB of which 1.19 GiB is free.\n", "device 3 of a process", "rank"),
    ],
    ids=["Ray's memory monitor", "a lost node", "a launcher's own name", "a wrapped signal", "mpirun's tag", "TensorFlow", "a device"],
)  # fmt: skip
def test_a_title_says_what_the_line_says(log: str, words: str, others: str, tmp_path: Path) -> None:
    reason = analyzed(tmp_path, START + log).reason
    assert words in reason and others not in reason


def test_a_process_that_its_launcher_reports_twice_is_one(tmp_path: Path) -> None:
    log = "Process name: w2[0]\nExit code: 137\n"
    assert len([f for f in analyzed(tmp_path, START + log + "\n" + log).findings if f.severity == "error"]) == 1


@pytest.mark.parametrize(
    ("tag", "rank", "host", "pid"),
    [
        ("(worker1, rank=1, pid=3174, ip=10.0.0.5) ", None, "10.0.0.5", 3174),
        ("(head, rank=0, pid=3174) ", None, None, 3174),
        ("[2026-03-01T10:00:00.000000Z] 1a2b3c4d [rank=3] || ", 3, None, None),
        ("[1,mpirank:3,algo-2]<stderr>:", 3, None, None),
    ],
    ids=["SkyPilot", "SkyPilot's head", "Determined", "SageMaker"],
)
def test_the_tags_of_clouds_name_who_prints(
    tag: str, rank: int | None, host: str | None, pid: int | None, tmp_path: Path
) -> None:
    assert who(tagged(tag, STACK + "ValueError: bad shard"), tmp_path) == ("failed", [(rank, host, pid)])


@pytest.mark.parametrize(
    ("text", "rank", "host", "pid"),
    [
        ("ERROR worker at 10.0.0.3 is gone\n", None, "10.0.0.3", None),
        ("ERROR: node node7 is down, job 12 is requeued\n", None, "node7", None),
        ('level=error host=node7 msg="cannot open shard 17"\n', None, "node7", None),
        ("ERROR local_rank=3 frob: cannot open shard 17\n", 3, None, None),
        ('fatal: [x]: UNREACHABLE! => {"msg": "Failed to connect to the host via ssh"}\n', None, None, None),
    ],
    ids=["an address", "a node", "a key", "a local rank", "a word that is no name"],
)
def test_an_unknown_text_names_places(
    text: str, rank: int | None, host: str | None, pid: int | None, tmp_path: Path
) -> None:
    expected = [(rank, host, pid)] if (rank, host, pid) != (None, None, None) else []
    assert who(START + text, tmp_path) == ("failed", expected)


def test_a_cut_stack_names_who_prints_it(tmp_path: Path) -> None:
    assert analyzed(tmp_path, START + tagged("[Rank 6] ", STACK)).reason.startswith("rank 6 printed")
    assert [c.rank for c in analyzed(tmp_path, START + tagged("[default6]:", TOP)).culprits] == [6]
