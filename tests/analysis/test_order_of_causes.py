"""Which error is the cause, and which only passes on a result, follows a loss, or belongs to another run."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Finding, Severity
from tests.analysis.texts import analyzed

_OP = "\nn0:70:71 [0] proxy.cc:1040 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2\n"
_RECV = "\nn0:70:71 [0] misc/socket.cc:503 NCCL WARN Net : Call to recv from 10.0.0.9<46211> failed : Broken pipe\n"
_WAY = "n0:70:71 [0] NCCL INFO misc/socket.cc:520 -> 2\nn0:70:71 [0] NCCL INFO transport/net.cc:515 -> 2\n"
_LEFT = "n0:{pid}:{pid}1 [1] NCCL INFO group.cc:64 -> {code} [Async thread]\nn0:{pid}:{pid} [1] NCCL INFO group.cc:418 -> {code}\n"
_LOST = (
    "\nn0:80:801 [2] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.9<41876>\n"
    "n0:80:801 [2] NCCL INFO misc/socket.cc:750 -> 6\nn0:80:801 [2] NCCL INFO init.cc:1117 -> 3\nn0:80:801 [2] NCCL INFO group.cc:64 -> 3 [Async thread]\n"
)
_IB = (
    "\n{0} [0] transport/net_ib.cc:788 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
    "{0} [0] NCCL INFO include/net.h:34 -> 2\n{0} [0] NCCL INFO transport.cc:163 -> 2 [Proxy Thread]\n"
)
_CUDA = "\nn1:70:70 [1] init.cc:194 NCCL WARN Cuda failure '{}'\nn1:70:70 [1] NCCL INFO init.cc:1143 -> 1\n"


def _errors(tmp_path: Path, log: str) -> list[Finding]:
    return [f for f in analyzed(tmp_path, log).findings if f.severity is Severity.ERROR]


def test_line_that_repeats_a_result_comes_after_the_reason_that_its_thread_prints(tmp_path: Path) -> None:
    before = "n0:70:71 [0] NCCL INFO proxy.cc:942 -> 2\n"
    lead = _errors(tmp_path, before + _OP + _RECV + _WAY + "n0:70:71 [0] NCCL INFO proxy.cc:914 -> 2\n" + _OP)[0]
    assert "Call to recv from 10.0.0.9" in lead.title
    # the reason of another thread explains nothing
    lead = _errors(tmp_path, before + _OP + (_RECV + _WAY).replace("n0:70:71", "n0:70:75"))[0]
    assert "Failed to execute operation Connect" in lead.title


def test_process_that_returned_a_system_error_before_any_loss_is_no_victim(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _LEFT.format(pid=70, code=2) + _LOST)
    lead = next(f for f in report.findings if f.severity is Severity.ERROR)
    assert "n0:70 " in lead.title and "system error" in lead.title
    assert [r.state for r in report.ranks] == ["failed", "victim"]


def test_process_that_returned_an_error_after_a_loss_can_be_a_victim(tmp_path: Path) -> None:
    lead = _errors(tmp_path, _LOST + _LEFT.format(pid=70, code=2))[0]
    assert "closed by remote peer" in lead.title
    # an internal error also follows from the abort of another process
    lead = _errors(tmp_path, _LEFT.format(pid=70, code=3) + _LOST)[0]
    assert "closed by remote peer" in lead.title


def test_error_of_a_kernel_below_a_network_error_is_stated_too(tmp_path: Path) -> None:
    log = _IB.format("n0:60:61") + _IB.format("n1:70:71") + _CUDA.format("an illegal memory access was encountered")
    lead, second = _errors(tmp_path, log)
    assert "error 12" in lead.title
    assert "illegal memory access" in second.title and "does not show whether" in second.explanation
    assert second.confidence < lead.confidence
    # an error of the call itself after an abort is part of the cleanup
    assert (
        len(_errors(tmp_path, _IB.format("n0:60:61") + _IB.format("n1:70:71") + _CUDA.format("driver shutting down")))
        == 1
    )


def test_codes_of_a_way_stand_at_its_frames(tmp_path: Path) -> None:
    told = _errors(tmp_path, "n0:80:801 [2] NCCL INFO Using network Socket\n" + _LOST)[0].explanation
    assert "misc/socket.cc:750 (6)" in told and "group.cc:64 (3)" in told
    assert "error 3 (internal error) came back through misc/socket.cc" not in told


def test_abort_of_exit_handlers_follows_from_the_transport_that_ended_the_job(tmp_path: Path) -> None:
    crash = "[n0:70] *** Process received signal ***\n[n0:70] Signal: Aborted (6)\n[n0:70] Signal code:  (-6)\n"
    mtl = "[n0:70] mtl_ofi_endpoint.h:49: *** The Open MPI OFI MTL is aborting the MPI job (via exit(3)).\n"
    (lead,) = _errors(tmp_path, mtl + crash)
    assert "OFI transport" in lead.title
    assert "SIGABRT" in _errors(tmp_path, crash)[0].title


def test_command_below_an_end_starts_another_run(tmp_path: Path) -> None:
    end = "Abort(37124) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"
    stop = "n1: Test CUDA failure common.cu:963 'invalid device ordinal'\n .. n1 pid 422: Test failure common.cu:925\n"
    titles = [f.title for f in analyzed(tmp_path, end + "mpirun -np 2 ./build/all_reduce_perf -g 2\n" + stop).findings]
    assert any("rank 0 died (Fatal error in PMPI_Init)" in t for t in titles) and not any(
        "consequence" in t for t in titles
    )
    assert "stack of the error" in _errors(tmp_path, end)[0].next_step
    titles = [f.title for f in analyzed(tmp_path, "mpirun -np 2 ./build/all_reduce_perf -g 2\n" + end + stop).findings]
    assert any("consequence" in t for t in titles)
