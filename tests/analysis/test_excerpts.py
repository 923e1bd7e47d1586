"""Excerpts as people post them: cut prefixes, tags that are no ranks, lines of one process for several GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.analysis.texts import analyzed


def serious(report: Report) -> list[tuple[str, str]]:
    return [(f.code, str(f.severity)) for f in report.findings if f.severity in ("error", "warning")]


def ends(comm: str, rank: int, what: str) -> str:
    return f"box:77:8{rank} [{rank}] NCCL INFO comm {comm} rank {rank} nranks 2 cudaDev {rank} busId {rank + 1}000 - {what} COMPLETE\n"


def test_one_process_with_two_gpus_and_no_commid_is_one_communicator(tmp_path: Path) -> None:
    text = ends("0xaa10", 0, "Init") + ends("0xaa20", 1, "Init")
    report = analyzed(tmp_path, text + ends("0xaa10", 0, "Destroy") + ends("0xaa20", 1, "Destroy"))
    assert report.verdict == "healthy"
    assert not serious(report)
    cut = analyzed(tmp_path, text + ends("0xaa10", 0, "Destroy"))
    assert (cut.verdict, serious(cut)) == ("inconclusive", [])


def test_pods_and_ray_workers_number_no_ranks(tmp_path: Path) -> None:
    warn = "init.cc:263 NCCL WARN Cuda failure 'initialization error'\n"
    pod = analyzed(tmp_path, f"job-worker-4: job-worker-4:29:45 [6] {warn}job-worker-4: job-worker-4:30:46 [7] {warn}")
    assert len(pod.runs) == 1
    assert [(c.rank, c.pid) for c in pod.culprits] == [(None, 29), (None, 30)]
    ray = analyzed(tmp_path, f"(Worker pid=9096) z:9096:9103 [0] {warn}")
    assert [(c.rank, c.pid) for c in ray.culprits] == [(None, 9096)]


def test_slot_of_a_task_that_starts_several_processes_is_no_rank(tmp_path: Path) -> None:
    warn = "init.cc:263 NCCL WARN Cuda failure 'initialization error'\n"
    report = analyzed(tmp_path, f"1: n1:29:45 [6] {warn}1: n1:30:46 [7] {warn}")
    assert [c.rank for c in report.culprits] == [None, None]
    alone = analyzed(tmp_path, f"1: n1:29:45 [6] {warn}")
    assert [c.rank for c in alone.culprits] == [1]


def test_socket_chains_of_an_abort_are_no_lost_error(tmp_path: Path) -> None:
    text = ends("0xaa10", 0, "Init") + ends("0xaa20", 1, "Init")
    text += "".join(f"box:77:99 [0] NCCL INFO misc/socket.cc:{n} -> 3\n" for n in (47, 550, 573, 621))
    assert serious(analyzed(tmp_path, text)) == []
    lost = text.replace("misc/socket.cc:621 -> 3", "transport/net_socket.cc:621 -> 3")
    assert ("PSM404", "error") in serious(analyzed(tmp_path, lost))


def test_ras_port_in_use_is_harmless_and_another_port_is_not(tmp_path: Path) -> None:
    line = "[2025-06-05 10:45:19] p:28:28 [0] {} NCCL WARN Call to bind failed: Address already in use\n"
    assert serious(analyzed(tmp_path, line.format("ras/client_support.cc:160"))) == []
    assert analyzed(tmp_path, line.format("misc/socket.cc:420")).verdict == "failed"


def test_warning_without_host_and_pid_still_fails_the_run(tmp_path: Path) -> None:
    line = "[{}] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    report = analyzed(tmp_path, line.format(3))
    assert (report.verdict, [f.code for f in report.findings if f.severity == "error"]) == ("failed", ["PSM503"])
    assert [(c.rank, c.device) for c in report.culprits] == [(None, 3)]
    harmless = analyzed(tmp_path, "[3] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n")
    assert serious(harmless) == []
    over = analyzed(
        tmp_path,
        line.format(0) + "".join(ends(c, r, w) for w in ("Init", "Destroy") for r, c in enumerate(("0x1", "0x2"))),
    )
    assert (over.verdict, [s for _, s in serious(over)]) == ("healthy", ["warning"])


def test_ranks_that_name_the_same_gpu_come_before_one_that_only_returns_the_error(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "[1,3]<stdout>:g:81:41 [0] NCCL INFO init.cc:903 -> 5\n"
        "[1,2]<stdout>:g:80:40 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000      "
        "[1,2]<stdout>:g:80:40 [0] NCCL INFO init.cc:867 -> 5\n",
    )
    assert "Duplicate GPU" in report.reason and "init.cc:867" not in report.reason
    assert [c.rank for c in report.culprits] == [2]


def test_error_of_a_proxy_service_is_the_cause_of_what_its_rank_returns(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "n:20:28 [3] register_mr_buffers:647 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 1. RC: -22, Error: Invalid argument\n"
        "n:20:28 [3] NCCL INFO transport/net.cc:926 -> 2\n"
        "n:20:24 [3] NCCL INFO transport/net.cc:405 -> 2\n"
        "n:20:24 [3] NCCL INFO init.cc:1263 -> 2\n"
        "n:20:20 [3] NCCL INFO group.cc:418 -> 2\n",
    )
    assert "register memory" in report.reason


@pytest.mark.parametrize(
    ("reason", "ends"), [("Connection refused", ["10.38.10.112"]), ("Connection timed out", ["a", "10.38.10.112"])]
)
def test_who_refuses_a_connection_is_to_blame_and_either_end_for_one_that_gets_no_answer(
    tmp_path: Path, reason: str, ends: list[str]
) -> None:
    report = analyzed(
        tmp_path,
        f"a:9:94 [0] include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : {reason}\n"
        "a:9:94 [0] NCCL INFO bootstrap.cc:100 -> 2\na:9:94 [0] NCCL INFO init.cc:695 -> 2\n",
    )
    assert (report.verdict, [c.host for c in report.culprits]) == ("failed", ends)
    assert all(c.either == (len(ends) > 1) for c in report.culprits)


def test_peer_that_several_ranks_cannot_reach_is_to_blame(tmp_path: Path) -> None:
    text = "[0] include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused\n"
    chain = "[0] NCCL INFO bootstrap.cc:100 -> 2\n"
    report = analyzed(tmp_path, "".join(f"{who} {part}" for who in ("a:9:94", "b:7:74") for part in (text, chain)))
    assert (report.verdict, [(c.host, c.either) for c in report.culprits]) == ("failed", [("10.38.10.112", False)])


def test_port_that_went_down_is_to_blame_for_the_completion_error_of_another_host(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "n48:50:21 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
        "n51:76:85 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n48<37948> with error 12, opcode 2, len 1, vendor err 129\n"
        "n51:76:85 [4] NCCL INFO transport/net.cc:1034 -> 6\nn51:76:85 [4] NCCL INFO proxy.cc:684 -> 6 [Proxy Thread]\n",
    )
    assert (report.verdict, [c.host for c in report.culprits]) == ("failed", ["n48"])


def test_rank_that_gave_up_on_an_earlier_work_is_not_among_those_that_wait(tmp_path: Path) -> None:
    def gave_up(rank: int, seq: int) -> str:
        return (
            f"[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
            "OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=300000) ran for 300060 milliseconds before timing out.\n"
        )

    report = analyzed(tmp_path, gave_up(1, 7) + "".join(gave_up(r, 1211) for r in (0, 2, 3)))
    assert [c.rank for c in report.culprits] == [1]
    assert "ranks 0, 2 and 3 wait for it" in report.reason
    assert "it is still in BROADCAST #7" in report.reason
    assert "correctly" not in report.reason


def test_line_that_is_harmless_as_a_rule_can_end_an_init(tmp_path: Path) -> None:
    warn = "w:9:92 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0\n"
    step = "w:9:92 [0] NCCL INFO graph/xml.cc:469 -> 2\n"
    ended = analyzed(tmp_path, warn + step + "w:9:92 [0] NCCL INFO init.cc:581 -> 2\n")
    assert (ended.verdict, [c.pid for c in ended.culprits]) == ("failed", [9])
    assert "peer" not in ended.reason
    assert serious(analyzed(tmp_path, warn + step)) == []


def test_error_that_only_xla_tells_is_read(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "INTERNAL: xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error\n",
    )
    assert (report.verdict, "unhandled cuda error" in report.reason) == ("failed", True)


def test_teardown_of_the_world_is_no_health_while_another_communicator_starts(tmp_path: Path) -> None:
    def init(rank: int, comm: str, what: str, more: str = "commId 0x1 ") -> str:
        return (
            f"box:77{rank}:8{rank} [{rank}] NCCL INFO ncclCommInitRank comm {comm}{rank} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} "
            f"busId {rank + 1}000 {more}- Init {what}\n"
        )

    both = "".join(init(r, "0xa", what) for what in ("START", "COMPLETE") for r in (0, 1))
    both += "".join(init(r, "0xb", "START", "commId 0x2 ") for r in (0, 1)) + init(0, "0xb", "COMPLETE", "commId 0x2 ")
    both += "".join(
        f"box:77{r}:77{r} [{r}] NCCL INFO comm 0xa{r} rank {r} nranks 2 cudaDev {r} busId {r + 1}000 - Destroy COMPLETE\n"
        for r in (0, 1)
    )
    report = analyzed(tmp_path, both)
    assert (report.verdict, report.reason) == ("inconclusive", "the log ends while rank 1 initialises")


def test_last_error_that_torch_repeats_is_told(tmp_path: Path) -> None:
    head = (
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: x/ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 2.18.6\n"
        "[rank3]: Last error:\n"
    )
    away = analyzed(
        tmp_path, head + "[rank3]: socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host\n"
    )
    assert away.verdict == "failed"
    assert [(c.rank, c.host, c.either) for c in away.culprits] == [(3, None, True), (None, "192.168.19.14", True)]
    assert "192.168.19.14<52822>" in away.reason
    own = analyzed(tmp_path, head + "[rank3]: Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000\n")
    assert [c.rank for c in own.culprits] == [3, 0]  # the line does not show which of them took the wrong device


def test_the_only_rank_that_reports_a_failed_network_operation_is_named(tmp_path: Path) -> None:
    head = (
        "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: x/ProcessGroupNCCL.cpp:3763, remote process exited or there was a network error, NCCL version 2.28.8\n"
        "[rank{0}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "[rank{0}]: Last error:\n[rank{0}]: {1}\n"
    )
    failed = "NET/OFI Request 0x7f10 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0"
    one = analyzed(tmp_path, head.format(3, failed))
    assert (one.verdict, [c.rank for c in one.culprits]) == ("failed", [3])
    assert "Either end of the connection" in one.findings[0].explanation
    assert analyzed(tmp_path, head.format(3, failed) + head.format(5, failed)).culprits == ()
    closed = "socketProgress: Connection closed by remote peer node7<51234>"
    assert 3 not in [c.rank for c in analyzed(tmp_path, head.format(3, closed)).culprits]


def test_processes_that_still_load_their_plugins_have_not_failed_to_start(tmp_path: Path) -> None:
    waiting = "d:105:115 [6] NCCL INFO ncclCommInitRankConfig comm 0x55 rank 6 nranks 8 cudaDev 6 nvmlDev 6 busId 96000 commId 0x2f - Init START\n"
    loading = "d:{}:{} [{}] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
    assert serious(analyzed(tmp_path, waiting + loading.format(101, 111, 2) + loading.format(100, 110, 1))) == []
    assert ("PSM201", "warning") in serious(analyzed(tmp_path, waiting))


@pytest.mark.parametrize(("op", "culprits"), [("ALLREDUCE", [0]), ("BROADCAST", [])])
def test_silence_blames_a_rank_only_where_nobody_finishes_before_it(
    tmp_path: Path, op: str, culprits: list[int]
) -> None:
    lines = [
        "[rank0]:[W ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0] using GPU 0 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang.\n"
    ] + [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
        f"OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=300000) ran for 300060 milliseconds before timing out.\n"
        for rank in (1, 2, 3)
    ]
    report = analyzed(tmp_path, "".join(lines))
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", culprits)


def test_error_whose_finding_breaks_no_run_fails_it_as_an_error(tmp_path: Path) -> None:
    """PSM701, an open exchange, is no code of errors: an error of it is neither a hang nor nothing."""
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'subsystem = "misc"\n[[message]]\nname = "mine.versions"\npattern = "mine: version {mine:int} meets {other:int}"\n'
        'level = "WARN"\nseverity = "error"\nblames = "unknown"\norigin = true\nfinding = "PSM701"\nmeaning = "Two versions meet."\n'
        '[[message.sample]]\ntext = "mine: version 3 meets 4"\nkind = "constructed"\nfields = {mine = 3, other = 4}\n'
    )
    log = tmp_path / "excerpt.log"
    log.write_text("NCCL WARN mine: version 3 meets 4\n")
    report = psmkit.analyze([log], catalogue=[mine])
    assert report.verdict == "failed" and serious(report) == [("PSM401", "error")]


def shared_gpu(pid: int, tid: int) -> str:
    return f"box:{pid}:{tid} [1] init.cc:824 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device e3000\nbox:{pid}:{tid} [1] NCCL INFO init.cc:1641 -> 5\n"


def starts(pid: int, tid: int, rank: int) -> str:
    return f"box:{pid}:{tid} [0] NCCL INFO comm 0x7f0{pid} rank {rank} nranks 2 cudaDev 0 nvmlDev 2 busId ca000 commId 0x2ca1 - Init START\n"


def test_communicators_of_processes_that_were_started_together_are_one_run(tmp_path: Path) -> None:
    full = starts(5012, 5098, 1) + starts(5010, 5090, 0)
    report = analyzed(tmp_path, shared_gpu(5011, 5092) + shared_gpu(5013, 5110) + full)
    assert len(report.runs) == 1
    assert {c.pid for c in report.culprits} == {5011, 5013}
    # a start that failed before: its numbers are lower than all those of the next one
    earlier = analyzed(tmp_path, shared_gpu(4011, 4092) + shared_gpu(4013, 4110) + full)
    assert len(earlier.runs) == 2
    # and one that failed after it
    later = analyzed(tmp_path, full + shared_gpu(6011, 6092) + shared_gpu(6013, 6110))
    assert len(later.runs) == 2


def dead_end(port: int, ends: str = " [Progress Thread]") -> str:
    return (
        f"box:77:99 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion from peer 10.0.3.5<{port}> with status=12 opcode=129 len=1048576 vendor err 129 (Recv) localGid ::ffff:10.0.6.3 remoteGids::ffff:10.0.6.5 hca mlx5_10\n"
        "box:77:99 [6] NCCL INFO transport/net.cc:1362 -> 6\n"
        f"box:77:99 [6] NCCL INFO proxy.cc:910 -> 6{ends}\n"
    )


def test_warnings_of_a_progress_thread_are_errors_of_their_own(tmp_path: Path) -> None:
    report = analyzed(tmp_path, dead_end(53908) + dead_end(50188))
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert [e.line for e in error.evidence] == [1, 2, 3]
    assert "transport/net.cc:1362 -> proxy.cc:910 and became the asynchronous error" in error.explanation
    # a warning that a chain leads to, before the error has reached its end
    led = analyzed(tmp_path, dead_end(53908, "") + dead_end(50188))
    assert [e.line for e in led.findings[0].evidence] == [1, 2, 6]


CHAIN = "graph/xml.h:77 NCCL WARN Attribute arch of node cpu not found\nNCCL INFO graph/topo.cc:380 -> 3\nNCCL INFO graph/topo.cc:569 -> 3\n"


def test_a_chain_without_processes_that_reaches_the_application_is_a_failure(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{CHAIN}NCCL INFO init.cc:840 -> 3\nNCCL INFO group.cc:73 -> 3 [Async thread]\n")
    assert report.verdict == "failed" and not report.culprits
    assert "Attribute arch of node cpu not found" in report.reason


def test_a_chain_without_processes_that_is_cut_leaves_the_verdict_open(tmp_path: Path) -> None:
    assert analyzed(tmp_path, CHAIN).verdict == "inconclusive"


def test_ends_below_a_cut_begin_belong_to_the_only_communicator_that_lacks_their_ranks(tmp_path: Path) -> None:
    complete = "n1:713:741 [3] NCCL INFO comm 0x5a03 rank 3 nranks 4 cudaDev 3 busId 81000 commId 0x4c70b29e115df836 - Init COMPLETE\n"
    end = "n1:71{0}:76{0} [0] NCCL INFO comm 0x5a0{0} rank {0} nranks 4 cudaDev {0} busId {0}1000 - Abort COMPLETE\n"
    report = analyzed(tmp_path, complete + "".join(end.format(rank) for rank in (2, 1, 3, 0)))
    assert report.runs[0].ranks_seen == (0, 1, 2, 3) and "names 3 of 4" not in report.reason
    # a second end of the same rank is that of another one
    again = analyzed(tmp_path, complete + "".join(end.format(rank) for rank in (2, 1, 3, 0)) + end.format(2))
    assert again.runs[0].ranks_seen == (0, 1, 2, 3)
