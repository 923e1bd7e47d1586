"""The columns of lines and calls are those of the objects that the scanner and the analysis make of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import scanned
from psmkit.catalogue import Message
from psmkit.logparse import events
from psmkit.logparse.types import Event
from psmkit.model.errors import InputError
from psmkit.query.schema import EVENT_FIELDS
from psmkit.query.source import Source
from tests.loggen import generate
from tests.query import made

DATA = Path(__file__).parents[1] / "data"
LOGS = [
    DATA / "logs" / "passsm-8gpu.log",
    DATA / "logs" / "fault_e1_n4_rank1_cumem_import_oom",
    DATA / "logs" / "nccl230_ok_n4_sendrecv_hostkernels",
    DATA / "nccl" / "missing_recv_r1",
    DATA / "nccl" / "n2nodes_kill_iter3_r3",
    made.LOG,
]

# One process drives two devices; a warning, a line of Python, a time stamp at midnight, a foreign word, undecodable bytes.
ODD = b"""\
node1:100:101 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabcd - Init START
node1:100:102 [1] NCCL INFO ncclCommInitRank comm 0x66d0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xabcd - Init START
node1:100:101 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabcd - Init COMPLETE
node1:100:102 [1] NCCL INFO ncclCommInitRank comm 0x66d0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0xabcd - Init COMPLETE
node1:100:101 [0] NCCL INFO AllReduce: opCount 3f sendbuff 0x1 recvbuff 0x2 count 1024 datatype 7 op 0 root 0 comm 0x55d0 [nranks=2] stream 0x9
node1:100:102 [1] NCCL INFO AllReduce: opCount 3f sendbuff 0x1 recvbuff 0x2 count 1024 datatype 7 op 0 root 0 comm 0x66d0 [nranks=2] stream 0x9
[2026-11-21 02:35:22] node1:100:102 [1] transport/shm.cc:590 NCCL WARN Cuda failure 2 'out of memory'
node1:100:102 [1] misc/own.cc:1 NCCL WARN =formula <script>alert(1)</script> \x07 \xff\xfe
RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error
"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    path = tmp_path / "odd.log"
    path.write_bytes(ODD)
    return path


def value(event: Event, column: str, message: Message, fields: Any) -> Any:
    """What a column has to hold of a line."""
    for field in EVENT_FIELDS[column]:
        at = field.of(message, fields)
        found = event.fields.get(fields[at][0]) if at >= 0 else None
        if found is not None and isinstance(found, str) == (field.form == "word"):
            return f"{found:#x}" if field.form == "hex" else found
    return None


def expect_columns_as_objects(path: Path) -> None:
    source = Source([path])
    rows = source.table("events").to_pylist()
    with scanned([path], any_log=True) as scan:
        job = make_job(scan)
        assert scan.catalogue is not None
        entries = {m.name: (m, f) for m, f in zip(scan.catalogue.compiled, scan.catalogue.fields, strict=True)}
        made_of = [event for batch in events(path) for event in batch]
        assert len(rows) == len(made_of) > 0
        for row, event in zip(rows, made_of, strict=True):
            process = job.process(event.proc) if event.proc >= 0 else None
            message, fields = entries[event.name]
            assert (row["file"], row["line"], row["byte_offset"]) == (
                scan.files[event.ref.file].path, event.ref.line, event.ref.offset,
            )  # fmt: skip
            assert (row["kind"], row["subsystem"], row["level"]) == (event.name, message.subsystem, event.level)
            assert (row["run"], row["rank"]) == (job.run_of_event(event), job.rank_of_thread(event))
            assert (row["host"], row["pid"]) == ((process.host, process.pid) if process else (None, None))
            assert row["tid"] == (scan.threads[event.thread].tid if event.thread >= 0 else None)
            assert (row["device"], row["time"], row["source"]) == (event.device, event.time, event.where)
            for column in EVENT_FIELDS:
                assert row[column] == value(event, column, message, fields), (column, scan.evidence(event.ref))
            if event.name != "unmatched.warn" and "\ufffd" not in row["text"]:
                assert row["text"] in scan.text(event.ref)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_columns_of_lines_are_those_of_the_objects(path: Path) -> None:
    expect_columns_as_objects(path)


def test_columns_of_odd_lines_are_those_of_the_objects(odd: Path) -> None:
    expect_columns_as_objects(odd)


