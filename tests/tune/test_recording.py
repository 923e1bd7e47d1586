"""Recordings of `psmkit telemetry` as measurements: the loop from the profiler to the tuner."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psmkit.cli.app import main
from psmkit.model.errors import InputError
from psmkit.telemetry.layout import ALGORITHMS, COLL, COMM, FUNCTIONS, PROTOCOLS, ROW
from psmkit.telemetry.reader import set_times
from psmkit.telemetry.take import Take
from psmkit.tune import Query, decide, read_samples

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")

CLOCK, FLOAT = 10**12, 7
# Latency in microseconds and microseconds a byte, for each algorithm and protocol.
TRUTH = {("tree", "ll"): (12.0, 4e-4), ("ring", "ll128"): (28.0, 6e-5), ("ring", "simple"): (55.0, 2.2e-5)}


def record(path: Path, rows: list[Any], ranks: int = 2, nnodes: int = 1) -> Path:
    """A file as the sidecar writes it; rows are of all ranks, ``comm`` is their rank."""
    from psmkit.telemetry.recording import Recorder

    comms = np.zeros(ranks, COMM)
    comms["id"] = comms["rank"] = np.arange(ranks)
    comms["comm_hash"], comms["nranks"], comms["nnodes"] = 0xABC, ranks, nnodes
    recorder = Recorder(str(path), 1 << 30)
    for part in range(0, len(rows), 500):  # several takes, as the windows came
        recorder.add(Take(CLOCK + part, CLOCK + part, comms=comms, rows=np.concatenate(rows[part : part + 500])))
    recorder.close()
    return path


def collective(
    rank: int, seq: int, func: str, size: int, kind: tuple[str, str], us: float, *, late: float = 0.0, done: bool = True
) -> Any:
    """``late``: microseconds that this rank came before the last one, which it waited for."""
    row = np.zeros(1, ROW)
    row["comm"], row["handle"], row["start_ns"] = rank, 1 + seq, CLOCK
    row["event"]["type"], row["event"]["stop_ns"] = 1, CLOCK + 1000
    u = np.zeros(1, COLL)
    u["seq"], u["count"], u["datatype"], u["channels"] = seq, size // 4, FLOAT, 2
    u["func"], u["algo"], u["proto"] = FUNCTIONS.index(func), ALGORITHMS.index(kind[0]), PROTOCOLS.index(kind[1])
    if done:
        u["done_ns"], u["ops_ended"] = CLOCK + int((us + late) * 1e3), 2
    row["event"]["u"], row["event"]["flags"] = u.view("u1"), 1
    set_times(row)
    return row


@pytest.mark.parametrize("name", ["run.parquet", "run.arrow"])
def test_the_time_of_a_collective_is_that_of_the_rank_that_waited_least(tmp_path: Path, name: str) -> None:
    rows = [
        collective(r, s, "AllReduce", 4096, ("ring", "ll"), 50.0, late=30.0 * (r != s % 2))
        for s in range(6)
        for r in range(2)
    ]
    samples = read_samples(record(tmp_path / name, rows))
    assert len(samples) == 6
    assert {(s.op, s.bytes, s.ranks, s.nodes, s.algorithm, s.protocol, s.microseconds) for s in samples} == {
        ("allreduce", 4096, 2, 1, "ring", "ll", 50.0)
    }


def test_sizes_are_of_all_ranks_where_the_tuner_is_asked_so(tmp_path: Path) -> None:
    rows = [
        collective(0, s, f, 4096, ("ring", "simple"), 9.0)
        for s, f in enumerate(("AllGather", "ReduceScatter", "Broadcast"))
    ]
    found = {s.op: s.bytes for s in read_samples(record(tmp_path / "a.parquet", rows, ranks=8))}
    assert found == {"allgather": 8 * 4096, "reducescatter": 8 * 4096, "broadcast": 4096}


def test_what_was_only_enqueued_is_no_measurement(tmp_path: Path) -> None:
    rows = [collective(0, s, "AllReduce", 4096, ("ring", "ll"), 0, done=False) for s in range(3)]
    with pytest.raises(InputError, match="all 3 in it were only enqueued"):
        read_samples(record(tmp_path / "a.parquet", rows))
    rows += [collective(0, 7, "AllReduce", 4096, ("ring", "ll"), 5.0)]
    assert len(read_samples(record(tmp_path / "b.parquet", rows))) == 1


def test_a_damaged_recording_is_named(tmp_path: Path) -> None:
    path = record(tmp_path / "a.parquet", [collective(0, 1, "AllReduce", 4096, ("ring", "ll"), 5.0)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"a\.parquet: not a recording, or damaged"):
        read_samples(path)


def test_rules_made_from_a_recorded_run_choose_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rand = random.Random(5)
    rows, seq = [], 0
    for kind, (latency, byte) in TRUTH.items():
        for power in range(8, 27):
            for _ in range(3):
                seq += 1
                us = (latency + byte * 2**power) * math.exp(rand.gauss(0, 0.02))
                rows += [
                    collective(r, seq, "AllReduce", 2**power, kind, us, late=rand.random() * 500 * (r != seq % 2))
                    for r in range(2)
                ]
    path = record(tmp_path / "run.parquet", rows, nnodes=2)
    table = tmp_path / "tuner.csv"
    assert main(["tune", "export", str(path), "-o", str(table)]) == 0, capsys.readouterr().err
    sizes = [round(2 ** (8 + 18 * i / 1000)) for i in range(1001)]
    answers = decide(table, [Query("allreduce", size, 2, 2) for size in sizes])
    best = [min(TRUTH, key=lambda kind: TRUTH[kind][0] + TRUTH[kind][1] * size) for size in sizes]
    right = sum((a.algorithm, a.protocol) == kind for a, kind in zip(answers, best, strict=True))
    assert right >= 0.99 * len(sizes)
