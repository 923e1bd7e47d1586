"""What was taken adds up, in as many series as there is room for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psmkit.telemetry import totals as module
from psmkit.telemetry.layout import COMM, LINK, OP, TIME
from psmkit.telemetry.metrics import BOUNDS, METRICS, prometheus_name
from psmkit.telemetry.take import STEP, Take
from psmkit.telemetry.totals import FORGET, Distribution, Totals
from tests.telemetry.takes import CLOCK, HASH, WALL, comm, fields, joined, link, made, op, stat

Found = dict[str, dict[tuple[str, ...], float | Distribution]]


def found(totals: Totals) -> Found:
    out: Found = {}
    for point in totals.points():
        assert tuple(point.attributes) == point.metric.attributes
        assert point.start_ns <= point.time_ns
        out.setdefault(point.metric.name, {})[point.values] = point.value
    return out


def take(number: int, **arrays: Any) -> Take:
    later = number * 10**9
    return Take(WALL + later, CLOCK + later, since_ns=WALL + later - 10**9, **arrays)


def test_sums_grow_and_gauges_are_of_the_last_take() -> None:
    totals = Totals()
    totals.add(made(0))
    totals.add(made(1))
    now = found(totals)
    key = (f"{HASH:016x}", "0")
    values = (*key, "AllReduce", "ring", "simple", "float32")
    duration = now["nccl.collective.duration"][values]
    assert isinstance(duration, Distribution)
    assert (duration.count, duration.sum) == (6, pytest.approx(2 * 0.0719))
    assert now["nccl.collective.completions"][*values, "proxy"] == 6
    assert now["nccl.profiler.events"][key] == 110  # what the plugin counts is a total already
    assert now["nccl.profiler.windows"][*key, "whole"] == 3
    assert now["nccl.transfer.count"][*key, "1", "send"] == 6
    totals.add(take(20, comms=comm(0)))
    assert "nccl.operation.open" not in found(totals)
    assert found(totals)["nccl.transfer.count"][*key, "1", "send"] == 6


def test_a_histogram_says_of_each_value_what_numpy_says() -> None:
    values = np.random.default_rng(7).integers(0, 1 << 36, 500) >> np.random.default_rng(8).integers(0, 36, 500)
    edges = [*(1 << np.arange(1, 35)), *((1 << np.arange(1, 35)) - 1)]
    every = [*values.tolist(), *(int(e) for e in edges)]
    totals = Totals()
    totals.add(take(0, comms=comm(0), ops=op(0, every, every)))
    now = found(totals)
    for name, unit, scale in (("nccl.collective.duration", "s", 1e9), ("nccl.collective.size", "By", 1)):
        (one,) = now[name].values()
        assert isinstance(one, Distribution)
        bounds = [round(b * scale) for b in BOUNDS[unit]]
        want = np.bincount(np.searchsorted(bounds, every, side="left"), minlength=len(bounds) + 1)
        assert list(one.counts) == want.tolist()
        assert one.sum == pytest.approx(sum(every) / scale)
        assert (one.least, one.most) == (min(every) / scale, max(every) / scale)


def test_a_line_through_transfers_is_the_least_squares_fit() -> None:
    random = np.random.default_rng(3)
    sizes = random.integers(1, 1 << 20, 200)
    times = (4_000 + sizes / 12.5 + random.integers(0, 500, 200)).astype(int)
    totals = Totals()
    totals.add(take(0, comms=comm(0), links=link(0, 1, zip(sizes.tolist(), times.tolist(), strict=True))))
    slope, intercept = np.polyfit(sizes, times, 1)
    key = (f"{HASH:016x}", "0", "1", "send", "avg")
    now = found(totals)
    assert now["nccl.link.latency"][key] == pytest.approx(intercept / 1e9)
    assert now["nccl.link.rate"][key] == pytest.approx(1e9 / slope)
    assert now["nccl.link.r_squared"][key] == pytest.approx(np.corrcoef(sizes, times)[0, 1] ** 2)


def test_a_line_that_transfers_of_one_size_cannot_give_is_not_made_up() -> None:
    totals = Totals()
    totals.add(take(0, comms=comm(0), links=link(0, 1, [(4096, 10), (4096, 11)])))
    assert "nccl.link.rate" not in found(totals)
    assert {k[-2:] for k in found(totals)["nccl.link.withheld"]} == {("avg", "one_size"), ("min", "one_size")}
    # What came before still counts, until it is too old.
    totals.add(take(1, comms=comm(0), links=link(0, 1, [(8192, 15), (8192, 16)])))
    assert found(totals)["nccl.link.rate"] and "nccl.link.withheld" not in found(totals)
    for number in range(2, 10):
        totals.add(take(number, comms=comm(0)))
    assert "nccl.link.rate" not in found(totals)


def test_series_are_bounded_and_the_rest_is_summed_and_counted() -> None:
    totals = Totals(series=10)
    links = joined([link(0, peer, [(100, 10)]) for peer in range(1, 31)], LINK)
    for number in range(2):
        totals.add(take(number, comms=comm(0), links=links))
    now = found(totals)
    io = now["nccl.transfer.io"]
    assert len(io) == 10
    assert sum(float(v) for v in io.values() if not isinstance(v, Distribution)) == 2 * 30 * 100
    assert io[("other",) * 4] == 2 * 21 * 100
    assert now["psmkit.telemetry.series.overflow"][("nccl.transfer.io",)] == 2 * 21
    assert all(len(there) <= 10 for there in now.values())


def test_what_the_reader_had_no_key_for_is_called_other() -> None:
    totals = Totals()
    rest = op(0, [5], [5], comm=0xFFFFFFFF, other=1)
    totals.add(take(0, comms=comm(0), ops=joined([rest], OP)))
    assert list(found(totals)["nccl.collective.duration"]) == [("other",) * 6]


def test_a_communicator_that_is_gone_is_forgotten_after_a_while() -> None:
    totals = Totals()
    totals.add(made(0))
    for number in range(1, FORGET + 1):
        totals.add(take(number, comms=comm(1)))
    assert {v[1] for v in found(totals)["nccl.transfer.io"]} == {"0", "1"}
    totals.add(take(FORGET + 1, comms=comm(1)))
    assert {v[1] for there in found(totals).values() for v in there if v[:1] == (f"{HASH:016x}",)} == {"1"}
    # It comes back as a new series, not as a counter that went backwards.
    totals.add(take(FORGET + 2, comms=joined([comm(0), comm(1)], COMM), links=link(0, 1, [(100, 10)])))
    point = next(p for p in totals.points() if p.metric.name == "nccl.transfer.io" and p.values[1] == "0")
    assert point.value == 100
    assert point.start_ns == WALL + (FORGET + 1) * 10**9


def test_a_process_that_starts_again_adds_to_the_counters() -> None:
    totals = Totals()
    totals.add(take(0, comms=comm(0, events=100)))
    totals.add(take(1, comms=comm(0, id=8, events=30)))
    assert found(totals)["nccl.profiler.events"][f"{HASH:016x}", "0"] == 130


def test_names_that_nobody_knows_are_kept_apart() -> None:
    totals = Totals()
    totals.add(take(0, comms=comm(0), ops=joined([op(0, [1], [1], func=f) for f in (130, 255, 77)], OP)))
    names = {v[2] for v in found(totals)["nccl.collective.size"]}
    assert names == {"custom2", "none", "unknown77"}


def test_the_table_is_sound() -> None:
    assert module.METRICS is METRICS
    names = [prometheus_name(m) for m in METRICS.values()]
    assert len(set(names)) == len(names)
    for metric in METRICS.values():
        assert metric.name == metric.name.lower()
        assert metric.meaning.endswith(".")
        assert (metric.unit in BOUNDS) or metric.kind != "histogram"
        assert len(set(metric.attributes)) == len(metric.attributes)
    assert prometheus_name(METRICS["nccl.collective.duration"]) == "nccl_collective_duration_seconds"
    assert prometheus_name(METRICS["nccl.transfer.io"]) == "nccl_transfer_io_bytes_total"
    assert prometheus_name(METRICS["nccl.link.r_squared"]) == "nccl_link_r_squared_ratio"


def test_connections_are_counted_by_stage_and_told_one_by_one_where_they_may_be_stuck() -> None:
    steps = np.zeros(500, STEP)
    steps["pid"], steps["role"], steps["seq"] = 4000, b"send", 1
    steps["connection"] = steps["age_ns"] = np.arange(500)
    steps["stage"][:300], steps["stage"][300:400], steps["stage"][400:] = b"fifo", b"idle", b"zero-copy"
    steps["seq"][250:300] = 0
    totals = Totals()
    totals.add(take(0, steps=steps))
    now = found(totals)
    stages = {v[3]: count for v, count in now["psm.step.connections"].items()}
    assert stages == {"fifo": 300, "idle": 100, "zero-copy": 100}
    told = {int(v[4], 16) for v in now["psm.step.age"]}
    assert told == {*range(400, 500), *range(222, 250)}
    assert now["psmkit.telemetry.series.overflow"]["psm.step.stage",] == 350 - 128


def test_the_batches_of_copy_engines_say_how_many_bytes_they_copy() -> None:
    batch = fields(TIME, comm=0, what=14, duration=stat([3000, 9000]), bytes=4096)
    totals = Totals()
    for number in range(2):
        totals.add(take(number, comms=comm(0), times=batch))
    now, key = found(totals), (f"{HASH:016x}", "0")
    assert now["nccl.copy_engine.io"][key] == 8192
    duration = now["nccl.event.duration"][*key, "ce_batch"]
    assert isinstance(duration, Distribution) and duration.count == 4
