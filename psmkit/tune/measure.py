"""Read measurements of collectives from tables of nccl-tests, CSV, and recordings."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from psmkit.model.errors import InputError

__all__ = [
    "ALGORITHMS",
    "OPS",
    "PROTOCOLS",
    "Sample",
    "parse_csv",
    "parse_nccl_tests",
    "parse_recording",
    "read_samples",
]

OPS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time. ``channels`` 0: NCCL's choice."""

    op: str
    bytes: int
    ranks: int
    nodes: int
    algorithm: str
    protocol: str
    microseconds: float
    channels: int = 0


def read_samples(path: str | Path, given: Mapping[str, str] | None = None) -> list[Sample]:
    """The measurements in a file: CSV with a header, output of nccl-tests, or a recording of ``psmkit telemetry``.

    ``given`` supplies values that the file lacks: op, algorithm, protocol, ranks, nodes, channels. A recording has them all.

    Raises:
        InputError: the file holds no measurement, or a value is missing or invalid.
    """
    try:
        with open(path, "rb") as file:
            recorded = file.read(4) in _RECORDINGS
        if recorded:
            return parse_recording(str(path))
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    names = {cell.strip().lower() for cell in first.split(",")}
    source = parse_csv if names & set(_NAMES) and "," in first else parse_nccl_tests
    found = list(source(text, str(path), given or {}))
    if not found:
        raise InputError(str(path), "no measurement in it, expected a table of nccl-tests or CSV with a header")
    return found


# ---- recordings ----

_RECORDINGS = (b"PAR1", b"\xff\xff\xff\xff")  # Parquet; a stream of Arrow
# The tuner's size is that of all ranks together, as nccl-tests prints it and NCCL passes it to a tuner.
_OF_ALL_RANKS = ("allgather", "reducescatter")


def parse_recording(path: str) -> list[Sample]:
    """One measurement for each collective: the shortest time among the recorded ranks.

    A rank that comes late waits least, so its time is that of the collective; the others' times include the wait for it. Collectives of
    which only the enqueue is known, and those with an algorithm that a tuner cannot choose, are left out.

    Raises:
        InputError: the file is damaged, pyarrow is missing, or the file has no such collective.
    """
    try:
        from psmkit.telemetry.recording import finished
    except ImportError as error:
        raise InputError(path, f"reading a recording needs {error.name}: install psmkit[telemetry]") from None
    from psmkit.telemetry.errors import TelemetryError

    least: dict[tuple[int, int, str], Sample] = {}
    seen = left = 0
    try:
        for row in finished(path):
            op, algorithm, protocol = (str(row[name]).lower() for name in ("func", "algo", "proto"))
            if op not in OPS or not row["duration_ns"]:
                continue
            seen += 1
            if row["completion"] == "enqueue" or algorithm not in ALGORITHMS or protocol not in PROTOCOLS:
                left += 1
                continue
            size = int(row["bytes"]) * (int(row["nranks"]) if op in _OF_ALL_RANKS else 1)
            key = (int(row["comm_hash"]), int(row["seq"]), op)
            time = int(row["duration_ns"]) / 1e3
            old = least.get(key)
            if old is None or time < old.microseconds:
                shape = (max(1, int(row["nranks"])), max(1, int(row["nnodes"])))
                least[key] = Sample(op, size, *shape, algorithm, protocol, time)  # channels: NCCL chose
    except TelemetryError as error:
        raise InputError(path, str(error).removeprefix(f"{path}: ")) from None
    if not least:
        why = f"all {left} in it were only enqueued, or used other algorithms" if seen else "there is none"
        raise InputError(path, f"no collective in it is usable as a measurement: {why}")
    return list(least.values())


# ---- CSV ----

_NAMES = {
    "op": "op",
    "collective": "op",
    "collective_type": "op",
    "bytes": "bytes",
    "size": "bytes",
    "size_bytes": "bytes",
    "ranks": "ranks",
    "nranks": "ranks",
    "nodes": "nodes",
    "nnodes": "nodes",
    "algorithm": "algorithm",
    "protocol": "protocol",
    "channels": "channels",
    "us": "microseconds",
    "time_us": "microseconds",
    "latency_us": "microseconds",
    "microseconds": "microseconds",
}


