"""The tables of a query: columns with types, units and meanings, and which fields of log lines fill them. All else is made from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psmkit.catalogue import Message

__all__ = ["EVENT_FIELDS", "TABLES", "Column", "Field", "Table"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is as in Arrow, with ``[]`` for a list; ``word`` is a string from a dictionary. ``null`` says when it is NULL; empty: never."""

    name: str
    type: str
    meaning: str
    null: str = ""

    @property
    def sql(self) -> str:
        """The type in SQL."""
        kind, of, _ = self.type.partition("[")
        return _SQL[kind] + ("[]" if of else "")


_SQL = {
    "string": "VARCHAR",
    "word": "VARCHAR",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is, and its columns."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


@dataclass(frozen=True, slots=True)
class Field:
    """Which fields of a line fill a column of ``events``.

    ``form`` is ``int``, ``hex`` or ``word``. A field counts in messages of ``subsystems``, if there are some, and if a pattern has ``beside`` in it.
    """

    form: str
    names: tuple[str, ...]
    subsystems: frozenset[str] = frozenset()
    beside: str = ""

    def of(self, message: Message, fields: Sequence[tuple[str, int]]) -> int:
        """The place of the field among those of a message, -1 if it has none."""
        if self.subsystems and message.subsystem not in self.subsystems:
            return -1
        if self.beside and not any(self.beside in pattern for pattern in message.patterns):
            return -1
        wanted = _KINDS[self.form]
        return next((at for at, (name, kind) in enumerate(fields) if name in self.names and kind in wanted), -1)


# The kinds of fields as the scanner numbers them: unsigned, signed, hex, pointer; address, word, text, rest of a line.
_KINDS: Mapping[str, frozenset[int]] = {
    "int": frozenset({1, 2, 3}),
    "hex": frozenset({3, 4}),
    "word": frozenset({6, 7, 8, 9}),
}
#: Parts of the catalogue in which a size is always in bytes.
_SIZED = frozenset({"libpsm", "memory", "misc", "net", "psm", "psmkit", "register"})

#: The columns of ``events`` that hold fields of the lines. The first of several that a message has counts.
EVENT_FIELDS: Mapping[str, tuple[Field, ...]] = {
    "coll": (Field("word", ("coll",), frozenset({"coll"})),),  # elsewhere it speaks of CollNet
    "comm": (Field("hex", ("comm",)),),
    "commid": (Field("hex", ("commid", "comm_id")),),
    "peer": (Field("int", ("peer",)),),
    "channel": (Field("int", ("channel",)),),
    "opid": (Field("hex", ("op",), beside="opId"),),
    "opcount": (Field("int", ("opcount", "op_count")),),
    "count": (Field("int", ("count",), frozenset({"coll"})),),
    "datatype": (Field("int", ("datatype",)),),
    "bytes": (
        Field("int", ("bytes", "nbytes")),
        Field("int", ("resp_size",), frozenset({"proxy"})),
        Field("int", ("size",), _SIZED),
    ),
}

_UNSAID = "the line does not say"
_NOT_KNOWN = "no line shows it"


def _place(prefix: str, what: str, null: str, kind: str = "word") -> tuple[Column, Column]:
    return (
        Column(f"{prefix}file", kind, f"file of {what}", null),
        Column(f"{prefix}line", "int64", f"line of {what}, from 1", null),
    )


_RUN = Column("run", "int32", "run, as in `runs`", "it belongs to no run")
_PROCESS = Column("process", "int32", "process, as in `processes`", "the line has no prefix of NCCL")
_RANK = Column("rank", "int32", "global rank, as in the table of ranks of `psmkit analyze`", _NOT_KNOWN)

EVENTS = Table(
    "events",
    "a line that the catalogue knows, in the order of reading; and each warning that it does not know (`unmatched.warn`)",
    (
        *_place("", "the line", ""),
        Column("byte_offset", "int64", "bytes before the line in its file, unpacked"),
        _RUN,
        _RANK,
        _PROCESS,
        Column("host", "word", "host, as printed", _PROCESS.null),
        Column("pid", "int64", "process id", _PROCESS.null),
        Column("tid", "int64", "thread id", _PROCESS.null),
        Column("device", "int32", "CUDA device of the thread, as printed", _UNSAID),
        Column("time", "string", "time stamp, as printed", "the line has none"),
        Column("seconds", "double", "time stamp in seconds: since 1970 with a date, else since midnight; without time zone", "there is none, or it names a time zone"),
        Column("level", "word", "level of NCCL: `INFO`, `WARN`, ...; `NONE` for a line of another program"),
        Column("subsystem", "word", "part of the catalogue that knows the line ([catalogue.md](catalogue.md))"),
        Column("kind", "word", "name of the message in the catalogue: `psmkit explain KIND` says what it means"),
        Column("source", "string", "where NCCL's code printed it, as `file.cc:123`", "only warnings say it"),
        Column("coll", "string", "collective or operation, such as `AllReduce`", _UNSAID),
        Column("comm", "string", "address of the communicator in its process, in hex", _UNSAID),
        Column("commid", "string", "commId, in hex", _UNSAID),
        Column("peer", "int64", "the peer that the line names: a rank of the communicator, or a local rank, as the message says", _UNSAID),
        Column("channel", "int64", "channel", _UNSAID),
        Column("opid", "string", "opId of a proxy call or an fd exchange, in hex", _UNSAID),
        Column("opcount", "int64", "opCount", _UNSAID),
        Column("count", "int64", "elements of a collective", _UNSAID),
        Column("datatype", "int64", "`ncclDataType_t`: 0 int8, 1 uint8, 2 int32, 3 uint32, 4 int64, 5 uint64, 6 half, 7 float, 8 double, 9 bfloat16, 10 and 11 float8", _UNSAID),
        Column("bytes", "int64", "bytes that the line is about: a buffer, a collective, the answer of a proxy call", _UNSAID),
        Column("text", "string", "the message: the line without what stands before it; of a line of another program the part that the catalogue knows"),
    ),
)  # fmt: skip

MATCHES = Table(
    "matches",
    "a proxy call or an fd exchange, complete or not",
    (
        Column("what", "word", "`call` or `fd`"),
        _RUN,
        Column("rank", "int32", "global rank of the caller", _NOT_KNOWN),
        Column("process", "int32", "the calling process", _NOT_KNOWN),
        Column("peer", "int32", "global rank of the process that serves", _NOT_KNOWN),
        Column("peer_process", "int32", "the serving process", _NOT_KNOWN),
        Column("opid", "string", "opId, in hex", "of a call that no line answers"),
        Column("generation", "int32", "counts the calls of the caller with this opId, from 1"),
        Column("type", "word", "`Init`, `Setup`, `Connect`, ...; `GetFd`", "its number has no name"),
        Column("stage", "word", "how far it came: `begun`, `served`, `received`, `matched`; `asked`, `received`, `answered`, `done`"),
        Column("state", "word", "`matched`: done; `pending`: open, no answer; `orphan`: an answer without a request. As `matching` in the JSON report"),
        Column("bytes", "int64", "size of the answer", _UNSAID),
        *_place("asked_", "the request: the service took the call, the client asked for the fd", "no line shows it; a call that is served at once has none"),
        *_place("served_", "the service's answer", "no line shows it"),
        *_place("answered_", "the caller that has the answer", "it has none, or no line shows it"),
        Column("milliseconds", "double", "between the time stamps of its first and its last line", "it is not done, a line has no stamp, or they are of two clocks"),
    ),
)  # fmt: skip

FINDINGS = Table(
    "findings",
    "a finding, worst and surest first",
    (
        Column("finding", "int32", "number, from 0, as in the JSON report"),
        Column("code", "string", "code ([findings.md](findings.md))"),
        Column("severity", "string", "`error`, `warning` or `info`"),
        Column("title", "string", "one sentence"),
        Column(
            "role",
            "string",
            "`cause`, `same` (the same thing, seen by another rule) or `follows` (from a cause)",
            "a note",
        ),
        Column("cause", "int32", "number of the cause; its own number for a cause", "a note"),
        Column("confidence", "double", "0 to 1"),
        Column("run", "int32", "run, as in `runs`", "it belongs to no run"),
        Column("comm", "string", "communicator", "it is about none"),
        Column("ranks", "int32[]", "ranks of `comm`, without it global ranks"),
        Column("culprits", "int32[]", "those that caused it"),
        Column("suspects", "int32[]", "ranks to look at first: no line shows what they did"),
        Column("processes", "string[]", "processes as `host:pid`"),
        Column("stage", "string", "stage of the protocol", "it has none"),
        *_place("", "its first evidence", "there is none", "string"),
        Column("explanation", "string", "what happened"),
        Column("next_step", "string", "what to do"),
        Column("known_issue", "string", "a public issue with the same cause", "none is known"),
    ),
)

EVIDENCE = Table(
    "evidence",
    "a line that proves a finding",
    (
        Column("finding", "int32", "number in `findings`"),
        *_place("", "the line", "", "string"),
        Column("text", "string", "the whole line"),
    ),
)

CULPRITS = Table(
    "culprits",
    "a rank or process to blame",
    (
        Column("run", "int32", "run, as in `runs`"),
        Column("rank", "int32", "rank in `comm`", _NOT_KNOWN),
        Column("global_rank", "int32", "global rank", _NOT_KNOWN),
        Column("comm", "string", "communicator", _NOT_KNOWN),
        Column("host", "string", "host", _NOT_KNOWN),
        Column("pid", "int64", "process id", _NOT_KNOWN),
        Column("device", "int32", "device", _NOT_KNOWN),
        Column("stage", "string", "stage of the protocol that it reached", _NOT_KNOWN),
        Column("why", "string", "one sentence"),
        Column("rank_basis", "string", "evidence for the rank ([report-json.md](report-json.md#culprits))", "there is no rank"),
        Column("either", "bool", "one of two ends, and no line shows which"),
    ),
)  # fmt: skip

PROCESSES = Table(
    "processes",
    "a process that prints NCCL's lines",
    (
        Column("process", "int32", "number, from 0"),
        _RUN,
        Column("rank", "int32", "global rank", "no line shows it, or the process has several: see `ranks`"),
        Column("host", "string", "host, as printed"),
        Column("pid", "int64", "process id"),
        Column("incarnation", "int32", "counts the processes with this host and pid, from 0"),
        Column("device", "int32", "device", "no line shows it, or it has several"),
        Column("tag", "string", "what a launcher writes before its lines", "there is none"),
        Column("lines", "int64", "lines that it printed"),
        *_place("first_", "its first line", "", "string"),
        *_place("last_", "its last line", "", "string"),
    ),
)

RANKS = Table(
    "ranks",
    "a row of the table of ranks of `psmkit analyze`",
    (
        Column("run", "int32", "run, as in `runs`"),
        Column("rank", "int32", "global rank", _NOT_KNOWN),
        Column("host", "string", "host", _NOT_KNOWN),
        Column("pid", "int64", "process id", _NOT_KNOWN),
        Column("device", "int32", "device", "no line shows it, or it has several"),
        Column("stage", "string", "the last stage that it reached"),
        Column("state", "string", "`done`, `open`, `waiting`, `stuck`, ... ([runbook.md](runbook.md#then-the-verdict))"),
        Column("lines", "int64", "lines that it printed"),
        Column("last", "string", "its last line, as `file:line`", "it printed none"),
        Column("communicators", "string[]", "communicators"),
        Column("rank_basis", "string", "evidence for the rank ([report-json.md](report-json.md#culprits))", "there is none"),
        Column("rank_dispute", "string", "evidence that contradicts itself", "there is none"),
    ),
)  # fmt: skip

RUNS = Table(
    "runs",
    "a run of the job",
    (
        Column("run", "int32", "number, from 0, as in the JSON report"),
        Column("verdict", "string", "its verdict"),
        Column("reason", "string", "the verdict in one sentence"),
        Column("confidence", "double", "0 to 1"),
        Column("nranks", "int32", "ranks of its largest communicator", _NOT_KNOWN),
        Column("ranks_seen", "int32[]", "global ranks with a log"),
        Column("hosts", "string[]", "hosts"),
    ),
)

VERDICT = Table(
    "verdict",
    "the verdict: one row",
    (
        Column("verdict", "string", "`failed`, `hung`, `leaking`, `inconclusive` or `healthy`: the worst of the runs"),
        Column("reason", "string", "the verdict in one sentence"),
        Column("confidence", "double", "0 to 1"),
        Column("files", "int64", "files that psmkit read"),
        Column("bytes", "int64", "bytes in them"),
        Column("lines", "int64", "lines in them"),
        Column("matched", "int64", "lines that the catalogue knows"),
        Column("unmatched", "int64", "lines of NCCL that it does not know"),
        Column("other", "int64", "lines of other programs that it does not know"),
        Column("torn", "int64", "lines that end inside a known message"),
        Column("missing_ranks", "int32[]", "ranks without a log"),
        Column("missing_subsystems", "string[]", "subsystems of NCCL without a line"),
        Column("versions", "string[]", "versions of libraries"),
    ),
)

#: The tables by name.
TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (EVENTS, MATCHES, FINDINGS, EVIDENCE, CULPRITS, PROCESSES, RANKS, RUNS, VERDICT)
}  # fmt: skip
