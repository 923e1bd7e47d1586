"""A process that aborts or crashes: the words beside its signal, and the stack that it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Finding
from tests.analysis.texts import analyzed

HEAD = "[n3-slot2:4411] "
ABORTED = f"{HEAD}*** Process received signal ***\n{HEAD}Signal: Aborted (6)\n{HEAD}Signal code:  (-6)\n"


def first(folder: Path, text: str) -> Finding:
    whole = analyzed(folder, text)
    assert whole.verdict == "failed"
    return whole.findings[0]


@pytest.mark.parametrize(
    "words",
    [
        "free(): corrupted unsorted chunks",
        "malloc(): unaligned tcache chunk detected",
        "double free or corruption (out)",
    ],
)
def test_the_words_of_glibc_are_the_reason_of_an_abort(words: str, tmp_path: Path) -> None:
    found = first(tmp_path, f"{words}\n{ABORTED}")
    assert f"n3-slot2:4411) died by SIGABRT ({words})" in found.title
    assert found.evidence[0].text.endswith("Signal: Aborted (6)")
    assert "AddressSanitizer" in found.next_step
    assert "core dump" not in found.next_step


def test_words_like_those_of_glibc_are_no_abort(tmp_path: Path) -> None:
    whole = analyzed(
        tmp_path,
        "step 1: loss 2.5\npool: free() of chunk 3: invalid, will retry\nmalloc() gave 3 chunks\nstep 2: loss 2.4\n",
    )
    assert not any(f.code == "PSM402" for f in whole.findings)


def test_an_assertion_names_its_function(tmp_path: Path) -> None:
    text = f"app: src/ring.c:31: void ring_close(int): Assertion `n == 0' failed.\n{ABORTED}"
    assert "died by SIGABRT (assertion n == 0 failed in ring_close())" in first(tmp_path, text).title


def test_a_failed_check_of_glog_is_the_reason(tmp_path: Path) -> None:
    text = f"F0102 03:04:05.000001 4500 net.h:31] Check failed: listen(fd) >= 0 ERROR: listening\n*** Check failure stack trace: ***\n{ABORTED}"
    found = first(tmp_path, text)
    assert "(Check failed: listen(fd) >= 0 ERROR: listening)" in found.title
    assert "its condition" in found.next_step


def test_the_text_of_another_process_is_no_frame(tmp_path: Path) -> None:
    text = (
        ABORTED
        + f"{HEAD}[ 0] /lib/libc.so.6(+0x42520)[0x7f20b72af520]\n{HEAD}[ 1] n4:rank0:  Bad address format: remote EP (4)\n"
    )
    found = first(tmp_path, text)
    assert "n4" not in found.title + found.explanation
    assert len(found.named) == 1


def test_a_component_of_open_mpi_that_ends_the_job_comes_before_the_abort_at_exit(tmp_path: Path) -> None:
    text = f"{HEAD}mtl_ofi.h:49: *** The Open MPI OFI MTL is aborting the MPI job (via exit(3)).\n"
    text += f"app: src/mon.c:15: mon_end: Assertion `empty(list)' failed.\n{ABORTED}"
    found = first(tmp_path, text)
    assert "Open MPI's OFI transport aborted the MPI job" in found.title
    assert "exit(3)" in found.evidence[0].text


GLOG = """PC: @                0x0 (unknown)
*** SIGSEGV (@0x18) received by PID 911 (TID 0x7f1088601700) from PID 24; stack trace: ***
    @     0x7f10882a0160 (unknown)
    @     0x7f0edff14ea7 dropRing()
    @     0x7f0edff10cc5 ncclCommInitRank
    @     0x7f103a1cd190 trainer::Groups::Groups()
"""


def test_a_stack_of_glog_names_the_function_and_the_call_of_nccl(tmp_path: Path) -> None:
    found = first(tmp_path, GLOG)
    assert found.title.endswith("died by SIGSEGV in dropRing(), called from ncclCommInitRank()")
    assert "inside a call of NCCL" in found.explanation
    assert "stack if it printed one" not in found.next_step


UCX = """ 3  /opt/ucx/lib/libucp.so.0(ucp_worker_step+0x3c9) [0x7f11ba7775f9]
 4  /opt/ucx/lib/libucp.so.0(+0x784c0) [0x7f11ba7754c0]
 5  /opt/ompi/lib/libmpi.so.40(MPI_Init+0x73) [0x7f11cc3611b3]
