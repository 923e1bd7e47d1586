"""Who failed, by what stands before the lines of an error: the host of pdsh, the process in the head of a library's line, a peer below NCCL's result."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.texts import analyzed

START = "[2026-03-01 10:00:00,361] [INFO] [launch.py:100:main] dist_world_size=16\n"
MISSING = "/usr/bin/python3: can't open file 'train.py': [Errno 2] No such file or directory\n"
FRAME = "[gpu7:{pid}] [ {n}] /lib64/libc.so.6({fn}+0x16)[0x152a7c63ab46]\n"
HEAD = "[gpu7:{pid}] *** Process received signal ***\n[gpu7:{pid}] Signal: Segmentation fault (11)\n"


def who(tmp_path: Path, log: str) -> list[tuple[str | None, int | None]]:
    return [(c.host, c.pid) for c in analyzed(tmp_path, log).culprits]


def test_an_unknown_error_is_of_the_hosts_that_pdsh_puts_before_it(tmp_path: Path) -> None:
    start = ("10.1.0.4: " + START) * 8
    one, two = "10.1.0.4: " + MISSING, "10.1.0.5: " + MISSING
    assert who(tmp_path, start + one + two + two) == [("10.1.0.4", None), ("10.1.0.5", None)]
    assert who(tmp_path, start + two) == [("10.1.0.5", None)]
    assert who(tmp_path, start + one + two + "10.1.0.6: " + MISSING) == []  # three of many are no culprits


@pytest.mark.parametrize("before", ["rank3: ", "launch.py: ", "ERROR: ", "3: ", "node: "])
def test_what_else_stands_before_lines_is_no_host(before: str, tmp_path: Path) -> None:
    assert not [host for host, _ in who(tmp_path, (before + START) * 8 + before + MISSING) if host is not None]


def test_a_word_before_some_lines_is_no_host(tmp_path: Path) -> None:
    assert who(tmp_path, START * 8 + "phase2: " + MISSING) == []


def test_a_traceback_that_is_cut_off_is_of_the_host_before_it(tmp_path: Path) -> None:
    log = 'gnode207: Traceback (most recent call last):\ngnode207:   File "/a/train.py", line 3, in <module>\ngnode207:     main()\n'
    assert "a process on gnode207 printed a Python traceback" in analyzed(tmp_path, log).reason


def test_the_lower_part_of_a_stack_of_open_mpi_shows_a_process_that_died(tmp_path: Path) -> None:
    report = analyzed(tmp_path, FRAME.format(pid=4711, n=2, fn="raise") + FRAME.format(pid=4711, n=3, fn="abort"))
    assert report.verdict == "failed"
    assert [(c.host, c.pid) for c in report.culprits] == [("gpu7", 4711)]
    assert "SIGABRT" in render(report)


def test_a_stack_with_its_top_is_one_death(tmp_path: Path) -> None:
    report = analyzed(tmp_path, HEAD.format(pid=4711) + FRAME.format(pid=4711, n=0, fn="abort"))
    assert [(c.host, c.pid) for c in report.culprits] == [("gpu7", 4711)]
    assert len([f for f in report.findings if f.code == "PSM402"]) == 1
    assert "SIGSEGV" in render(report)


def test_a_warning_right_below_the_words_for_a_result_names_the_peer(tmp_path: Path) -> None:
    log = (
        "[rank12]:[E304 07:41:19.233805412 ProcessGroupNCCL.cpp:1534] [PG 134 Rank 1] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.22.3\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "NET/IB : Got completion from peer 10.17.8.4<47718> with status=5 opcode=0 len=0 vendor err 249 (Recv)\n"
    )
    report = analyzed(tmp_path, log)
    assert "10.17.8.4" in {c.host for c in report.culprits}
    assert "names no process" not in render(report)


def test_a_raylet_whose_node_was_given_up_says_so_itself(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, "[2026-02-16 14:23:18,000 C 163 163] node_manager.cc:170: This node has beem marked as dead.\n"
    )
    assert [c.pid for c in report.culprits] == [163]
    assert "reports it to a caller" not in render(report)


def test_a_worker_of_paddles_loader_that_was_killed_is_named(tmp_path: Path) -> None:
    log = "SystemError: (Fatal) DataLoader process (pid 2317) exited is killed by signal: Killed. (at /p/data_loader.cc:181)\n"
    assert who(tmp_path, log) == [(None, 2317)]


@pytest.mark.parametrize(
    ("address", "host"),
    [("(host, port)", None), ("(hostname, 29500)", None), ("(node3, 29500)", "node3"), ("(07, 41877)", "0.0.0.7")],
)
def test_a_store_is_named_by_a_host_and_not_by_a_word_for_one(address: str, host: str | None, tmp_path: Path) -> None:
    log = (
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [::ffff:0.0.0.7]:41877 (errno: 110 - Connection timed out).\n"
        f"[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of {address}.\n"
    )
    assert [c.host for c in analyzed(tmp_path, log).culprits] == ([host] if host else [])


def test_a_child_that_could_not_start_its_program_is_named_before_the_one_that_was_killed(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "[8] [proxy:1:1@cnode4] HYD_spawn (../hydra_spawn.c:117): execvp error on file bin/ep_server (No such file or directory)\n"
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 2 PID 18745 RUNNING AT cnode4\n=   KILLED BY SIGNAL: 9 (Killed)\n",
    )
    assert [c.rank for c in report.culprits] == [8]
    assert "its program could not be started" in report.reason


def test_torchs_tests_list_the_processes_that_ended(tmp_path: Path) -> None:
    ended = "RuntimeError: Processes {} exited with error code 10\n"
    assert [c.rank for c in analyzed(tmp_path, ended.format("1")).culprits] == [1]
    assert "ranks 0 and 1 exited with code 10" in analyzed(tmp_path, ended.format("0 1")).reason


def test_a_node_that_ray_gives_up_is_named_by_its_id(tmp_path: Path) -> None:
    log = (
        "W1010 07:52:41.336187   617   617 gcs_actor_manager.cc:731] Node 8ac1407be29d failed, reconstructing actors.\n"
    )
    assert who(tmp_path, log) == [("8ac1407be29d", None)]


TORCHRUN = (
    "ChildFailedError:\n============================================================\ntrain.py FAILED\n"
    "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
    "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-06-05_03:22:04\n  host      : node7.lan\n  rank      : 3 (local_rank: 1"
)


def test_a_rank_of_torchruns_summary_is_named_where_its_line_is_cut(tmp_path: Path) -> None:
    assert [(c.rank, c.host) for c in analyzed(tmp_path, TORCHRUN).culprits] == [(3, "node7.lan")]


def test_the_only_worker_of_deepspeeds_launcher_is_named_where_its_line_is_cut(tmp_path: Path) -> None:
    log = (
        "[2026-04-08 11:18:33,201] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 91\n"
        "[2026-04-08 11:18:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'run.py', '--local_rank=0', '--deepspeed', 'ds.json', '--model"
    )
    culprits = analyzed(tmp_path, log).culprits
    assert [(c.rank, c.pid) for c in culprits] == [(None, 91)]


def test_a_child_process_ends_by_the_traceback_below_its_name(tmp_path: Path) -> None:
    stack = 'Traceback (most recent call last):\n  File "/a/server.py", line 387, in run\n    loop()\n'
    assert analyzed(tmp_path, "Process Coordinator-1:\n" + stack).verdict == "failed"
    assert analyzed(tmp_path, "works\n" + stack).verdict == "inconclusive"


def test_what_a_raylet_tells_is_not_of_the_process_that_prints_it(tmp_path: Path) -> None:
    line = (
        "(EngineCore pid=832) (raylet) A task failed by an unexpected system error. Look into the logs of the worker.\n"
    )
    assert 832 not in {c.pid for c in analyzed(tmp_path, "(EngineCore pid=832) starts\n" * 8 + line).culprits}


def test_a_spawned_process_is_named_where_the_line_is_cut(tmp_path: Path) -> None:
    log = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 2 terminated with the following err"
    assert "spawned process 2" in analyzed(tmp_path, log).reason


def test_the_node_where_ray_killed_workers_is_named_over_wrapped_lines(tmp_path: Path) -> None:
    log = (
        "(raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at \n"
        "node (ID: 51c0e6a947fb, IP: 172.29.6.131) over the last time period.\n"
    )
    assert [c.host for c in analyzed(tmp_path, log).culprits] == ["172.29.6.131"]
