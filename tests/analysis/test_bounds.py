"""What an analysis costs depends on what the input shows, never on the numbers in it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import psmkit
from psmkit.analysis.facts.missing import LISTED, MissingRanks
from psmkit.analysis.facts.places import by_local_rank
from psmkit.model import Report
from psmkit.report import render
from psmkit.report.options import Options
from tests.analysis.texts import Rank, job_of

_INIT = "node0:{0}:{0} [0] NCCL INFO ncclCommInitRank comm 0x55d0c001a000 rank {1} nranks {2} cudaDev 0 nvmlDev 0 busId 1000 commId 0x5c2b7a1e9d3f4680 - Init {3}\n"
_MIB = 1 << 20


def _analysed(path: Path, text: str) -> Report:
    path.write_text(text)
    report = psmkit.analyze([path])
    for form in ("text", "json", "markdown", "sarif", "junit"):
        assert render(report, form, Options())
    return report


def test_the_first_error_is_kept_however_much_the_ranks_printed_before_it(tmp_path: Path) -> None:
    # Each process fills the bound of one message, all of them that of a scan.
    rows = [f"node0:{pid}:{pid} [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n" * 20000 for pid in range(2000, 2009)]
    rows.append(_INIT.format(2000, 0, 9, "START"))
    rows.append(
        "node0:2000:2000 [0] enqueue.cc:1449 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"
    )
    rows += [f"node0:2000:2000 [0] NCCL INFO {place} -> 1\n" for place in ("enqueue.cc:1449", "group.cc:106")]
    report = _analysed(tmp_path / "log", "".join(rows))
    assert report.verdict.value == "failed"
    assert [culprit.rank for culprit in report.culprits] == [0]
    assert "Cuda failure 700" in report.reason
    assert "node0:2000" in report.reason


@pytest.mark.parametrize(("nranks", "known"), [(10**9, True), (2**31 - 1, True), (2**31, False), (2**64, False)])
def test_ranks_that_nobody_saw_cost_nothing(tmp_path: Path, nranks: int, known: bool) -> None:
    text = "".join(_INIT.format(p, p - 1, nranks, word) for word in ("START", "COMPLETE") for p in (1, 2))
    _analysed(tmp_path / "small.log", _INIT.format(1, 0, 2, "START"))
    tracemalloc.start()
    report = _analysed(tmp_path / "a.log", text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * _MIB
    (run,) = report.runs
    assert run.nranks == (nranks if known else None)
    assert len(report.ranks) == (LISTED + 2 if known else 2)
    if known:
        assert report.reason == f"the logs of ranks 2-{nranks - 1} of {nranks} are missing"
        assert f"{nranks - 2 - LISTED:,} more ranks without a log are not listed" in report.coverage.notes


@pytest.mark.parametrize("rank", [2**31, 2**63, 2**64, 10**30, -(10**30), -9])
def test_a_rank_that_no_job_has_is_unknown(tmp_path: Path, rank: int) -> None:
    report = _analysed(tmp_path / "a.log", _INIT.format(1, rank, 4, "START"))
    assert [row.rank for row in report.ranks if row.pid is not None] == [None]
    assert "-1" not in report.reason
    assert "node0:1" in report.reason


def test_a_negative_local_rank_is_no_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, [Rank(0, 2).ready(), Rank(1, 2, host="node1").ready()])
    assert by_local_rank(job, 0, 0) == 0
    assert by_local_rank(job, 0, -9) is None
    assert by_local_rank(job, 0, 10**30) is None


@pytest.mark.parametrize("local", [-9, -(10**30), 2**31, 2**63, 10**30])
def test_a_process_has_no_rank_from_a_local_rank_that_no_host_has(tmp_path: Path, local: int) -> None:
    line = "node0:1:1 [0] NCCL INFO New proxy recv connection 0 from local rank {}, transport 0\n"
    report = _analysed(tmp_path / "a.log", line.format(local))
    assert [row.rank for row in report.ranks] == [None]
    report = _analysed(tmp_path / "b.log", line.format(1))
    assert [row.rank for row in report.ranks] == [1]


@pytest.mark.parametrize(
    ("nranks", "seen"), [(0, []), (4, []), (4, [0, 1, 2, 3]), (6, [0, 3, 3, 5, 9, -2]), (9, [4]), (3, [1, 2])]
)
def test_missing_ranks_are_a_sequence(nranks: int, seen: list[int]) -> None:
    plain = [rank for rank in range(nranks) if rank not in seen]
    found = MissingRanks(nranks, seen)
    assert list(found) == plain
    assert found == tuple(plain)
    assert len(found) == len(plain)
    assert [found[i] for i in range(-len(plain), len(plain))] == plain * 2
    assert found[:2] == plain[:2]
    assert [rank in found for rank in range(-1, nranks + 1)] == [rank in plain for rank in range(-1, nranks + 1)]
    with pytest.raises(IndexError):
        found[len(plain)]


def test_missing_ranks_of_a_large_job_are_computed() -> None:
    found = MissingRanks(1 << 40, [0, 5])
    assert len(found) == (1 << 40) - 2
    assert found[-1] == (1 << 40) - 1
    assert found[4] == 6
    assert found.listed[:5] == (1, 2, 3, 4, 6)
    assert len(found.listed) == LISTED
    assert list(found.spans()) == [(1, 4), (6, (1 << 40) - 1)]


def test_a_line_of_digits_is_a_line(tmp_path: Path) -> None:
    digits = "9" * 5000
    log = Rank(0).line(f"RAS status: {digits} peers").line(f"from local rank -{digits}")
    for text in (_INIT.format(1, digits, digits, "START"), "\n".join(log.lines) + "\n"):
        assert _analysed(tmp_path / "a.log", text).verdict


def test_logs_of_processes_that_a_scan_does_not_follow_are_not_called_missing(tmp_path: Path) -> None:
    most = 1 << 17  # LS_MAX_PROCS
    path = tmp_path / "log"
    with path.open("w") as file:
        for rank in range(most + 8):
            file.write(
                f"n{rank}:100:100 [0] NCCL INFO ncclCommInitRank comm 0x55d0c001a000 rank {rank} nranks {most + 8} cudaDev 0 nvmlDev 0 "
                "busId 1000 commId 0x5c2b7a1e9d3f4680 - Init COMPLETE\n"
            )
    report = psmkit.analyze([path])
    assert report.verdict.value == "inconclusive"
    assert "PSM702" not in [finding.code for finding in report.findings]
    assert (
        report.runs[0].reason
        == f"psmkit follows {most:,} processes of a job, and the log shows more of its {most + 8:,} ranks"
    )
