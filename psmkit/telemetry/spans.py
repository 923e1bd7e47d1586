"""Single operations as OpenTelemetry spans. Imports the SDK: load it late.

A trace is one operation of a communicator on all its ranks. Its id is derived from the communicator's hash and the operation's sequence
number, and so are the ids of its proxy operations, so an exporter of the other end, also on another host, makes the same ids. Sends and
receives have no sequence number that both ends know: their traces cover one rank, and their ends are matched if both are visible here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from psmkit.model.arrays.whole import np
from psmkit.telemetry.kinds import EVENT_TYPES, OWN_ROWS, TIME
from psmkit.telemetry.layout import (
    ALGORITHMS,
    API,
    CE,
    COLL,
    DATATYPES,
    FUNCTIONS,
    KERNEL,
    KERNEL_PHASE,
    NAMES,
    NET,
    OWN,
    P2P,
    PROTOCOLS,
    PROXY_CTRL,
    PROXY_OP,
    PROXY_STEP,
    phase_name,
    user_tag,
)
from psmkit.telemetry.otlp import SCOPE
from psmkit.telemetry.take import Take, text, word
from psmkit.telemetry.totals import operation_key

__all__ = ["Exemplars", "Spans", "build"]

_GROUP, _COLL, _P2P, _OP, _STEP, _CTRL, _KERNEL, _NET, _CE_COLL, _PHASE = 0, 1, 2, 3, 4, 5, 6, 7, 12, 15
_CE_SYNC, _CE_BATCH = 13, 14
_OPERATIONS = (_COLL, _P2P, _CE_COLL)
_FOREIGN, _SENDS = 2, 4
_WHY = {1: "slowest", 2: "open", 3: "sampled", 4: "incomplete"}
_FIRST = (2, 4, 1, 3, 0)  # the order of these reasons when the budget is short
_MEMBERS = {
    _COLL: COLL, _P2P: P2P, _OP: PROXY_OP, _STEP: PROXY_STEP, _CTRL: PROXY_CTRL, _KERNEL: KERNEL, _NET: NET, 0: API, 8: API, 9: API,
    10: API, 11: API, 12: CE, 13: CE, 14: CE, _PHASE: KERNEL_PHASE, **OWN,
}  # fmt: skip
_STATES = (("gpu_ns", "gpu wait"), ("peer_ns", "peer wait"), ("net_ns", "network wait"), ("flush_ns", "flush wait"))


Exemplars = dict[tuple[str, tuple[str, ...]], list[Exemplar]]
_EXEMPLARS = 4  # exemplars per series


@dataclass(slots=True)
class Spans:
    """The spans of a take. ``dropped`` counts rows beyond the budget. ``exemplars`` of durations lead from
    a series, by metric and attributes, to traces."""

    spans: list[ReadableSpan] = field(default_factory=list)
    dropped: int = 0
    exemplars: Exemplars = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Row:
    index: int
    row: Any
    event: Any
    type: int
    member: Any
    comm: Any
    children: list[_Row] = field(default_factory=list)
    parent: _Row | None = None


def build(take: Take, of: Resource, budget: int) -> Spans:
    """The spans of the kept operations, at most ``budget``: whole operations, open or incomplete ones first, then the slowest."""
    out = Spans()
    rows = _rows(take)
    trees: dict[int, list[_Row]] = {}
    for row in rows:
        trees.setdefault(int(row.row["root"]), []).append(row)

    def rank(tree: list[_Row]) -> tuple[int, int]:
        why = min((_FIRST.index(w) if (w := int(r.row["why"])) in _FIRST else len(_FIRST)) for r in tree)
        return why, -_length(tree[0])

    kept: list[list[_Row]] = []
    room = budget
    for tree in sorted(trees.values(), key=rank):
        if len(tree) <= room:
            kept.append(tree)
            room -= len(tree)
        else:
            out.dropped += len(tree)
    maker = _Maker(take, of)
    for tree in kept:
        maker.plan(tree)
    maker.match()
    for tree in kept:
        out.spans += maker.make(tree)
    # A group is part of the trace of each of its operations, so there may be more spans than rows.
    if len(out.spans) > budget:
        out.dropped += len(out.spans) - budget
        del out.spans[budget:]
    for tree in kept:
        for metric, values, exemplar in maker.exemplars(tree):
            there = out.exemplars.setdefault((metric, values), [])
            if len(there) < _EXEMPLARS:
                there.append(exemplar)
    return out


def _length(row: _Row) -> int:
    return max(0, int(row.row["end_ns"]) - int(row.row["begin_ns"]))


def _rows(take: Take) -> list[_Row]:
    spans = take.spans
    comms = {int(c["id"]): c for c in take.comms}
    members: dict[int, Any] = {}
    raw = np.ascontiguousarray(spans["event"]["u"]).reshape(len(spans), 80) if len(spans) else spans
    out = []
    for index, row in enumerate(spans):
        kind = int(row["event"]["type"])
        comm = comms.get(int(row["comm"]))
        if kind not in _MEMBERS or comm is None:
            continue
        if kind not in members:
            members[kind] = raw.view(_MEMBERS[kind]).reshape(len(spans))
        out.append(_Row(index, row, row["event"], kind, members[kind][index], comm))
    return out


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest()


def _trace_id(*parts: object) -> int:
    return int.from_bytes(_digest("trace", *parts), "big") or 1


def _span_id(*parts: object) -> int:
    return int.from_bytes(_digest("span", *parts)[:8], "big") or 1


class _Maker:
    def __init__(self, take: Take, of: Resource) -> None:
        self._take = take
        self._resource = of
        self._offsets = {int(o["comm"]): int(o["offset"]) for o in take.offsets}
        self._by_handle: dict[tuple[int, int], _Row] = {}  # (pid, handle) -> row
        self._peers: dict[int, _Row] = {}  # index of a p2p's proxy operation -> the other end
        self._ops: list[_Row] = []  # proxy operations of sends and receives
        self._nth: dict[
            int, int
        ] = {}  # index of a proxy operation -> its number among those with the same ends and channel

    # ---- first: relations between rows ----

    def plan(self, tree: list[_Row]) -> None:
        by_handle = {int(r.row["handle"]): r for r in tree}
        for row in tree:
            self._by_handle[int(row.comm["pid"]), int(row.row["handle"])] = row
            if not int(row.event["flags"]) & _FOREIGN:
                parent = by_handle.get(int(row.event["parent"]))
                if parent is not None and parent is not row:
                    row.parent = parent
                    parent.children.append(row)
        seen: dict[tuple[int, ...], int] = {}
        for row in sorted((r for r in tree if r.type == _OP), key=lambda r: int(r.row["start_ns"])):
            operation = _operation(row)
            if operation is not None and operation.type == _P2P:
                self._ops.append(row)
            sends = int(row.event["flags"]) & _SENDS
            key = (operation.index if operation else -1, int(row.member["peer"]), int(row.member["channel"]), sends)
            self._nth[row.index] = seen[key] = seen.get(key, -1) + 1

    def match(self) -> None:
        """Pair the ends of sends and receives that are both visible here: same communicator, channel and bytes, and the longest overlap."""
        sends: list[_Row] = []
        receives: list[_Row] = []
        for op in self._ops:
            (sends if int(op.event["flags"]) & _SENDS else receives).append(op)
        found = []
        for s in sends:
            for r in receives:
                if (
                    s.comm["comm_hash"] == r.comm["comm_hash"]
                    and s.member["channel"] == r.member["channel"]
                    and s.member["bytes"] == r.member["bytes"]
                    and s.member["peer"] == r.comm["rank"]
                    and r.member["peer"] == s.comm["rank"]
                ):
                    common = min(self._end(s), self._end(r)) - max(self._begin(s), self._begin(r))
                    if common > 0:
                        found.append((common, s, r))
        for _, s, r in sorted(found, key=lambda f: -f[0]):
            if s.index not in self._peers and r.index not in self._peers:
                self._peers[s.index], self._peers[r.index] = r, s

    # ---- times and ids ----

    def _epoch(self, row: _Row, clock_ns: int) -> int:
        offset = self._offsets.get(int(row.row["comm"]), self._take.wall_ns - self._take.clock_ns)
        return max(0, clock_ns + offset)

    def _begin(self, row: _Row) -> int:
        return self._epoch(row, int(row.row["begin_ns"]))

    def _end(self, row: _Row) -> int:
        end = int(row.row["end_ns"])
        # An open event ends, for the trace, at the time it was last seen.
        return max(self._begin(row), self._epoch(row, end) if end else self._take.wall_ns)

    def _trace(self, operation: _Row | None, row: _Row) -> int:
        if operation is None:
            return _trace_id(*self._place(row))
        if operation.type == _P2P:
            return _trace_id(*self._place(operation))
        kind = "ce" if operation.type == _CE_COLL else "coll"
        return _trace_id(int(operation.comm["comm_hash"]), kind, int(operation.member["seq"]))

    @staticmethod
    def _place(row: _Row) -> tuple[int, ...]:
        comm = row.comm
        return (
            int(comm["comm_hash"]),
            int(comm["rank"]),
            int(comm["pid"]),
            int(row.row["handle"]),
            int(row.row["start_ns"]),
        )

    def _span(self, row: _Row, operation: _Row | None, trace: int) -> int:
        if row.type == _OP and operation is not None and operation.type != _P2P:
            return self._op_span(operation, int(row.comm["rank"]), int(row.member["peer"]), row)
        return _span_id(*self._place(row), trace)

    def _op_span(self, operation: _Row, rank: int, peer: int, row: _Row, *, other: bool = False) -> int:
        sends, nth = bool(int(row.event["flags"]) & _SENDS) != other, self._nth[row.index]
        return _span_id(
            int(operation.comm["comm_hash"]),
            int(operation.member["seq"]),
            rank,
            peer,
            int(row.member["channel"]),
            sends,
            nth,
        )

    @staticmethod
    def _context(trace: int, span: int, *, remote: bool = False) -> SpanContext:
        return SpanContext(trace, span, remote, TraceFlags(TraceFlags.SAMPLED))

    # ---- spans ----

    def make(self, tree: list[_Row]) -> list[ReadableSpan]:
        """One trace for each operation of a tree, including the operation's ancestors."""
        out: list[ReadableSpan] = []
        operations = [r for r in tree if r.type in _OPERATIONS and _operation(r, above=True) is None]
        operation: _Row | None
        above: set[int] = set()
        below: set[int] = set()
        for operation in operations:
            trace = self._trace(operation, operation)
            chain = []
            row = operation.parent
            while row is not None and row not in chain:
                chain.append(row)
                above.add(row.index)
                row = row.parent
            for row in reversed(chain):
                out.append(self._make(row, operation, trace, len(operations)))
            for row in _below(operation):
                below.add(row.index)
                out.append(self._make(row, operation, trace))
        for row in tree:
            if row.index not in above and row.index not in below:
                top = _top(row)
                other = self._foreign(top)
                operation = _operation(row) or (_operation(other) if other is not None else None)
                out.append(self._make(row, operation, self._trace(operation, top)))
        return out

    def exemplars(self, tree: list[_Row]) -> Iterator[tuple[str, tuple[str, ...], Exemplar]]:
        """The completed operations of a tree, with their durations as in the metrics."""
        for row in tree:
            if row.type not in _OPERATIONS or not _ended(row):
                continue
            key = (f"{int(row.comm['comm_hash']):016x}", str(int(row.comm["rank"])))
            names = row.member.dtype.names
            more = {name: int(row.member[name]) for name in ("algo", "proto", "peer") if name in names}
            of, values = operation_key(key, row.type, int(row.member["func"]), int(row.member["datatype"]), **more)
            trace = self._trace(row, row)
            seconds = (self._end(row) - self._begin(row)) / 1e9
            span = self._span(row, row, trace)
            yield f"{of}.duration", values, Exemplar({}, seconds, self._end(row), span, trace)

    def _foreign(self, row: _Row) -> _Row | None:
        """The other process's operation that a proxy operation serves (PXN), if it is visible here."""
        if row.type == _OP and int(row.event["flags"]) & _FOREIGN:
            return self._by_handle.get((int(row.member["pid"]), int(row.event["parent"])))
        return None

    def _make(self, row: _Row, operation: _Row | None, trace: int, together: int = 0) -> ReadableSpan:
        parent = row.parent if row.parent is not None else self._foreign(row)
        ended = _ended(row)
        status = Status() if ended else Status(StatusCode.ERROR, "not ended when last seen")
        attributes = self._attributes(row)
        if together > 1:
            attributes["nccl.group.operations"] = together
        if why := _WHY.get(int(row.row["why"])):
            attributes["psmkit.sampled"] = why
        if not ended:
            attributes["psmkit.incomplete"] = True
        return ReadableSpan(
            name=_name(row),
            context=self._context(trace, self._span(row, operation, trace)),
            parent=self._context(trace, self._span(parent, operation, trace)) if parent is not None else None,
            resource=self._resource,
            attributes=attributes,
            events=self._events(row),
            links=self._links(row, operation, trace),
            kind=_kind(row),
            status=status,
            start_time=self._begin(row),
            end_time=self._end(row),
            instrumentation_scope=SCOPE,
        )

    def _links(self, row: _Row, operation: _Row | None, trace: int) -> Sequence[Link]:
        if row.type != _OP or operation is None:
            return ()
        side = "receive" if int(row.event["flags"]) & _SENDS else "send"
        about: dict[str, Any] = {"psmkit.end": side, "nccl.rank": int(row.member["peer"])}
        if operation.type != _P2P:
            if row.member["peer"] < 0:
                return ()
            span = self._op_span(operation, int(row.member["peer"]), int(row.comm["rank"]), row, other=True)
            return (Link(self._context(trace, span, remote=True), about),)
        other = self._peers.get(row.index)
        if other is None:
            return ()
        their = _operation(other)
        their_trace = self._trace(their, other)
        return (Link(self._context(their_trace, self._span(other, their, their_trace), remote=True), about),)

    def _events(self, row: _Row) -> list[Event]:
        out: list[tuple[int, str]] = []
        u = row.member
        if row.type == _STEP:
            out += [(int(u[column]), name) for column, name in _STATES]
        elif row.type in (_COLL, _P2P):
            out.append((int(row.event["stop_ns"]), "enqueued"))
        elif row.type == _OP:
            out.append((int(u["progress_ns"]), "in progress"))
        elif row.type == _CTRL:
            out += [(int(u["idle_ns"]), "idle"), (int(u["sleep_ns"]), "sleep"), (int(u["append_ns"]), "append")]
        elif row.type == 8:
            out += [(int(u["mark1_ns"]), "group start returned"), (int(u["mark2_ns"]), "group end called")]
        elif row.type in (_CE_COLL, _CE_SYNC, _CE_BATCH):
            out += [(int(u["begin_ns"]), "copies begun"), (int(u["end_ns"]), "copies done")]
        elif row.type in OWN_ROWS:
            own = [name for name, kind in OWN_ROWS[row.type] if kind == TIME]
            out += [(int(u[name]), name.removesuffix("_ns").replace("_", " ")) for name in own]
        return [Event(name, timestamp=self._epoch(row, at)) for at, name in sorted(out) if at]

    def _attributes(self, row: _Row) -> dict[str, Any]:
        comm, u = row.comm, row.member
        out: dict[str, Any] = {
            "nccl.event": word(EVENT_TYPES, row.type),
            "nccl.comm.hash": f"{int(comm['comm_hash']):016x}",
            "nccl.rank": int(comm["rank"]),
            "nccl.comm.ranks": int(comm["nranks"]),
            "process.pid": int(comm["pid"]),
            "thread.id": int(row.row["tid"]),
        }
        if name := text(comm["name"]):
            out["nccl.comm.name"] = name
        if row.type in (_COLL, _P2P, 8, 9, 10, 11, 12):
            out["nccl.count"] = int(u["count"])
            out["nccl.datatype"] = word(DATATYPES, int(u["datatype"]))
        if row.type in (_COLL, _P2P, 12):
            out["nccl.operation"] = word(FUNCTIONS, int(u["func"]))
        if row.type in (_COLL, 12):
            out["nccl.sequence"] = int(u["seq"])
            out["nccl.root"] = int(u["root"])
        if row.type == _COLL:
            out["nccl.algorithm"] = word(ALGORITHMS, int(u["algo"]))
            out["nccl.protocol"] = word(PROTOCOLS, int(u["proto"]))
        tag, reserved = user_tag(row.event)
        if tag:
            out["nccl.user_tag"] = tag
        if reserved:
            out["nccl.user_tag.reserved_bit"] = True
        if row.type in (_COLL, _P2P):
            out["nccl.channels"] = int(u["channels"])
        if row.type == _CE_SYNC:
            out["nccl.copy_engine.flag"] = "complete" if u["complete"] else "ready"
        elif row.type == _CE_BATCH:
            out["nccl.copy_engine.copies"] = int(u["ops"])
            out["nccl.size"] = int(u["bytes"])
        for name in ("send_buff", "recv_buff", "buff"):
            if name in u.dtype.names and u[name]:
                out[f"nccl.{name}"] = f"{int(u[name]):#x}"
        if row.type in (_P2P, _OP, _STEP):
            out["nccl.peer"] = int(u["peer"])
        if row.type in (_OP, _STEP):
            out["nccl.channel"] = int(u["channel"])
            out["nccl.direction"] = "send" if int(row.event["flags"]) & _SENDS else "receive"
            out["nccl.size"] = int(u["bytes"])
        if row.type == _OP:
            out |= {"nccl.steps": int(u["steps"]), "nccl.steps.ended": int(u["steps_ended"])}
            for name, spent in zip(("gpu", "peer", "network", "flush"), u["wait_ns"].tolist(), strict=True):
                if spent:
                    out[f"nccl.wait.{name}"] = spent / 1e9
        elif row.type == _STEP:
            out["nccl.step"] = int(u["step"])
        elif row.type in (_KERNEL, _PHASE):
            out["nccl.channel"] = int(u["channel"])
            if row.type == _PHASE:
                out["nccl.kernel.phase"] = phase_name(u)
            if u["gpu_end_ns"]:
                out["nccl.kernel.gpu_time"] = (int(u["gpu_end_ns"]) - int(u["gpu_begin_ns"])) / 1e9
        elif row.type == _NET:
            out["nccl.network.event"] = f"{int(u['id']) & 0xFFFFFFFFFFFFFFFF:#x}"
        return out | _own_attributes(row)


