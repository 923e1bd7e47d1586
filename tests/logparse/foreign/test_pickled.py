"""Flight recorder dumps as torch writes them: pickles, of which only data is read."""

from __future__ import annotations

import os
import pickle
import pickletools
import random
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.logparse.foreign import load, sniff
from psmkit.logparse.foreign.flight import parse_flight, parse_flight_pickle
from psmkit.logparse.foreign.pickled import PickleError, read_pickle
from tests.analysis.test_foreign import dump, entry

WAITING = dump(entry(1), entry(2), entry(3, "started"))
LATE = dump(entry(1), entry(2))


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_data_is_read_as_pickle_reads_it(protocol: int) -> None:
    value: dict[str, Any] = {
        "text": "é" * 300, "long": "x" * 70000, "none": None, "flags": [True, False], "float": -1.5,
        "ints": [0, 255, 65535, -1, 2**31, 2**63, -(2**70)], "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "dict": {1: {}},
    }  # fmt: skip
    value["again"] = value["ints"]
    if protocol > 2:
        value["bytes"] = b"ab"
    assert read_pickle(pickle.dumps(value, protocol)) == value


def test_the_lists_that_torch_tags_are_lists() -> None:
    tagged = b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R."
    assert read_pickle(tagged) == [1, 2]


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_of_a_pickle_runs(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "made"
    path = tmp_path / "trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [entry(1)], "pg_config": Bomb(marker)}, protocol))
    loaded = load(str(path), "flight-recorder")
    assert loaded.flights == ()
    assert "loads no code" in (loaded.error or "")
    assert not marker.exists()


def test_a_damaged_pickle_is_an_error_and_never_a_crash() -> None:
    whole = pickle.dumps(WAITING, 4)
    for size in range(0, len(whole), 7):
        with pytest.raises(PickleError):
            read_pickle(whole[:size])
    chance = random.Random(7)
    for _ in range(1500):
        hurt = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            hurt[chance.randrange(2, len(hurt))] = chance.randrange(256)
        try:
            parse_flight_pickle(bytes(hurt))
        except PickleError:
            continue


def test_an_object_within_itself_is_read_once() -> None:
    inner: list[Any] = []
    inner.append(inner)
    laughs: list[Any] = []
    for _ in range(60):
        laughs = [laughs, laughs]
    assert parse_flight_pickle(pickle.dumps([inner, laughs, WAITING])) == parse_flight_pickle(pickle.dumps([WAITING]))


def test_a_pickle_says_what_its_json_says() -> None:
    import json

    assert parse_flight_pickle(pickle.dumps(WAITING), "trace_rank_3") == parse_flight(
        json.dumps(WAITING), "trace_rank_3"
    )


def test_only_pickles_of_dumps_are_dumps() -> None:
    assert sniff(pickle.dumps(WAITING, 2)) == "flight-recorder"
    assert sniff(pickle.dumps({"weights": [1.0]})) is None
    assert sniff(pickletools.optimize(pickle.dumps(WAITING))) == "flight-recorder"


def test_the_rank_that_never_called_is_found_in_a_folder_of_pickles(tmp_path: Path) -> None:
    for rank, value in enumerate([WAITING, LATE, WAITING]):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, 2))
    (tmp_path / "model.pt").write_bytes(pickle.dumps({"weights": [1.0]}, 2))
    report = psmkit.analyze([str(tmp_path)])
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [1])
