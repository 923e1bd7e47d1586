"""The result of a scan, with access to its lines."""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Any, TypeVar, cast

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.decode import CALL, INSTANCE, PROCESS, SERVICE, TALLY, Decoder, array, rows, spans, table
from psmkit.logparse.streams import ForeignInput, Input, Reader, open_raw
from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import (
    Call,
    CommInstance,
    FdExchange,
    LedgerEntry,
    PairQueue,
    Process,
    Ref,
    SeqDivergence,
    SeqGroup,
    SeqRank,
    ServiceTally,
    ShapeCount,
    SourceFile,
    Stamps,
    Totals,
    Value,
)
from psmkit.model import Evidence
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

__all__ = ["ScanResult", "collect"]

_T = TypeVar("_T")

_LONGEST = 1 << 16
_AHEAD = 4096
_MOST_OPEN = 16
_NOWHERE = Ref(0, 0, 0)
_NOTHING: Mapping[tuple[str, int], Ref] = {}
_STATES = ("", "begun", "served", "received", "matched")


@dataclass(slots=True)
class ScanResult(ScanData):
    """Everything that a scan found, with access to its lines. Close it, or use it as a context manager, which keeps files open between lines.

    ``foreign`` are inputs that are not logs. ``notes`` list problems with inputs. ``catalogue`` is the catalogue that the
    scan used. ``read`` are the bytes that it read of each of its ``inputs``, decompressed: a program may still write to them.
    """

    foreign: Sequence[ForeignInput] = ()
    notes: Sequence[str] = ()
    catalogue: Catalogue | None = None
    inputs: Sequence[Input] = ()
    read: Sequence[int] = ()
    _open: dict[int, tuple[Reader, int, bytes]] = field(default_factory=dict)
    _kept: dict[int, io.BufferedReader] = field(default_factory=dict)
    _entered: bool = False
    _lines: dict[tuple[int, int], str] = field(default_factory=dict)

    def text(self, ref: Ref) -> str:
        """The line at ``ref`` without its end; undecodable bytes are replaced."""
        known = self._lines.get((ref.file, ref.offset))
        if known is None:
            known = self._lines[(ref.file, ref.offset)] = self._read(ref)
        return known

    def remember(self, texts: Mapping[tuple[int, int], str]) -> None:
        """Lines, by file and offset, that need not be read."""
        self._lines.update(texts)

    @property
    def quoted(self) -> Mapping[tuple[int, int], str]:
        """The lines that were read so far, by file and offset."""
        return self._lines

    def prefetch(self, refs: Iterable[Ref]) -> None:
        """Read many lines in file order: much faster than one by one if an input is compressed."""
        for ref in sorted(set(refs)):
            self.text(ref)

    def below(self, ref: Ref) -> Ref | None:
        """The line below ``ref`` in its file; None if that is the last one, or if the line at ``ref`` is too long to be read whole."""
        line = self._raw(ref)
        if len(line) >= _LONGEST:
            return None
        after = Ref(ref.file, ref.line + 1, ref.offset + len(line) + 1, ref.seq + 1)
        return after if after.offset < self.files[ref.file].bytes else None

    def evidence(self, ref: Ref) -> Evidence:
        """The line at ``ref``, as evidence."""
        return Evidence(self.files[ref.file].path, ref.line, self.text(ref))

    def lines_of(self, file: int, wanted: AbstractSet[int] | None = None) -> Iterator[tuple[int, str]]:
        """The numbers and texts of the lines of a file, or of those with the ``wanted`` numbers, read once from its beginning."""
        reader = Reader(self.inputs[file])
        last = None if wanted is None else max(wanted, default=0)
        try:
            number, rest = 0, b""
            while last is None or number < last:
                piece = reader.read(1 << 20)
                *found, rest = (rest + piece).split(b"\n")
                if not piece:
                    found = [rest] if rest else []
                for line in found:
                    number += 1
                    if wanted is None or number in wanted:
                        yield number, _decoded(line[:_LONGEST])
                if not piece:
                    return
        finally:
            reader.close()

    def close(self) -> None:
        """Close the files that were opened to fetch lines."""
        for reader, _, _ in self._open.values():
            reader.close()
        self._open.clear()
        for file in self._kept.values():
            file.close()
        self._kept.clear()

    def __enter__(self) -> ScanResult:
        self._entered = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered = False
        self.close()

    def _read(self, ref: Ref) -> str:
        return _decoded(self._raw(ref))

    def _raw(self, ref: Ref) -> bytes:
        """The bytes of the line at ``ref`` without the line feed."""
        source = self.inputs[ref.file]
        if source.kind == "log" and source.encoding is None:
            return self._stored(ref, source)
        # Lines that are requested together are close together, so the rest of a read is kept.
        reader, at, ahead = self._open.pop(ref.file, (None, 0, b""))
        if reader is None or at > ref.offset:
            if reader is not None:
                reader.close()
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open)))[0].close()
            reader, at, ahead = Reader(source), 0, b""
        while at + len(ahead) <= ref.offset:
            at += len(ahead)
            ahead = reader.read(1 << 20)
            if not ahead:
                break
        ahead = ahead[ref.offset - at :]
        while b"\n" not in ahead and len(ahead) < _LONGEST and (more := reader.read(4096)):
            ahead += more
        self._open[ref.file] = (reader, ref.offset, ahead)
        return ahead.split(b"\n", 1)[0][:_LONGEST]

    def _stored(self, ref: Ref, source: Input) -> bytes:
        """The same, of a file that needs neither decompression nor decoding. Without a context that closes it, it is opened for each line."""
        file = self._kept.pop(ref.file, None)
        if file is None:
            file = io.BufferedReader(cast(io.RawIOBase, open_raw(source)), _AHEAD)
        try:
            file.seek(ref.offset)
            return file.readline(_LONGEST).removesuffix(b"\n")
        finally:
            if not self._entered:
                file.close()
            else:
                self._kept[ref.file] = file
                if len(self._kept) > _MOST_OPEN:
                    self._kept.pop(next(iter(self._kept))).close()


