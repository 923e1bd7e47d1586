"""Events and counts as tables: the same rows, in the same order, whether a rule asks for all of them or for one message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from psmkit.logparse import ScanResult, scan
from psmkit.logparse.tables import Counts, Events, Listed
from tests.loggen.crowd import write_merged

_COLUMNS = ("proc", "thread", "device", "times", "first", "last", "level", "timed", "tagged", "placed")


def _scan(folder: Path, kind: str = "watchdog") -> ScanResult:
    write_merged(folder / "log", kind, 9)
    return scan(folder / "log")


def test_rows_of_several_messages_come_in_the_order_of_the_log(tmp_path: Path) -> None:
    events = _scan(tmp_path).events
    found = events.of("torch.watchdog.timeout", "comm.start", "init.version", "comm.start")
    assert [e.ref.seq for e in found] == sorted(e.ref.seq for e in found)
    assert {e.name for e in found} == {"torch.watchdog.timeout", "comm.start", "init.version"}
    assert found == [e for e in events if e.name in {"torch.watchdog.timeout", "comm.start", "init.version"}]
    assert events.of("no.such.message") == []


def test_a_row_is_the_same_by_its_number_by_its_message_and_in_the_whole(tmp_path: Path) -> None:
    events = _scan(tmp_path, "abort").events
    whole = list(events)
    assert len(events) == len(whole) == len(events[:])
    assert [events[at] for at in (0, len(whole) // 2, -1)] == [whole[at] for at in (0, len(whole) // 2, -1)]
    for name in events.names:
        assert events.of(name) == [whole[row] for row in events.rows([name]).tolist()]


def test_columns_agree_with_the_rows(tmp_path: Path) -> None:
    for kind in ("abort", "watchdog", "crashes"):
        result = _scan(tmp_path, kind)
        made = Events.listed(result.events)
        assert made == result.events
        for column in _COLUMNS:
            assert np.array_equal(getattr(made, column), getattr(result.events, column)), column
        assert [made.kinds[at] for at in made.message] == [result.events.kinds[at] for at in result.events.message]
        assert np.array_equal(made.of_level("WARN"), [e.level == "WARN" for e in result.events])


def test_messages_are_found_by_their_fields(tmp_path: Path) -> None:
    events = _scan(tmp_path).events
    with_both = [e for e in events if {"local_rank", "nranks"} <= e.fields.keys()]
    assert with_both
    assert with_both == [
        e for e in events.with_fields("local_rank", "nranks") if len(e.fields.keys() & {"local_rank", "nranks"}) == 2
    ]
    assert Events.listed(events).with_fields("local_rank", "nranks") == with_both


def test_counts_of_lines_without_a_process_are_apart(tmp_path: Path) -> None:
    counts = _scan(tmp_path).counts
    assert {c.name for c in counts.outside()} == {"torch.watchdog.timeout", "torch.watchdog.status"}
    assert {c.proc for c in counts.outside()} == {-1}
    assert [(c.proc, c.count) for c in counts] == list(zip(counts.proc.tolist(), counts.times.tolist(), strict=True))
    assert Counts.listed(counts) == counts


@pytest.mark.parametrize("share", [1, 3, 50])
def test_picked_rows_are_those_with_the_numbers_in_their_order(tmp_path: Path, share: int) -> None:
    """A few rows of a message are made alone, most of them as a whole."""
    result = _scan(tmp_path, "abort")
    whole = list(result.events)
    rows = np.random.default_rng(3).permutation(len(whole))[: len(whole) // share]
    for events in (result.events, Events.listed(whole)):
        assert events.pick(rows) == [whole[row] for row in rows.tolist()]
    assert result.events.pick(rows[:0]) == []


def test_values_of_a_field_are_those_of_the_rows(tmp_path: Path) -> None:
    for kind in ("abort", "watchdog"):
        result = _scan(tmp_path, kind)
        for events in (result.events, Events.listed(result.events)):
            for name in events.names:
                rows = events.rows([name])[::-2]
                found = events.pick(rows)
                for field in {field for event in found for field in event.fields} | {"no such field"}:
                    assert events.values(name, field, rows) == [e.fields.get(field) for e in found], (name, field)


def test_listed_records_become_objects_when_they_are_asked_for() -> None:
    made: list[int] = []

    def make(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, float]]:
        made.extend(numbers.tolist())
        return [(n, n * 0.5) for n in numbers.tolist()]

    listed = Listed(10_000, make)
    assert len(listed) == 10_000 and not made
    assert (listed[7], listed[-1], listed[2:6:3]) == ((7, 3.5), (9_999, 4999.5), [(2, 1.0), (5, 2.5)])
    assert made == [7, 9_999, 2, 5]
    assert next(iter(listed)) == (0, 0.0) and len(made) < 5_000, "a loop that ends early makes no row of the rest"
    assert list(listed) == [(n, n * 0.5) for n in range(10_000)]
    assert listed == [(n, n * 0.5) for n in range(10_000)] and listed != listed[1:] and listed != 7
    with pytest.raises(IndexError):
        listed[10_000]


def test_equal_fields_of_thousands_of_ranks_are_one_object(tmp_path: Path) -> None:
    found = _scan(tmp_path, "errors").events.of("net.using")
    assert len(found) == 9
    assert len({id(e.fields) for e in found}) == 1


def test_a_text_that_one_event_shares_with_another_stays_when_the_other_changes(tmp_path: Path) -> None:
    said = "[I ProcessGroupWrapper.cpp:562] [Rank {}] Running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[]\n"
    job = [(0, 1, "ALLREDUCE"), (1, 1, "ALLREDUCE"), (2, 1, "ALLREDUCE"), (1, 2, "BROADCAST"), (0, 2, "SEND")]
    (tmp_path / "log").write_text("".join(said.format(*line) for line in job))
    found = scan(tmp_path / "log").events.of("torch.fingerprint.running")
    assert {e.fields["rank"]: e.fields["op"] for e in found} == {0: "SEND", 1: "BROADCAST", 2: "ALLREDUCE"}
