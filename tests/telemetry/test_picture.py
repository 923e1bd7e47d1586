"""The picture of a recording: a title in words, a legend, ticks, and what has not ended."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import ROW
from psmkit.telemetry.picture import draw, page, timeline
from psmkit.telemetry.take import OFFSET, Take
from tests.telemetry import takes
from tests.telemetry.takes import CLOCK, WALL, collective, copies, joined, message

SVG = "{http://www.w3.org/2000/svg}"


def made(**more: Any) -> Take:
    """A take in which nothing is open but what the spans say."""
    out = takes.made(**more)
    out.open_rows = out.open_rows[:0]
    return out


def texts(root: Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{SVG}text")]


def titles(root: Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{SVG}title")]


def test_the_title_says_what_is_shown_and_the_hash_stands_below() -> None:
    several = [
        row for rank in range(2) for seq in (7, 8) for row in collective(rank, seq, start=CLOCK - 10**6 * (10 - seq))
    ]
    found = texts(fromstring(draw([made(spans=several)])))
    assert found[0] == "The last 2 collectives, AllReduce 7 to 8, on 2 ranks"
    assert found[1].startswith("Communicator 9f3c11d2a0b47e65 (tp group).")
    assert texts(fromstring(draw([made()])))[0] == "AllReduce 7 on 2 ranks"


def test_the_legend_names_what_occurs_and_the_axis_has_units() -> None:
    root = fromstring(draw([made()]))
    entries = [t for g in root.iter(f"{SVG}g") for t in texts(g)]
    assert entries == [
        "collective: call to completion",
        "proxy send",
        "proxy receive",
        "kernel channel",
        "step on the network",
    ]
    assert {"0 s", "200 us", "400 us"} <= set(texts(root))
    assert "step" not in " ".join(t for t in texts(root) if t.startswith("ch ")), "steps are parts of their operation"


def test_sends_and_receives_have_their_own_words() -> None:
    rows = [r for rank in range(2) for sends in (True, False)
            for r in message(rank, sends=sends, number=2 * rank + sends, first=0, start=CLOCK - 10**6)]  # fmt: skip
    root = fromstring(draw([made(spans=rows)]))
    assert texts(root)[0] == "The last sends and receives of 2 ranks"
    assert "rank 0: Send to 1, 500 us" in titles(root) and "rank 1: Recv from 0, 500 us" in titles(root)
    assert "rank 0, ch 0 send: to 1, 1 step, 512 B, 490 us" in titles(root)


def test_what_has_not_ended_is_drawn_as_open() -> None:
    rows = [row for rank in range(2) for row in collective(rank, 7, done=rank == 0)]
    root = fromstring(draw([made(spans=rows)]))
    assert "no end seen" in texts(root)
    assert [t for t in titles(root) if re.match(r"rank 1: AllReduce 7, no end seen", t)]
    assert "rank 0: AllReduce 7, 880 us" in titles(root)


def test_an_operation_that_is_open_at_the_end_of_a_recording_is_drawn() -> None:
    rows = joined([row for rank in range(2) for row in collective(rank, 9, done=False)], ROW)
    rows["end_ns"] = 0
    take = made(spans=())
    take.rows, take.open_rows = rows[:0], rows
    spans = timeline([take]).spans
    assert spans.open.all() and {"AllReduce 9"} == {label for label in spans.label if label.startswith("All")}


def test_a_later_take_says_how_an_event_ended_though_the_clock_is_corrected() -> None:
    rows = [row for rank in range(2) for row in collective(rank, 7)]
    before, after = made(spans=rows), made(spans=rows)
    before.spans["end_ns"] = 0
    before.rows = before.spans
    after.offsets = np.array([(r, WALL - CLOCK + 777) for r in range(2)], OFFSET)
    found = timeline([before, after]).spans
    assert not found.open.any() and len(found) == 2 * 5, "each event once"


def test_a_recording_without_operations_is_an_error() -> None:
    with pytest.raises(TelemetryError, match="no rows of operations"):
        draw([made(spans=())])
    with pytest.raises(TelemetryError, match="no rows of operations of communicator beef"):
        draw([made()], "beef")
    with pytest.raises(TelemetryError, match="expected its hash"):
        draw([made()], "oak")


def test_the_page_has_all_operations_where_the_picture_has_the_last() -> None:
    rows = [
        row for rank in range(2) for seq in range(9) for row in collective(rank, seq, start=CLOCK - 10**6 * (20 - seq))
    ]
    made_of = [made(spans=rows)]
    drawn = timeline(made_of)
    assert {label.partition(",")[0] for label in drawn.spans.label if label.startswith("AllReduce")} == {
        f"AllReduce {seq}" for seq in range(5, 9)
    }
    text = page(made_of)
    assert "<h1>Operations of 2 ranks</h1>" in text and "Communicator 9f3c11d2a0b47e65" in text
    assert all(f"AllReduce {seq}" in text for seq in range(9))


def test_a_collective_by_copy_engine_shows_its_flags_and_copies() -> None:
    rows = [row for rank in range(2) for seq in (0, 2) for row in copies(rank, seq, start=CLOCK - 10**6 + seq * 10**5)]
    root = fromstring(draw([made(spans=rows)]))
    assert texts(root)[0] == "The last 2 collectives, AllGather 0 to 2, on 2 ranks"
    found = titles(root)
    assert "rank 1: AllGather 2, copy engine, 40 us" in found
    lane = "rank 0, copy engine: "
    assert {
        lane + "ready flags of 2 ranks, 8 us",
        lane + "2 copies, 128 B, 9 us",
        lane + "complete flags of 2 ranks, 9 us",
    } <= set(found)
    legend = [t for g in root.iter(f"{SVG}g") for t in texts(g)]
    assert "collective by copy engine: until the host gave it to the stream" in legend
    assert "collective: call to completion" not in legend, "its end is not reported"


def test_copies_whose_end_is_reported_are_drawn_to_their_end() -> None:
    rows = [row for rank in range(2) for row in copies(rank, 0, reported=CLOCK - 10**5)]
    root = fromstring(draw([made(spans=rows)]))
    legend = [t for g in root.iter(f"{SVG}g") for t in texts(g)]
    assert "collective: call to completion" in legend and not [t for t in legend if t.startswith("collective by")]


def test_copy_engines_and_kernels_number_their_collectives_apart() -> None:
    rows = [row for rank in range(2) for row in (*collective(rank, 0, start=CLOCK - 3 * 10**6), *copies(rank, 0))]
    found = titles(fromstring(draw([made(spans=rows)])))
    assert any(t.startswith("rank 0: AllReduce 0, ") for t in found)
    assert any(t.startswith("rank 0: AllGather 0, copy engine, ") for t in found)
