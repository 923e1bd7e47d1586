"""The cause is named where the log holds it, and what follows from it is not: stores, Ray's reports, data loaders, Slurm's tasks, signals."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Verdict
from tests.analysis.texts import analyzed, first_error

CLOSED = "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\n"
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /w/ProcessGroupNCCL.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\nsocketStartConnect: Connect to 10.7.7.8<41317> failed : Software caused connection abort\n"
)


def child(number: int, what: str) -> str:
    return f'Process Process-{number}:\nTraceback (most recent call last):\n  File "/w/process.py", line 314, in _bootstrap\n    self.run()\n  File "/w/train.py", line 228, in main\n    wrap()\n{what}'


NO_GROUP = "ValueError: Default process group has not been initialized, please make sure to call init_process_group.\n"


def test_a_process_that_went_on_without_a_store_is_why_the_others_cannot_connect(tmp_path: Path) -> None:
    found = analyzed(tmp_path, CLOSED + child(5, NO_GROUP) + child(4, NCCL))
    assert "could not open torch's rendezvous store" in found.reason
    (cause,) = found.causes
    assert [found.findings[n].code for n in cause.follows] == ["PSM203"]


def test_a_process_that_found_another_store_explains_no_later_error(tmp_path: Path) -> None:
    assert "Connect to 10.7.7.8" in analyzed(tmp_path, CLOSED + "step 1\n" + child(4, NCCL)).reason


RAY = "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffff Worker ID: aa Node ID: bb Worker IP address: 10.7.7.8 Worker port: 44807 Worker PID: 21067 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits with an exit code None.{}\n"
HELD = (
    ' Traceback (most recent call last):\n  File "/w/function_manager.py", line 608, in method\n    raise RuntimeError(\nRuntimeError: The actor could not be imported:\n\n'
    'Traceback (most recent call last):\n  File "/w/model.py", line 55, in <module>\n    import kernels\nImportError: /w/kernels.so: undefined symbol: _ZNK3abc\n\n'
    "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
    '  File "/w/workers.py", line 37, in <module>\n    raise RuntimeError(\nRuntimeError: it failed to import\n\n'
    "An unexpected internal error occurred while the worker was executing a task."
)


def test_ray_s_report_gives_the_exception_that_it_holds(tmp_path: Path) -> None:
    found = first_error(tmp_path, RAY.format(HELD))
    assert "21067" in found.title and "ImportError: /w/kernels.so: undefined symbol" in found.title
    assert found.evidence[0].text.startswith("ImportError") and found.next_step.startswith("Read the traceback")


def test_ray_s_report_without_an_exception_tells_how_the_worker_ended(tmp_path: Path) -> None:
    text = (
        RAY.format("") + 'Traceback (most recent call last):\n  File "/w/main.py", line 3, in <module>\nKeyError: 7\n'
    )
    assert "exit code None" in first_error(tmp_path, text).title


PINS = (
    "Exception in thread Thread-1 (_pin_memory_loop):\nTraceback (most recent call last):\n"
    '  File "/opt/lib/python3.10/threading.py", line 1016, in _bootstrap_inner\n    self.run()\n'
    '  File "/opt/lib/python3.10/multiprocessing/connection.py", line 383, in _recv\n    raise EOFError\nEOFError\n'
)


def test_a_data_loader_that_lost_its_workers_is_no_cause_of_an_interrupt(tmp_path: Path) -> None:
    found = analyzed(tmp_path, "step 1\n" + PINS * 2 + "LOGS - Keyboard interruption. Exiting from early training\n")
    assert found.verdict is Verdict.INCONCLUSIVE and found.reason == "the job was interrupted (SIGINT)"


def test_a_data_loader_that_lost_its_workers_counts_where_nothing_else_does(tmp_path: Path) -> None:
    assert "EOFError" in analyzed(tmp_path, "step 1\n" + PINS).reason


def test_another_exception_counts_beside_an_interrupt(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nKeyError: 7\n'
    assert "KeyError" in analyzed(tmp_path, text + PINS + "^CKeyboardInterrupt\n").reason


ENDED = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-07-11_14:43:26\n  host      : node{}.cluster.example\n"
    "  rank      : 3 (local_rank: 0)\n  exitcode  : -9 (pid: 9971)\n  traceback : Signal 9 (SIGKILL) received by PID 9971\n"
)
STARVED = "srun: error: node7: task 0: Out Of Memory\n"


def test_a_task_without_memory_is_the_launcher_of_the_rank_that_was_killed(tmp_path: Path) -> None:
    found = first_error(tmp_path, ENDED.format(7) + STARVED)
    assert "rank 3" in found.title and "memory ran out" in found.title and "dmesg" not in found.next_step
    assert found.evidence[0].text.startswith("srun: error")


def test_a_task_of_another_node_says_nothing_of_a_rank_that_was_killed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ENDED.format(8) + STARVED)
    assert not any("rank 3" in f.title and "memory" in f.title for f in report.findings)


KILLS = "[2026-07-11 08:14:01,107] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 26063\n"


def test_deepspeed_s_launcher_names_the_signal_that_it_got(tmp_path: Path) -> None:
    end = "[2026-07-11 08:14:02,118] [INFO] [launch.py:328:sigkill_handler] Main process received SIG{}, exiting\n"
    (found,) = analyzed(tmp_path, KILLS + end.format("INT")).findings
    assert found.title == "DeepSpeed's launcher received SIGINT and ended its workers"
    assert "No line shows" not in found.explanation and "interrupt" in found.next_step
    (other,) = analyzed(tmp_path, KILLS + end.format("TERM")).findings
    assert "SIGTERM" in other.title and other.next_step.startswith("Find out who sent the signal")
    assert "No line shows which" in analyzed(tmp_path, KILLS).findings[0].explanation
