"""What stacks and inspections decide by themselves: who stands elsewhere, a full work FIFO, and when a wait is proven to last."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report, Severity, Verdict
from psmkit.report import render
from tests.analysis.outside import nccl

# The stack of NVIDIA/nccl#1251 in our own words, innermost first; the lines are made up.
FIFO = (
    "sched_yield (libc.so.6)",
    "waitWorkFifoAvailable (enqueue.cc:101)",
    "uploadWork (enqueue.cc:202)",
    "ncclLaunchKernelBefore_NoUncapturedCuda (enqueue.cc:303)",
    "doLaunches (group.cc:44)",
    "groupLaunch (group.cc:55)",
    "ncclGroupEndInternal (group.cc:66)",
    "ncclGroupEnd (group.cc:77)",
)
COLLECTIVE = ("all_reduce (torch/distributed/distributed_c10d.py:9)", "step (train.py:8)", "<module> (train.py:12)")
LOADER = ("_try_get_data (torch/utils/data/dataloader.py:5)", "step (train.py:7)", "<module> (train.py:12)")
SYNC = ("cudaStreamSynchronize (libcudart.so.12)", "step (train.py:9)", "<module> (train.py:12)")
BARRIER = (
    "poll (libc.so.6)",
    "bootstrapBarrier (bootstrap.cc:9)",
    "initTransportsRank (init.cc:3)",
    "ncclCommInitRankFunc (init.cc:1)",
)
GETFD = (
    "poll (libc.so.6)",
    "ncclIpcSocketRecvMsg (ipcsocket.cc:9)",
    "ncclProxyClientGetFdBlocking (proxy.cc:2)",
    "p2pMap (p2p.cc:7)",
)
DESTROY = ("nanosleep (libc.so.6)", "commReclaim (init.cc:9)", "ncclCommDestroy (init.cc:2)")
IDLE = ("poll (libc.so.6)", "epoll_wait (libc.so.6)")


def spy(pid: int, frames: tuple[str, ...], rank: int | None = None) -> str:
    command = "python train.py" + (f" --rank {rank}" if rank is not None else "")
    head = f'Process {pid}: {command}\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread {pid} (active): "MainThread"\n'
    return head + "".join(f"    {frame}\n" for frame in frames)


def job(places: list[tuple[str, ...]], *, ranks: bool = True) -> str:
    return "".join(spy(4000 + r, frames, r if ranks else None) for r, frames in enumerate(places))


def analyzed(folder: Path, **texts: str) -> Report:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return psmkit.analyze([folder])


def head(report: Report) -> str:
    """The first ten lines."""
    return "\n".join(render(report, "text").splitlines()[:10])


def all_but(places: tuple[str, ...], count: int, odd: tuple[str, ...], at: int = 1) -> list[tuple[str, ...]]:
    return [odd if r == at else places for r in range(count)]


# -- the odd one out


@pytest.mark.parametrize("count", [3, 8, 64])
@pytest.mark.parametrize("odd", [LOADER, DESTROY], ids=["data", "destroy"])
def test_the_odd_one_out_is_the_suspect_by_one_look(tmp_path: Path, count: int, odd: tuple[str, ...]) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(COLLECTIVE, count, odd)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.culprits
    assert [s.rank for s in report.suspects] == [1]
    assert report.findings[0].code == "PSM313"
    assert f"each of the {count - 1} other processes waits for peers in a collective of torch" in report.reason
    assert "Take the stacks of all ranks again" in " ".join(head(report).split())


def test_of_two_processes_the_one_outside_nccl_is_the_suspect(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job([SYNC, LOADER]))
    assert [s.rank for s in report.suspects] == [1]
    # neither of two that wait at different steps of NCCL is
    assert not analyzed(tmp_path, s__txt=job([SYNC, BARRIER])).suspects


def test_a_suspect_without_a_rank_is_a_process(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(SYNC, 4, LOADER), ranks=False))
    assert [(s.rank, s.pid) for s in report.suspects] == [(None, 4001)]


def test_who_is_not_at_the_barrier_yet_is_the_suspect(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(BARRIER, 8, GETFD, 5)))
    assert [s.rank for s in report.suspects] == [5]
    assert "file descriptor" in report.reason or "Unix domain socket" in report.reason


def test_who_still_launches_is_the_suspect(tmp_path: Path) -> None:
    launch = (
        "futex_wait (libc.so.6)",
        "ncclLaunchPrepare (enqueue.cc:5)",
        "doLaunches (group.cc:4)",
        "ncclGroupEnd (group.cc:1)",
    )
    report = analyzed(tmp_path, s__txt=job(all_but(SYNC, 8, launch, 2)))
    assert [s.rank for s in report.suspects] == [2]
    assert "launches a kernel of NCCL" in report.reason


def test_two_odd_ones_are_named_together(tmp_path: Path) -> None:
    places = [LOADER if r in (1, 2) else COLLECTIVE for r in range(8)]
    report = analyzed(tmp_path, s__txt=job(places))
    assert [s.rank for s in report.suspects] == [1, 2]
    assert "ranks 1, 2 wait for a batch of the data loader" in report.reason


def test_two_looks_alike_make_a_culprit(tmp_path: Path) -> None:
    once = job(all_but(COLLECTIVE, 8, LOADER))
    report = analyzed(tmp_path, s__txt=once + once)
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [1]
    assert "2 looks at each of these processes show it in the same place" in report.findings[0].explanation


def test_a_rank_that_went_on_between_two_looks_makes_no_hang(tmp_path: Path) -> None:
    first, second = job(all_but(COLLECTIVE, 8, LOADER, 1)), job(all_but(COLLECTIVE, 8, LOADER, 2))
    report = analyzed(tmp_path, s__txt=first + second)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.culprits and not report.suspects
    assert all(f.severity is Severity.INFO for f in report.findings)


def test_lines_that_show_a_wait_make_a_culprit(tmp_path: Path) -> None:
    log = nccl(0, 1, 2, 3, nranks=4, host="node-a").replace(":100", ":400")
    log += "[rank0]:[E1121 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n"
    report = analyzed(tmp_path, job__log=log, s__txt=job(all_but(COLLECTIVE, 4, LOADER)))
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [1]


def test_all_in_one_collective_at_one_instant_is_no_hang(tmp_path: Path) -> None:
    for places in (COLLECTIVE, SYNC, BARRIER, DESTROY, LOADER):
        report = analyzed(tmp_path, s__txt=job([places] * 8))
        assert report.verdict is Verdict.INCONCLUSIVE
        assert not report.suspects and not report.culprits
        assert [f.code for f in report.findings] == ["PSM316"]
        assert report.reason.startswith("the stacks show that each of the 8 processes ")
        assert "NCCL_DEBUG" not in render(report, "text")


def test_all_on_the_gpu_in_two_looks_is_no_hang(tmp_path: Path) -> None:
    """A training loop stands there most of the time, and at the same line."""
    once = job([SYNC] * 8)
    assert analyzed(tmp_path, s__txt=once + once).verdict is Verdict.INCONCLUSIVE


def test_a_half_of_the_ranks_elsewhere_is_no_odd_one(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job([COLLECTIVE] * 4 + [LOADER] * 4))
    assert not report.suspects and report.verdict is Verdict.INCONCLUSIVE
    one_waits = analyzed(tmp_path, s__txt=job([LOADER] * 7 + [COLLECTIVE]))
    assert not one_waits.suspects


def test_a_stack_without_names_is_not_elsewhere(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(COLLECTIVE, 8, ("?? (libfoo.so)", "0x7f (libfoo.so)"))))
    assert not report.suspects
    assert report.verdict is Verdict.INCONCLUSIVE


def test_idle_ranks_of_a_finished_job_change_nothing(tmp_path: Path) -> None:
    log = nccl(0, 1, 2, 3, nranks=4, host="node-a", ended=True).replace(":100", ":400")
    before = analyzed(tmp_path, job__log=log)
    for places in ([IDLE] * 4, all_but(COLLECTIVE, 4, LOADER), [FIFO] * 4):
        report = analyzed(tmp_path, job__log=log, s__txt=job(places))
        assert (report.verdict, report.reason) == (before.verdict, before.reason)
        assert report.verdict is Verdict.HEALTHY


def test_helpers_and_launchers_are_no_ranks(tmp_path: Path) -> None:
    worker = (
        "get (queue.py:1)",
        "_worker_loop (torch/utils/data/_utils/worker.py:3)",
        "run (multiprocessing/process.py:1)",
    )
    agent = (
        "sleep (libc.so.6)",
        "_invoke_run (torch/distributed/elastic/agent/server/api.py:3)",
        "<module> (torchrun:8)",
    )
    text = job([COLLECTIVE] * 4) + spy(5000, worker) + spy(5001, worker) + spy(5002, agent)
    report = analyzed(tmp_path, s__txt=text)
    assert not report.suspects
    assert "each of the 4 processes" in report.reason


# -- a full work FIFO


def test_a_full_work_fifo_of_all_processes_is_decided_by_one_look(tmp_path: Path) -> None:
    """NVIDIA/nccl#1251: eight processes lock up at the same time, and a stack is all there is."""
    report = analyzed(tmp_path, s__txt=job([FIFO] * 8, ranks=False))
    assert report.verdict is Verdict.HUNG
    assert report.reason == "each of the 8 processes waits for room in NCCL's work FIFO, which is full"
    assert not report.culprits
    assert (report.findings[0].code, report.findings[0].known_issue) == ("PSM314", "NVIDIA/nccl#1251")


