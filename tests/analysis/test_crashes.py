"""Deaths: who died first, of what, and who only followed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.facts.deaths import Death, collect, signal_name
from psmkit.analysis.facts.job import Job
from psmkit.analysis.rules import benchmarks, crashes, ended, exceptions, framework, gpu_errors
from psmkit.model import Finding, Severity
from tests.analysis.outside import coded, errors, nccl, run_rule
from tests.analysis.test_watchdog import status, timeout
from tests.analysis.texts import analyzed
from tests.loggen.crowd import write_merged

JOB = nccl(0, 1, 2, 3, nranks=4)
API = "torch.distributed.elastic.multiprocessing.api:"


def elastic(rank: int, code: int, signal: str = "") -> str:
    pid = 1000 + rank
    analyzed = (
        f"Signal {-code} ({signal}) received by PID {pid}" if signal else "To enable traceback see: https://pytorch.org"
    )
    return (
        "".join(f"WARNING:{API}Sending process {1000 + r} closing signal SIGTERM\n" for r in range(4) if r != rank)
        + f"ERROR:{API}failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: /usr/bin/python\n"
        + f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_00:00:00\n  host      : node0\n  rank      : {rank} (local_rank: {rank})\n"
        + f"  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : {analyzed}\n"
    )


def find(job: Job) -> list[Finding]:
    rules = (crashes, ended, exceptions, gpu_errors, framework, benchmarks)
    return [finding for rule in rules for finding in rule.find(job)]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_torchrun_names_the_killed_rank(tmp_path: Path) -> None:
    found = only(run_rule(find, tmp_path, job=JOB + elastic(2, -9, "SIGKILL")))
    assert (found.code, found.culprits, found.stage, found.severity) == ("PSM402", (2,), "killed", Severity.ERROR)
    assert found.processes == ("node0:1002",)
    assert "SIGKILL" in found.title
    assert "exitcode" in found.evidence[0].text or "SIGKILL" in found.evidence[0].text  # what proves it comes first


def test_a_launcher_that_stops_a_healthy_job_blames_nobody(tmp_path: Path) -> None:
    text = nccl(0, 1, nranks=2, ended=True) + f"WARNING:{API}Sending process 1000 closing signal SIGTERM\n"
    assert run_rule(find, tmp_path, job=text) == []


def test_failures_after_the_root_cause_are_consequences(tmp_path: Path) -> None:
    others = "Failures:\n[1]:\n  host      : node0\n  rank      : 3 (local_rank: 3)\n  exitcode  : -15 (pid: 1003)\n  traceback : Signal 15 (SIGTERM) received by PID 1003\n"
    found = only(run_rule(find, tmp_path, job=JOB + others + elastic(1, -11, "SIGSEGV")))
    assert found.culprits == (1,)
    assert "SIGSEGV" in found.title
    assert "rank 3" in found.explanation


def test_an_abort_after_a_watchdog_timeout_is_a_consequence(tmp_path: Path) -> None:
    text = JOB + "".join(timeout(r) + status(r) for r in range(4)) + elastic(0, -6, "SIGABRT")
    found = only(run_rule(find, tmp_path, job=text))
    assert (found.code, found.severity, found.culprits) == ("PSM408", Severity.WARNING, ())
    alone = only(run_rule(find, tmp_path, job=JOB + elastic(0, -6, "SIGABRT")))
    assert (alone.code, alone.culprits) == ("PSM402", (0,))


def test_a_kill_before_a_watchdog_timeout_is_the_cause(tmp_path: Path) -> None:
    text = JOB + "".join(timeout(r) + status(r) for r in (0, 1, 3)) + elastic(2, -9, "SIGKILL")
    assert [f.culprits for f in errors(run_rule(find, tmp_path, job=text))] == [(2,)]


def test_mpirun_and_srun(tmp_path: Path) -> None:
    mpi = "mpirun noticed that process rank 3 with PID 1003 on node node0 exited on signal 9 (Killed).\n"
    assert only(run_rule(find, tmp_path, job=JOB + mpi)).culprits == (3,)
    slurm = (
        "srun: error: node0: task 1: Segmentation fault (core dumped)\nsrun: error: node0: tasks 0,2-3: Terminated\n"
    )
    found = only(run_rule(find, tmp_path, job=JOB + slurm))
    assert (found.culprits, found.ranks) == ((1,), (1,))
    assert (
        run_rule(
            find,
            tmp_path,
            job=nccl(0, nranks=1) + "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
        )
        == []
    )


def test_tasks_killed_after_a_crash_are_swept_up(tmp_path: Path) -> None:
    slurm = "srun: error: node0: task 1: Aborted (core dumped)\nsrun: error: node0: task 0: Killed\nsrun: error: node0: tasks 2-3: Killed\n"
    assert [f.culprits for f in run_rule(find, tmp_path, job=JOB + slurm)] == [(1,)]
    together = "srun: error: node0: tasks 0-3: Killed\n"
    found = only(run_rule(find, tmp_path, job=JOB + together))
    assert (found.code, found.culprits, found.severity) == ("PSM408", (), Severity.WARNING)


def test_a_handler_names_signal_and_library(tmp_path: Path) -> None:
    head = "[node0:1002] "
    text = JOB + (
        f"{head}*** Process received signal ***\n{head}Signal: Segmentation fault (11)\n{head}Signal code: Address not mapped (1)\n"
        f"{head}[ 0] /lib/x86_64-linux-gnu/libpthread.so.0(+0x11390)[0x7ff32df7d390]\n{head}[ 1] /usr/lib/libnccl.so.2(+0x2b136)[0x7ff2bf5c3136]\n"
        f"{head}*** End of error message ***\n"
    )
    found = only(run_rule(find, tmp_path, job=text))
    assert found.culprits == (2,)
    assert "SIGSEGV" in found.title
    assert "libnccl.so.2" in found.title


def test_ucx_names_the_function(tmp_path: Path) -> None:
    text = JOB + (
        "[node0:1001:0:1001] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)\n==== backtrace (tid:   1001) ====\n"
        " 0 0x0000000000042520 __sigaction()  ???:0\n 1 0x0000000000049b8a ncclMemoryPoolAlloc<ncclProxyOp>()  /b/alloc.h:210\n"
    )
    found = only(run_rule(find, tmp_path, job=text))
    assert found.culprits == (1,)
    assert "ncclMemoryPoolAlloc" in found.title


def ray(pid: int, ip: str, *lines: str, outer: str = "") -> str:
    return "".join(f"{outer}(TrainWorker pid={pid}, ip={ip}) {line}\n" for line in lines)


STACK = (
    "PC: @     0x7f60b5a3c7be  (unknown)  pthread_kill",
    "    @     0x7f60b6ee7050       1824  (unknown)",
    "    @     0x7f60b591d975       1392  ray::core::worker::Buffer::Flush()",
)


@pytest.mark.parametrize("outer", ["", "(EngineCore_DP0 pid=742) "])
def test_the_tag_names_the_process_of_a_signal_that_abseil_caught(outer: str, tmp_path: Path) -> None:
    """The program had ended its work before, and the process failed all the same."""
    text = "Training completed after 1 iterations at 2026-03-05 04:39:56. Total running time: 8min 51s\n"
    text += ray(439, "10.2.1.7", "*** SIGSEGV received at time=1741149596 on cpu 63 ***", *STACK, outer=outer)
    found = only(run_rule(find, tmp_path, job=text))
    assert [(n.host, n.pid) for n in found.named] == [("10.2.1.7", 439)]
    assert "SIGSEGV in ray::core::worker::Buffer::Flush()" in found.title
    whole = psmkit.analyze([str(tmp_path / "job.log")])
    assert (whole.verdict, [(c.host, c.pid) for c in whole.culprits]) == ("failed", [("10.2.1.7", 439)])


@pytest.mark.parametrize(
    "line",
    [
        "*** SIGSEGV (@0x0) received by PID 1002 (TID 0x7f893090a6f0) from PID 0; stack trace: ***",
        "*** Signal 11 (SIGSEGV) (0x10) received by PID 1002 (TID 0x7fe1), stack trace: ***",
        "*** Signal 11 (SIGSEGV) received by PID 1002 (pthread TID 0x7fe1) (code: address not mapped to object), stack trace: ***",
        "[2026-02-04 08:45:44,122 E 1002 1005] logging.cc:361: *** SIGSEGV received at time=1707036344 on cpu 40 ***",
    ],
)
def test_other_handlers_name_the_process(line: str, tmp_path: Path) -> None:
    text = (
        JOB + f'*** Aborted at 1707036344 (unix time) try "date -d @1707036344" if you are using GNU date ***\n{line}\n'
    )
    found = only(run_rule(find, tmp_path, job=text))
    assert found.culprits == (2,)
    assert "SIGSEGV" in found.title


def test_two_processes_with_a_handler_are_two_deaths_with_their_own_stacks(tmp_path: Path) -> None:
    other = STACK[2].replace("ray::core::worker::Buffer::Flush", "app::Load").replace("b591d975", "a5912345")
    text = ray(11, "10.2.1.7", "*** SIGSEGV received at time=1741149596 on cpu 63 ***")
    text += ray(12, "10.2.1.8", "*** SIGBUS received at time=1741149597 ***", other) + ray(11, "10.2.1.7", STACK[2])
    first, second = run_rule(find, tmp_path, job=text)
    assert "10.2.1.7:11" in first.title and "Flush()" in first.title
    assert "10.2.1.8:12" in second.title and "app::Load()" in second.title


def test_a_handler_that_caught_the_end_by_a_launcher_blames_nobody(tmp_path: Path) -> None:
    text = JOB + "*** SIGTERM (@0x3e8) received by PID 1002 (TID 0x7f893090a6f0) from PID 900; stack trace: ***\n"
    assert [f.code for f in run_rule(find, tmp_path, job=text)] == ["PSM408"]
    quoted = "handler test: SIGSEGV received at time=5 by design, see *** notes ***\n"
    assert run_rule(find, tmp_path, job=nccl(0, 1, nranks=2, ended=True) + quoted) == []
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "healthy"


def test_a_crash_after_the_teardown_is_a_failure_and_an_end_by_the_launcher_is_none(tmp_path: Path) -> None:
    text = nccl(0, 1, nranks=2, ended=True)
    text += "*** {} (@0x0) received by PID 1001 (TID 0x7f893090a6f0) from PID 0; stack trace: ***\n"
    (tmp_path / "crash.log").write_text(text.format("SIGSEGV"))
    (tmp_path / "ended.log").write_text(text.format("SIGTERM"))
    crash = psmkit.analyze([str(tmp_path / "crash.log")])
    assert (crash.verdict, [c.rank for c in crash.culprits]) == ("failed", [1])
    assert psmkit.analyze([str(tmp_path / "ended.log")]).verdict == "healthy"


def test_the_kernel_killed_a_rank_for_memory(tmp_path: Path) -> None:
    line = "[2059991.49] Out of memory: Killed process {} (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:1kB\n"
    found = only(run_rule(find, tmp_path, job=JOB, dmesg=line.format(1003)))
    assert found.culprits == (3,)
    assert "memory ran out" in found.title
    stranger = only(run_rule(find, tmp_path, job=JOB, dmesg=line.format(77)))
    assert (stranger.culprits, stranger.severity) == ((), Severity.WARNING)


def test_segfault_lines_of_the_kernel_name_the_library(tmp_path: Path) -> None:
    line = "python3[1001]: segfault at 10 ip 00007f1a2b3c4d5e sp 00007ffd00112233 error 4 in libnccl.so.2[7f1a2b000000+5000000]\n"
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert found.culprits == (1,)
    assert "libnccl.so.2" in found.title


def test_xids_are_joined_by_bus(tmp_path: Path) -> None:
    line = "kernel: NVRM: Xid (PCI:0000:03:00): {}, {}\n"
    found = only(
        run_rule(
            find,
            tmp_path,
            job=JOB.replace("3000 commId", "3000 commId") + line.format(79, "GPU has fallen off the bus"),
        )
    )
    assert (found.code, found.culprits, found.severity) == ("PSM405", (2,), Severity.ERROR)
    assert run_rule(find, tmp_path, job=JOB + line.format(45, "pid=9, name=python3, Ch 1")) == []
    soft = only(run_rule(find, tmp_path, job=JOB + line.format(63, "Row remapping event")))
    assert soft.severity is Severity.WARNING


def test_cuda_errors_of_a_rank(tmp_path: Path) -> None:
    line = "[rank2]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert (found.code, found.culprits) == ("PSM405", (2,))
    done = nccl(0, 1, 2, 3, nranks=4, ended=True)
    assert run_rule(find, tmp_path, job=done + line) == []


def test_device_memory_that_was_caught_is_no_error(tmp_path: Path) -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
    )
    found = only(run_rule(find, tmp_path, job=nccl(0, nranks=1) + line))
    assert (found.code, found.culprits) == ("PSM509", (0,))
    assert run_rule(find, tmp_path, job=line + nccl(0, nranks=1, ended=True)) == []


def test_an_uncaught_exception_names_its_rank(tmp_path: Path) -> None:
    trace = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 3, in <module>\n[rank3]: {}\n'
    )
    found = only(run_rule(find, tmp_path, job=JOB + trace.format("ValueError: bad shard")))
    assert (found.code, found.culprits, found.stage) == ("PSM402", (3,), "error")
    assert "bad shard" in found.title
    # Without the stack it is a message like any other, and one about a peer begins nowhere.
    assert run_rule(find, tmp_path, job=JOB + "[rank3]: ValueError: bad shard\n") == []
    assert run_rule(find, tmp_path, job=JOB + trace.format("RuntimeError: Connection closed by peer")) == []


def test_an_exit_code_gets_its_reason_from_the_traceback(tmp_path: Path) -> None:
    trace = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad shard\n"
    found = only(run_rule(find, tmp_path, job=JOB + trace + elastic(1, 1)))
    assert (found.code, found.culprits) == ("PSM402", (1,))
    assert "exited with code 1: ValueError: bad shard" in found.title
    assert "ValueError" in found.evidence[0].text and "traceback" in found.next_step


def test_exit_codes_after_the_first_failure_are_consequences(tmp_path: Path) -> None:
    one = "srun: error: node0: task 2: Exited with exit code 1\n"
    others = "srun: error: node0: tasks 0-1,3: Exited with exit code 1\n"
    assert [f.culprits for f in run_rule(find, tmp_path, job=JOB + one + others)] == [(2,)]
    together = only(run_rule(find, tmp_path, job=JOB + "srun: error: node0: tasks 0-3: Exited with exit code 1\n"))
    assert (together.ranks, together.culprits) == ((0, 1, 2, 3), ())
    crash = "srun: error: node0: task 3: Segmentation fault (core dumped)\n"
    assert [f.culprits for f in run_rule(find, tmp_path, job=JOB + one + crash)] == [(3,)]


@pytest.mark.parametrize("tag", ["", "[1,2]<stderr>:", "[default2]:", "2: "])
def test_tag_of_a_launcher_is_no_part_of_the_host(tag: str, tmp_path: Path) -> None:
    line = f"{tag}[node0:1002] *** Process received signal ***\n{tag}[node0:1002] Signal: Segmentation fault (11)\n"
    deaths: list[Death] = []

    def rule(job: Job) -> list[Finding]:
        deaths.extend(collect(job, 0))
        return []

    run_rule(rule, tmp_path, job=JOB + line)
    assert [(d.host, d.pid, d.rank, d.signal) for d in deaths] == [("node0", 1002, 2, 11)]


def test_a_data_loader_worker_that_died(tmp_path: Path) -> None:
    line = "[rank2]: RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that\n"
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert (found.code, found.culprits) == ("PSM503", (2,))
    assert run_rule(find, tmp_path, job=line + nccl(0, 1, 2, 3, nranks=4, ended=True)) == []


def test_nccl_errors_that_only_torch_tells_of(tmp_path: Path) -> None:
    line = (
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\n"
    )
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert (found.code, found.culprits) == ("PSM401", (1,))
    warned = (
        JOB
        + "\nnode0:1001:1001 [1] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host\n"
    )
    assert coded(run_rule(find, tmp_path, job=warned + line), "PSM401") == []


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
        "slurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT 2026-01-01T00:00:00 ***\n",
        "KeyboardInterrupt\n",
        f"WARNING:{API}Received 15 death signal, shutting down workers\n",
    ],
)
def test_who_ended_the_job_is_a_warning(line: str, tmp_path: Path) -> None:
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert (found.code, found.severity, found.culprits) == ("PSM408", Severity.WARNING, ())


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT 2026-01-01T00:00:00 ***\n",
        f"WARNING:{API}Received 15 death signal, shutting down workers\n",
        "[2026-01-01 10:00:00,001] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 311\n",
    ],
)
def test_a_run_that_its_launcher_ended_while_it_trained_failed_and_nobody_is_blamed(line: str, tmp_path: Path) -> None:
    steps = "".join(f"{{'loss': 2.{n}, 'learning_rate': 9.5e-05, 'epoch': 2.6}}\n" for n in range(4))
    (tmp_path / "job.log").write_text(steps + line)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, report.culprits, report.confidence < 0.7) == ("failed", (), True)
    assert [f.code for f in report.findings] == ["PSM408"]


@pytest.mark.parametrize(
    "text",
    [
        "slurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
        "Traceback (most recent call last):\nKeyboardInterrupt\n",
        JOB + f"WARNING:{API}Received 15 death signal, shutting down workers\n",
    ],
)
def test_a_run_that_may_have_hung_before_it_was_ended_is_undecided(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(text)
    assert psmkit.analyze([str(tmp_path / "job.log")]).verdict == "inconclusive"


def test_wrong_values_of_nccl_tests(tmp_path: Path) -> None:
    assert only(run_rule(find, tmp_path, job=JOB + "# Out of bounds values : 248 FAILED\n")).code == "PSM401"
    assert run_rule(find, tmp_path, job=JOB + "# Out of bounds values : 0 OK\n") == []


def test_signals_have_names() -> None:
    assert (signal_name(9), signal_name(99)) == ("SIGKILL", "signal 99")


def actor(pid: int | None, host: str, *, exit: str = "SYSTEM_ERROR") -> str:
    """Ray's report to a caller of an actor that died."""
    lines = [
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: WorkerDict",
        *([f"\tpid: {pid}"] if pid is not None else []),
        f"\tip: {host}",
        f"The actor is dead because its worker process has died. Worker exit type: {exit} Worker exit detail: Worker exits with code 2. x",
    ]
    return "".join(f"[2025-05-10 00:18:27] {line}\n" for line in lines)