def _decoded(raw: bytes) -> str:
    line = raw.rstrip(b"\r")
    if b"](http" in line:  # the scanner read the line in this way
        plain = ffi.new("char[]", len(line))
        line = ffi.buffer(plain, lib.ls_unlink(plain, line, len(line)))[:]
    return line.decode("utf-8", "replace")


def collect(
    native: Any,
    catalogue: Catalogue,
    inputs: Sequence[Input],
    stream_of: Sequence[int],
    foreign: Sequence[ForeignInput],
    notes: Sequence[str],
) -> ScanResult:
    """The tables of a finished native scan as Python data."""
    return _Collector(native, catalogue).result(inputs, stream_of, foreign, notes)


class _Collector:
    def __init__(self, native: Any, catalogue: Catalogue) -> None:
        self.native = native
        self.catalogue = catalogue
        self.decoder = Decoder(native, catalogue, finished=True)
        self.totals = lib.ls_get_totals(native)
        self.texts: dict[int, str | None] = {0: None}

    def rows(self, getter: str) -> list[Any]:
        at, n = table(self.native, getter)
        return [at[i] for i in range(n)]

    def text(self, packed: int) -> str | None:
        """A text of the scan, None for a missing one. Thousands of ranks have the same few, which are kept once."""
        if packed not in self.texts:
            self.texts[packed] = self.decoder.text(packed)
        return self.texts[packed]

    def texts_of(self, column: npt.NDArray[Any]) -> list[str | None]:
        """The texts of a column."""
        return [self.texts[packed] if packed in self.texts else self.text(packed) for packed in column.tolist()]

    def result(
        self, inputs: Sequence[Input], stream_of: Sequence[int], foreign: Sequence[ForeignInput], notes: Sequence[str]
    ) -> ScanResult:
        calls, instances = self.calls(), self.instances()
        return ScanResult(
            files=[
                SourceFile(
                    item.path,
                    stream_of[i],
                    item.size,
                    lib.ls_file_lines(self.native, i),
                    bool(lib.ls_file_complete(self.native, i)),
                )
                for i, item in enumerate(inputs)
            ],
            processes=self.processes(),
            threads=self.decoder.threads_table(),
            events=self.decoder.events_table(),
            counts=self.decoder.counts_table(),
            calls=calls,
            fds=self.fds(),
            instances=instances,
            groups=self.groups(instances),
            pairs=self.pairs(),
            ledger=self.ledger(),
            shapes=sorted(
                (ShapeCount(self.text(s.text) or "", s.count, _ref(s.first)) for s in self.rows("ls_shapes")),
                key=lambda s: (-s.count, s.first),
            ),
            totals=self.sums(),
            services=self.services(),
            foreign=foreign,
            notes=[*notes, *self.losses()],
            catalogue=self.catalogue,
            inputs=inputs,
            read=[lib.ls_file_bytes(self.native, i) for i in range(len(inputs))],
        )  # fmt: skip

    def processes(self) -> list[Process]:
        found = array(self.native, "ls_processes", PROCESS)
        columns = (
            "stream", "tag", "host", "pid", "incarnation", "lines", "births", "aliased", "damaged",
            "stamp", "pause", "stamp_seq", "stamp_date", "backward",
        )  # fmt: skip
        return [
            Process(
                i, stream, self.decoder.tags[tag] if tag >= 0 else None, self.text(host) or "", pid, incarnation,
                lines, first, last, births, bool(aliased), damaged,
                Stamps(stamp / 1000, pause / 1000, stamp_seq, bool(date), backward == 0) if stamp_seq else None,
            )
            for i, (
                (
                    stream, tag, host, pid, incarnation, lines, births, aliased, damaged,
                    stamp, pause, stamp_seq, date, backward,
                ), (first, last),
            ) in enumerate(zip(rows(found, *columns), spans(found), strict=True))
        ]  # fmt: skip

    def calls(self) -> list[Call]:
        columns = (
            "op", "state", "stage", "type", "service", "caller", "generation", "resp_size", "begun", "served", "received",
            "matched", "service_thread", "caller_thread", "peer_local_rank", "age", "expected", "again",
        )  # fmt: skip
        calls = []
        for (
            op, state, stage, type_, service, caller, generation, size, begun, served, received,
            matched, service_thread, caller_thread, peer, age, expected, again,
        ) in rows(array(self.native, "ls_calls", CALL), *columns):  # fmt: skip
            calls.append(
                Call(
                    op, _STATES[state], self.text(stage), _known(type_), _known(service), _known(caller), generation, _known(size),
                    begun, served, received, matched, _known(service_thread), _known(caller_thread), _known(peer),
                    age, expected or None, again,
                )
            )  # fmt: skip
        return sorted(calls, key=lambda c: c.begun or c.served or c.received or c.matched or _NOWHERE)

    def fds(self) -> list[FdExchange]:
        fds = [
            FdExchange(
                f.op, _maybe(f.asked), _maybe(f.received), _maybe(f.answered), _maybe(f.done),
                _known(f.client), _known(f.server), _known(f.rank), _known(f.peer), _known(f.fd), f.age,
                f.wanted or None, f.read or None, f.sent or None, _maybe(f.returned),
            )
            for f in self.rows("ls_fds")
        ]  # fmt: skip
        return sorted(fds, key=lambda f: f.asked or f.received or f.answered or f.done or _NOWHERE)

    def instances(self) -> list[CommInstance]:
        found = array(self.native, "ls_instances", INSTANCE)
        columns = (
            "proc", "comm", "rank", "nranks", "group", "commid", "has_commid", "guessed", "dev",
            "start", "complete", "end", "ops", "sends", "recvs", "last_op",
        )  # fmt: skip
        return [
            CommInstance(
                i, proc, comm, rank, nranks, group, commid if has_commid else None, bool(guessed), None if dev == -1 else dev, bus,
                start, complete, end, ops, sends, recvs, last_op,
            )
            for i, ((
                proc, comm, rank, nranks, group, commid, has_commid, guessed, dev,
                start, complete, end, ops, sends, recvs, last_op,
            ), bus) in enumerate(zip(rows(found, *columns), self.texts_of(found["bus"]), strict=True))
        ]  # fmt: skip

    def groups(self, instances: Sequence[CommInstance]) -> list[SeqGroup]:
        colls = [self.text(packed) or "" for packed in self.rows("ls_colls")]
        members: dict[int, list[SeqRank]] = defaultdict(list)
        ops: dict[tuple[int, ...], Mapping[str, Value]] = {}  # the ranks called the same
        found = array(self.native, "ls_instances", INSTANCE)
        columns = ("last_coll_ref", *(f"last_{of}" for of in ("coll", "opcount", "count", "datatype", "redop", "root")))
        for instance, (last, *op) in zip(instances, rows(found, *columns), strict=True):
            collectives = instance.ops - instance.sends - instance.recvs
            fields = ops.get(key := tuple(op)) if last is not None else None
            if last is not None and fields is None:
                fields = ops[key] = _op(colls, *op)
            members[instance.group].append(SeqRank(instance.index, instance.rank, collectives, last, fields))
        first: dict[int, list[Any]] = defaultdict(list)
        for d in self.rows("ls_divergents"):
            first[d.group].append(d)
        out = []
        for i, g in enumerate(self.rows("ls_groups")):
            divergence = None
            if first[i]:
                at = first[i]
                divergence = SeqDivergence(
                    i,
                    at[0].index,
                    tuple(instances[d.instance].rank for d in at),
                    tuple(_ref(d.ref) for d in at),
                    tuple(_op(colls, d.coll, d.opcount, d.count, d.datatype, d.redop, d.root) for d in at),
                )
            commid = g.commid if g.has_commid else None
            out.append(SeqGroup(i, commid, g.nranks, g.matched, tuple(members[i]), divergence))
        return out

    def pairs(self) -> list[PairQueue]:
        refs, _ = table(self.native, "ls_pair_refs")
        out = []
        for p in self.rows("ls_pairs"):
            middle, end = p.first_ref + p.kept_sends, p.first_ref + p.kept_sends + p.kept_recvs
            mismatch = None
            if p.mismatch:
                mismatch = (_ref(p.mismatch_send), _ref(p.mismatch_recv), p.mismatch_send_bytes, p.mismatch_recv_bytes)
            retyped = None
            if p.retyped:
                retyped = (_ref(p.retyped_send), _ref(p.retyped_recv), p.retyped_send_type, p.retyped_recv_type)
            out.append(
                PairQueue(
                    p.group, p.src, p.dst, p.matched,
                    tuple(_ref(refs[i]) for i in range(p.first_ref, middle)),
                    tuple(_ref(refs[i]) for i in range(middle, end)),
                    p.pending_sends, p.pending_recvs, mismatch, retyped,
                )
            )  # fmt: skip
        return out

    def ledger(self) -> list[LedgerEntry]:
        out = []
        for e in self.rows("ls_ledger"):
            key: tuple[Value, ...] = tuple(
                (self.text(e.key[i]) or "") if e.key_is_text >> i & 1 else int(e.key[i]) for i in range(e.nkeys)
            )
            out.append(
                LedgerEntry(
                    self.catalogue.ledgers[e.ledger], key, e.proc, e.opens, e.closes, e.imports,
                    _maybe(e.opened), _maybe(e.closed), _maybe(e.imported), _known(e.importer),
                )
            )  # fmt: skip
        return sorted(out, key=lambda e: e.opened or e.imported or e.closed or _NOWHERE)

    def services(self) -> list[ServiceTally]:
        setups: dict[int, dict[tuple[str, int], Ref]] = defaultdict(dict)
        tallies = array(self.native, "ls_tallies", TALLY)
        opening, serving, answering = (tallies[tallies["served"] == kind] for kind in range(3))
        ways = self.texts_of(answering["dir"])
        for (service, type_, first), way in zip(rows(answering, "service", "type", "first"), ways, strict=True):
            setups[service][way or "", type_] = first
        services = array(self.native, "ls_services", SERVICE)
        opened = _alike(
            opening,
            len(services),
            ("dir", "transport", "rank", "count"),
            lambda found: {(self.text(way) or "", transport, rank): n for way, transport, rank, n in found},
        )
        served = _alike(serving, len(services), ("type", "count"), lambda found: {row[0]: row[1] for row in found})
        out = []
        columns = (
            "proc", "thread", "last_opened", "opened_transport", "opened_rank", "last_served", "served_type",
            "last_begun", "begun_res", "begun", "gaps",
        )  # fmt: skip
        ways, operations = self.texts_of(services["opened_dir"]), self.texts_of(services["begun_operation"])
        for i, (
            (proc, thread, was_opened, transport, rank, was_served, type_, was_begun, res, begun, gaps), way, operation,
        ) in enumerate(zip(rows(services, *columns), ways, operations, strict=True)):  # fmt: skip
            out.append(
                ServiceTally(
                    proc=proc,
                    thread=thread,
                    opened=opened[i],
                    served=served[i],
                    last_opened=was_opened,
                    opened_as=(way or "", transport, rank) if was_opened else None,
                    last_served=was_served,
                    served_type=type_ if was_served else None,
                    last_begun=was_begun,
                    begun_operation=operation or "" if was_begun else None,
                    begun_res=res if was_begun else None,
                    setups=setups.get(i, _NOTHING),
                    begun=begun,
                    gaps=gaps,
                )
            )
        return out

    def sums(self) -> Totals:
        t = self.totals
        sums = {
            name: (s.opens, s.closes, s.imports)
            for name, s in zip(self.catalogue.ledgers, self.rows("ls_ledger_totals"), strict=False)
            if s.opens or s.closes or s.imports
        }
        return Totals(
            lines=t.lines, bytes=t.bytes, matched=t.matched, unmatched=t.unmatched, other=t.other, torn=t.torn, glued=t.glued, blank=t.blank,
            homeless=t.dropped_lines,
            calls_matched=t.calls_matched, fds_matched=t.fds_matched, seq_matched=t.seq_matched, pairs_matched=t.pairs_matched,
            max_call_age=t.max_call_age, max_fd_age=t.max_fd_age, ledgers=sums,
        )  # fmt: skip

    def losses(self) -> list[str]:
        t, out = self.totals, []
        if t.cut:
            out.append(f"{counted(t.cut, 'line')} longer than 1 MiB {plural(t.cut, 'was', 'were')} cut")
        if t.dropped_events:
            out.append(f"{t.dropped_events} lines of messages with too many sightings were counted and not kept")
        if t.dropped_items:
            out.append(f"{t.dropped_items} entries beyond the bounds of a tracker were counted and not followed")
        if t.dropped_lines:
            out.append(
                f"{counted(t.dropped_lines, 'line')} of processes beyond the first {len(self.rows('ls_processes')):,} "
                f"{plural(t.dropped_lines, 'was', 'were')} read without {plural(t.dropped_lines, 'its', 'their')} process"
            )
        return out