def test_a_full_work_fifo_of_one_process_needs_a_second_look(tmp_path: Path) -> None:
    one = analyzed(tmp_path, s__txt="\n".join(FIFO))
    assert one.verdict is Verdict.INCONCLUSIVE
    assert "waits for room in NCCL's work FIFO, which is full" in one.reason
    assert analyzed(tmp_path, s__txt=spy(4000, FIFO) * 2).verdict is Verdict.HUNG


def test_a_work_fifo_that_fills_while_another_rank_is_late_follows_from_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(FIFO, 8, LOADER)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [s.rank for s in report.suspects] == [1]
    assert {f.severity for f in report.findings if f.code == "PSM314"} == {Severity.INFO}


def test_a_launch_with_room_in_the_fifo_is_no_full_fifo(tmp_path: Path) -> None:
    for frames in (FIFO[2:], FIFO[3:]):
        report = analyzed(tmp_path, s__txt=job([frames] * 8))
        assert report.verdict is Verdict.INCONCLUSIVE
        assert {f.code for f in report.findings} == {"PSM316"}


# -- steps that a job passes once


@pytest.mark.parametrize("places", [BARRIER, GETFD, DESTROY], ids=["bootstrap", "descriptor", "destroy"])
def test_two_looks_alike_in_a_step_that_a_job_passes_once_show_a_hang(tmp_path: Path, places: tuple[str, ...]) -> None:
    once = job([places] * 4)
    report = analyzed(tmp_path, s__txt=once + once)
    assert report.verdict is Verdict.HUNG
    assert report.findings[0].code == "PSM315"
    assert not report.culprits


