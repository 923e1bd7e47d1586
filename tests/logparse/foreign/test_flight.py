"""Flight recorder dumps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from psmkit.logparse.foreign.flight import parse_flight, rank_in_name


def entry(seq: int, op: str = "nccl:all_reduce", state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": op,
        "state": state,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "is_p2p": False,
        "time_created_ns": 1000 + seq,
        "frames": [
            {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 2500},
            {"name": "step", "filename": "/job/train.py", "line": 41},
        ],
        **more,
    }


def dump(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 2}
        },
        "entries": list(entries),
        **more,
    }


def test_a_dump_is_read() -> None:
    (read,) = parse_flight(json.dumps(dump(entry(1), entry(2, state="started"))), "out/nccl_trace_rank_5.json")
    assert read.rank == 5
    assert read.complete
    assert read.groups["0"].ranks == (0, 1)
    assert (read.status["0"].enqueued, read.status["0"].completed) == (3, 2)
    last = read.entries[-1]
    assert (last.group, last.seq, last.op, last.state, last.is_p2p) == ("0", 2, "all_reduce", "started", False)
    assert last.input_sizes == ((4, 8),)
    assert last.frame == "step at /job/train.py:41"


def test_one_file_may_hold_all_ranks() -> None:
    both = json.dumps({"rank_0": dump(entry(1)), "rank_1": dump(entry(1))})
    assert [d.rank for d in parse_flight(both)] == [0, 1]
    listed = json.dumps([dump(entry(1), rank=4), dump(entry(1), rank=6)])
    assert [d.rank for d in parse_flight(listed)] == [4, 6]


def test_a_cut_dump_is_read_to_its_last_whole_entry() -> None:
    text = json.dumps(dump(entry(1), entry(2), entry(3)))
    at = text.index('"record_id": 3')
    (read,) = parse_flight(text[:at], "rank_0")
    assert not read.complete
    assert [e.seq for e in read.entries] == [1, 2]


def test_p2p_counts_apart_and_old_dumps_have_one_counter() -> None:
    send = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=7)
    old = {"pg_id": 2, "seq_id": 9, "profiling_name": "nccl:broadcast", "state": "scheduled"}
    (read,) = parse_flight(json.dumps(dump(send, old)))
    assert [(e.group, e.seq, e.is_p2p) for e in read.entries] == [("0", 7, True), ("2", 9, False)]


def test_values_of_the_wrong_type_do_no_harm() -> None:
    odd = entry(1, frames=3, input_sizes="x", collective_seq_id="four")
    (read,) = parse_flight(json.dumps(dump(odd, pg_config=[1], pg_status={"0": 4})))
    assert read.entries[0].seq == -1
    assert read.groups == {}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("nccl_trace_rank_12.json", 12),
        ("dumps/rank7.json", 7),
        ("dump_4.json.gz", 4),
        ("rank2/trace.json", 2),
        ("all.json", None),
        ("", None),
    ],
)
def test_the_rank_in_a_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