def _own_attributes(row: _Row) -> dict[str, Any]:
    """What a row keeps whose kind only the facts describe: ``nccl.KIND.MEMBER``."""
    out: dict[str, Any] = {}
    for name, kind in OWN_ROWS.get(row.type, ()):
        value = int(row.member[name])
        if kind != TIME:
            out[f"nccl.{EVENT_TYPES[row.type]}.{name}"] = word(NAMES[kind], value) if kind in NAMES else value
    return out


def _ended(row: _Row) -> bool:
    """Whether its end is known."""
    return bool(row.row["end_ns"])


def _operation(row: _Row, *, above: bool = False) -> _Row | None:
    """The collective, send or receive that a row belongs to; ``above``: an ancestor of it."""
    found = row.parent if above else row
    for _ in range(32):
        if found is None or found.type in _OPERATIONS:
            return found
        found = found.parent
    return None


def _top(row: _Row) -> _Row:
    for _ in range(32):
        if row.parent is None:
            break
        row = row.parent
    return row


def _below(row: _Row) -> list[_Row]:
    out: dict[int, _Row] = {}
    todo = [row]
    while todo:
        found = todo.pop()
        if found.index not in out:
            out[found.index] = found
            todo += reversed(found.children)
    return list(out.values())


def _name(row: _Row) -> str:
    u = row.member
    if row.type in (_COLL, _P2P, 12):
        name = word(FUNCTIONS, int(u["func"]), "operation")
        return f"{name} with copy engines" if row.type == 12 else name
    if row.type in (_OP, _STEP):
        side = "send" if int(row.event["flags"]) & _SENDS else "receive"
        return f"proxy {side}" if row.type == _OP else f"{side} step"
    if row.type in (9, 10) and u["func"] < len(FUNCTIONS):
        return f"nccl{FUNCTIONS[int(u['func'])]}"
    if row.type == _PHASE:
        return f"kernel {phase_name(u).replace('_', ' ')}"
    return str(word(EVENT_TYPES, row.type)).replace("_", " ")


def _kind(row: _Row) -> SpanKind:
    if row.type == _OP:
        return SpanKind.PRODUCER if int(row.event["flags"]) & _SENDS else SpanKind.CONSUMER
    return SpanKind.INTERNAL
