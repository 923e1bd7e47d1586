"""Stacks of gdb, pstack, eu-stack, py-spy, faulthandler and of inspections."""

from __future__ import annotations

import json

from psmkit.logparse.foreign.stack_json import parse_inspections, parse_pyspy_json
from psmkit.logparse.foreign.stacks import parse_stacks
from psmkit.logparse.foreign.types import StackDump
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, to_json


def parse_gdb(text: str) -> list[StackDump]:
    return parse_stacks(text, "gdb")


def parse_pyspy(text: str) -> list[StackDump]:
    return parse_stacks(text, "py-spy")


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


EU = """\
PID 4711 - process
TID 4711:
#0  0x00007f5e31d2a9cd sched_yield - /usr/lib64/libc.so.6
#1  0x00007f5e0c3a11f2 - 1 waitWorkFifoAvailable(ncclComm*, unsigned int) - /usr/lib64/libnccl.so.2
    /src/enqueue.cc:1228:7
#2  0x00007f5e0c3a1402 - 1 ncclGroupEnd
TID 4720:
#0  0x00007f5e31d1a9cd poll
"""


def test_eu_stack_processes_threads_and_frames() -> None:
    first, second = parse_stacks(EU + EU.replace("47", "48"), "gdb")
    assert (first.tool, first.pid, second.pid) == ("eu-stack", 4711, 4811)
    assert [t.tid for t in first.threads] == [4711, 4720]
    main = first.threads[0].frames
    assert [f.function for f in main] == [
        "sched_yield",
        "waitWorkFifoAvailable(ncclComm*, unsigned int)",
        "ncclGroupEnd",
    ]
    assert main[0].where == "/usr/lib64/libc.so.6"


def test_eu_stack_of_a_process_twice_is_two_dumps() -> None:
    assert [d.pid for d in parse_stacks(EU + EU, "gdb")] == [4711, 4711]
    without_pid = EU.partition("\n")[2]
    assert len(parse_stacks(without_pid + without_pid, "gdb")) == 2


def test_headings_name_rank_process_and_host() -> None:
    text = "".join(f"=== rank {r} pid {900 + r} host node-{r} ===\n{GDB}" for r in (3, 4))
    assert [(d.rank, d.pid, d.host) for d in parse_gdb(text)] == [(3, 903, "node-3"), (4, 904, "node-4")]
    (lab,) = parse_gdb(f"rank 1, process 77, stage Setup: it hangs\n\n{GDB}")
    assert (lab.rank, lab.pid) == (1, 77)


def test_a_detached_process_has_its_id() -> None:
    text = GDB + "[Inferior 1 (process 500) detached]\n"
    assert [(d.pid, len(d.threads)) for d in parse_gdb(text + text)] == [(500, 3), (500, 3)]


def test_a_file_name_gives_the_rank_of_its_only_process() -> None:
    assert [d.rank for d in parse_stacks(GDB, "gdb", "run/stacks/rank-7.gdb.txt")] == [7]
    assert [d.rank for d in parse_stacks(GDB, "gdb", "run/stack.500.txt")] == [None]
    two = GDB + GDB.replace("LWP 50", "LWP 60")
    assert [d.rank for d in parse_stacks(two, "gdb", "rank7.txt")] == [None, None]


def test_lines_of_several_ranks_are_told_apart_by_their_tags() -> None:
    lines = list(zip(GDB.splitlines(), GDB.replace("LWP 50", "LWP 60").splitlines(), strict=True))
    for form in ("{}: {}", "[1,{}]<stdout>:{}", "[rank{}]: {}"):
        text = "".join(f"{form.format(0, a)}\n{form.format(1, b)}\n" for a, b in lines)
        first, second = parse_gdb(text)
        assert [(d.rank, d.pid, len(d.threads)) for d in (first, second)] == [(0, 500, 3), (1, 600, 3)]
        assert (first.threads[0].line, second.threads[0].line) == (1, 2)


def test_a_frame_that_the_terminal_wrapped_has_its_place() -> None:
    (dump,) = parse_gdb(
        "Thread 1 (Thread 0x7f53 (LWP 500)):\n#0  ncclCpuBarrierWait (comm=comm@entry=0x5630)\n    at misc/enqueue.cu:146\n"
    )
    assert dump.threads[0].frames[0].where == "misc/enqueue.cu:146"