def test_looks_in_two_files_count(tmp_path: Path) -> None:
    once = job([BARRIER] * 4)
    assert analyzed(tmp_path, first__txt=once, second__txt=once).verdict is Verdict.HUNG


def test_equal_process_ids_of_containers_are_several_processes(tmp_path: Path) -> None:
    files = {f"pod{n}__txt": spy(7, BARRIER) for n in range(4)}
    report = analyzed(tmp_path, **files)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "each of the 4 processes" in report.reason


# -- ranks without a stack


def test_missing_stacks_are_named(tmp_path: Path) -> None:
    log = nccl(*range(8), nranks=8, host="node-a").replace(":100", ":400")
    report = analyzed(tmp_path, job__log=log, s__txt=job([COLLECTIVE] * 6))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the stacks of ranks 6, 7 of 8 are missing" in report.reason
    assert [s.rank for s in report.suspects] == [6, 7]
    (told,) = [f for f in report.findings if f.code == "PSM709"]
    assert told.severity is Severity.WARNING


def test_missing_stacks_beside_an_odd_one_are_a_note(tmp_path: Path) -> None:
    log = nccl(*range(8), nranks=8, host="node-a").replace(":100", ":400")
    report = analyzed(tmp_path, job__log=log, s__txt=job(all_but(COLLECTIVE, 6, LOADER)))
    assert [s.rank for s in report.suspects] == [1]
    (told,) = [f for f in report.findings if f.code == "PSM709"]
    assert told.severity is Severity.INFO


# -- stacks inside a log


def log_of(count: int) -> str:
    return nccl(*range(count), nranks=count, host="node-a").replace(":100", ":400")


GDB = 'Thread 1 (Thread 0x7f53 (LWP {pid}) "python"):\n#0  0x00007f in {frame} () from libnccl.so\n#1  0x00007f in main () at a.c:1\n\n'
FAULT = 'Thread 0x00007f23000{rank}0700 (most recent call first):\n  File "{file}", line 3 in {name}\n  File "train.py", line 9 in <module>\n'


