"""Collectives: what differs, who is behind, and what a cut or torn log shows instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.analysis.rules import collectives
from psmkit.cli.app import main
from psmkit.logparse.types import Ref, SeqDivergence
from psmkit.model import Finding
from tests.analysis.build import Scan

CALL = {"coll": "AllReduce", "count": 1024, "datatype": 7, "op": 0, "root": 0, "opcount": 0}


def _mismatch(
    change: dict[str, Any], *, ops: tuple[int, int] = (6, 6), end: bool = False, base: dict[str, Any] | None = None
) -> list[Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    one = {**CALL, **(base or {})}
    other = {**one, **change}
    refs = tuple(scan.ref(p, "AllReduce") for p in procs)
    div = SeqDivergence(0, 5, (0, 1, 2, 3), refs, (one, one, other, one))
    scan.comm(procs, ops={0: ops[0], 1: ops[0], 2: ops[1], 3: ops[0]}, divergence=div, end=end)
    return collectives.find(scan.job())


def test_another_count_is_named_with_its_rank() -> None:
    (found,) = _mismatch({"count": 512})
    assert (found.code, found.severity, found.culprits) == ("PSM301", "error", (2,))
    assert "count 512" in found.title and "call 6" in found.title
    assert found.title.index("rank 2 called") < found.title.index("ranks 0")  # the rank that differs first
    assert "datatype" not in found.title  # equal on all ranks


def test_another_operation_type_and_root() -> None:
    for change in ({"coll": "AllGather"}, {"datatype": 2}, {"op": 2}, {"root": 1}):
        (found,) = _mismatch(change)
        assert (found.code, found.culprits) == ("PSM301", (2,)), change


def test_pointers_and_opcounts_are_each_ranks_own() -> None:
    assert _mismatch({"sendbuff": 5, "comm": 9}) == []


def test_a_line_that_is_lost_shifts_the_numbers() -> None:
    (found,) = _mismatch({"count": 512, "opcount": 6}, base={"opcount": 5})
    assert (found.severity, found.culprits) == ("warning", ())


def test_a_difference_that_the_job_survived_is_a_lost_line() -> None:
    assert _mismatch({"count": 512, "opcount": 6}, base={"opcount": 5}, end=True) == []


def _lag(
    ops: dict[int, int], *, complete: bool = True, ras: bool = False, noise: int = 0, end: bool = False
) -> list[Finding]:
    scan = Scan()
    scan.files.clear(), scan.texts.clear()
    scan.file(complete=complete)
    procs = [scan.proc(r) for r in range(4)]
    if noise:
        for _ in range(100):
            for proc in procs:
                scan.noise(proc, 1)
    scan.comm(procs, ops=ops, end=end)
    for _ in range(noise):
        for rank in (0, 1, 3):
            scan.noise(procs[rank], 1)
    if ras:
        scan.event(procs[2], "ras.listen", addr="10.0.0.1<5002>")
        scan.event(procs[0], "ras.keepalive.error", secs=20, addr="10.0.0.1<5002>")
    return collectives.find(scan.job())


def test_a_rank_behind_with_ras_silence() -> None:
    (found,) = _lag({0: 9, 1: 9, 2: 7, 3: 9}, ras=True)
    assert (found.code, found.severity, found.culprits) == ("PSM302", "error", (2,))
    assert "call 9" in found.title


def test_a_rank_that_fell_silent_while_the_others_went_on() -> None:
    (found,) = _lag({0: 9, 1: 9, 2: 7, 3: 9}, noise=400)
    assert (found.severity, found.culprits) == ("error", (2,))


def test_a_rank_behind_where_the_log_ends_is_only_a_hint() -> None:
    (found,) = _lag({0: 9, 1: 9, 2: 7, 3: 9})
    assert (found.severity, found.culprits) == ("warning", ())
    assert found.confidence <= 0.6


def test_ranks_at_different_calls_are_a_cut_log() -> None:
    assert _lag({0: 9, 1: 8, 2: 7, 3: 9}) == []


def test_a_file_cut_within_a_line_shows_nothing() -> None:
    assert _lag({0: 9, 1: 9, 2: 7, 3: 9}, complete=False) == []


def test_a_job_that_was_torn_down_has_no_rank_behind() -> None:
    assert _lag({0: 9, 1: 9, 2: 7, 3: 9}, end=True) == []


def test_the_frameworks_own_comparison() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.event(proc, "coll.symmetric_mismatch")
    assert [f.code for f in collectives.find(scan.job())] == ["PSM301"]


def test_differing_ignores_what_is_each_ranks_own() -> None:
    assert collectives.differing(CALL, {**CALL, "count": 1, "opcount": 3}) == ["count"]
    assert Ref(0, 1, 0) < Ref(0, 2, 0)


def test_who_waits_in_another_communicator_is_a_victim() -> None:
    """Rank 1 is behind in the world because its pair waits for rank 0, which is behind in the pair."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    scan.comm(procs, ops={0: 7, 1: 7, 2: 9, 3: 9})
    scan.comm([procs[0], procs[1]], ops={0: 3, 1: 4})
    scan.event(procs[2], "ras.keepalive.error", secs=20, addr="10.0.0.1<5002>")
    found = {f.comm: f.culprits for f in collectives.find(scan.job())}
    assert found == {"0xabc0": (0,), "0xabc1": (0,)}


@pytest.mark.parametrize("fault", ["lag-at-work", "other-count"])
def test_a_call_is_named_by_the_hexadecimal_number_of_the_log_too(fault: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    command = ["lab", "synth", "--ranks", "4", "--nodes", "2", "--fault", fault, "--bytes", "300K", "-o", str(log)]
    assert main(command) == 0
    (finding,) = [f for f in psmkit.analyze([log]).findings if f.code in ("PSM301", "PSM302") and f.severity == "error"]
    found = re.search(r" call (\d+) \(opCount ([0-9a-f]+) in the log\)", finding.title)
    assert found is not None and int(found[2], 16) == int(found[1]) - 1 > 9
    assert "The log prints opCount in hexadecimal." in finding.explanation
    quoted = {c for e in finding.evidence for c in re.findall(r"opCount ([0-9a-f]+) ", e.text)}
    rest = finding.title.replace(found[0], "")
    assert found[2] in quoted or f"{int(found[2], 16) - 1:x}" in quoted
    assert set(re.findall(r"opCount ([0-9a-f]+)", rest)) <= quoted


def test_no_opcount_is_named_where_the_log_prints_the_same_one_for_all_calls(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    command = ["lab", "synth", "--ranks", "4", "--fault", "lag-at-work", "-o", str(log)]
    assert main(command) == 0
    log.write_text(re.sub(r"opCount [0-9a-f]+", "opCount 0", log.read_text()))
    (finding,) = [f for f in psmkit.analyze([log]).findings if f.code == "PSM302"]
    assert "opCount" not in finding.title + finding.explanation
