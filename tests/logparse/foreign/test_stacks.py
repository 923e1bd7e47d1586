"""Stacks of gdb, py-spy and faulthandler."""

from __future__ import annotations

from psmkit.logparse.foreign.stacks import parse_gdb, parse_pyspy

GDB = """\
Thread 3 (Thread 0x7f535e7fb000 (LWP 503) "NCCL Progress 0"):
#0  futex_wait (private=<optimized out>) at ../sysdeps/nptl/futex-internal.h:183
#1  0x00007f539f454740 in ncclProxyGetPostedOps (added=<synthetic pointer>) at proxy.cc:713
#2  ncclProxyProgress (proxyState_=0x55d847bc00c0) at proxy.cc:868

Thread 2 (Thread 0x7f53817fd000 (LWP 502)):
#0  0x00007f539ef8699f in poll () from /lib64/libc.so.6
#1  ncclProxyService (_args=0x55d847bc00c0) at proxy.cc:1437

Thread 1 (Thread 0x7f53a0000000 (LWP 500) "python"):
#0  0x00007fff in sched_yield () from /lib64/libc.so.6
#1  0x00007ff0 in cudaStreamSynchronize () from /usr/lib/libcudart.so.12
"""


def test_gdb_threads_and_frames() -> None:
    (dump,) = parse_gdb(GDB)
    assert (dump.tool, dump.pid, len(dump.threads)) == ("gdb", 500, 3)
    first, second, main = dump.threads
    assert (first.name, first.tid, first.line) == ("NCCL Progress 0", 503, 1)
    assert [f.function for f in first.frames] == ["futex_wait", "ncclProxyGetPostedOps", "ncclProxyProgress"]
    assert first.frames[1].where == "proxy.cc:713"
    assert second.name is None
    assert main.frames[1].where == "/usr/lib/libcudart.so.12"


def test_gdb_of_two_processes() -> None:
    dumps = parse_gdb("Attaching to process 91\n" + GDB + "Attaching to process 92\n" + GDB)
    assert [(d.pid, len(d.threads)) for d in dumps] == [(91, 3), (92, 3)]
    assert [d.pid for d in parse_gdb(GDB + GDB.replace("LWP 50", "LWP 60"))] == [500, 600]


def test_gdb_info_threads() -> None:
    (dump,) = parse_gdb(
        "  Id   Target Id                                   Frame \n"
        '* 1    Thread 0x7f53 (LWP 41) "python" 0x00007f in poll () from /lib64/libc.so.6\n'
        '  2    Thread 0x7f54 (LWP 42) "NCCL Service 0" 0x00007f in accept4 () from /lib64/libc.so.6\n'
    )
    assert dump.pid == 41
    assert [(t.tid, t.name, t.frames[0].function) for t in dump.threads] == [
        (41, "python", "poll"),
        (42, "NCCL Service 0", "accept4"),
    ]


def test_a_cut_gdb_dump_keeps_what_it_has() -> None:
    (dump,) = parse_gdb(GDB[:250])
    assert dump.threads[0].frames


def test_pyspy_processes_threads_and_frames() -> None:
    first, second = parse_pyspy(
        "Process 812: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\n"
        'Thread 812 (idle): "MainThread"\n    synchronize (torch/cuda/streams.py:95)\n    <module> (train.py:88)\n'
        'Thread 0x7FD3 (active+gil): "pin"\n    loop (a.py:1)\n'
        "Process 813: python train.py\nThread 813 (active)\n    step (train.py:3)\n"
    )
    assert (first.pid, second.pid) == (812, 813)
    assert [(t.name, t.state) for t in first.threads] == [("MainThread", "idle"), ("pin", "active+gil")]
    assert [f.function for f in first.threads[0].frames] == ["synchronize", "<module>"]
    assert first.threads[0].frames[0].where == "torch/cuda/streams.py:95"


def test_faulthandler_stacks() -> None:
    (dump,) = parse_pyspy(
        "Timeout (0:10:00)!\n"
        'Thread 0x00007f1 (most recent call first):\n  File "/a/b.py", line 3 in wait\n\n'
        'Current thread 0x00007f2 (most recent call first):\n  File "train.py", line 9 in <module>\n'
    )
    assert [t.frames[0].function for t in dump.threads] == ["wait", "<module>"]
    assert dump.threads[1].name == "current thread"
