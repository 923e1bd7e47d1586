"""Logs of any size: legal, of the wanted size, the same for the same seed, and true."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import psmkit
from psmkit.synth import DIALECTS, SCENARIOS
from psmkit.synth.large import FAULTS, Large, Order, OrderError
from psmkit.synth.output import write_folder
from psmkit.synth.recorded import BODY, Layout

# Seven nodes of two ranks: one node stands for others.
RANKS, NODES = 14, 7
KNOWN = [
    (fault, dialect.name)
    for fault, name in FAULTS.items()
    for dialect in DIALECTS.values()
    if SCENARIOS[name].covers(dialect) or fault == "healthy"
]


def text(order: Order) -> bytes:
    return b"".join(piece.tobytes() for piece in Large(order).stream())


def judge(large: Large, report: psmkit.Report, merged: bool = True) -> None:
    """What an analysis says of a log is its truth."""
    truth = large.truth(merged)
    assert report.verdict.value in truth.verdicts
    named = {c.global_rank for c in report.culprits}
    assert named <= truth.culprits
    if report.verdict.value != truth.verdicts[0]:
        return
    if truth.named and truth.culprits:
        assert named
    head = report.findings[report.causes[0].finding].code if report.causes else ""
    if truth.codes and named:
        assert head in truth.codes
    stages = [c.stage or "" for c in report.culprits if c.global_rank in truth.culprits]
    if truth.stages:
        assert all(any(fnmatch.fnmatch(stage, known) for known in truth.stages) for stage in stages), stages


@pytest.mark.parametrize(("fault", "dialect"), KNOWN)
def test_an_analysis_says_the_truth(fault: str, dialect: str, tmp_path: Path) -> None:
    large = Large(Order(RANKS, fault, dialect, nodes=NODES))
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(piece.tobytes() for piece in large.stream()))
    assert path.stat().st_size == large.size
    judge(large, psmkit.analyze([str(path)]))


@pytest.mark.parametrize("ranks", [1, 2, 8, 24, 104, 1000])
@pytest.mark.parametrize("fault", ["healthy", "lag-at-work", "kernel-fails"])
def test_the_truth_holds_for_any_number_of_ranks(ranks: int, fault: str, tmp_path: Path) -> None:
    if ranks == 1 and fault == "lag-at-work":
        pytest.skip("nobody waits for it")
    large = Large(Order(ranks, fault, size=None))
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(piece.tobytes() for piece in large.stream()))
    report = psmkit.analyze([str(path)])
    judge(large, report)
    assert len(report.ranks) == ranks


def test_work_before_the_fault_does_not_change_the_truth(tmp_path: Path) -> None:
    for fault in ("registration-kept", "other-count", "fd-answer-lost", "stop-at-work"):
        large = Large(Order(16, fault, size=1_500_000))
        assert large.rounds > 10
        path = tmp_path / f"{fault}.log"
        path.write_bytes(b"".join(piece.tobytes() for piece in large.stream()))
        report = psmkit.analyze([str(path)])
        judge(large, report)
        assert report.verdict.value == large.truth().verdicts[0]


@pytest.mark.parametrize("by", ["rank", "node"])
@pytest.mark.parametrize("fault", ["healthy", "lag-at-work", "kill-at-work"])
def test_files_hold_the_lines_of_the_stream(by: str, fault: str, tmp_path: Path) -> None:
    order = Order(RANKS, fault, size=600_000, nodes=NODES)
    large = Large(order)
    write_folder(tmp_path, large, by)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 1 + (RANKS if by == "rank" else NODES)
    assert Counter(b"".join(files.values()).splitlines()) == Counter(text(order).splitlines())
    judge(large, psmkit.analyze([str(tmp_path)]), merged=False)


@pytest.mark.parametrize("dialect", ["2.4", "2.18", "2.27", "2.30", "passsm", "rccl"])
def test_the_size_is_met_to_a_line(dialect: str) -> None:
    for size in (400_000, 400_001, 1_234_567):
        large = Large(Order(16, "healthy", dialect, size))
        data = text(large.order)
        assert size - 120 < len(data) == large.size <= size


def test_the_same_seed_makes_the_same_log() -> None:
    first = text(Order(64, size=2_000_000, seed=5))
    assert first == text(Order(64, size=2_000_000, seed=5))
    assert first != text(Order(64, size=2_000_000, seed=6))


def test_a_log_is_complete_and_its_calls_are_answered() -> None:
    data = text(Order(64, size=3_000_000))
    assert data.count(b"Init COMPLETE") == data.count(b"Destroy COMPLETE") == 64
    asked = re.findall(rb"ProxyCall UDS .* opId (0x\w+)$", data, re.MULTILINE)
    done = re.findall(rb"ProxyCall UDS .* opId (0x\w+) - DONE", data)
    assert len(asked) == len(set(asked)) > 500
    assert Counter(asked) == Counter(done)
    served = Counter(re.findall(rb"proxyProgressAsync opId=(0x\w+)", data))
    assert served == Counter(re.findall(rb"Received new opId=(0x\w+)", data))
    assert len(served) > 500
    # no mark is left, and each rank is there
    assert b"\x01" not in data
    assert {int(n) for n in re.findall(rb"comm 0x\w+ rank (\d+) nranks 64 .* Init START", data)} == set(range(64))


def test_a_large_round_has_the_lines_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are too large to be kept as one text are printed in slices: other order, same lines."""
    whole = text(Order(64, size=2_000_000))
    monkeypatch.setattr("psmkit.synth.large._WHOLE", 1000)
    sliced = text(Order(64, size=2_000_000))
    assert whole != sliced
    assert Counter(whole.splitlines()) == Counter(sliced.splitlines())