def test_stacks_of_pyspy_between_the_lines_of_a_log_count(tmp_path: Path) -> None:
    text = log_of(4) + job(all_but(COLLECTIVE, 4, LOADER)) + "the job goes on\n"
    report = analyzed(tmp_path, job__log=text)
    assert [(s.rank, s.host) for s in report.suspects] == [(1, "node-a")]
    (finding,) = [f for f in report.findings if f.code == "PSM313"]
    assert 'Thread 4001 (active): "MainThread"' in text.splitlines()[finding.evidence[0].line - 1]


def test_stacks_of_gdb_between_the_lines_of_a_log_count(tmp_path: Path) -> None:
    frames = ["cudaStreamSynchronize", "cudaStreamSynchronize", "ncclCommDestroy", "cudaStreamSynchronize"]
    text = log_of(4) + "".join(GDB.format(pid=4000 + r, frame=frame) for r, frame in enumerate(frames))
    assert [s.rank for s in analyzed(tmp_path, job__log=text).suspects] == [2]


def test_stacks_of_faulthandler_in_the_log_of_each_rank_count(tmp_path: Path) -> None:
    for rank, line in enumerate(log_of(4).splitlines()[:4]):
        name, file = (
            ("read_shard", "train.py") if rank == 2 else ("all_reduce", "torch/distributed/distributed_c10d.py")
        )
        (tmp_path / f"rank{rank}.log").write_text(f"{line}\n" + FAULT.format(rank=rank, name=name, file=file))
    report = psmkit.analyze([tmp_path])
    assert [s.rank for s in report.suspects] == [2]
    assert "is in read_shard at train.py:3" in report.reason


def test_the_stacks_of_a_crash_show_no_place(tmp_path: Path) -> None:
    text = (
        log_of(4)
        + "Fatal Python error: Aborted\n\n"
        + FAULT.format(rank=1, name="all_reduce", file="torch/distributed/x.py")
    )
    report = analyzed(tmp_path, job__log=text)
    assert not [f for f in report.findings if f.code == "PSM316"]


def test_a_long_log_with_many_heads_is_read_in_bounds(tmp_path: Path) -> None:
    text = log_of(4) + "Thread 7 (LWP 7):\n" * 30_000
    assert analyzed(tmp_path, job__log=text).verdict is Verdict.INCONCLUSIVE


# -- the threads of the proxies


def native(pid: int, main: tuple[str, ...], **threads: tuple[str, ...]) -> str:
    """What gdb prints of a process with these threads beside its main thread."""
    all_ = [*threads.items(), ("python", main)]
    out = []
    for n, (name, frames) in enumerate(all_):
        number, tid = len(all_) - n, pid if name == "python" else pid + 1 + n
        out.append(f'Thread {number} (Thread 0x7f{tid:x} (LWP {tid}) "{name}"):')
        out += [f"#{i}  0x00007f{i} in {f} () from /lib/libnccl.so.2" for i, f in enumerate(frames)]
        out.append("")
    return "\n".join([*out, f"[Inferior 1 (process {pid}) detached]", ""])


POLLS = ("poll", "ncclProxyService")
SERVES = ("poll", "ncclSocketAccept", "recvProxyConnect", "proxyProgressAsync", "ncclProxyService")
PROGRESS = ("futex_wait", "ncclProxyGetPostedOps", "ncclProxyProgress")
WAITS = ("poll", "ncclPollProxyResponse", "ncclProxyCallBlocking", "ncclTransportP2pSetup")


def test_the_one_service_thread_that_is_not_in_its_poll_is_the_suspect(tmp_path: Path) -> None:
    text = "".join(
        native(4000 + 10 * r, WAITS, service=SERVES if r == 2 else POLLS, progress=PROGRESS) for r in range(8)
    )
    report = analyzed(tmp_path, s__txt=text)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the proxy service thread of process 4020 " in report.reason
    assert "those of the 7 other processes are idle" in report.reason
    assert [s.pid for s in report.suspects] == [4020]


def test_a_rank_without_the_thread_that_its_peers_have_is_the_suspect(tmp_path: Path) -> None:
    text = "".join(
        native(4000 + 10 * r, WAITS, service=POLLS, **({} if r == 5 else {"progress": PROGRESS})) for r in range(8)
    )
    report = analyzed(tmp_path, s__txt=text)
    assert "process 4050 has no proxy progress thread, while the 7 other processes have one" in report.reason


