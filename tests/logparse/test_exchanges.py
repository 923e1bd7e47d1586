"""fd exchanges, communicators, collectives, sends and recvs, ledgers, processes."""

from __future__ import annotations

from psmkit.logparse import ScanResult
from tests.logparse.conftest import Scan


def info(text: str, pid: int = 1, tid: int = 1, host: str = "n") -> str:
    return f"{host}:{pid}:{tid} [0] NCCL INFO {text}\n"


def asked(op: int, pid: int = 1) -> str:
    return info(f"ProxyCall UDS comm 0x1 rank 1 tpRank 0(ab) reqSize 8 respSize 0 respFd 0x7f opId {op:#x}", pid)


def done(op: int, pid: int = 1) -> str:
    return info(f"ProxyCall UDS comm 0x1 rank 1 tpRank 0(ab) reqSize 8 respSize 0 respFd 157 opId {op:#x} - DONE", pid)


def got(op: int, pid: int = 2) -> str:
    return info(f"proxyUDSRecvReq::ncclProxyMsgGetFd rank 1 opId {op:#x} handle=0x7f", pid)


def answered(op: int, pid: int = 2) -> str:
    return info(f"UDS proxyGetFd received handle 0x7f peer 1 opId {op:x}", pid)


def test_an_fd_exchange_has_four_stages(scan_text: Scan) -> None:
    result = scan_text(asked(5) + got(5) + answered(5) + done(5) + asked(6) + got(6) + info("Using network A"))
    assert result.totals.fds_matched == 1
    (fd,) = result.fds
    assert (fd.op, fd.client, fd.server, fd.rank, fd.peer, fd.age) == (6, 0, 1, 1, 0, 1)
    assert (fd.asked is None, fd.received is None, fd.answered is None, fd.done is None) == (False, False, True, True)
    assert result.totals.max_fd_age == 3


def test_stages_may_be_read_in_any_order(scan_text: Scan) -> None:
    result = scan_text(asked(5, 1) + done(5, 1), got(5, 2) + answered(5, 2))
    assert (result.totals.fds_matched, result.fds) == (1, [])


def test_a_question_that_is_asked_again_is_the_same_exchange(scan_text: Scan) -> None:
    # Sent twice under load: the service's lines come twice, before and behind the caller's end of it.
    twice = scan_text(asked(5) + got(5) + got(5) + answered(5) + done(5) + answered(5) + got(5) + answered(5))
    assert (twice.totals.fds_matched, twice.fds) == (1, [])
    # The service's log is another file, read later.
    apart = scan_text(asked(5, 1) + done(5, 1), (got(5, 2) + answered(5, 2)) * 3)
    assert (apart.totals.fds_matched, apart.fds) == (1, [])


def test_an_id_that_is_asked_with_once_more_is_another_exchange(scan_text: Scan) -> None:
    whole = asked(5) + got(5) + answered(5) + done(5)
    again = scan_text(whole + whole)
    assert (again.totals.fds_matched, again.fds) == (2, [])
    lost = scan_text(whole + asked(5))
    assert (lost.totals.fds_matched, len(lost.fds)) == (1, 1)


def start(rank: int, n: int, comm: int = 0x10, commid: int = 0xC0, pid: int | None = None) -> str:
    pid = pid or rank + 1
    return info(
        f"ncclCommInitRank comm {comm:#x} rank {rank} nranks {n} cudaDev {rank} busId 1a000 commId {commid:#x} - Init START",
        pid,
    )


def complete(rank: int, n: int, comm: int = 0x10, commid: int = 0xC0, pid: int | None = None) -> str:
    return start(rank, n, comm, commid, pid).replace("START", "COMPLETE")


def destroyed(rank: int, n: int, comm: int = 0x10, pid: int | None = None) -> str:
    return info(f"comm {comm:#x} rank {rank} nranks {n} cudaDev {rank} busId 1a000 - Destroy COMPLETE", pid or rank + 1)


def call(coll: str, rank: int, root: int = 0, count: int = 8, datatype: int = 7, op: int = 0, comm: int = 0x10) -> str:
    return info(
        f"{coll}: opCount 0 sendbuff 0x1 recvbuff 0x2 count {count} datatype {datatype} op {op} root {root} "
        f"comm {comm:#x} [nranks=2] stream 0x3",
        rank + 1,
    )


def both(coll: str, **fields: int) -> str:
    return call(coll, 0, **fields) + call(coll, 1, **fields)


TWO = start(0, 2) + start(1, 2) + complete(0, 2) + complete(1, 2)


def test_members_of_a_communicator_share_its_commid(scan_text: Scan) -> None:
    result = scan_text(TWO + destroyed(0, 2))
    assert [(i.proc, i.rank, i.nranks, i.group, i.commid, i.guessed, i.bus) for i in result.instances] == [
        (0, 0, 2, 0, 0xC0, False, "1a000"),
        (1, 1, 2, 0, 0xC0, False, "1a000"),
    ]
    assert [(i.start is None, i.complete is None, i.end is None) for i in result.instances] == [
        (False, False, False),
        (False, False, True),
    ]


def test_a_comm_pointer_that_is_used_again_is_another_communicator(scan_text: Scan) -> None:
    again = start(0, 2, commid=0xC1) + complete(0, 2, commid=0xC1)
    result = scan_text(start(0, 2) + complete(0, 2) + destroyed(0, 2) + again)
    assert [(i.group, i.commid, i.end is not None) for i in result.instances] == [(0, 0xC0, True), (1, 0xC1, False)]