def test_ray_names_the_process_of_an_actor_that_died(tmp_path: Path) -> None:
    report = analyzed(tmp_path, actor(1230, "10.0.0.7") * 2)
    assert report.verdict == "failed"
    assert [(c.host, c.pid) for c in report.culprits] == [("10.0.0.7", 1230)]
    assert [f.code for f in report.findings if f.severity is Severity.ERROR] == ["PSM402"]


def test_an_actor_that_was_ended_on_purpose_is_no_death(tmp_path: Path) -> None:
    assert analyzed(tmp_path, actor(1230, "10.0.0.7", exit="INTENDED_USER_EXIT")).verdict != "failed"


def test_a_report_without_a_process_counts_no_second_death(tmp_path: Path) -> None:
    died = "Worker IP address: 10.0.0.8 Worker port: 3 Worker PID: 77 Worker exit type: SYSTEM_ERROR Worker exit detail: Lost. x\n"
    report = analyzed(tmp_path, actor(None, "10.0.0.7") + "(raylet) A worker died. " + died)
    assert [c.pid for c in report.culprits] == [77]
    alone = analyzed(tmp_path, actor(None, "10.0.0.7"))
    assert alone.verdict == "failed" and "10.0.0.7" in alone.reason


def test_a_line_with_a_process_id_elsewhere_names_no_actor(tmp_path: Path) -> None:
    far = "\tpid: 99\n" + "step 1 of 100\n" * 40
    report = analyzed(tmp_path, far + actor(None, "10.0.0.7"))
    assert not any(c.pid == 99 for c in report.culprits)


