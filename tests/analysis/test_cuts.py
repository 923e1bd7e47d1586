"""Reports that are cut, wrapped, quoted or glued: never a wrong culprit, never "healthy", and the culprit wherever the line that decides is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import psmkit
from psmkit.model import Verdict
from psmkit.model.errors import NothingToAnalyse

Who = tuple[int | None, str | None, int | None]  # rank, host, process id


@dataclass(frozen=True)
class Sample:
    """A report, what it says, and the lines (by a part of their text) without which nobody can know who it is.

    ``joins`` says whether the report is understood without its line breaks, ``wraps`` whether it is at any column.
    """

    text: str
    verdict: str
    who: Who
    needs: tuple[str, ...]
    joins: bool = True
    wraps: bool = True


def worker(at: int, rank: int, code: int) -> str:
    return (
        f"[{at}]:\n  time      : 2026-03-01_10:00:0{9 - at}\n  host      : n2\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {4711 + rank})\n  error_file: <N/A>\n"
    )


def old_worker(at: int, rank: int) -> str:
    return f"[{at}]:\n  time: 2026-03-01_10:00:0{9 - at}\n  rank: {rank} (local_rank: {rank})\n  exitcode: 1 (pid: {4711 + rank})\n"


STACK = 'Traceback (most recent call last):\n  File "/opt/worker.py", line 12, in run\n    x = f(n)\nValueError: bad table\n'
ROOT = "Root Cause (first observed failure):\n"
BAR = "-" * 60 + "\n"
VLLM = "(VllmWorkerProcess pid=903) ERROR 03-01 10:00:00 multiproc_worker_utils.py:226] "
V0 = f"{VLLM}Exception in worker VllmWorkerProcess while processing method init_device: NCCL error: {{}}, Traceback (most recent call last):\n"
FRAMES = "".join(
    f"{VLLM}{line}\n"
    for line in (
        '  File "/a/pynccl.py", line 99, in __init__',
        "    self.comm = self.nccl.ncclCommInitRank(",
        '  File "/a/pynccl_wrapper.py", line 277, in ncclCommInitRank',
        '    self.NCCL_CHECK(self._funcs["ncclCommInitRank"](comm,',
    )
)
STALL = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for "
    "more than 60 seconds. This may indicate a deadlock.\n"
)
TASK = "/job:jax_worker/replica:0/task:"


def tagged(tag: str, text: str) -> str:
    return "".join(f"{tag}{line}\n" for line in text.splitlines())


SAMPLES = {
    "torchrun": Sample(
        f"train.py FAILED\n{BAR}Failures:\n{worker(1, 3, 1)}{worker(2, 2, 1)}{BAR}{ROOT}{worker(0, 1, 1)}",
        "failed", (1, "n2", 4712), (ROOT.strip(), "rank      : 1 (local_rank: 1)"),
    ),
    "torchrun 1.9": Sample(
        f"train.py FAILED\n{BAR}Root Cause:\n{old_worker(0, 1)}{BAR}Other Failures:\n  <NO_OTHER_FAILURES>\n",
        "failed", (1, None, 4712), ("rank: 1 (local_rank: 1)", "exitcode: 1 (pid: 4712)"), joins=False,
    ),
    "spawn": Sample(f"-- Process 5 terminated with the following error:\n{STACK}", "failed", (5, None, None), ("-- Process 5",), joins=False),
    "intel mpi": Sample(
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 4711 RUNNING AT n2\n=   KILLED BY SIGNAL: 11 (x)\n",
        "failed", (3, "n2", 4711), ("RANK 3 PID",),
    ),
    "mpirun": Sample(
        "mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 11 (Segmentation fault).\n",
        "failed", (3, "n2", 4711), ("rank 3",), joins=False,
    ),
    "srun": Sample("srun: error: n2: task 3: Exited with exit code 1\n", "failed", (3, "n2", None), ("task 3",)),
    "horovod": Sample(f"{STALL}Missing ranks:\n1: [allreduce.grad_0, allreduce.grad_1 ...]\n", "hung", (1, None, None), ("One or more", "Missing", "1: ["), wraps=False),
    "horovod, mpirun": Sample(
        tagged("[1,0]<stderr>:", f"{STALL}Missing ranks:\n1: [allreduce.grad_0]\n"), "hung", (1, None, None), ("<stderr>:One or more", "Missing", "1: ["), joins=False, wraps=False,
    ),
    "jax": Sample(
        f"The following tasks are unhealthy (stopped sending heartbeats):\n{TASK}5\nThe tasks have crashed. Check the task logs for an earlier error\n",
        "failed", (5, None, None), ("unhealthy", "task:5", "have crashed"),
    ),
    "stack of a rank": Sample(tagged("[rank3]: ", STACK), "failed", (3, None, None), ("[rank3]:   File", "ValueError")),
    "stack of vllm 1": Sample(tagged("(Worker_TP3 pid=903) ERROR 03-01 10:00:00 [x.py:3] ", STACK), "failed", (3, None, None), ("(Worker_TP3 pid=903) ERROR 03-01 10:00:00 [x.py:3]   File", "ValueError")),
    "stack of ray": Sample(tagged("(WorkerDict pid=903, ip=10.0.0.7) ", STACK), "failed", (None, "10.0.0.7", 903), ("(WorkerDict pid=903, ip=10.0.0.7)   File", "ValueError")),
    "stack of sglang": Sample(f"[2026-03-01 10:00:00 TP3] Scheduler hit an exception: {STACK}", "failed", (3, None, None), ("Scheduler hit",)),
    "stack of trt-llm": Sample(tagged("[TensorRT-LLM][ERROR][3] ", STACK), "failed", (3, None, None), ("[TensorRT-LLM][ERROR][3]   File", "ValueError")),
    "head of vllm 0": Sample(V0.format("internal error - please report this") + FRAMES, "failed", (None, None, 903), ("Exception in worker",), wraps=False),
    "frames of vllm 0": Sample(FRAMES, "failed", (None, None, 903), (FRAMES.splitlines()[2],), wraps=False),
    "actor": Sample(
        "The actor died unexpectedly before finishing this task.\n\tpid: 1230\n\tip: 10.0.0.7\nThe actor is dead because its worker process has died. "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits. End of file.\n",
        "failed", (None, "10.0.0.7", 1230), ("pid: 1230", "ip: 10.0.0.7", "exit type"), joins=False, wraps=False,
    ),
    "barrier": Sample("[Rank 0]: Rank 5 failed to pass monitoredBarrier in 1800000 ms\n", "hung", (5, None, None), ("Rank 5",)),
}  # fmt: skip


def cuts(text: str) -> Iterator[str]:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        before, behind = "".join(lines[:at]), "".join(lines[at + 1 :])
        yield from (before + line, before + line[: len(line) // 2], line + behind, line[len(line) // 2 :] + behind)


def changes(sample: Sample) -> Iterator[str]:
    lines = sample.text.splitlines()
    yield from (tagged(tag, sample.text) for tag in ("launcher-0: ", "2026-03-01T10:00:00.123456Z ", "> ", "    "))
    yield sample.text.replace("\n", "\r\n")
    if sample.joins:
        yield " ".join(lines) + "\n"
    if sample.wraps:
        yield from (
            "".join(f"{line[at : at + width]}\n" for line in lines for at in range(0, len(line), width))
            for width in (80, 117)
        )


def agrees(found: Who, truth: Who) -> bool:
    return all(one is None or other is None or one == other for one, other in zip(found, truth, strict=True))


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_or_changed_report_names_the_same_process_or_nobody(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    log = tmp_path / "job.log"

    def look(text: str) -> tuple[str, list[Who]]:
        log.write_bytes(text.encode())
        try:
            report = psmkit.analyze([str(log)])
        except NothingToAnalyse:  # nothing to judge
            return "inconclusive", []
        assert report.verdict is not Verdict.HEALTHY, text
        who = [(c.rank, c.host, c.pid) for c in report.culprits]
        assert all(agrees(found, sample.who) for found in who), (text, report.reason)
        return report.verdict, who

    for text in cuts(sample.text):
        verdict, who = look(text)
        if all(any(need in line for line in text.split("\n")[:-1]) for need in sample.needs) and text[-1:] == "\n":
            assert (verdict, len(who)) == (sample.verdict, 1), text
    for text in changes(sample):
        assert look(text) == (sample.verdict, [sample.who]), text


def test_worker_that_torchrun_lists_after_the_first_is_no_culprit(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"train.py FAILED\nFailures:\n{worker(1, 3, 1)}{BAR}{ROOT}")
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "failed" and not report.culprits
    assert "does not show which rank failed first" in report.reason


def test_timeout_behind_another_text_is_a_hang(tmp_path: Path) -> None:
    timeout = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600764 milliseconds before timing out."
    texts = {
        "reason": f"RuntimeError: : NCCL communicator was aborted on rank 3.  Original reason for failure was: {timeout}",
        "actor": "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits. End of file. "
        f"(Actor pid=812, ip=10.0.0.3) [rank3]:[E416 10:00:00.1 ProcessGroupNCCL.cpp:633] {timeout} [repeated 6x across cluster]",
    }
    for text in texts.values():
        (tmp_path / "job.log").write_text(text + "\n")
        report = psmkit.analyze([str(tmp_path)])
        assert report.verdict == "hung" and "ALLGATHER 12" in report.reason


@pytest.mark.parametrize("text", ["remote process exited or there was a network error", "Connection closed by peer"])
def test_worker_whose_cut_report_is_about_a_peer_is_no_culprit(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(V0.format(text) + FRAMES)
    assert not psmkit.analyze([str(tmp_path)]).culprits


def test_part_of_a_stack_that_no_logger_calls_an_error_proves_no_failure(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(FRAMES.replace("ERROR", "INFO"))
    report = psmkit.analyze([str(tmp_path)])
    assert report.verdict == "inconclusive" and not report.culprits
    assert "process 903 printed a part of a stack that passes through ncclCommInitRank()" in report.reason


RAYS_REPORT = "ray.exceptions.RayTaskError({kind}): ray::Worker.compute() (pid=40226, ip=10.0.0.7, actor_id=5d20, repr=<train.Worker object at 0x7f1c>)\n"
BELOW = '  File "/srv/train.py", line 21, in compute\n    collective.allreduce(self.buffer)\n'


@pytest.mark.parametrize(
    ("text", "verdict", "pids"),
    [
        (RAYS_REPORT.format(kind="NcclError") + BELOW, "failed", [40226]),
        (RAYS_REPORT.format(kind="ConnectionError") + BELOW, "failed", []),
        (RAYS_REPORT.format(kind="NcclError") + BELOW + "step 100 loss 2.0\nstep 200 loss 1.9\nTraining finished\n", "inconclusive", []),
    ],
    ids=["of its own", "about others", "and the work goes on"],
)  # fmt: skip
def test_a_report_of_ray_that_is_cut_before_its_text_names_the_process(
    text: str, verdict: str, pids: list[int], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(text)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, [c.pid for c in report.culprits]) == (verdict, pids), report.reason