def test_old_releases_have_no_commid(scan_text: Scan) -> None:
    def old(rank: int, comm: int) -> str:
        return info(f"comm {comm:#x} rank {rank} nranks 2 cudaDev {rank} busId 1a000 - Init COMPLETE", rank + 1)

    result = scan_text(old(0, 1) + old(1, 2) + old(0, 3) + old(1, 4))
    assert [(i.group, i.guessed, i.commid) for i in result.instances] == [
        (0, True, None),
        (0, True, None),
        (1, True, None),
        (1, True, None),
    ]


def test_equal_collectives_are_matched_and_forgotten(scan_text: Scan) -> None:
    result = scan_text(TWO + both("AllReduce") * 50 + call("AllReduce", 0, count=99))
    (group,) = result.groups
    assert (group.matched, group.divergence, [r.ops for r in group.ranks]) == (50, None, [51, 50])
    assert group.ranks[0].last_op is not None
    assert group.ranks[0].last_op["count"] == 99


def test_the_first_different_collective_is_told_with_both_lines(scan_text: Scan) -> None:
    result = scan_text(
        TWO + both("AllReduce") * 3 + call("AllReduce", 0, count=4) + call("AllGather", 1, count=4) + both("AllReduce")
    )
    divergence = result.groups[0].divergence
    assert divergence is not None
    assert (divergence.index, divergence.ranks) == (3, (0, 1))
    assert [op["coll"] for op in divergence.ops] == ["AllReduce", "AllGather"]
    assert [ref.line for ref in divergence.refs] == [11, 12]


def test_a_root_matters_only_where_there_is_one(scan_text: Scan) -> None:
    same = scan_text(TWO + call("AllReduce", 0, root=0) + call("AllReduce", 1, root=5))
    assert same.groups[0].divergence is None
    other = scan_text(TWO + call("Broadcast", 0, root=0) + call("Broadcast", 1, root=1))
    assert other.groups[0].divergence is not None


def test_sends_and_recvs_pair_by_order(scan_text: Scan) -> None:
    result = scan_text(TWO + call("Send", 0, root=1) * 3 + call("Recv", 1, root=0) * 2 + call("Recv", 0, root=1))
    assert result.totals.pairs_matched == 2
    pending = {(p.src, p.dst): (p.pending_sends, p.pending_recvs, [r.line for r in p.sends]) for p in result.pairs}
    assert pending == {(0, 1): (1, 0, [7]), (1, 0): (0, 1, [])}
    assert [(i.sends, i.recvs) for i in result.instances] == [(3, 1), (0, 2)]


def test_bytes_of_a_pair_are_compared_not_counts(scan_text: Scan) -> None:
    fine = scan_text(TWO + call("Send", 0, root=1, count=8, datatype=7) + call("Recv", 1, root=0, count=32, datatype=1))
    assert fine.pairs[0].mismatch is None
    wrong = scan_text(TWO + call("Send", 0, root=1, count=8) + call("Recv", 1, root=0, count=4))
    assert wrong.pairs[0].mismatch is not None
    assert wrong.pairs[0].mismatch[2:] == (32, 16)


def test_a_lagging_member_does_not_fill_the_memory(scan_text: Scan) -> None:
    result = scan_text(TWO + call("AllReduce", 0) * 40000 + call("AllReduce", 1))
    assert [r.ops for r in result.groups[0].ranks] == [40000, 1]


def test_a_ledger_tells_what_is_not_balanced(scan_text: Scan) -> None:
    made, freed = "Allocated buffer {} size 4", "Freed buffer {}"
    lines = [made.format("0x1"), made.format("0x2"), freed.format("0x1"), freed.format("0x3")]
    result = scan_text("".join(map(info, lines)))
    assert result.totals.ledgers == {"buffer": (2, 2, 0)}
    assert [(e.key, e.opens, e.closes) for e in result.ledger] == [((2,), 1, 0), ((3,), 0, 1)]


def test_a_host_wide_ledger_joins_processes_in_any_order(scan_text: Scan) -> None:
    result = scan_text(
        info("Attached segment /s1", 2) + info("Attached segment /s2", 2),
        info("Made segment /s1 size 4", 1) + info("Removed segment /s1", 1),
    )
    assert [(e.key, e.imports, e.importer) for e in result.ledger] == [(("/s2",), 1, 0)]
    assert result.totals.ledgers["shm"] == (1, 1, 2)


BIRTH = "Bootstrap: Using eth0:10.0.0.1<0>"


def _identity(result: ScanResult) -> list[tuple[int, int, bool]]:
    return [(p.incarnation, p.births, p.aliased) for p in result.processes]


def test_a_birth_after_work_is_another_process(scan_text: Scan) -> None:
    result = scan_text(info(BIRTH) + start(0, 2) + info(BIRTH) + start(0, 2, commid=0xC1))
    assert _identity(result) == [(0, 1, False), (1, 1, False)]
    assert [i.proc for i in result.instances] == [0, 1]
    assert sum(p.lines for p in result.processes) == 4


def test_births_without_work_are_several_processes_of_one_name(scan_text: Scan) -> None:
    assert _identity(scan_text(info(BIRTH) * 2 + start(0, 2))) == [(0, 2, True)]