def _signalled(pids: Iterable[int]) -> str:
    agent, api = "torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api"
    sent = "".join(f"WARNING:{api}:Sending process {pid} closing signal SIGTERM\n" for pid in pids)
    return f"WARNING:{agent}:Received 15 death signal, shutting down workers\n{sent}"


def test_the_worker_that_torchrun_skips_is_a_suspect(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(_signalled([165, 166, 168, 169]))
    report = psmkit.analyze([tmp_path / "job.log"])
    (finding,) = (f for f in report.findings if f.code == "PSM408")
    assert report.verdict == "failed"
    assert not report.culprits
    assert "Suspect: process 167." in finding.explanation
    assert [e.line for e in finding.evidence] == [1, 3, 4]


@pytest.mark.parametrize(
    "pids",
    [
        pytest.param([165, 166, 167, 168], id="no gap"),
        pytest.param([165, 167], id="two workers"),
        pytest.param([165, 170, 175, 180], id="ids with gaps of their own"),
        pytest.param([165, 167, 169, 170, 171], id="two gaps"),
    ],
)
def test_process_ids_without_one_gap_show_no_suspect(pids: list[int], tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(_signalled(pids))
    assert not any("Suspect" in f.explanation for f in psmkit.analyze([tmp_path / "job.log"]).findings)


@pytest.mark.parametrize(
    ("how", "words", "not_words"),
    [
        ("is killed by signal: Killed. ", "OOM killer", "core dump"),
        ("is killed by signal: Segmentation fault. ", "core dump", "OOM killer"),
        (
            "is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "shm",
            "OOM killer",
        ),
    ],
)
def test_the_signal_of_a_data_loader_worker_decides_what_to_do(
    how: str, words: str, not_words: str, tmp_path: Path
) -> None:
    line = f"[rank3]: RuntimeError: DataLoader worker (pid 9912) {how}\n"
    found = only(run_rule(find, tmp_path, job=JOB + line))
    assert found.culprits == (3,) and words in found.next_step and not_words not in found.next_step


@pytest.mark.parametrize(("ranks", "findings"), [(9, 9), (10, 2)])
def test_crashes_of_many_ranks_in_the_same_way_are_one_finding(ranks: int, findings: int, tmp_path: Path) -> None:
    write_merged(tmp_path / "job.log", "crashes", ranks)
    report = psmkit.analyze([tmp_path / "job.log"])
    first, *others = (f for f in report.findings if f.code == "PSM402")
    assert len([first, *others]) == findings
    assert first.culprits == (0,) and [c.rank for c in report.culprits] == [0]
    assert sorted(r for f in others for r in f.culprits) == list(range(1, ranks))
    if findings == 2:
        assert others[0].title == f"ranks 1-{ranks - 1} died by SIGSEGV in libwork.so"
        assert "Each of these ranks crashed by itself." in others[0].explanation
        assert "node0:6041" in others[0].evidence[0].text  # the line of the first of them


def test_a_crash_that_differs_from_many_others_keeps_its_finding(tmp_path: Path) -> None:
    write_merged(tmp_path / "job.log", "crashes", 16)
    text = (tmp_path / "job.log").read_text()
    odd = "[node1:6441] Signal: Segmentation fault (11)"
    assert odd in text
    (tmp_path / "job.log").write_text(text.replace(odd, "[node1:6441] Signal: Bus error (7)"))
    titles = [f.title for f in psmkit.analyze([tmp_path / "job.log"]).findings if f.code == "PSM402"]
    assert "rank 11 (node1:6441) died by SIGBUS in libwork.so" in titles
    assert "ranks 1-10, 12-15 died by SIGSEGV in libwork.so" in titles


_NAMELESS = {
    "a shell's line": "Segmentation fault (core dumped)\n",
    "a stack of Python": 'Fatal Python error: Segmentation fault\n\nThread 0x00007f3c1a7fc700 (most recent call first):\n  File "/app/train.py", line 10 in step\n',
    "an exception and a shell's line": "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad batch\nAborted (core dumped)\n",
    "a traceback": 'Traceback (most recent call last):\n  File "/app/train.py", line 7, in main\n    step()\nValueError: bad batch\n',
    "a watchdog": "[rank1]:[E1121 01:35:22.123456789 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600123 milliseconds before timing out.\n",
}


@pytest.mark.parametrize("name", _NAMELESS)
@pytest.mark.parametrize("files", [1, 2])
def test_output_that_is_there_twice_is_one_error(name: str, files: int, tmp_path: Path) -> None:
    text = _NAMELESS[name]
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder, parts in ((once, [text]), (twice, [text * 2] if files == 1 else [text, text])):
        folder.mkdir()
        for number, part in enumerate(parts):
            (folder / f"{number}.log").write_text(part)
    first, again = (psmkit.analyze([folder]) for folder in (once, twice))
    assert [f.title for f in again.findings] == [f.title for f in first.findings]
    assert len(first.findings) == 1


def test_nameless_crashes_of_different_kinds_stay_apart(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("Segmentation fault (core dumped)\nBus error (core dumped)\n")
    assert len(psmkit.analyze([log]).findings) == 2