def test_a_progress_thread_at_work_at_one_instant_is_a_note(tmp_path: Path) -> None:
    """The threads of a proxy work at any time while data moves."""
    busy = ("sched_yield", "sendProxyProgress", "progressOps", "ncclProxyProgress")
    gpu = ("poll", "cudaStreamSynchronize")
    text = "".join(native(4000 + 10 * r, gpu, service=POLLS, progress=busy if r == 2 else PROGRESS) for r in range(8))
    report = analyzed(tmp_path, s__txt=text)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not report.suspects
    assert all(f.severity is Severity.INFO for f in report.findings)
    assert not [
        f
        for f in analyzed(tmp_path, s__txt=text.replace("sendProxyProgress", "x")).findings
        if f.severity is Severity.WARNING
    ]


def test_the_odd_one_that_waits_for_a_peer_itself_is_no_culprit(tmp_path: Path) -> None:
    """The ranks that went on may have left it alone: nothing shows who is right."""
    once = job(all_but(DESTROY, 8, SYNC))
    report = analyzed(tmp_path, s__txt=once + once)
    assert report.verdict is Verdict.HUNG
    assert not report.culprits
    assert [s.rank for s in report.suspects] == [1]


def test_every_form_of_a_report_shows_stacks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=job(all_but(COLLECTIVE, 8, LOADER)))
    for form in ("text", "json", "markdown", "sarif", "junit"):
        assert "PSM313" in render(report, form)


def test_a_rank_that_runs_elsewhere_in_both_looks_is_the_culprit(tmp_path: Path) -> None:
    """A loop of the program has another line in each look, and the others get nothing from it."""
    other = ("parse (train.py:31)", "<module> (train.py:12)")
    report = analyzed(tmp_path, s__txt=job(all_but(COLLECTIVE, 8, LOADER)) + job(all_but(COLLECTIVE, 8, other)))
    assert report.verdict is Verdict.HUNG
    assert [c.rank for c in report.culprits] == [1]
    assert "is in parse at train.py:31" in report.reason


def test_others_in_several_places_are_not_said_to_be_in_one(tmp_path: Path) -> None:
    places = [COLLECTIVE] * 5 + [SYNC] * 2 + [LOADER]
    report = analyzed(tmp_path, s__txt=job(places))
    assert (
        "the 7 other processes are in collectives or wait for their GPUs: 5 of them wait for peers in a collective of torch"
        in report.reason
    )
    unknown = analyzed(tmp_path, s__txt=job([*places, ("?? (libfoo.so)",)]))
    assert "while 7 other processes are in" in unknown.reason


def test_the_known_leak_is_named_for_the_releases_that_have_it(tmp_path: Path) -> None:
    for version, issue in (("2.21.5", "NVIDIA/nccl#1251"), ("2.27.7", None)):
        log = f"node-a:4000:4000 [0] NCCL INFO NCCL version {version}+cuda12.4\n" + log_of(4)
        report = analyzed(tmp_path, job__log=log, s__txt=job([FIFO] * 4))
        (finding,) = [f for f in report.findings if f.code == "PSM314"]
        assert (finding.known_issue, report.verdict) == (issue, Verdict.HUNG)


def test_a_group_that_waits_for_itself_is_sent_to_the_lint(tmp_path: Path) -> None:
    """In builds of 2.27 and later the wait has no frame of its own."""
    inlined = (FIFO[0], *FIFO[3:])
    for version, frames, linted in (("2.30.7", inlined, True), ("2.26.6", FIFO, False)):
        log = f"node-a:4000:4000 [0] NCCL INFO NCCL version {version}+cuda13.0\n" + log_of(2)
        report = analyzed(tmp_path, job__log=log, s__txt=job([frames] * 2))
        assert (report.verdict, report.findings[0].code) == (Verdict.HUNG, "PSM314")
        assert ("`psmkit plan lint` says how large a group may be" in report.findings[0].next_step) is linted


def test_who_is_not_at_the_line_of_its_peers_is_the_suspect(tmp_path: Path) -> None:
    """py-spy without --native shows no CUDA call: the ranks that wait for their GPUs stand at one line of the program."""
    line = ("training_step (train.py:88)", "<module> (train.py:12)")
    once = job(all_but(line, 8, LOADER))
    report = analyzed(tmp_path, s__txt=once)
    assert [s.rank for s in report.suspects] == [1]
    assert "each of the 7 other processes is in training_step at train.py:88" in report.reason
    # they can be at work there
    assert analyzed(tmp_path, s__txt=once + once).verdict is Verdict.INCONCLUSIVE
    spread = [(f"training_step (train.py:{80 + r})", "<module> (train.py:12)") for r in range(8)]
    assert not analyzed(tmp_path, s__txt=job(spread)).suspects


