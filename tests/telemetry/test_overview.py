"""What `psmkit top` adds up, and what its page says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.cli.top import frame
from psmkit.telemetry.layout import LINK, OP, ROW
from psmkit.telemetry.online import Watch
from psmkit.telemetry.overview import Overview, quantile
from tests.telemetry.test_online import NOW, SECOND, comms, durations, link, step


def operations(microseconds: list[float], count: int = 50) -> Any:
    ops = durations(microseconds, count)
    for i, us in enumerate(microseconds):
        ops["duration"]["bucket"][i][int(np.log2(us * 1e3))] = count
        ops["duration"]["least"][i] = ops["duration"]["most"][i] = us * 1e3
    ops["bytes"]["sum"] = count * 1e6
    return ops


def test_rates_are_of_the_time_that_passed_and_of_the_looks_that_are_kept() -> None:
    overview = Overview(looks=2)
    for seconds in (1.0, 2.0, 3.0):
        [view] = overview.update(comms(), operations([100] * 4), np.zeros(0, LINK), np.zeros(0, ROW), NOW, seconds)
    rank = view.ranks[2]
    assert (view.comm_hash, view.nranks, [r.rank for r in view.ranks]) == (0xABC, 4, [0, 1, 2, 3])
    assert rank.ops == pytest.approx(100 / 5) and rank.bytes == pytest.approx(100e6 / 5)
    assert rank.worst_ns == rank.median_ns == 100e3


def test_the_first_look_is_of_all_the_time_and_forgotten_then() -> None:
    overview, who = Overview(), comms(begin_ns=NOW - 10 * SECOND)
    who["begin_ns"] = NOW - 10 * SECOND
    who["owner"][1], who["last_ns"][1] = 1, NOW - 5 * SECOND
    nothing = np.zeros(0, LINK), np.zeros(0, ROW), NOW
    [view] = overview.update(who, operations([100] * 4), *nothing, None)
    assert [rank.ops for rank in view.ranks] == pytest.approx([5, 10, 5, 5])
    [view] = overview.update(who, operations([100] * 4, count=8), *nothing, 2.0)
    assert [rank.ops for rank in view.ranks] == pytest.approx([4] * 4)


def test_links_have_the_fit_of_their_sums() -> None:
    links = np.concatenate([link(0, 1, 10.0), link(1, 2, 2.0)])
    links["time"] = links["sy"]
    [view] = Overview().update(comms(), np.zeros(0, OP), links, np.zeros(0, ROW), NOW, 1.0)
    slow, fast = view.links
    assert (slow.sender, slow.receiver) == (1, 2) and slow.rate == pytest.approx(2.0)
    assert fast.rate == pytest.approx(10.0) and fast.latency == pytest.approx(5000) and fast.r2 == pytest.approx(1.0)


def test_waits_are_parts_of_a_rank_s_transfers_on_both_sides() -> None:
    links = np.concatenate([link(0, 1, 10.0), link(0, 3, 10.0)])
    links["sends"] = [1, 0]
    links["wait"] = [[300, 0, 100, 0], [0, 0, 500, 100]]
    [view] = Overview().update(comms(), np.zeros(0, OP), links, np.zeros(0, ROW), NOW, 1.0)
    assert view.ranks[0].waits == pytest.approx({"gpu": 0.3, "peer": 0.0, "net": 0.6, "flush": 0.1})
    assert view.ranks[1].waits == {} and [(one.sender, one.receiver) for one in view.links] == [(0, 1)]


def test_the_page_shows_findings_first_and_marks_their_ranks() -> None:
    rows = np.concatenate([step(0, 1, 10, sends=False), step(1, 2, 8, sends=True)])
    who = comms(dropped_full=5)
    views = Overview().update(who, operations([100] * 4), link(0, 1, 10.0), rows, NOW, 2.0)
    found = Watch().update(who, np.zeros(0, OP), np.zeros(0, LINK), rows, NOW)
    text = frame(views, found, 100).text()
    assert text.startswith("2 findings: 1 communicator, 4 ranks here, 100 operations/s, 100.0 MB/s\n\nerror PSM931 ")
    assert "communicator 0xabc: 4 of 4 ranks are here" in text
    assert "1, 90.0 s" in text and "0 -> 1" in text and "10.00 GB/s" in text
    culprit = [spans for spans in frame(views, found, 100).lines if any(span.style == "culprit" for span in spans)]
    assert len(culprit) == 1 and culprit[0][1].text.split()[0] == "1"


def test_without_ranks_the_page_does_not_say_that_nothing_is_wrong() -> None:
    text = frame([], [], 100).text()
    assert text == "nothing here reports telemetry; no job of the lab runs\n"


def test_a_name_from_shared_memory_does_not_reach_the_terminal_as_it_is() -> None:
    who = comms(1)
    who["name"] = b"x\x1b[2J"
    views = Overview().update(who, np.zeros(0, OP), np.zeros(0, LINK), np.zeros(0, ROW), NOW, 1.0)
    assert "\x1b" not in frame(views, [], 100).text()


@given(st.lists(st.integers(2, 10**9), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_a_bucket_away(values: list[int], part: float) -> None:
    buckets = np.zeros(48, np.int64)
    for value in values:
        buckets[value.bit_length() - 1] += 1
    exact = sorted(values)[max(int(np.ceil(part * len(values))) - 1, 0)]
    got = quantile(buckets, part)
    assert got is not None and exact / 2.01 <= got <= exact * 2.01


def test_an_ended_communicator_is_shown_as_ended() -> None:
    who = comms(2)
    who["owner"] = [1, 3]
    [view] = Overview().update(who, np.zeros(0, OP), np.zeros(0, LINK), np.zeros(0, ROW), 5 * SECOND, 1.0)
    assert [rank.state for rank in view.ranks] == ["dead", "ended"]