=================================
"""


def test_a_stack_above_the_signal_whose_top_is_cut_is_what_the_process_passes_through(tmp_path: Path) -> None:
    found = first(tmp_path, UCX + ABORTED)
    assert found.title.endswith("and its stack passes through ucp_worker_step() of libucp.so.0 and MPI_Init()")
    assert "does not show the top" in found.explanation
    assert "while MPI started" in found.explanation


def test_a_stack_far_above_the_signal_is_that_of_another_process(tmp_path: Path) -> None:
    found = first(tmp_path, UCX + "step 1: loss 2.5\n" * 5 + ABORTED)
    assert "MPI_Init" not in found.title + found.explanation


def test_the_handler_of_ucx_is_not_where_a_process_died(tmp_path: Path) -> None:
    text = "[n7:88:0:90] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)\n==== backtrace (tid: 90) ====\n"
    text += " 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2d4) [0x7fedc925c274]\n 1  /usr/lib/libucs.so.0(+0x2d44c) [0x7fedc925c44c]\n"
    text += " 2  /usr/lib/libnccl.so.2(+0x120057) [0x7ff1c18c1057]\n 3  /usr/lib/libc.so.6(+0x89144) [0x7ff1c151e144]\n"
    found = first(tmp_path, text)
    assert found.title.endswith(" in libnccl.so.2")


def test_an_error_file_of_torchrun_says_that_the_host_lacked_memory(tmp_path: Path) -> None:
    event = '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "metadata": {"global_rank": 2, "group_rank": 0, "worker_id": "77", "role": "default", "hostname": "n9", "state": "FAILED"}}\n'
    handler = '[ERROR] 2024-01-02 03:04:05,307 error_handler: {\n  "message": {\n    "message": "MemoryError: std::bad_alloc",\n'
    found = first(tmp_path, event + handler)
    assert found.title == "rank 2 (n9:77) died (MemoryError: std::bad_alloc)"
    assert found.culprits == (2,)
    assert "memory of the host" in found.next_step


def test_processes_that_abort_together_are_those_that_their_handlers_name(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of 'std::runtime_error'\n"
    handler = "[n{0}:70{0}] *** Process received signal ***\n[n{0}:70{0}] Signal: Aborted (6)\n[n{0}:70{0}] *** End of error message ***\n"
    text = (
        thrown * 2
        + "  what():  it broke on rank 0\n"
        + handler.format(1)
        + "  what():  it broke on rank 1\n"
        + handler.format(2)
    )
    (tmp_path / "job.log").write_text(text)
    analyzed = psmkit.analyze([tmp_path / "job.log"])
    deaths = [f for f in analyzed.findings if f.code == "PSM402"]
    assert [[(n.host, n.pid) for n in f.named] for f in deaths] == [[("n1", 701), ("n2", 702)], [("n2", 702)]]
    assert all("std::runtime_error" in f.title and "on rank" not in f.title for f in deaths)


def test_a_function_of_glibc_without_its_library_is_not_where_a_process_died(tmp_path: Path) -> None:
    text = (
        "[n3:4411:0:4411] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)\n==== backtrace (tid: 4411) ====\n"
        " 0 0x0000000000085f0c __GI___libc_free()  :0\n 1 0x00000000000fef1f ring_release()  ???:0\n"
    )
    found = first(tmp_path, text)
    assert found.title.endswith("in ring_release()") and "ring_release()" in (found.explanation or "")


def test_a_stack_that_lacks_a_frame_does_not_say_which_one_is_the_first(tmp_path: Path) -> None:
    frame = HEAD + "[ {}] {}(+0x{}0)[0x7f6e5ec62cf{}]\n"
    torn = ABORTED + frame.format(0, "/lib64/libc.so.6", 9, 0) + frame.format(2, "/opt/app/ring", 7, 2)
    found = first(tmp_path, torn)
    assert "its stack passes through ring" in found.title
    assert found.explanation == "A frame above ring is not in the log, or its line is torn."