def test_columns_of_several_runs_are_those_of_the_objects(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    texts = (generate(name, "2.27", seed=seed).merged() for seed, name in enumerate(("healthy_both", "kill_at_work")))
    log.write_text("".join(texts))
    expect_columns_as_objects(log)


def test_lines_of_a_process_with_two_devices_have_two_ranks(odd: Path) -> None:
    found = psmkit.load(odd).query(
        "SELECT line, rank, opcount, coll, comm FROM events WHERE kind = 'coll.call' ORDER BY 1"
    )
    assert [tuple(row.values()) for row in found.rows()] == [
        (5, 0, 63, "AllReduce", "0x55d0"),
        (6, 1, 63, "AllReduce", "0x66d0"),
    ]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_matches_are_the_rows_of_ops(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from psmkit.cli.app import main

    assert main(["ops", str(path), "--format", "json"]) == 0
    wanted = json.loads(capsys.readouterr().out)["ops"]
    stages = {
        "asked": ("begun", "asked"),
        "served": ("served", "answered"),
        "answered": ("matched", "received", "done"),
    }

    def key(row: Any) -> list[str]:
        return [
            str(row[name]) for name in ("what", "opid", "generation", "type", "stage", "rank", "peer", "bytes", "run")
        ]

    def lines(op: Any) -> list[str | None]:
        # `received` of an fd exchange is the server's line
        known = {s: at for s, at in op["lines"].items() if op["kind"] == "call" or s != "received"}
        return [next((known[s] for s in names if s in known), None) for names in stages.values()]

    renamed = [
        {
            **op,
            "what": op["kind"],
            "opid": op["op"] if op["op"] != "0x0" else None,
            "peer": op["peer_rank"],
            "bytes": op["size"],
        }
        for op in wanted
    ]
    rows = psmkit.load(path).matches.arrow.to_pylist()
    found = [
        key(row) + [f"{row[f'{s}_file']}:{row[f'{s}_line']}" if row[f"{s}_line"] is not None else None for s in stages]
        for row in rows
    ]  # fmt: skip
    assert sorted(found, key=str) == sorted((key(op) + lines(op) for op in renamed), key=str)
    assert [row["state"] == "matched" for row in rows].count(True) == sum(op["complete"] for op in wanted)


CALL = """\
{0}node1:100:101 [0] NCCL INFO proxyProgressAsync opId=0x7f0215c09cc0 op.type=1 op.reqBuff=0x7f01c40af820 op.respSize=16 done
{1}node1:100:102 [0] NCCL INFO ncclPollProxyResponse Received new opId=0x7f0215c09cc0
{2}node1:100:102 [0] NCCL INFO resp.opId=0x7f0215c09cc0 matches expected opId=0x7f0215c09cc0
"""


@pytest.mark.parametrize(
    ("stamps", "wanted"),
    [
        (("[2026-11-21 02:35:22.100] ", "[2026-11-21 02:35:22.150] ", "[2026-11-21 02:35:23.350] "), 1250.0),
        (("23:59:59.900 ", "00:00:00.000 ", "00:00:00.100 "), 200.0),
        (("", "[2026-11-21 02:35:22.150] ", "[2026-11-21 02:35:23.350] "), None),
        (("02:35:22 ", "02:35:22 ", "[2026-11-21 02:35:23] "), None),
        (("", "", ""), None),
    ],
)  # fmt: skip
def test_a_call_takes_the_time_between_its_stamps(
    stamps: tuple[str, ...], wanted: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.log"
    path.write_text(CALL.format(*stamps))
    (row,) = psmkit.load(path).matches.arrow.to_pylist()
    assert (row["state"], row["milliseconds"]) == ("matched", wanted)


def test_stamps_are_seconds_since_1970_or_since_midnight(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(CALL.format("[1970-01-02 00:00:01.500] ", "00:01:00 ", ""))
    assert psmkit.load(path).events.arrow.column("seconds").to_pylist() == [86401.5, 60.0, None]


@pytest.mark.parametrize("times", [1, 40_000])  # the second is not read at once
def test_lines_that_are_written_between_two_readings_do_not_count(times: int, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(CALL.format("", "", "") * times)
    source = Source([path])
    with path.open("a") as file:
        file.write(CALL.format("", "", "").replace("node1:100", "node1:200"))
    assert source.table("events").num_rows == 3 * times
    assert source.report.coverage.lines == 3 * times


def test_logs_that_are_replaced_between_two_readings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(CALL.format("", "", "") * 2)
    source = Source([path])
    path.write_text(CALL.format("", "", "").replace("node1:100", "node1:200") * 2)
    with pytest.raises(InputError, match="changed while it was read"):
        source.table("events")
    path.write_text(CALL.format("", "", ""))
    with pytest.raises(InputError, match="changed while it was read"):
        source.table("events")


def test_a_number_that_no_column_holds_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    call = "node1:100:101 [0] NCCL INFO AllReduce: opCount {} sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0x55d0 [nranks=2] stream 0x9\n"
    path.write_text(call.format("7fffffffffffffff") + call.format("ffffffffffffffff") + call.format("3"))
    assert psmkit.load(path).events.arrow.column("opcount").to_pylist() == [2**63 - 1, None, 3]


def test_a_compressed_log_has_the_same_lines(tmp_path: Path) -> None:
    plain, packed = tmp_path / "job.log", tmp_path / "job.log.gz"
    plain.write_bytes(made.LOG.read_bytes() * 40)  # more than is read at once
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found, other = (psmkit.load(path).events.arrow.drop_columns("file") for path in (plain, packed))
    assert found.num_rows == 40 * 600
    assert found.equals(other)
