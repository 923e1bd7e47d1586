"""Lines, proxy calls and fd exchanges of a scan as Arrow batches, column by column. Load it late: pyarrow is an extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from psmkit.analysis.facts.job import Job
from psmkit.analysis.views import columns
from psmkit.catalogue import Catalogue
from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.batches import NO_STAMP, EventBatch, hexes
from psmkit.model.arrays.whole import np, npt
from psmkit.query import arrow
from psmkit.query.schema import EVENT_FIELDS, TABLES, Field

__all__ = ["Converter"]

Array = npt.NDArray[Any]
_NO_DEVICE = -(1 << 31)
_SIGNED = 2  # a kind of field, as the scanner numbers them
_TOP = np.uint64(63)
_DAY = 86_400_000  # milliseconds: stamps without a date are less
_WHAT = pa.array(["call", "fd"])
# First those of calls, as the scanner numbers them from 1.
_STAGE_NAMES = ("begun", "served", "received", "matched", "asked", "answered", "done")
_STAGES = pa.array(_STAGE_NAMES)
_MATCHED = 4
_STATES = pa.array(["pending", "orphan", "matched"])
_STATE_OF_CALL = np.array([-1, 0, 0, 1, 2])
_FD_STAGES = ("asked", "received", "answered", "done")


class Converter:
    """Converts the batches of one set of logs, of which ``job`` says who is who."""

    def __init__(self, job: Job, catalogue: Catalogue) -> None:
        messages = catalogue.compiled
        self._job = job
        self._type_names = ["GetFd"]
        self._runs, self._ranks = columns.of_processes(job)
        self._events, self._matches = (arrow.schema(TABLES[name]) for name in ("events", "matches"))
        self._kinds = pa.array([message.name for message in messages])
        self._levels = pa.array(LEVELS)
        parts = sorted({message.subsystem for message in messages})
        self._parts, self._part_of = pa.array(parts), np.array([parts.index(m.subsystem) for m in messages])
        self._files = arrow.decoded([file.path for file in job.scan.files])
        hosts = list(dict.fromkeys(process.host for process in job.scan.processes))
        place = {host: at for at, host in enumerate(hosts)}
        self._hosts = arrow.decoded(hosts)
        self._host_of = np.array([*(place[process.host] for process in job.scan.processes), -1])
        self._fields = {name: [_slots(one, catalogue) for one in wanted] for name, wanted in EVENT_FIELDS.items()}

    def events(self, batch: EventBatch) -> pa.RecordBatch:
        """The lines of a batch."""
        proc, device = batch.proc, batch.device
        inside = proc >= 0
        stamp, time = batch.stamp, batch.packed_time
        made: dict[str, Callable[[], pa.Array]] = {
            "file": lambda: arrow.words(batch.file, self._files),
            "line": lambda: pa.array(batch.line.astype(np.int64)),
            "byte_offset": lambda: pa.array(batch.offset.astype(np.int64)),
            "run": lambda: _known(columns.runs(self._job, batch, self._runs), "int32"),
            "rank": lambda: _known(columns.ranks(self._job, batch, self._ranks), "int32"),
            "process": lambda: _known(proc, "int32"),
            "host": lambda: arrow.words(self._host_of[proc], self._hosts),
            "pid": lambda: arrow.ints(batch.pid, inside),
            "tid": lambda: arrow.ints(batch.tid, inside),
            "device": lambda: arrow.ints(device, device != _NO_DEVICE, "int32"),
            "time": lambda: arrow.strings(batch.texts(time), time != 0),
            "seconds": lambda: pa.array(stamp / 1000.0, mask=stamp == NO_STAMP),
            "level": lambda: arrow.words(batch.level, self._levels),
            "subsystem": lambda: arrow.words(self._part_of[batch.message], self._parts),
            "kind": lambda: arrow.words(batch.message, self._kinds),
            "source": lambda: arrow.strings(batch.texts(batch.packed_where), batch.packed_where != 0),
            "text": lambda: arrow.strings(batch.messages),
        }
        found = [made[name]() if name in made else self._field(batch, name) for name in self._events.names]
        return pa.record_batch(found, schema=self._events)

    def _field(self, batch: EventBatch, name: str) -> pa.Array:
        """A column of fields: of each line the first field that it has."""
        found: tuple[Array, Array] | None = None
        form = ""
        for form, slots, signed in self._fields[name]:
            values, forms = batch.field(slots)
            known = forms == (2 if form == "word" else 1)
            if form == "int" and (large := values >> _TOP != 0).any():
                known &= ~large | signed[batch.message]  # a damaged line can hold a number beyond the column
            if found is not None:
                values, known = np.where(found[1], found[0], values), found[1] | known
            found = values, known
        assert found is not None
        values, known = found
        if form == "word":
            return arrow.strings(batch.texts(np.where(known, values, np.uint64(0))), known)
        return arrow.strings(hexes(values, known), known) if form == "hex" else arrow.ints(values.view(np.int64), known)

    def matches(self, batch: EventBatch) -> pa.RecordBatch:
        """The proxy calls and fd exchanges of a batch."""
        return pa.concat_batches([self._calls(batch.calls, batch.word), self._fds(batch.fds)])

    def _calls(self, calls: Array, word: Callable[[int], str]) -> pa.RecordBatch:
        state = calls["state"]
        return self._batch(
            calls, "call", calls["caller"], calls["service"],
            {
                "rank": _known(self._ranks[calls["caller"]], "int32"),
                "peer": _known(self._ranks[calls["service"]], "int32"),
                "generation": pa.array(calls["generation"].astype(np.int32)),
                "type": self._types_of(calls["stage"], calls["type"], word),
                "stage": arrow.words(state.astype(np.int64) - 1, _STAGES),
                "state": arrow.words(_STATE_OF_CALL[state], _STATES),
                "bytes": _known(calls["resp_size"], "int64"),
            },
            {
                "asked": calls["begun"],
                "served": calls["served"],
                "answered": np.where(calls["matched"]["line"] > 0, calls["matched"], calls["received"]),
            },
            state == _MATCHED,
        )  # fmt: skip

    def _types_of(self, stages: Array, numbers: Array, word: Callable[[int], str]) -> pa.Array:
        """The names of the types of calls. Their dictionary only grows, so that a file can have one for all batches."""
        keys, at = np.unique(np.stack([stages.view(np.int64), numbers.astype(np.int64)]), axis=1, return_inverse=True)
        places = []
        for stage, number in keys.T.tolist():
            name = word(stage) or (f"type {number}" if number >= 0 else "")
            if name and name not in self._type_names:
                self._type_names.append(name)
            places.append(self._type_names.index(name) if name else -1)
        return arrow.words(np.array(places, dtype=np.int64)[at.reshape(-1)], pa.array(self._type_names))

    def _fds(self, fds: Array) -> pa.RecordBatch:
        stage = np.full(len(fds), -1)
        for name in _FD_STAGES:
            stage[fds[name]["line"] > 0] = _STAGE_NAMES.index(name)
        asked, done = fds["asked"]["line"] > 0, fds["done"]["line"] > 0
        client, server, size = fds["client"], fds["server"], len(fds)
        return self._batch(
            fds, "fd", client, server,
            {
                # where the log of the process is missing, as the lines say
                "rank": _known(np.where(client >= 0, self._ranks[client], fds["rank"]), "int32"),
                "peer": _known(np.where(server >= 0, self._ranks[server], fds["peer"]), "int32"),
                "generation": pa.array(np.ones(size, dtype=np.int32)),
                "type": arrow.words(np.zeros(size), pa.array(self._type_names)),
                "stage": arrow.words(stage, _STAGES),
                "state": arrow.words(np.where(asked, np.where(done, 2, 0), 1), _STATES),
                "bytes": pa.nulls(size, pa.int64()),
            },
            {"asked": fds["asked"], "served": fds["answered"], "answered": fds["done"]},
            asked & done,
        )  # fmt: skip

    def _batch(
        self,
        records: Array,
        what: str,
        caller: Array,
        service: Array,
        values: dict[str, pa.Array],
        lines: Mapping[str, Array],
        done: Array,
    ) -> pa.RecordBatch:
        run = self._runs[caller]
        values |= {
            "what": arrow.words(np.full(len(records), ("call", "fd").index(what)), _WHAT),
            "run": _known(np.where(run < 0, self._runs[service], run), "int32"),
            "process": _known(caller, "int32"),
            "peer_process": _known(service, "int32"),
            "opid": arrow.strings(hexes(records["op"], records["op"] != 0), records["op"] != 0),
            "milliseconds": self._between(records["began"], records["ended"], done, caller, service),
        }
        for name, at in lines.items():
            there = at["line"] > 0
            values[f"{name}_file"] = arrow.words(np.where(there, at["file"].astype(np.int64), -1), self._files)
            values[f"{name}_line"] = arrow.ints(at["line"], there)
        return pa.record_batch([values[name] for name in self._matches.names], schema=self._matches)

    def _between(self, began: Array, ended: Array, done: Array, caller: Array, service: Array) -> pa.Array:
        """Milliseconds between two stamps of one host and of one form."""
        known = done & (began != NO_STAMP) & (ended != NO_STAMP)
        known &= (self._host_of[caller] == self._host_of[service]) | (caller < 0) | (service < 0)
        gap = np.where(known, ended - np.where(known, began, 0), 0)
        gap += np.where((gap < -_DAY / 2) & (ended < _DAY), _DAY, 0)  # past midnight
        known &= ((began < _DAY) == (ended < _DAY)) & (gap >= 0)
        return pa.array(gap.astype(np.float64), mask=~known)


def _slots(field: Field, catalogue: Catalogue) -> tuple[str, Array, Array]:
    """The form of a field, its place in each message, and whether it is a signed number there."""
    entries = list(zip(catalogue.compiled, catalogue.fields, strict=True))
    places = [field.of(message, fields) for message, fields in entries]
    signed = [at >= 0 and fields[at][1] == _SIGNED for at, (_, fields) in zip(places, entries, strict=True)]
    return field.form, np.array(places, dtype=np.int8), np.array(signed)


def _known(values: Array, kind: str) -> pa.Array:
    """Numbers; NULL for -1."""
    return arrow.ints(values, values != -1, kind)
