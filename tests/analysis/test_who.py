"""The rank of a process, by each kind of evidence, with logs that nearly have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.facts.places import absent_rank
from psmkit.logparse import scan
from psmkit.model import Report, Verdict
from psmkit.report import Options, text


def _line(dev: int, message: str, *, host: str = "n0", pid: int | None = None, tag: str = "", thread: int = 0) -> str:
    pid = 500 + dev if pid is None else pid
    return f"{tag}{host}:{pid}:{pid + thread} [{dev}] {message}\n"


def _info(dev: int, message: str, **more: object) -> str:
    return _line(dev, f"NCCL INFO {message}", **more)  # type: ignore[arg-type]


def _fails(dev: int, **more: object) -> str:
    """An error with its way to the application."""
    return (
        _line(dev, "misc/cudawrap.cc:33 NCCL WARN Cuda failure 2 'out of memory'", **more)  # type: ignore[arg-type]
        + _info(dev, "transport/p2p.cc:233 -> 1", **more)
        + _info(dev, "group.cc:64 -> 1 [Async thread]", **more)
    )


def _job(tmp_path: Path, *logs: str) -> Job:
    for number, log in enumerate(logs):
        (tmp_path / f"{number}.log").write_text(log)
    return make_job(scan([str(tmp_path)]))


def _report(tmp_path: Path, *logs: str) -> Report:
    for number, log in enumerate(logs):
        (tmp_path / f"{number}.log").write_text(log)
    return analyze([str(tmp_path)])


def _ranks(job: Job) -> dict[str, int | None]:
    return {p.name: job.rank_of(p.index) for p in job.scan.processes}


# Each line names the rank 5 of the process that prints it. Its device is 1.
OWN = {
    "ring": "Ring 00 : 4 -> 5 -> 6",
    "tree": "Tree 0 : 4 -> 5 -> 6/-1/-1",
    "trees": "Trees [0] 6/-1/-1->5->4 [1] 6/-1/-1->5->4",
    "trees of 2.4": "Trees [0] 4->5->6/-1/-1 [1] 6->5->4/-1/-1",
    "sender": "Channel 00/0 : 5[1] -> 6[2] via P2P/IPC",
    "sender over shared memory": "Channel 00 : 5[1] -> 6[2] via SHM/direct/direct",
    "sender of 2.4": "Ring 00 : 5[1] -> 6[2] via P2P/IPC",
    "sender over a network": "Channel 00/0 : 5[1] -> 8[0] [send] via NET/IB/0",
    "receiver over a network": "Channel 00/0 : 4[0] -> 5[1] [receive] via NET/IB/0",
    "receiver of 2.3": "Ring 00 : 4 -> 5 via NET/IB/0",
    "init of 2.3": "rank 5 nranks 8",
    "UDS thread": "UDS: Creating service thread comm 0x55d0c001a000 rank 5",
    "request for a descriptor": "ProxyCall UDS comm 0x55d0c001a000 rank 5 tpRank 2(f00d) reqSize 8 respSize 0 respFd 0x7ffc10 opId 0xabc",
    "RCCL's ring": "Ring 0 : 4 -> 5 -> 6 comm 0x55d0c001a000 nRanks 08 busId c000",
}


@pytest.mark.parametrize("kind", OWN)
def test_a_line_that_names_its_own_rank_names_the_culprit(tmp_path: Path, kind: str) -> None:
    (culprit,) = _report(tmp_path, _info(1, OWN[kind]) + _fails(1)).culprits
    assert (culprit.rank, culprit.global_rank, culprit.pid) == (5, 5, 501)
    assert culprit.rank_basis is not None and not culprit.rank_basis.startswith("assumed")


def test_the_warning_of_a_proxy_service_names_its_own_rank_and_not_that_of_the_caller(tmp_path: Path) -> None:
    warn = "proxy.cc:1580 NCCL WARN [Proxy Service 5] Failed to execute operation Setup from rank 6, retcode 1"
    job = _job(tmp_path, _line(1, warn))
    assert _ranks(job) == {"n0:501": 5}


def test_the_other_end_of_a_channel_is_not_the_rank_of_the_process(tmp_path: Path) -> None:
    sender = _info(1, "Channel 00/0 : 5[1] -> 6[2] [send] via NET/IB/0")
    receiver = _info(2, "Channel 00/0 : 5[1] -> 6[2] [receive] via NET/IB/0")
    assert _ranks(_job(tmp_path, sender, receiver)) == {"n0:501": 5, "n0:502": 6}


def test_lines_that_contradict_each_other_name_no_rank_and_both_are_shown(tmp_path: Path) -> None:
    log = _info(1, "Ring 00 : 4 -> 5 -> 6") + _info(1, "Trees [0] 1/-1/-1->0->-1") + _fails(1)
    report = _report(tmp_path, log)
    assert [(c.rank, c.global_rank) for c in report.culprits] == [(None, None)]
    shown = text.render(report, Options(verbose=True, width=200))
    assert "rank 5 by graph.ring" in shown and "rank 0 by graph.trees" in shown
    assert "by graph.ring" not in text.render(report, Options(width=200))


def test_two_processes_that_claim_one_rank_have_none(tmp_path: Path) -> None:
    job = _job(tmp_path, _info(1, OWN["ring"]), _info(2, OWN["ring"]))
    assert _ranks(job) == {"n0:501": None, "n0:502": None}
    assert len(job.numbering.disputed) == 2


def test_a_line_of_the_communicator_decides_over_all_other_evidence(tmp_path: Path) -> None:
    init = (
        "ncclCommInitRank comm 0x55d0 rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {r}000 commId 0xabc - Init START"
    )
    logs = [_info(r, init.format(r=r), tag=f"[1,{1 - r}]<stdout>: ") for r in (0, 1)]
    job = _job(tmp_path, "".join(logs))
    assert _ranks(job) == {"n0:500": 0, "n0:501": 1}
    assert {c.basis for c in job.numbering.known.values()} == {"communicator"}


@pytest.mark.parametrize("tag", ["[rank3]: ", "[1,3]<stdout>:", "3: "])
def test_the_tag_of_a_launcher_names_the_rank(tmp_path: Path, tag: str) -> None:
    (culprit,) = _report(tmp_path, _fails(1, tag=tag)).culprits
    assert (culprit.rank, culprit.rank_basis) == (3, "launcher tag")


def test_a_tag_that_several_processes_share_names_no_rank(tmp_path: Path) -> None:
    log = _info(1, "Bootstrap: Using eth0:10.0.0.1<0>", tag="3: ") + _fails(2, tag="3: ")
    assert _ranks(_job(tmp_path, log)) == {"n0:501": None, "n0:502": None}


def test_a_tag_that_contradicts_a_line_names_no_rank(tmp_path: Path) -> None:
    assert _ranks(_job(tmp_path, _info(1, OWN["ring"], tag="[rank3]: "))) == {"n0:501": None}


@pytest.mark.parametrize("tag", ["[3]: ", "[default3]: "])
def test_a_local_rank_is_marked_as_an_assumption(tmp_path: Path, tag: str) -> None:
    (culprit,) = _report(tmp_path, _fails(3, tag=tag)).culprits
    assert (culprit.rank, culprit.rank_basis) == (3, "assumed: local rank")


def test_a_local_rank_on_one_of_two_hosts_is_no_rank(tmp_path: Path) -> None:
    log = _info(3, "Bootstrap: Using eth0:10.0.0.2<0>", host="n1", tag="[3]: ") + _fails(2, tag="[2]: ")
    assert _ranks(_job(tmp_path, log)) == {"n1:503": None, "n0:502": None}


def test_a_device_on_the_only_host_is_an_assumption_and_no_fact(tmp_path: Path) -> None:
    report = _report(tmp_path, _fails(3))
    (culprit,) = report.culprits
    assert (culprit.rank, culprit.global_rank, culprit.device) == (3, None, 3)
    assert culprit.rank_basis == "assumed: device"
    assert [row.rank for row in report.ranks] == [None], "the table of ranks holds facts only"
    assert report.verdict is Verdict.FAILED and report.ranks[0].state == "failed"
    assert "device 3 (rank 3 if ranks follow devices)" in text.render(report)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_info(0, "Bootstrap: Using eth0:10.0.0.2<0>", host="n1"), id="two hosts"),
        pytest.param(_line(3, "proxy.cc:9 NCCL WARN Proxy Call to rank 0 failed (Init)", pid=900), id="a device of two processes"),
        pytest.param(_info(2, "Ring 00 : 1 -> 3 -> 4"), id="another process has the rank"),
        pytest.param(_info(2, "Ring 00 : 9 -> 10 -> 11"), id="ranks do not follow devices"),
        pytest.param(_info(3, "comm 0x55 rank 9 nRanks 16 nNodes 2 localRanks 8 localRank 1", pid=700), id="two nodes"),
    ],
)  # fmt: skip
def test_contradicting_evidence_leaves_a_device_without_a_rank(tmp_path: Path, other: str) -> None:
    job = _job(tmp_path, other + _fails(3))
    at = next(p.index for p in job.scan.processes if p.name == "n0:503")
    assert job.rank_of(at) is None and at not in job.numbering.assumed


@pytest.mark.parametrize("tag", ["(RayWorkerWrapper pid=503, ip=10.0.0.1) ", "job-worker-4: "])
def test_a_device_of_a_tagged_process_is_no_rank(tmp_path: Path, tag: str) -> None:
    assert not _job(tmp_path, _fails(3, tag=tag)).numbering.assumed


def test_device_0_is_no_rank_where_each_process_may_see_one_device_only(tmp_path: Path) -> None:
    assert not _job(tmp_path, _fails(0)).numbering.assumed
    assert _job(tmp_path, _fails(0), _fails(1)).numbering.assumed[0].rank == 0


def test_device_0_of_a_thread_that_selects_no_device_is_no_device(tmp_path: Path) -> None:
    ras = _info(0, "RAS keep-alive timeout warning (5s) on socket connection with 10.0.0.1<40001>", pid=503, thread=4)
    job = _job(tmp_path, ras)
    assert job.device_of(0) is None and not job.numbering.assumed


def test_the_offset_between_ranks_and_devices_of_a_host_is_used_as_an_assumption(tmp_path: Path) -> None:
    logs = [_info(d, f"Ring 00 : {7 + d} -> {8 + d} -> {9 + d}", host="n1") for d in (0, 1, 2)]
    logs += [_info(0, "Ring 00 : 15 -> 0 -> 1")]
    (culprit,) = _report(tmp_path, *logs, _fails(5, host="n1")).culprits
    assert (culprit.rank, culprit.global_rank, culprit.rank_basis) == (13, None, "assumed: host offset")


def test_ranks_that_do_not_follow_the_devices_of_a_host_give_no_offset(tmp_path: Path) -> None:
    logs = [_info(d, f"Ring 00 : 99 -> {r} -> 98", host="n1") for d, r in ((0, 8), (1, 11))]
    (culprit,) = _report(tmp_path, *logs, _fails(5, host="n1")).culprits
    assert (culprit.rank, culprit.device) == (None, 5)


def test_the_table_of_nccl_tests_names_the_rank_of_a_process(tmp_path: Path) -> None:
    table = "#  Rank  9 Group  0 Pid    501 on         n0 device  1 [0000:1b:00] NVIDIA A100\n"
    assert _ranks(_job(tmp_path, table + _fails(1))) == {"n0:501": 9}


def test_a_table_about_another_host_names_no_rank(tmp_path: Path) -> None:
    table = "#  Rank  9 Group  0 Pid    501 on         n7 device  1 [0000:1b:00] NVIDIA A100\n"
    assert _ranks(_job(tmp_path, table + _fails(1))) == {"n0:501": None}


def test_a_line_of_torch_with_the_tag_of_ray_names_the_rank_of_that_process(tmp_path: Path) -> None:
    tag = "(RayWorkerWrapper pid=501, ip=10.0.0.1) "
    watchdog = "[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600100 milliseconds before timing out."
    assert _ranks(_job(tmp_path, _fails(1, tag=tag) + tag + watchdog + "\n")) == {"n0:501": 5}
    other = tag.replace("501", "502")
    assert _ranks(_job(tmp_path, _fails(1, tag=tag) + other + watchdog + "\n")) == {"n0:501": None}


def _work(rank: int, times: int, nranks: int = 2) -> str:
    call = f"AllReduce: opCount 3f sendbuff 0x7f10 recvbuff 0x7f14 count 1024 datatype 7 op 0 root 0 comm 0x55d{rank} [nranks={nranks}] stream 0x55e0"
    return "".join(_info(rank, call) for _ in range(times))


@pytest.mark.parametrize(
    "late",
    [
        "comm 0x55d{r} rank {r} nranks 2 cudaDev {r} busId {r}000 - Destroy COMPLETE",
        "comm 0x55d{r} rank {r} nRanks 2 cudaDev {r} busId {r}000 - Abort START",
    ],
)
def test_a_member_first_seen_in_a_call_gets_its_rank_from_a_later_line_with_its_pointer(
    tmp_path: Path, late: str
) -> None:
    job = _job(tmp_path, *(_work(r, 3) + _info(r, late.format(r=r)) for r in (0, 1)))
    assert [(i.proc, i.rank) for i in job.scan.instances] == [(0, 0), (1, 1)]
    assert [r.rank for r in job.scan.groups[0].ranks] == [0, 1]


@pytest.mark.parametrize("other", ["comm 0x99 rank 1 nranks 2", "comm 0x55d0 rank 1 nranks 4"])
def test_a_line_about_another_pointer_or_size_names_no_member(tmp_path: Path, other: str) -> None:
    job = _job(tmp_path, _work(0, 3) + _info(0, f"{other} cudaDev 0 busId 1000 - Destroy COMPLETE"))
    assert job.scan.instances[0].rank == -1 and job.scan.instances[0].end is None


def test_a_member_first_seen_in_a_call_gets_the_rank_of_its_process(tmp_path: Path) -> None:
    job = _job(tmp_path, *(_work(r, 3) for r in (0, 1)))
    assert {i.rank for i in job.scan.instances} == {-1}
    job = _job(tmp_path, *(_info(r, f"Ring 00 : {1 - r} -> {r} -> {1 - r}") + _work(r, 3) for r in (0, 1)))
    assert [i.rank for i in job.scan.instances] == [0, 1]


_INIT = "ncclCommInitRank comm 0x55d{dev} rank {rank} nranks 8 cudaDev {dev} nvmlDev {dev} busId {dev}b000 commId 0xabc - Init START"


def _one_process(first: int = 0) -> str:
    """A process that drives four GPUs, a thread for each."""
    return "".join(_info(d, _INIT.format(dev=d, rank=first + d), pid=500, thread=d) for d in range(4))


def test_threads_of_one_process_are_told_apart_by_their_device(tmp_path: Path) -> None:
    report = _report(tmp_path, _one_process(4) + _fails(2, pid=500, thread=2))
    (culprit,) = report.culprits
    assert (culprit.rank, culprit.device, culprit.pid) == (6, 2, 500)
    assert "rank 6 (n0:500, device 2)" in report.reason


@pytest.mark.parametrize("device", [2, 3])
def test_a_dropped_error_of_a_process_with_several_devices_names_the_rank_of_its_thread(
    tmp_path: Path, device: int
) -> None:
    ready = _one_process(4) + _one_process(4).replace("Init START", "Init COMPLETE")
    places = ("transport/net_ib.cc:1120", "transport/net.cc:1206")
    dropped = "".join(_info(device, f"{place} -> 2", pid=500, thread=9) for place in places)
    report = _report(tmp_path, ready + dropped)
    found = [f for f in report.findings if f.code == "PSM404"]
    assert [f.ranks for f in found] == [(4 + device,)]


def test_a_thread_that_selects_no_device_is_no_rank_of_a_process_with_several(tmp_path: Path) -> None:
    refused = _line(
        0,
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45678> failed : Connection refused",
        pid=500,
        thread=9,
    )
    report = _report(
        tmp_path,
        _one_process()
        + refused
        + _info(0, "misc/socket.cc:567 -> 2", pid=500, thread=9)
        + _info(0, "init.cc:1048 -> 2", pid=500, thread=9),
    )
    assert all(c.rank is None for c in report.culprits)
    assert "rank 0" not in report.reason


def test_devices_of_a_process_that_print_their_rank_are_told_apart_without_init_lines(tmp_path: Path) -> None:
    rings = "".join(_info(d, f"Ring 00 : 0 -> {4 + d} -> 0", pid=500, thread=d) for d in range(4))
    (culprit,) = _report(tmp_path, rings + _fails(2, pid=500, thread=2)).culprits
    assert (culprit.rank, culprit.device) == (6, 2)


def _member(rank: int, nranks: int, commid: str, dev: int, bus: int, host: str = "n0", pid: int = 0) -> str:
    init = f"ncclCommInitRank comm 0x55d{commid} rank {rank} nranks {nranks} cudaDev {dev} nvmlDev {dev} busId {bus:x}000 commId 0x{commid}"
    return "".join(_info(dev, f"{init} - Init {what}", host=host, pid=pid) for what in ("START", "COMPLETE"))


def _group(commid: str, nranks: int, pid: int, first_dev: int = 0, first_bus: int = 1, host: str = "n0") -> list[str]:
    return [_member(r, nranks, commid, first_dev + r, first_bus + r, host, pid + r) for r in range(nranks)]


def _shape(job: Job) -> list[tuple[int | None, list[int | None]]]:
    return [(run.nranks, [job.rank_of(p) for p in sorted(run.procs)]) for run in job.runs]


def test_two_jobs_on_one_host_with_a_file_each_are_two_runs(tmp_path: Path) -> None:
    job = _job(tmp_path, "".join(_group("a1", 2, 100)), "".join(_group("b2", 4, 200, 2, 9)))
    assert _shape(job) == [(2, [0, 1]), (4, [0, 1, 2, 3])]


def test_two_jobs_on_two_hosts_with_a_file_for_each_rank_are_two_runs(tmp_path: Path) -> None:
    job = _job(tmp_path, *_group("a1", 2, 100), *_group("b2", 2, 200, host="n1"))
    assert _shape(job) == [(2, [0, 1]), (2, [0, 1])]


@pytest.mark.parametrize(
    "logs",
    [
        pytest.param(["".join(_group("a1", 2, 100) + _group("b2", 2, 200, 2, 9))], id="one stream"),
        pytest.param([*_group("a1", 2, 100), *_group("b2", 2, 200, 2, 9)], id="a file for each rank of one host"),
        pytest.param(
            [
                *(
                    _member(r, 4, "ee", r, r, pid=100 + r) + _member(r % 2, 2, f"a{r // 2}", r, r, pid=100 + r)
                    for r in range(4)
                ),
            ],
            id="a common world",
        ),
    ],
)
def test_groups_of_one_job_stay_one_run(tmp_path: Path, logs: list[str]) -> None:
    assert len(_job(tmp_path, *logs).runs) == 1


def test_a_process_without_a_communicator_joins_the_job_of_its_file(tmp_path: Path) -> None:
    silent = _info(5, "Bootstrap: Using eth0:10.0.0.1<0>", pid=205)
    job = _job(tmp_path, "".join(_group("a1", 2, 100)), "".join(_group("b2", 4, 200, 2, 9)[:3]) + silent)
    assert [len(run.procs) for run in job.runs] == [2, 4]
    assert job.run_of(next(p.index for p in job.scan.processes if p.pid == 205)) == job.run_of(
        next(p.index for p in job.scan.processes if p.pid == 200)
    )


def _closed(peer: int, seen: range, dev0: int) -> list[str]:
    """Processes of one host whose peer with this local rank is gone, each with a file."""
    closed = f"[Service thread] Connection closed by localRank {peer}"
    return [
        _member(r, 16, "ab", r - dev0, r + 1, "n1", 300 + r) + _info(r - dev0, closed, host="n1", pid=300 + r, thread=5)
        for r in seen
    ]


def test_a_local_rank_without_a_log_is_counted_from_the_ranks_of_its_host(tmp_path: Path) -> None:
    job = _job(tmp_path, *_closed(7, range(8, 15), 8))
    assert absent_rank(job, 0, 7) == 15


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([(8, 0)], id="one rank shows no distance"),
        pytest.param([(8, 0), (10, 1)], id="ranks of every second host"),
    ],
)
def test_a_local_rank_of_a_host_without_a_constant_distance_is_no_rank(
    tmp_path: Path, seen: list[tuple[int, int]]
) -> None:
    job = _job(tmp_path, *(_member(r, 16, "ab", d, r + 1, "n1", 300 + r) for r, d in seen))
    assert absent_rank(job, 0, 7) is None


@pytest.mark.parametrize("tag", ["[rank3]: ", "[1,3]<stderr>: "])
def test_a_tag_names_the_rank_of_a_line_without_host_and_pid(tmp_path: Path, tag: str) -> None:
    warn = "[0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    report = _report(tmp_path, tag + warn)
    assert [c.rank for c in report.culprits] == [3]
    assert report.reason.startswith("rank 3 failed")


@pytest.mark.parametrize("tag", ["", "[3]: ", "3: ", "worker-3: "])
def test_a_line_without_host_and_pid_has_no_rank_if_its_tag_names_none(tmp_path: Path, tag: str) -> None:
    warn = "[0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    report = _report(tmp_path, tag + warn)
    assert [(c.rank, c.device) for c in report.culprits] == [(None, 0)]
    assert report.reason.startswith("the rank on device 0 failed")


def test_the_report_of_mpirun_names_the_rank_of_a_process(tmp_path: Path) -> None:
    signal = "mpirun noticed that process rank 9 with PID 501 on node n0 exited on signal 9 (Killed).\n"
    start = _info(1, "Bootstrap: Using eth0:10.0.0.1<0>")
    assert _ranks(_job(tmp_path, start + signal)) == {"n0:501": 9}
    assert _ranks(_job(tmp_path, start + signal.replace("PID 501", "PID 0"))) == {"n0:501": None}


_TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:00:00
  host      : {host}
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 501)
"""


