"""What shells, Ray and Kubernetes say about processes that end."""

from __future__ import annotations

from pathlib import Path

import psmkit
from psmkit.analysis.rules import crashes, exceptions
from psmkit.analysis.rules.watchdog import find as watchdog
from psmkit.model import Severity
from tests.analysis.outside import coded, errors, nccl, run_rule
from tests.analysis.test_watchdog import status, timeout

JOB = nccl(*range(4), nranks=4)


def ray(rank: int, text: str, repeated: int = 0) -> str:
    fold = f" [repeated {repeated}x across cluster]" if repeated else ""
    return f"(WorkerDict pid={1230 + rank}, ip=10.0.0.4) {text.rstrip()}{fold}\n"


def test_a_bare_killed_is_a_death(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("step 10 of 900\nKilled\n")
    report = psmkit.analyze([str(tmp_path)])
    assert (report.verdict, report.reason) == ("failed", "a process was killed by SIGKILL")


def test_a_killed_within_a_sentence_is_not(tmp_path: Path) -> None:
    text = JOB + "INFO Killed 3 stale workers\nKilled by the user's request: 0\n"
    assert run_rule(crashes.find, tmp_path, job=text) == []


def test_a_killed_after_a_watchdog_is_a_consequence(tmp_path: Path) -> None:
    found = run_rule(crashes.find, tmp_path, job=JOB + "".join(timeout(r) + status(r) for r in range(4)) + "Killed\n")
    assert errors(found) == []


def test_a_killed_after_an_open_stall_is_a_consequence_and_the_stall_is_named_first(tmp_path: Path) -> None:
    stall = (
        "vm:7:9 [1] NCCL WARN hostcuda: stalled for 4 s: 2 operations on the legacy stream 0x0 of device 1, the first by cudaMemcpyAsync "
        "in thread 8, wait for the blocking stream 0x55, which is in host function wait_for_proxy\n"
    )
    begun = "vm:7:7 [0] NCCL INFO hostcuda: CUDA 13.5 is emulated on host memory for rank 1: 8 devices, strict, topology default\n"
    (tmp_path / "job.log").write_text(begun + stall + "Killed\n")
    report = psmkit.analyze([tmp_path])
    assert report.verdict == "inconclusive" and "cudaMemcpyAsync on the legacy stream waits" in report.reason
    (tmp_path / "job.log").write_text(begun + "Killed\n")
    assert psmkit.analyze([tmp_path]).verdict == "failed"


def test_a_shell_script_names_the_pid_that_was_killed(tmp_path: Path) -> None:
    text = JOB + "/var/spool/slurmd/job00191/slurm_script: line 28:  1002 Killed                  python3 main.py\n"
    (found,) = run_rule(crashes.find, tmp_path, job=text)
    assert found.culprits == (2,)


def test_a_container_that_was_killed_is_found_by_its_pod(tmp_path: Path) -> None:
    jobs = "".join(nccl(r, nranks=2, host=f"trainer-worker-{r}") for r in (0, 1))
    pods = (
        "NAME               READY   STATUS      RESTARTS   AGE\ntrainer-worker-0   1/1     Running     0          5m\n"
    )
    (found,) = run_rule(
        crashes.find, tmp_path, job=jobs, pods=pods + "trainer-worker-1   0/1     OOMKilled   0          5m\n"
    )
    assert found.culprits == (1,)
    assert "memory ran out" in found.title
    assert run_rule(crashes.find, tmp_path, job=jobs, pods=pods) == []


def test_the_exit_code_of_a_container_names_a_signal(tmp_path: Path) -> None:
    described = "    Last State: Terminated\n      Reason: Error\n      Exit Code: {}\n"
    (found,) = run_rule(crashes.find, tmp_path, pod=described.format(137))
    assert "SIGKILL" in found.title
    assert run_rule(crashes.find, tmp_path, pod=described.format(0)) == []


RAY_BEGAN = "".join(
    ray(
        r,
        f"[rank{r}]:[W626 06:00:01.1 ProcessGroupNCCL.cpp:4115]  using GPU {r} to perform barrier as devices used by this process are currently unknown.",
    )
    for r in range(4)
)


def test_ray_names_a_worker_by_its_pid(tmp_path: Path) -> None:
    oom = (
        "Memory on the node (IP: 10.0.0.4, ID: 8c5a14) where the task (actor ID: f9cc, name=WorkerDict.fit, pid=1232, memory used=2.2GB) "
        "was running was 59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95.\n"
    )
    (found,) = run_rule(crashes.find, tmp_path, job=RAY_BEGAN + oom)
    assert found.culprits == (2,)


def test_the_traceback_that_rays_driver_repeats_belongs_to_the_worker(tmp_path: Path) -> None:
    error = (
        'Traceback (most recent call last):\n  File "main.py", line 9, in <module>\n    ray.get(refs)\n'
        "ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.fit() (pid=1233, ip=10.0.0.4, actor_id=5a61)\n"
        '  File "/work/trainer.py", line 241, in fit\nValueError: no sample with id 7\n'
    )
    (found,) = run_rule(exceptions.find, tmp_path, job=RAY_BEGAN + error)
    assert found.culprits == (3,)
    assert "no sample with id 7" in found.title


def test_lines_that_ray_folds_hide_which_ranks_reported(tmp_path: Path) -> None:
    apart = nccl(*range(4), nranks=4) + "".join(ray(r, timeout(r)) for r in (0, 1, 3))
    assert coded(run_rule(watchdog, tmp_path, job=apart), "PSM302")[0].culprits == (2,)
    folded = nccl(*range(4), nranks=4) + "".join(ray(r, timeout(r), r) for r in (0, 1, 3))
    (report,) = run_rule(watchdog, tmp_path, job=folded)
    assert (report.code, report.culprits, report.severity) == ("PSM305", (), Severity.ERROR)
