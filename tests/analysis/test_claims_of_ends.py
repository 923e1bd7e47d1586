"""What a report may say where a log shows the end of a communicator, some processes without a rank, one process only, or a launcher's end."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Verdict
from tests.analysis.texts import analyzed, states

FAILURE = "NCCL WARN Cuda failure 1 'invalid argument'"


def test_an_error_of_a_destroy_is_told_as_one_and_not_as_a_lack_of_shared_memory(tmp_path: Path) -> None:
    log = f"n7:41:41 [0] transport/p2p.cc:1101 {FAILURE}\nn7:41:41 [0] init.cc:2101 NCCL WARN commReclaim: cleanup comm 0x55f0ee791ec0 rank 0 failed in destroy/abort, error 1\n"
    report = analyzed(tmp_path, log)
    assert report.verdict is Verdict.FAILED and "while ending a communicator" in report.reason
    (finding,) = (f for f in report.findings if f.title == report.reason)
    assert "container" not in finding.next_step and "earlier error" in finding.next_step


def test_the_same_error_without_an_end_is_not_told_as_one(tmp_path: Path) -> None:
    log = f"n7:41:41 [0] transport/p2p.cc:1101 {FAILURE}\nn7:41:41 [0] NCCL INFO transport.cc:120 -> 1\nn7:41:41 [0] NCCL INFO init.cc:900 -> 1\n"
    assert "while ending" not in analyzed(tmp_path, log).reason


def test_processes_with_and_without_a_rank_are_all_named_and_the_proof_is_a_line_of_the_first(tmp_path: Path) -> None:
    text = "misc/ibvwrap.cc:310 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"
    way = ("transport/net_ib.cc:551", "transport/net_ib.cc:731", "transport/net.cc:651", "proxy.cc:990")
    log = ""
    for pid, device in ((41, 0), (43, 2)):
        log += f"n7:{pid}:{pid + 50} [{device}] {text}\n"
        log += "".join(f"n7:{pid}:{pid + 50} [{device}] NCCL INFO {place} -> 2\n" for place in way)
        if device == 0:
            log += "n7:41:91 [0] proxy.cc:1119 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2\n"
    report = analyzed(tmp_path, log)
    assert [(c.rank, c.pid, c.device) for c in report.runs[0].culprits] == [(0, 41, 0), (None, 43, 2)]
    (finding,) = (f for f in report.findings if f.title == report.reason)
    assert finding.evidence[0].line == 1
    assert set(states(report).values()) == {"failed"}


def test_a_job_of_one_process_has_no_other_process_to_find(tmp_path: Path) -> None:
    table = "#  Rank  0 Group  0 Pid     41 on         n7 device  0 [0x01] NVIDIA A100-SXM4-40GB\n"
    error = "n7:41:91 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer localhost<40112>\nn7:41:91 [0] NCCL INFO misc/socket.cc:750 -> 6\n"
    start = "n7:41:41 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    alone = analyzed(tmp_path, table + start + error)
    (finding,) = (f for f in alone.findings if f.title == alone.reason)
    assert "because of a peer" not in alone.reason and "find the process" not in finding.next_step
    assert [(c.rank, c.pid) for c in alone.runs[0].culprits] == [(0, 41)]
    folder = tmp_path / "two"
    folder.mkdir()
    other = table.replace("Rank  0", "Rank  1").replace("    41", "    43").replace("device  0", "device  1")
    two = analyzed(folder, table + other + start + error)
    assert "because of a peer" in two.reason


SIGTERM = "W0311 09:15:02.120000 99 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {} closing signal SIGTERM\n"


def test_a_launcher_that_ends_its_workers_is_told_in_words_and_not_as_a_raw_line(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SIGTERM.format(4711) + SIGTERM.format(4712))
    assert report.verdict is Verdict.FAILED and report.confidence <= 0.6
    assert report.reason.startswith("torchrun ends its workers (processes 4711 and 4712)")
    assert not report.runs[0].culprits


def test_a_cut_line_of_a_launcher_counts_and_the_communicator_stays_undecided(tmp_path: Path) -> None:
    start = "n7:41:41 [0] NCCL INFO ncclCommInitRank comm 0x55f0ee791ec0 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x51 - Init START\n"
    report = analyzed(tmp_path, start + SIGTERM.format(41)[:-18])
    assert report.verdict is Verdict.INCONCLUSIVE and "torchrun ends its workers (process 41)" in report.reason


def test_the_reason_of_such_an_end_comes_first_where_a_line_shows_it(tmp_path: Path) -> None:
    cause = "E0311 09:15:03.000000 99 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4713) of binary: /usr/bin/python\n"
    report = analyzed(tmp_path, SIGTERM.format(4711) + cause)
    assert "torchrun ends its workers" not in report.reason


def test_processes_in_tags_of_ray_count_as_processes(tmp_path: Path) -> None:
    timeout = "[PG 0 (default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
    log = f"(Trainer pid=501) [2025-03-01 10:00:00,164 E 501 601] logging.cc:113: Unhandled exception: St5error. what(): {timeout}\n"
    other = "(Trainer pid=502) [2025-03-01 10:00:00,136 E 502 602] logging.cc:120: Stack trace: \n"
    assert "lines of 2 processes" in analyzed(tmp_path, log + other).reason
    folder = tmp_path / "one"
    folder.mkdir()
    assert "lines of" not in analyzed(folder, log).reason


def test_the_stage_is_that_of_the_communicator_that_begins_and_not_of_one_before_it(tmp_path: Path) -> None:
    lines = [
        "n7:41:91 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
        "n7:41:91 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n",
        "n7:41:93 [0] NCCL INFO ncclCommInitRankConfig comm 0x55f0ee791ec0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 53000 commId 0xb1 - Init START\n",
    ]
    assert [row.stage for row in analyzed(tmp_path, "".join(lines)).ranks if row.pid == 41] == ["init"]
    folder = tmp_path / "one"
    folder.mkdir()
    same = [lines[2], *(line.replace(":91 ", ":93 ") for line in lines[:2])]
    assert [row.stage for row in analyzed(folder, "".join(same)).ranks if row.pid == 41] == ["connect"]
