"""Two processes that drive four devices each: a finding names the rank and not only its process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.test_application import two_communicators
from tests.analysis.texts import analyzed
from tests.loggen import SCENARIOS, generate
from tests.loggen.fold import folded


def text_of(name: str, dialect: str) -> str:
    plan = replace(SCENARIOS[name].plan, ranks=8)
    return folded(generate(name, dialect, plan=plan).merged(), 4)


def test_a_healthy_job_has_eight_ranks_in_two_processes(tmp_path: Path) -> None:
    report = analyzed(tmp_path, text_of("healthy_both", "2.27"))
    assert report.verdict == "healthy"
    assert sorted(r.rank for r in report.ranks if r.rank is not None) == list(range(8))
    assert len({r.pid for r in report.ranks}) == 2


@pytest.mark.parametrize(
    ("name", "dialect", "code"),
    [
        ("fd_handles_swapped", "2.27", "PSM109"),
        ("scraper_on_proxy_port", "2.27", "PSM106"),
        ("connect_begun", "passsm", "PSM101"),
        ("lag_at_work", "2.27", "PSM302"),
        ("shm_full", "2.21", "PSM503"),
    ],
)
def test_the_culprit_is_the_rank_of_the_thread(name: str, dialect: str, code: str, tmp_path: Path) -> None:
    truth = generate(name, dialect).truth
    report = analyzed(tmp_path, text_of(name, dialect))
    assert code in {f.code for f in report.findings if f.severity == "error"}
    assert {c.global_rank for c in report.culprits} == truth.culprits
    assert [c.device for c in report.culprits] == [c.global_rank for c in report.culprits]


@pytest.mark.parametrize("cut", [0.55, 0.7, 0.85])
def test_ranks_of_a_process_are_not_one_rank_with_two_orders(cut: float, tmp_path: Path) -> None:
    lines = text_of("healthy_collectives", "2.27").splitlines(keepends=True)
    report = analyzed(tmp_path, "".join(lines[: int(len(lines) * cut)]))
    assert report.verdict == "inconclusive"
    assert "PSM302" not in {f.code for f in report.findings}


def test_the_orders_of_the_ranks_of_a_process_are_compared(tmp_path: Path) -> None:
    logs = two_communicators(["A", "A", "A", "A", "A", "B", "A", "A"], watchdog=True)
    text = "".join(line + "\n" for log in logs for line in log.lines)
    report = analyzed(tmp_path, folded(text, 4))
    assert "in different orders" in report.reason
    assert [c.global_rank for c in report.culprits] == [5]


def test_a_peer_that_closes_its_connections_is_named_by_its_local_rank(tmp_path: Path) -> None:
    text = text_of("healthy_collectives", "2.27")
    lines = text.splitlines(keepends=True)
    closed = "node0:6005:{} [{}] NCCL INFO [Service thread] Connection closed by localRank 2\n"
    report = analyzed(tmp_path, "".join(lines[: len(lines) // 2]) + closed.format(9, 4) + closed.format(8, 5))
    assert report.verdict == "failed" and report.reason.startswith("rank 2 (node0:6001) lost its connection to")
    assert [(c.global_rank, c.device) for c in report.culprits] == [(2, 2)]
    head, rest = "".join(lines[: len(lines) // 2]), [line for line in lines[len(lines) // 2 :] if "Destroy" not in line]
    on = [line for line in rest if line.startswith("node0:6001:") and "[2]" not in line][:20]
    report = analyzed(tmp_path, head + closed.format(9, 4) + closed.format(8, 5) + "".join(on))
    assert (report.verdict, report.culprits) == ("inconclusive", ())  # its process lives
    own = closed.replace("6005", "6001")  # ranks of one process close their connections to each other, too
    report = analyzed(tmp_path, "".join(lines[: len(lines) // 2]) + own.format(9, 0) + own.format(8, 1))
    assert (report.verdict, report.culprits) == ("inconclusive", ())


def test_the_services_of_a_process_read_their_requests_one_by_one(tmp_path: Path) -> None:
    """The log ends soon after a request. That other services of the asked process read later ones proves nothing."""
    lines = text_of("healthy_both", "passsm").splitlines(keepends=True)
    requests = [at for at, line in enumerate(lines) if "ProxyCall UDS" in line and "DONE" not in line]
    for asked in requests[-60::6]:
        thread, op = lines[asked].split()[0], lines[asked].split()[-1].removeprefix("0x")
        rank = lines[asked].partition("tpRank ")[2].partition("(")[0]
        gone = (op, thread, f"tpRank {rank}(")
        later = [line for line in lines[asked + 1 :] if not any(word in line for word in gone)]
        report = analyzed(tmp_path, "".join([*lines[: asked + 1], *later[:100]]))
        assert report.verdict == "inconclusive", report.reason


def channels(pids: dict[int, int]) -> str:
    """The middle of a log in which rank R prints R + 1 lines about its next rank."""
    out = []
    for rank, pid in pids.items():
        out += [
            f"hw7:{pid}:{810 + rank} [{rank}] NCCL INFO Channel {n:02}/0 : {rank}[{rank}] -> {rank + 1}[{rank + 1}] via P2P/direct pointer\n"
            for n in range(rank + 1)
        ]
    return "".join(out)


def test_the_table_counts_ranks_and_processes_apart_and_the_lines_of_each_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, channels(dict.fromkeys((0, 1, 3), 798)))
    assert [(r.rank, r.lines, (r.last or "").rpartition(":")[2]) for r in report.ranks] == [
        (0, 1, "1"),
        (1, 2, "3"),
        (3, 4, "7"),
    ]
    assert "Ranks: 3 ranks in 1 process on 1 host" in render(report)
    apart = analyzed(tmp_path, channels({0: 798, 1: 799, 3: 800}))
    assert sorted(r.lines for r in apart.ranks) == [1, 2, 4]
    assert "Ranks: 3 processes on 1 host" in render(apart)


def lost_service(devices: tuple[int, ...], pids: tuple[int, ...] = (77,)) -> str:
    """A process that loses its proxy service while it connects, with lines of threads of these devices."""
    steps = "".join(
        f"box:{pids[0]}:81 [0] NCCL INFO {at} -> 3\n"
        for at in ("/b/hipify/src/transport/p2p.cc:473", "/b/hipify/src/transport.cc:147", "/b/hipify/src/init.cc:1902")
    )
    warn = f"box:{pids[0]}:81 [0] /b/hipify/src/proxy.cc:1190 NCCL WARN Socket recv failed while polling for opId=0x7d9e780c40c0\n"
    rings = "".join(f"box:{pid}:9{d} [{d}] NCCL INFO group.cc:43{d} -> 3\n" for pid in pids for d in devices)
    return warn + steps + rings


def test_the_only_process_is_named_if_its_own_threads_are_its_peers(tmp_path: Path) -> None:
    report = analyzed(tmp_path, lost_service((0, 1)))
    assert (report.verdict, [(c.host, c.pid) for c in report.culprits]) == ("failed", [("box", 77)])
    assert (
        "transport/p2p.cc:473" in report.findings[0].explanation and "/b/hipify" not in report.findings[0].explanation
    )
    # with one device, or beside another process, the peer is somewhere else
    assert not analyzed(tmp_path, lost_service((0,))).culprits
    assert not analyzed(tmp_path, lost_service((0, 1), (77, 78))).culprits


ROW = "#  Rank {:2} Group  0 Pid {:6} on         n0 device {:2} [0x0{}] NVIDIA A100\n"
LINES = (
    "n0:500:500 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    "n0:500:502 [1] graph/search.cc:890 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n"
)


def test_the_table_of_a_benchmark_names_the_ranks_of_a_process(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ROW.format(0, 500, 0, 1) + ROW.format(1, 500, 1, 2) + LINES)
    assert [(r.rank, r.device, r.devices) for r in report.ranks] == [(0, 0, (0,)), (1, 1, (1,))]


def test_a_table_with_one_row_for_each_process_names_one_rank_each(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ROW.format(0, 400, 0, 1) + ROW.format(1, 500, 1, 2) + LINES)
    assert [(r.pid, r.rank, r.device) for r in report.ranks if r.pid == 500] == [(500, 1, 1)]


def test_a_process_of_unknown_ranks_shows_all_its_devices(tmp_path: Path) -> None:
    report = analyzed(tmp_path, LINES + "n0:500:503 [3] NCCL INFO Connected all rings\n")
    (row,) = report.ranks
    assert (row.device, row.devices) == (None, (1, 3))
    assert "n0    500  1,3  " in render(report, "text")
    assert "| 1,3 |" in render(report, "markdown")
    assert json.loads(render(report, "json"))["ranks"][0]["devices"] == [1, 3]


def test_a_device_without_a_rank_has_a_row_of_its_own(tmp_path: Path) -> None:
    bare = "hw7:{}:{} [{}] NCCL INFO [Proxy Service] Device {} CPU core 7\n"
    report = analyzed(tmp_path, channels({3: 798}) + bare.format(798, 1, 1, 1) + bare.format(798, 2, 2, 2))
    assert [(r.rank, r.device, r.lines) for r in report.ranks] == [(3, 3, 4), (None, 1, 1), (None, 2, 1)]
    assert "Ranks: 1 process on 1 host" in render(report)
    apart = analyzed(tmp_path, channels({3: 798}) + bare.format(799, 1, 1, 1))
    assert [(r.pid, r.rank, r.device) for r in apart.ranks] == [(798, 3, 3), (799, None, 1)]