def test_the_report_of_torchrun_names_the_rank_of_a_process(tmp_path: Path) -> None:
    start = _info(1, "Bootstrap: Using eth0:10.0.0.1<0>")
    job = _job(tmp_path, start + _TORCHRUN.format(host="n0.cluster"))
    assert _ranks(job) == {"n0:501": 9}
    assert [c.basis for c in job.numbering.known.values()] == ["launch.elastic.rank"]
    assert _ranks(_job(tmp_path, start + _TORCHRUN.format(host="n7"))) == {"n0:501": None}


@pytest.mark.parametrize(
    ("tag", "rank"),
    [("(Worker_TP5 pid={}) ", 5), ("(EngineCore_DP0 pid={}) ", None), ("(Actor pid={}, ip=10.0.0.1) ", None)],
)
def test_the_pid_in_a_tag_ties_lines_without_a_prefix_to_their_process(
    tmp_path: Path, tag: str, rank: int | None
) -> None:
    trace = "".join(
        tag.format(502) + line + "\n"
        for line in ("Traceback (most recent call last):", '  File "a.py", line 1, in f', "RuntimeError: bad shape")
    )
    calm = "".join(_info(1, "Bootstrap: Using eth0:10.0.0.1<0>", pid=pid) for pid in (501, 502))
    assert _ranks(_job(tmp_path, calm + trace)) == {"n0:501": None, "n0:502": rank}
    comm = "".join(_member(rank, 2, "ab", rank, rank, pid=501 + rank) for rank in (0, 1))
    report = _report(tmp_path, comm + trace)
    assert [(c.rank, c.pid) for c in report.culprits] == [(1, 502)]
    elsewhere = trace.replace("pid=502", "pid=777")
    assert [c.pid for c in _report(tmp_path, comm + elsewhere).culprits if c.pid in (501, 502)] == []
