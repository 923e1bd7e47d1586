"""Errors in words that the catalogue does not know: they are quoted, and decide only where nothing else explains the end of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

START = "starting 4 workers\nfrobnicator 1.4 up\n"


def who(log: str, tmp_path: Path) -> tuple[str, list[tuple[int | None, str | None, int | None]]]:
    report = analyzed(tmp_path, START + log)
    return str(report.verdict), [(c.rank, c.host, c.pid) for c in report.culprits]


# log, rank, host, pid
NAMED = {
    "a tag": ("[rank3]: ERROR frobnicator: queue 4 overran\n", 3, None, None),
    "before the error": ("10:00:01 | rank 3 | ERROR frobnicator: queue 4 overran\n", 3, None, None),
    "a field": ("ERROR frobnicator: queue overran, rank:3, size:8\n", 3, None, None),
    "a line below": (
        "[ERROR] frobnicator: queue overran\n[ERROR] (PID:4711, Device:3, RankID:3) call failed\n",
        3,
        None,
        None,
    ),
    "torch": ("E0301 10:00:01.123456 4711 torch/ring.py:88] queue 4 overran\n", None, None, 4711),
    "Open MPI": ("[node7:4711] frob: ERROR queue 4 overran\n", None, "node7", 4711),
    "oneCCL": ("2026:03:01-10:00:01:(4711) |CCL_ERROR| ring.cpp:88 start: queue 4 overran\n", None, None, 4711),
    "Neuron": ("2026-Mar-01 10:00:01.0318 4711:4720 ERROR  ENC:queue 4 overran\n", None, None, 4711),
    "an address": ("frobnicator: error: cannot connect to 10.0.0.7:4000\n", None, "10.0.0.7", None),
    "a host": ("ssh: Could not resolve hostname node7: Name or service not known\n", None, "node7", None),
    "a box": ("ERROR a component was not found.\n\nHost:      node7\nFramework: frob\n", None, "node7", None),
    "another rank, behind a tag": ("[Rank 0]: Rank 5 failed to pass the gate\n", 5, None, None),
    "a peer": ("frobnicator: Fatal error: lost rank 2\n", 2, None, None),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_unknown_error_at_the_end_names_who_its_lines_name(name: str, tmp_path: Path) -> None:
    log, *expected = NAMED[name]
    assert who(log, tmp_path) == ("failed", [tuple(expected)])


def test_the_thread_in_an_error_of_glog_is_no_process(tmp_path: Path) -> None:
    log = "W0301 10:00:01.120000 4711 pool.cc:30] queue 4 is full\nE0301 10:00:01.123456 4711 ring.cc:88] queue 4 overran\n"
    assert who(log, tmp_path) == ("failed", [])


_GRPC = "[rank{}] UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:{}:8476: Failed to connect to remote host: Connection refused\n"


def test_who_refused_a_call_of_grpc_is_named_and_not_who_reports_it(tmp_path: Path) -> None:
    log = "".join(_GRPC.format(rank, "10.0.0.7") for rank in (0, 3))
    assert who(log, tmp_path) == ("failed", [(None, "10.0.0.7", None)])


def test_the_address_that_refused_a_call_of_grpc_may_be_on_the_line_below(tmp_path: Path) -> None:
    log = _GRPC.format(0, "10.0.0.7").replace("UNKNOWN: ", "UNKNOWN:\n")
    assert who(log, tmp_path) == ("failed", [(None, "10.0.0.7", None)])


@pytest.mark.parametrize("host", ["node7", "D17L07", "W2", "I9", "Dx", "DEV7", "WIN3", "INTEL4"])
def test_the_name_of_a_host_in_brackets_is_no_level(host: str, tmp_path: Path) -> None:
    log = f"[{host}:0:4711 - frob.c:12] ERROR queue 4 overran\n{host}:4711:4720 [3] NCCL INFO frobnicator 1.4\n"
    assert who(log, tmp_path)[0] == "failed"


@pytest.mark.parametrize(
    "level",
    ["[I ", "[D ", "[W ", "[I1120 10:00:01 ", "[W1120 10:00:01 ", "[W:frob:", "[WARNING|ring.py:12] ", "[DEBUG] "],
)
def test_a_level_in_brackets_makes_a_line_harmless(level: str, tmp_path: Path) -> None:
    assert who(f"{level}frobnicator: ERROR queue 4 overran\n", tmp_path)[0] == "inconclusive"


def test_its_words_are_quoted_and_the_report_is_not_sure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, START + "10:00:01 ERROR frobnicator: queue 4 overran\n")
    assert "frobnicator: queue 4 overran" in report.reason and report.confidence <= 0.5
    assert report.findings[0].evidence[0].line == 3


def test_words_of_a_failure_count_at_the_end_only(tmp_path: Path) -> None:
    failed = "frobnicator: failed to attach the queue\n"
    assert who(failed, tmp_path)[0] == "failed"
    assert who(failed + "still here\n" * 10, tmp_path)[0] == "inconclusive"


@pytest.mark.parametrize(
    "log",
    [
        "10:00:01 WARNING frobnicator: failed to attach the queue\n",
        "10:00:01 INFO frobnicator: 0 errors\n",
        "E0301 10:00:01.123456 4711 ring.cc:88] queue 4 overran\nepoch 3 | loss 2.31\n",
        "ERROR frobnicator: queue 4 overran\n" + "at work\n" * 40,
        "[rank1]: see ValueError: bad shard\n",
    ],
    ids=["a warning", "an information", "steps follow", "many lines follow", "a text about an exception"],
)
def test_an_error_that_did_not_end_the_work_decides_nothing(log: str, tmp_path: Path) -> None:
    assert who(log, tmp_path) == ("inconclusive", [])


def test_a_known_error_is_never_overruled(tmp_path: Path) -> None:
    known = (
        "[node1:9] *** An error occurred in MPI_Send\nMPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
    )
    report = analyzed(tmp_path, f"[rank3]: ERROR frobnicator: queue 4 overran\n{known}")
    assert [c.rank for c in report.culprits] == [2]
    assert not any("frobnicator" in f.title for f in report.findings)


def test_an_exception_of_an_unknown_type_ends_its_rank(tmp_path: Path) -> None:
    stack = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nfrob.api.QueueError\n'
    )
    report = analyzed(tmp_path, "".join(f"[rank2]: {line}\n" for line in stack.splitlines()))
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [2]


def test_the_code_of_a_stack_is_no_error(tmp_path: Path) -> None:
    log = '  File "a.py", line 3, in run\n    logger.error(f"{x} failed to start")\n  File "b.py", line 3, in go\n    raise FrobError("cannot go")\n'
    assert not any(f.stage == "last words" for f in analyzed(tmp_path, START + log).findings)


def test_the_first_line_of_a_text_that_nothing_completes_is_a_line_like_others(tmp_path: Path) -> None:
    # it ends within a pattern of the catalogue
    assert who("10:00:01 ERROR queue 4 overran, MPI_ABORT was invoked on rank\n", tmp_path)[0] == "failed"


def test_a_log_with_stacks_between_its_lines_is_read_as_a_log(tmp_path: Path) -> None:
    stack = 'Thread 71 (idle): "MainThread"\n    wait (threading.py:302)\n'
    log = f"[2026-03-01 10:00:00] starting\n{stack}[2026-03-01 10:00:05 TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    report = analyzed(tmp_path, log)
    assert report.verdict == "hung" and report.coverage.lines == 4


def test_mpirun_names_the_first_that_failed_although_its_exit_code_is_cut_off(tmp_path: Path) -> None:
    log = "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[13834,1],3]\n"
    report = analyzed(tmp_path, log)
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [3]


def test_an_exception_with_the_process_on_its_next_lines_names_it(tmp_path: Path) -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 3, in run\nRuntimeError: [ERROR] call failed in:\n[ERROR] 2026-03-01 (PID:4711, Device:3, RankID:3) ERR02200 failed.\n'
    assert [(c.rank, c.pid) for c in analyzed(tmp_path, log).culprits] == [(3, 4711)]


def test_ray_names_the_task_whose_exception_stands_above_its_report(tmp_path: Path) -> None:
    log = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2615, unhandled system error, NCCL version 2.24.3\n"
        "(main pid=41) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::Worker.init() (pid=912, ip=10.0.0.7, actor_id=1, repr=x)\n"
    )
    assert [(c.host, c.pid) for c in analyzed(tmp_path, log).culprits] == [("10.0.0.7", 912)]


def test_processes_that_srun_could_not_start_are_no_dead_ranks(tmp_path: Path) -> None:
    log = "srun: error: Task launch for StepId=141.0 failed on node c2: Socket timed out on send/recv operation\n"
    report = analyzed(tmp_path, log)
    assert "could not start the tasks on c2" in report.reason and [c.host for c in report.culprits] == ["c2"]


@pytest.mark.parametrize(
    "note",
    [
        "# Errors are marked with an exclamation mark\n",
        "Errors may follow from this setting\n",
        "Note: if any error is shown, send this page\n",
        "In case of errors read the manual\n",
        "Failures, if any, are listed in the last column\n",
        "some failures can be repeated\n",
    ],
)
def test_a_note_about_errors_in_general_is_no_error(note: str, tmp_path: Path) -> None:
    assert who(note, tmp_path) == ("inconclusive", [])


@pytest.mark.parametrize(
    "error",
    [
        "ERROR frobnicator: errors are listed in the file\n",
        "frobnicator: failed; errors may follow\n",
        "frobnicator: error: if you see this, the queue overran\n",
    ],
)
def test_an_error_that_goes_on_with_a_note_stays_one(error: str, tmp_path: Path) -> None:
    assert who(error, tmp_path)[0] == "failed"


def test_words_of_a_failure_in_an_advice_hide_no_error_above_it(tmp_path: Path) -> None:
    advice = "see the manual: a start without the option cannot\nwork, so add it\n" + "and read on\n" * 8
    assert who("[node7:4711] OPAL ERROR: Not ready in file a.c at line 3\n" + advice, tmp_path) == (
        "failed",
        [(None, "node7", 4711)],
    )


def test_the_code_of_a_traceback_shows_no_work(tmp_path: Path) -> None:
    error = "10:00:01 CRITICAL app: the step failed\nTraceback (most recent call last):\n"
    frame = '  File "/app/t.py", line 9, in run\n    loop.epoch(step=1, loss=2)\n'
    assert who(error + frame * 3, tmp_path)[0] == "failed"
    assert who(error + frame + "epoch 3 | loss 2.31\n" + frame, tmp_path)[0] == "inconclusive"


def test_an_error_far_from_the_end_is_not_called_near(tmp_path: Path) -> None:
    error = "ERROR frobnicator: queue 4 overran\n"
    assert "near the end" in analyzed(tmp_path, START + "a\n" * 3 + error + "a\n" * 3).reason
    assert "near the end" not in analyzed(tmp_path, START + error + "a\n" * 20).reason


def test_a_setting_or_an_information_is_no_line_that_tells_of_an_error(tmp_path: Path) -> None:
    quiet = analyzed(tmp_path, "LAUNCH INFO 10:00:01 elastic_timeout: 30\nLAUNCH INFO 10:00:01 nccl: on\n")
    assert "tells of an error" not in quiet.reason
    told = analyzed(tmp_path, "INFO:agent:[default] Worker group FAILED. 3/3 attempts left\nINFO:agent: nccl next\n")
    assert "tells of an error" in told.reason


def test_the_rank_on_which_a_communicator_was_aborted_is_not_the_cause(tmp_path: Path) -> None:
    assert who("[CRITICAL] Training failed due to NCCL communicator was aborted on rank 3. :\n", tmp_path) == (
        "failed",
        [],
    )
    assert who("[CRITICAL] Training failed due to a bad shard on rank 3\n", tmp_path)[1] == [(3, None, None)]


def test_the_name_of_a_process_of_open_mpi_is_not_quoted_in_part(tmp_path: Path) -> None:
    report = analyzed(tmp_path, START + "[node7:4711] [[28214,2],0] ORTE_ERROR_LOG: Not found in file a.c at line 3\n")
    assert "log: ORTE_ERROR_LOG: Not found" in report.reason


@pytest.mark.parametrize(
    "line",
    [
        "(Worker_TP6 pid=745) [lib] shape is M:1024, N:25008, not found tuned config in /tmp/tuned.csv, will use default config!",
        "[2021-02-15 17:04:11,308 I 38217 10244117] scheduler.cc:150: Failed to schedule a placement group, because no nodes are available.",
        "worker 3: failed to reach the tracker, retrying in 5 s",
    ],
)
def test_words_of_a_failure_after_which_the_program_goes_on_are_none(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"loading\nloaded\nstarting\n{line}\n")
    assert (report.verdict, report.culprits) == ("inconclusive", ())


@pytest.mark.parametrize(
    "line",
    [
        "               comm_timeout_minutes=None),",
        "Namespace(lr=0.1, max_failures=3, timeout=1800, log_errors=True, on_error='stop')",
        "{'timeout': 1800, 'fatal_errors': False, \"stop_on_failure\": true}",
        "python train.py --ignore-errors --timeout 30",
        "     errors_of=ErrorParams(stop_on_error=False,",
        "The saying tells us that a person has no way out after all that they tried at home has failed again.",
        "[2026-03-01 10:00:00] Failed to ask the tool for the size of the memory. Falling back to the library.",
    ],
)
def test_settings_prose_and_fallbacks_tell_of_no_error(line: str, tmp_path: Path) -> None:
    assert "tells of an error" not in analyzed(tmp_path, f"loading\n{line}\nloaded\n").reason


@pytest.mark.parametrize(
    "line",
    [
        "connect failed: error_code=111, timeout=30",
        "Failed to reach the other side, and after all that was tried there was no way left for the two of them to go on.",
        "rank 3 says that after all that was tried there was no way left for the two of them, and all has failed",
        "launch: --timeout 30 was over, and the step has failed",
    ],
)
def test_a_line_with_settings_or_many_words_may_tell_of_an_error(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"loading\n{line}\n" + "loaded\n" * 40)
    assert "tells of an error" in report.reason or line[:30] in report.reason


def test_an_error_line_before_the_end_of_the_work_is_not_the_reason(tmp_path: Path) -> None:
    error = "[1724676992.111700] [n7:4711:f] vfs_fuse.c:281 UCX ERROR inotify_add_watch(/tmp) failed: No space left\n"
    steps, done = "".join(f"step {n} | loss: 2.5 | lr 1e-4\n" for n in range(2)), "Training completed in 31 s\n"
    assert "UCX" in analyzed(tmp_path, error + steps).reason
    finished = analyzed(tmp_path, error + steps + done)
    assert finished.reason.startswith("the program says that its work is finished")
