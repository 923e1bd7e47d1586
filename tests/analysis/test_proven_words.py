"""Headlines, proofs and next steps say only what the lines prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyze
from psmkit.report import render
from tests.analysis.texts import analyzed, first_error

_SIGNAL = "{}W0311 10:02:11.5 4010 torch/distributed/elastic/agent/server/api.py:704] Received {} death signal, shutting down workers\n"


def _text(folder: Path, log: str) -> str:
    return " ".join(render(analyzed(folder, log), "text").split())


def test_an_interrupt_behind_the_echo_of_ctrl_c_came_from_the_terminal(tmp_path: Path) -> None:
    text = _text(tmp_path, "epoch 1\n" + _SIGNAL.format("^C", "Signals.SIGINT"))
    assert "interrupted by hand (Ctrl-C)" in text and "Another process sent" not in text
    assert "what the ranks waited for" in text


def test_an_interrupt_without_the_echo_can_have_another_sender(tmp_path: Path) -> None:
    text = _text(tmp_path, "epoch 1\n" + _SIGNAL.format("", "Signals.SIGINT"))
    assert "by hand" not in text and "another process can send it, too" in text


def test_a_hang_up_has_a_usual_cause_and_nohup_does_not_help(tmp_path: Path) -> None:
    text = _text(tmp_path, "epoch 1\n" + _SIGNAL.format("", 1))
    assert "as when its terminal or SSH session closes" in text and "setsid" in text
    assert "nohup does not help" in text and "Ctrl-C" not in text


@pytest.mark.parametrize(
    ("signame", "said", "unsaid"),
    [
        ("Terminated. ", "who sent SIGTERM to process 5150", "core dump (gdb)"),
        ("Killed. ", "OOM killer", "who sent"),
        ("Segmentation fault. ", "core dump (gdb)", "who sent"),
    ],
)
def test_the_advice_for_a_data_loader_worker_fits_its_signal(
    signame: str, said: str, unsaid: str, tmp_path: Path
) -> None:
    step = first_error(
        tmp_path, f"[rank2]: RuntimeError: DataLoader worker (pid 5150) is killed by signal: {signame}\n"
    ).next_step
    assert said in step and unsaid not in step


def _oom(others: int) -> str:
    held = "".join(f"Process {80 + n} has 2.50 GiB memory in use. " for n in range(others))
    return (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 22.00 GiB of which 21.00 MiB is free. "
        f"{held}Including non-PyTorch memory, this process has 1.20 GiB memory in use. Of the allocated memory 900.00 MiB is allocated by PyTorch, and 20.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    )


def test_a_device_full_of_other_processes_is_not_called_fragmented(tmp_path: Path) -> None:
    found = first_error(tmp_path, _oom(7))
    assert "7 other processes hold 17.50 GiB" in found.explanation and "in pieces" not in found.explanation
    assert "CUDA_VISIBLE_DEVICES" in found.next_step and "expandable_segments" not in found.next_step


def test_a_device_of_one_process_may_be_fragmented(tmp_path: Path) -> None:
    assert "expandable_segments" in first_error(tmp_path, _oom(0)).next_step


def test_a_worker_that_its_tag_names_by_rank_and_process_is_one_culprit(tmp_path: Path) -> None:
    tag = "(VllmWorker TP5 pid=733) ERROR 01-04 10:42:07 [multiproc_executor.py:596] "
    log = f'{tag}WorkerProc hit an exception.\n{tag}Traceback (most recent call last):\n{tag}  File "/v/executor.py", line 5, in loop\n{tag}    output = f()\n'
    (culprit,) = analyzed(tmp_path, log).culprits
    assert (culprit.rank, culprit.pid) == (5, 733)


def test_a_lost_node_is_no_process(tmp_path: Path) -> None:
    line = '{"label":"RAY_NODE_REMOVED","message":"The node with node id: 77ab and address: 10.7.0.9 and node name: 10.7.0.9 has been marked dead because the detector has missed too many heartbeats from it.","pid":"65","severity":"ERROR"}\n'
    text = _text(tmp_path, line)
    assert "host at 10.7.0.9" in text and "process at" not in text and "overloaded" in text


def test_all_processes_with_an_error_of_ucx_are_named(tmp_path: Path) -> None:
    lines = "".join(
        f"[c4-{h}:{p}:0:{p}] ib_mlx5_log.c:179  Remote operation error on mlx5_0:1/IB (synd 0x14 vend 0x89 hw_synd 0/0)\n"
        for h, p in (("04", 4930), ("05", 6680), ("04", 4931))
    )
    assert [c.pid for c in analyzed(tmp_path, lines).culprits] == [4930, 6680, 4931]
    assert "plugin" not in first_error(tmp_path, lines).next_step


def test_a_name_without_an_address_is_no_end_of_a_connection(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "ssh: Could not resolve hostname worker-3.jobs.svc: Name or service not known\nORTE was unable to reliably start one or more daemons.\n"
        + "More text.\n" * 16
    )
    report = analyze([log])
    assert [(c.host, c.either) for c in report.culprits] == [("worker-3.jobs.svc", False)]
    assert "connection" not in render(report, "text")


def test_a_rank_of_another_communicator_counts_among_the_ranks_in_view(tmp_path: Path) -> None:
    head = "n15:{0}:{0} [{1}] NCCL INFO "
    log = "".join(
        head.format(2633, 1) + f"comm 0x{n}000 rank 1 nranks 4 cudaDev 1 busId 41000 - Abort COMPLETE\n" for n in (1, 2)
    )
    log += head.format(2635, 2) + "Bootstrap : Using eno1:10.1.1.9<0>\n"
    log += (
        head.format(2635, 2)
        + "comm 0x3000 rank 2 nranks 4 cudaDev 2 nvmlDev 2 busId 81000 commId 0xd57b - Init START\n"
    )
    reason = analyzed(tmp_path, log).reason
    assert "names 1 of 4" not in reason
    assert "n15:2633 was rank 1 of one with 4 ranks, which it aborted" in reason


def test_an_exception_about_an_abort_asks_for_the_reason_of_the_abort(tmp_path: Path) -> None:
    log = '[rank4]:   File "/t.py", line 30, in main\n[rank4]:     barrier()\n[rank4]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 4.\n'
    report = analyzed(tmp_path, log)
    assert not report.culprits
    assert "what aborted the communicator" in _text(tmp_path, log)


def test_a_launch_failure_is_no_assertion(tmp_path: Path) -> None:
    error = "torch.AcceleratorError: CUDA error: {}\n"
    assert "assertion" not in _text(tmp_path, error.format("unspecified launch failure"))
    assert "assertion" in _text(tmp_path, error.format("device-side assert triggered"))


def test_peers_whose_tracebacks_the_log_cuts_do_not_wait(tmp_path: Path) -> None:
    stack = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/t.py", line 3, in <module>\n[rank{0}]:     f()\n'
    log = stack.format(0) + "[rank0]: FileNotFoundError: no such data set\n" + stack.format(3)
    assert "wait for it" not in _text(tmp_path, log)


def test_an_error_in_the_first_half_of_a_short_log_is_not_near_its_end(tmp_path: Path) -> None:
    assert "near the end" not in analyzed(tmp_path, "ERROR: no widget for shard 7\nbye\nbye\nbye\n").reason


def test_a_worker_that_sigterm_ended_was_not_ended_by_an_unknown_signal(tmp_path: Path) -> None:
    line = (
        "ERROR 10-30 13:46:27 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 6855 died, exit code: -15\n"
    )
    assert "process 6855 ended by SIGTERM" in _text(tmp_path, line)


def test_the_place_of_a_failed_check_is_not_the_logger(tmp_path: Path) -> None:
    log = (
        "F20260203 11:10:33.595355   331 rdma.h:92] Check failed: probe(device, port)\n*** Check failure stack trace: ***\n"
        "    @     0x7f930d9df031  google::LogMessage::Fail()\n    @     0x7f930d9eb66d  google::LogMessageFatal::~LogMessageFatal()\n"
        "    @     0x7f930da7b19a  fabric::Factory::open_devices()\n"
    )
    title = first_error(tmp_path, log).title
    assert "fabric::Factory::open_devices()" in title and "LogMessage" not in title