def test_native_frames_of_pyspy() -> None:
    (dump,) = parse_pyspy(
        'Process 812: python train.py\nThread 812 (active): "MainThread"\n    sched_yield (libc.so.6)\n'
        "    waitWorkFifoAvailable (enqueue.cc:745)\n    c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor>&) (libtorch_cuda.so)\n"
        "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n"
    )
    assert [f.where for f in dump.threads[0].frames][:2] == ["libc.so.6", "enqueue.cc:745"]
    assert len(dump.threads[0].frames) == 4


def test_a_stack_without_a_head_is_read() -> None:
    (dump,) = parse_pyspy(
        "sched_yield (libc.so.6)\nwaitWorkFifoAvailable (enqueue.cc:745)\nuploadWork (enqueue.cc:777)\n"
    )
    assert [f.function for f in dump.threads[0].frames] == ["sched_yield", "waitWorkFifoAvailable", "uploadWork"]


def test_faulthandler_of_several_processes() -> None:
    one = (
        'Thread 0x00007f1 (most recent call first):\n  File "/a/b.py", line 3 in wait\n\n'
        'Thread 0x00007f2 (most recent call first):\n  File "train.py", line 9 in <module>\n'
    )
    assert [len(d.threads) for d in parse_pyspy(f"Timeout (0:10:00)!\n{one}Timeout (0:10:00)!\n{one}")] == [2, 2]
    assert [len(d.threads) for d in parse_pyspy(one + one)] == [2, 2]
    assert [d.tool for d in parse_pyspy(one)] == ["faulthandler"]


def test_the_traceback_of_an_exception_is_no_thread() -> None:
    (dump,) = parse_pyspy(
        'Process 1: a\nThread 1 (idle): "MainThread"\n    f (a.py:1)\nTraceback (most recent call last):\n  File "x.py", line 3, in g\n'
    )
    assert [len(t.frames) for t in dump.threads] == [1]


def test_json_of_pyspy() -> None:
    threads = [
        {
            "pid": 812 + p, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 812 + p, "active": False, "owns_gil": False,
            "frames": [{"name": "wait", "filename": "/a/x.py", "short_filename": "x.py", "line": 4}, {"name": "main", "line": 0}],
            "process_info": {"pid": 812 + p, "command_line": "python a.py --rank 3"},
        }
        for p in (0, 1)
    ]  # fmt: skip
    first, second = parse_pyspy_json(json.dumps(threads))
    assert (first.pid, second.pid, first.command) == (812, 813, "python a.py --rank 3")
    (main,) = first.threads
    assert (main.name, main.tid, main.state, main.frames[0].where, main.frames[1].where) == (
        "MainThread", 812, "idle", "x.py:4", None,
    )  # fmt: skip


def inspection(rank: int, pid: int) -> dict[str, object]:
    thread = InspectedThread(
        pid,
        "python",
        "main thread",
        "fifo",
        "room in the work FIFO",
        "R",
        frames=(InspectedFrame("poll", "libc.so.6"),),
        python=(InspectedFrame("all_reduce", "x.py:1"),),
    )
    return to_json(Inspection(pid, "node-a", ("python", "a.py"), 17.0, rank=rank, nranks=2, threads=(thread,)))


def test_inspections_in_all_their_forms() -> None:
    two = [inspection(0, 70), inspection(1, 71)]
    for text in (json.dumps(two), "\n".join(map(json.dumps, two)), json.dumps(two, indent=1)):
        dumps, error = parse_inspections(text)
        assert error is None
        assert [(d.rank, d.pid, d.host, d.command) for d in dumps] == [
            (0, 70, "node-a", "python a.py"),
            (1, 71, "node-a", "python a.py"),
        ]
    (thread,) = dumps[0].threads
    assert [f.function for f in thread.frames] == ["poll", "all_reduce"]
    assert (thread.role, thread.kind, thread.state) == ("main thread", "fifo", "R")


def test_what_cannot_be_read_of_inspections_is_said() -> None:
    dumps, error = parse_inspections(json.dumps([inspection(0, 70), {"schema": "psmkit-inspection/1", "pid": "x"}]))
    assert len(dumps) == 1 and error is not None and error.startswith("1 of 2 inspections cannot be read")
    assert parse_inspections(json.dumps({"schema": "psmkit-inspection/9"}))[0] == []
    cut = json.dumps([inspection(0, 70), inspection(1, 71)])
    assert parse_inspections(cut[: len(cut) - 40])[1] is not None