def test_the_autograd_thread_tells_where_a_backward_pass_is(tmp_path: Path) -> None:
    head = 'Process {pid}: python train.py\nThread {pid} (idle): "MainThread"\n    _engine_run_backward (torch/autograd/graph.py:8)\n    <module> (train.py:9)\n'
    thread = (
        'Thread {tid} (active): "pt_autograd_0"\n'
        + "".join(f"    {f}\n" for f in FIFO)
        + "    torch::autograd::Engine::thread_main (libtorch_cpu.so)\n"
    )
    text = "".join((head + thread).format(pid=4000 + 10 * r, tid=4005 + 10 * r) for r in range(4))
    report = analyzed(tmp_path, s__txt=text)
    assert report.verdict is Verdict.HUNG
    assert report.findings[0].code == "PSM314"
    assert "the autograd thread waits for room" in report.findings[-1].title


def test_very_many_processes_are_compared_in_linear_time(tmp_path: Path) -> None:
    from tests.readers import limited

    text = "".join(spy(10_000 + n, LOADER if n % 4 == 0 else COLLECTIVE) for n in range(6_000))
    with limited(memory=False, seconds=20):
        report = analyzed(tmp_path, s__txt=text)
    assert "4500 other processes" in report.reason.replace(",", "")


def test_the_stack_of_a_core_shows_a_death_and_no_wait(tmp_path: Path) -> None:
    core = "Core was generated by `python train.py'.\nProgram terminated with signal SIGABRT, Aborted.\n"
    alive = "".join(
        GDB.format(pid=4000 + 10 * r, frame="cudaStreamSynchronize")
        + f"[Inferior 1 (process {4000 + 10 * r}) detached]\n"
        for r in range(3)
    )
    report = analyzed(tmp_path, s__txt=alive + core + GDB.format(pid=5000, frame="ncclCommDestroy"))
    assert not report.suspects
    assert report.reason == "process 5000 died by SIGABRT in ncclCommDestroy()" and not report.culprits
    assert any(
        "processes 4000, 4010 and 4020: the main thread waits for work on its GPU" in f.title for f in report.findings
    )


SESSION = """\
Thread 4 "trainer" received signal {signal}, {words}.
[Switching to Thread 0x7f10 (LWP 6104)]
0x0000000000000000 in ?? ()
(gdb) thread apply all bt

Thread 4 (Thread 0x7f10 (LWP 6104) "trainer"):
#0  0x0000000000000000 in ?? ()
#1  0x00007f01 in openChannel (c=0x1) at channel.cc:7
#2  0x00007f02 in start_thread () at pthread_create.c:4

Thread 1 (Thread 0x7f11 (LWP 6100) "trainer"):
#0  __futex_abstimed_wait () at futex.c:5
#1  0x00007f03 in asyncJobLaunch (j=0x1) at group.cc:3
#2  0x00007f04 in main () at a.c:1
"""


def test_the_thread_that_got_a_fatal_signal_is_the_one_that_died(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=SESSION.format(signal="SIGSEGV", words="Segmentation fault"))
    assert report.verdict is Verdict.FAILED
    assert report.reason == "process 6100 died by SIGSEGV in or below openChannel() in thread 6104"
    assert [c.pid for c in report.culprits] == [6100]


def test_a_session_that_somebody_interrupted_shows_no_death(tmp_path: Path) -> None:
    report = analyzed(tmp_path, s__txt=SESSION.format(signal="SIGINT", words="Interrupt"))
    assert report.verdict is Verdict.INCONCLUSIVE and not report.culprits
    assert not any("died" in f.title for f in report.findings)


def test_stacks_from_before_the_signal_are_those_of_a_live_process(tmp_path: Path) -> None:
    before = "Thread 1" + SESSION.split("Thread 1", 1)[1]
    report = analyzed(
        tmp_path, s__txt=before + "(gdb) c\n" + SESSION.format(signal="SIGSEGV", words="Segmentation fault")
    )
    assert report.reason == "process 6100 died by SIGSEGV in or below openChannel() in thread 6104"