def _alike(
    tallies: npt.NDArray[Any], services: int, columns: Sequence[str], make: Callable[[list[list[int]]], _T]
) -> list[_T]:
    """What ``make`` makes of the tallies of each service. Thousands of ranks open the same connections and share one object."""
    ours = tallies[np.argsort(tallies["service"], kind="stable")]
    starts = np.searchsorted(ours["service"], np.arange(services + 1)).tolist()
    packed = np.column_stack([ours[name].astype(np.int64) for name in columns])
    known: dict[bytes, _T] = {}
    out = []
    for start, end in itertools.pairwise(starts):
        key = packed[start:end].tobytes()
        if key not in known:
            known[key] = make(packed[start:end].tolist())
        out.append(known[key])
    return out


def _op(
    colls: Sequence[str], coll: int, opcount: int, count: int, datatype: int, redop: int, root: int
) -> Mapping[str, Value]:
    name = colls[coll] if coll < len(colls) else ""
    known: dict[str, Value] = {
        "coll": name,
        "opcount": opcount,
        "count": count,
        "datatype": datatype,
        "op": redop,
        "root": root,
    }
    return {key: value for key, value in known.items() if value != -1}


def _known(value: int) -> int | None:
    return None if value == -1 else value


def _ref(ref: Any) -> Ref:
    return Ref(ref.file, ref.line, ref.offset, ref.seq)


def _maybe(ref: Any) -> Ref | None:
    return _ref(ref) if ref.line else None
