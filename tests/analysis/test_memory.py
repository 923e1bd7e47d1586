"""Shared memory, descriptors, ledgers, handles."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.analysis.rules import descriptors, handles, leaks, memory
from psmkit.logparse.types import LedgerEntry
from psmkit.model import Finding
from tests.analysis.build import Scan

GARBAGE = "/dev/shm/nccl-\u040c"


def _codes(found: list[Finding]) -> dict[str, Finding]:
    return {f.code: f for f in found}


def _attach(
    name: str, size: int, *, created: bool = False, split: bool = False, end: bool = False
) -> dict[str, Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    scan.comm(procs, end=end)
    if split:
        for rank in (0, 1, 2):
            scan.event(procs[rank], "memory.shm.cumem.allocated", size=8224)
        scan.event(procs[3], "memory.shm.mmap.allocated", name="/dev/shm/nccl-abcdef", size=8224)
    if created:
        scan.event(procs[0], "memory.shm.allocated", name=name, size=9637892)
    scan.event(
        procs[2],
        "memory.shm.open_failed",
        level="WARN",
        name=name,
        size=size,
        reason="No such file or directory",
        err=2,
    )
    return _codes(memory.find(scan.job()))


def test_a_segment_that_nobody_created() -> None:
    found = _attach("/dev/shm/nccl-WU88OE", 9637892)["PSM501"]
    assert found.severity == "error" and "no rank created" in found.title


def test_a_segment_that_was_created_and_is_gone() -> None:
    found = _attach("/dev/shm/nccl-WU88OE", 9637892, created=True)["PSM501"]
    assert "no rank created" not in found.title and "Rank 0" in found.explanation


def test_a_name_that_is_none_shows_the_mode_split() -> None:
    found = _attach(GARBAGE, 0, split=True)
    assert found["PSM501"].known_issue == "NVIDIA/nccl#2190"
    assert found["PSM502"].severity == "error"
    assert found["PSM502"].culprits == (3,)
    assert found["PSM501"].title.isascii()


def test_a_split_that_hurt_nobody_is_no_error() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs, end=True)
    scan.event(procs[0], "memory.shm.cumem.allocated", size=8224)
    scan.event(procs[1], "memory.shm.mmap.allocated", name="/dev/shm/nccl-a", size=8224)
    (found,) = memory.find(scan.job())
    assert (found.code, found.severity) == ("PSM502", "info")


def test_hosts_may_share_memory_in_different_ways() -> None:
    scan = Scan()
    procs = [scan.proc(0, host="a"), scan.proc(1, host="b")]
    scan.comm(procs)
    scan.event(procs[0], "memory.shm.cumem.allocated", size=8224)
    scan.event(procs[1], "memory.shm.mmap.allocated", name="/dev/shm/nccl-a", size=8224)
    assert memory.find(scan.job()) == []


def test_a_full_dev_shm_sums_what_is_needed() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    for number in range(3):
        scan.event(procs[0], "memory.shm.allocated", name=f"/dev/shm/nccl-{number}", size=32 << 20)
    scan.event(
        procs[1], "memory.shm.extend_failed", level="WARN", name="/dev/shm/nccl-x", size=32 << 20,
        reason="No space left on device", err=28,
    )  # fmt: skip
    found = _codes(memory.find(scan.job()))["PSM503"]
    assert (found.severity, found.culprits) == ("error", (1,))
    assert "128.0 MiB" in found.explanation and "--shm-size=1g" in found.next_step


def test_segments_that_were_made_are_no_finding() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.comm([proc])
    scan.event(proc, "memory.shm.allocated", name="/dev/shm/nccl-x", size=32 << 20)
    assert memory.find(scan.job()) == []


def test_sizes_that_differ_are_named() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    scan.event(procs[0], "bootstrap.truncated", level="WARN", got=1024, want=512)
    found = _codes(memory.find(scan.job()))["PSM105"]
    assert "1024 bytes instead of 512" in found.title


def _fds(last: int, count: int) -> list[Finding]:
    scan = Scan()
    proc = scan.proc()
    scan.comm([proc])
    first = scan.event(proc, "proxy.fd.returned", "UDS: ClientGetFd handle 0x1 tpRank 0 returned fd 40", peer=0, fd=40)
    line = scan.ref(proc, f"UDS: ClientGetFd handle 0x1 tpRank 0 returned fd {last} sameProcess 0")
    from dataclasses import replace

    scan.events[-1] = replace(first, count=count, last=line)
    return descriptors.find(scan.job())


def test_descriptors_that_only_grow() -> None:
    (found,) = _fds(1010, 980)
    assert (found.code, found.severity) == ("PSM504", "warning")
    assert "from 40 to 1010" in found.title


def test_descriptors_that_come_back() -> None:
    assert _fds(61, 980) == []


def test_too_many_open_files() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.event(proc, "proxy.accept_files", level="WARN")
    assert "PSM504" in _codes(descriptors.find(scan.job()))


@pytest.mark.parametrize("name", ["proxy.too_many_connections", "proxy.accept_aborted", "proxy.accept_failed"])
def test_other_failures_to_accept_are_no_lack_of_descriptors(name: str) -> None:
    scan = Scan()
    scan.event(scan.proc(), name, level="WARN", reason="Connection timed out")
    assert descriptors.find(scan.job()) == []


def _ledger(name: str, totals: tuple[int, int, int], *, end: bool = True, **change: Any) -> list[Finding]:
    scan = Scan()
    proc = scan.proc()
    scan.comm([proc], end=end)
    opened = scan.ref(proc, "Allocated buffer")
    entry = {"opens": 1, "closes": 0, "imports": 0, "opened": opened, "closed": None, "imported": None, **change}
    scan.ledger.append(LedgerEntry(name, (0x7F00,), proc, **entry))
    scan.totals.ledgers[name] = totals
    return leaks.find(scan.job())


@pytest.mark.parametrize(("ledger", "code"), [("shm", "PSM505"), ("ipc", "PSM505"), ("ipc_reg", "PSM506")])
def test_what_is_left_after_the_teardown(ledger: str, code: str) -> None:
    (found,) = _ledger(ledger, (10, 9, 0))
    assert (found.code, found.severity) == (code, "warning")


def test_a_build_that_prints_no_closing_line_leaks_nothing() -> None:
    assert _ledger("shm", (10, 0, 0)) == []


def test_what_is_open_before_the_teardown_is_in_use() -> None:
    assert _ledger("shm", (10, 9, 0), end=False) == []


def _handle(*, own: bool = False, born: bool = True) -> list[Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    birth, use = scan.ref(procs[0], "stream created"), scan.ref(procs[1], "stream used")
    key = (0x7F0000001000,)
    if born:
        scan.ledger.append(LedgerEntry("handle.stream", key, procs[0], 1, 0, 0, birth, None, None))
    scan.ledger.append(LedgerEntry("handle.stream", key, procs[1], int(own), 0, 1, use if own else None, None, use))
    return handles.find(scan.job())


def test_a_handle_of_one_process_used_by_another() -> None:
    (found,) = _handle()
    assert (found.code, found.culprits) == ("PSM507", (1,))
    assert "which rank 0" in found.title


def test_an_equal_value_of_ones_own_is_no_leak() -> None:
    assert _handle(own=True) == []


def test_a_handle_whose_birth_is_not_in_the_log_proves_nothing() -> None:
    assert _handle(born=False) == []
