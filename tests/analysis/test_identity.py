"""Runs, ranks, nodes: who is who in a log."""

from __future__ import annotations

from psmkit.analysis.facts.naming import comm_name, name_of
from psmkit.analysis.facts.places import by_local_rank, by_socket
from psmkit.analysis.facts.progress import progress_of, torn_down
from psmkit.analysis.facts.stages import stage_of
from psmkit.logparse.types import FdExchange, ServiceTally
from tests.analysis.build import Scan


def test_processes_that_share_a_communicator_are_one_run() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    scan.comm(procs)
    job = scan.job()
    assert len(job.runs) == 1
    assert [job.rank_of(p) for p in procs] == [0, 1, 2, 3]
    assert job.runs[0].nranks == 4
    assert name_of(job, procs[3]) == "rank 3 (h:103)"
    assert comm_name(job, 0) == "0xabc0"


def test_groups_without_a_common_world_are_one_run() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    scan.comm(procs[:2], bus={0: "10000", 1: "20000"})
    scan.comm(procs[2:], bus={0: "30000", 1: "40000"})
    assert len(scan.job().runs) == 1


def test_the_same_gpu_twice_is_two_runs() -> None:
    scan = Scan()
    first = [scan.proc(r, pid=100 + r) for r in range(2)]
    scan.comm(first, end=True)
    second = [scan.proc(r, pid=200 + r) for r in range(2)]
    scan.comm(second, end=True)
    job = scan.job()
    assert [run.procs for run in job.runs] == [frozenset(first), frozenset(second)]
    assert job.rank_of(second[1]) == 1


def test_a_restart_in_a_container_is_two_runs() -> None:
    scan = Scan()
    first = [scan.proc(r, pid=1, tag=f"pod-{r}") for r in range(2)]
    scan.comm(first, bus={})
    second = [scan.proc(r, pid=1, tag=f"pod-{r}", incarnation=1) for r in range(2)]
    scan.comm(second, bus={})
    assert len(scan.job().runs) == 2


def test_the_world_numbers_the_ranks() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    scan.comm([procs[2], procs[3]])
    scan.comm(procs)
    job = scan.job()
    assert (job.runs[0].world, job.rank_of(procs[3])) == (1, 3)
    assert job.proc_in(0, 1) == procs[3]


def test_an_fd_request_tells_the_rank_where_init_lines_are_missing() -> None:
    scan = Scan()
    proc = scan.proc(7)
    asked = scan.ref(proc, "ProxyCall UDS")
    scan.fds.append(FdExchange(5, asked, None, None, None, proc, None, 7, 0, None))
    assert scan.job().rank_of(proc) == 7


def test_missing_ranks_and_local_ranks() -> None:
    scan = Scan()
    procs = {r: scan.proc(r) for r in (0, 1, 3)}
    scan.comm(procs, nranks=4)
    job = scan.job()
    assert job.missing_ranks(0) == (2,)
    assert by_local_rank(job, procs[0], 1) is None, "with a rank missing the host's ranks cannot be counted off"
    scan.event(procs[0], "comm.shape", nranks=4, nodes=1, local_ranks=4, local_rank=0)
    assert by_local_rank(scan.job(), procs[0], 1) == procs[1]


def test_ras_sockets_name_processes() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    scan.event(procs[0], "ras.listen", addr="10.0.0.1<5000>")
    scan.event(procs[0], "ras.peer", peer=1, addr="10.0.0.2<5001>", pid=101)
    job = scan.job()
    assert (by_socket(job, "10.0.0.1<5000>", 0), by_socket(job, "10.0.0.2<5001>", 0)) == (procs[0], procs[1])


def test_stages_and_progress() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(3)]
    scan.comm(procs[:2], ops={0: 5, 1: 3}, end=False)
    scan.comm([procs[2]], complete=False)
    job = scan.job()
    assert [stage_of(job, p) for p in procs] == ["working", "working", "init"]
    assert progress_of(job, procs[0]) > progress_of(job, procs[1]) > progress_of(job, procs[2])
    assert not torn_down(job, procs[0])


def test_own_proxies_name_ranks_where_no_communicator_line_is_seen() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    for rank, proc in enumerate(procs):
        opened = {("send", 5, rank): 4, ("send", 5, 1 - rank): 1}
        scan.services.append(ServiceTally(proc, proc, opened, {}))
    assert [scan.job().rank_of(p) for p in procs] == [0, 1]


def test_proxies_that_do_not_tell_ranks_apart_name_none() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    for proc in procs:
        scan.services.append(ServiceTally(proc, proc, {("send", 5, 0): 4}, {}))
    assert [scan.job().rank_of(p) for p in procs] == [None, None]