def parse_csv(text: str, path: str, given: Mapping[str, str]) -> Iterator[Sample]:
    """Measurements in CSV with a header; unknown columns are ignored."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    rows = csv.reader(line for _, line in lines)
    head = [_NAMES.get(cell.strip().lower(), "") for cell in next(rows)]
    for (number, _), row in zip(lines[1:], rows, strict=False):
        cells = {name: cell.strip() for name, cell in zip(head, row, strict=False) if name}
        yield _sample({**given, **cells}, f"{path}:{number}")


def _sample(cells: Mapping[str, str], place: str) -> Sample:
    def number(name: str, least: float, otherwise: str | None = None) -> float:
        text = cells.get(name, otherwise)
        if text is None:
            raise InputError(place, f"no {name}, expected a column or --{name}")
        try:
            value = float(text)
        except ValueError:
            raise InputError(place, f'bad {name} "{text}", expected a number') from None
        if not math.isfinite(value) or value < least:
            raise InputError(place, f'bad {name} "{text}", expected at least {least:g}')
        return value

    def word(name: str, known: Iterable[str]) -> str:
        text = cells.get(name, "").lower()
        if text not in known:
            raise InputError(place, f'bad {name} "{text}", expected one of {", ".join(known)} (a column, or --{name})')
        return text

    microseconds = number("microseconds", 0)
    if microseconds == 0:
        raise InputError(place, "bad time 0, expected a positive number")
    return Sample(
        word("op", OPS),
        int(number("bytes", 0)),
        int(number("ranks", 1)),
        int(number("nodes", 1)),
        word("algorithm", ALGORITHMS),
        word("protocol", PROTOCOLS),
        microseconds,
        max(0, int(number("channels", -1, "0"))),
    )


# ---- nccl-tests ----

_RANK = re.compile(r"#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device")
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce)_perf\b")
_SETTING = re.compile(r"\bNCCL_(ALGO|PROTO)\s*(?:=|set by environment to)\s*(\w+)", re.I)
_ALGO = {"collnetdirect": "collnet_direct", "collnetchain": "collnet_chain", "nvlstree": "nvls_tree"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?\Z")
_COLUMNS = 4  # time, algbw, busbw, #wrong


def parse_nccl_tests(text: str, path: str, given: Mapping[str, str]) -> Iterator[Sample]:
    """Both times of each line, out of place and in place.

    Ranks and nodes are counted from the lines that name ranks. The operation comes from the program's name, algorithm and protocol
    from NCCL_ALGO and NCCL_PROTO if the text has them.
    """
    told: dict[str, str] = dict(given)
    hosts: list[str] = []
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        rank = _RANK.search(line)
        if rank:
            hosts.append(rank[1])
            told.setdefault("ranks", "0")
            if "ranks" not in given:
                told["ranks"] = str(len(hosts))
            if "nodes" not in given:
                told["nodes"] = str(len(set(hosts)))
            continue
        if line.lstrip().startswith("# nThread"):
            hosts = []  # another program begins
        name = _PROGRAM.search(line)
        if name and "op" not in given:
            told["op"] = name[1].replace("_", "")
        for kind, value in _SETTING.findall(line):
            key = "algorithm" if kind.upper() == "ALGO" else "protocol"
            if key not in given:
                told[key] = _ALGO.get(value.lower(), value.lower())
        words = line.split()
        # size, count, type, redop, root, then four columns twice; "N/A" in #wrong is one word.
        if len(words) < 5 + _COLUMNS or not words[0].isdecimal() or not words[1].isdecimal() or words[2].isdecimal():
            continue
        columns = words[-2 * _COLUMNS :] if len(words) >= 5 + 2 * _COLUMNS else words[-_COLUMNS:]
        for at in range(0, len(columns), _COLUMNS):
            time, bad = columns[at], columns[at + _COLUMNS - 1]
            if bad not in ("0", "N/A", "0e+00"):
                wrong.append(f"{path}:{number}")
            elif _NUMBER.match(time) and float(time) > 0:
                yield _sample({**told, "bytes": words[0], "microseconds": time}, f"{path}:{number}")
    if wrong:
        raise InputError(
            wrong[0], f"nccl-tests counted wrong results ({len(wrong)} times): such a run is not a measurement"
        )