def test_ranks_of_a_large_job_name_their_neighbours() -> None:
    data = text(Order(1000, dialect="2.27"))
    rings = {int(b): (int(a), int(c)) for a, b, c in re.findall(rb"Ring 00 : (\d+) -> (\d+) -> (\d+)", data)}
    assert rings == {r: ((r - 1) % 1000, (r + 1) % 1000) for r in range(1000)}


@pytest.mark.parametrize(("hosts", "each"), [(7, 1), (13, 8), (125, 8), (1300, 8), (8192, 8), (40, 3)])
def test_each_host_is_printed_once(hosts: int, each: int) -> None:
    layout = Layout(hosts, each)
    spans = [span for small in range(layout.small) for span in layout.spans(small)]
    assert sorted(host for begin, end in spans for host in range(begin, end)) == list(range(hosts))
    for begin, end in layout.spans(BODY):
        # the ranks of a span and of its neighbours have as many digits
        for near in (-1, 0, 1):
            for local in range(each):
                digits = {len(str((host + near) * each + local)) for host in range(begin, end)}
                assert len(digits) == 1
    assert len(layout.spans(BODY)) <= 25


def test_memory_does_not_grow_with_the_size() -> None:
    def peak(size: int) -> int:
        large = Large(Order(64, size=size))
        tracemalloc.reset_peak()
        for _ in large.stream():
            pass
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        peak(20_000_000)  # modules, caches
        short, long = peak(20_000_000), peak(80_000_000)
    finally:
        tracemalloc.stop()
    assert long < short + 2_000_000


def test_a_log_of_a_terabyte_begins_at_once() -> None:
    large = Large(Order(65536, size=10**12))
    assert 10**12 - 120 < large.size <= 10**12
    digest = hashlib.sha256()
    for _, piece in zip(range(20), large.stream(), strict=False):
        assert len(piece) < 10_000_000
        digest.update(np.ascontiguousarray(piece))
    assert digest.digest() != hashlib.sha256().digest()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Order(8, "no-such"), "no fault 'no-such'; there are healthy"),
        (Order(8, dialect="1.0"), "no dialect '1.0'"),
        (Order(9), "cannot share 2 nodes equally"),
        (Order(8, size=10), "print at least"),
        (Order(8, "stop-at-work", "2.18"), "does not happen in a log of 2.18; it does in 2.27"),
        (Order(8, "fd-answer-lost", nodes=8), "it needs ranks that share a node"),
    ],
)
def test_what_cannot_be_made_is_refused(order: Order, said: str) -> None:
    with pytest.raises(OrderError, match=re.escape(said)):
        Large(order)
