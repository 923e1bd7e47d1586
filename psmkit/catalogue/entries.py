"""Entries of the catalogue: their fields, and the validation of TOML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from psmkit.catalogue import titles
from psmkit.model.codes import CODES
from psmkit.model.errors import CatalogueError
from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = [
    "DATA_END",
    "DATA_ROLES",
    "KEEPS",
    "LEVELS",
    "LEVEL_WORDS",
    "ROLES",
    "WHERES",
    "Message",
    "Phrase",
    "Sample",
    "Value",
    "read_file",
    "read_phrases",
]

Value = int | float | str

LEVELS = ("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE", "CALL", "ATTN", "DIAG")
#: How a line names its level behind ``NCCL``, as alternatives of a regular expression.
LEVEL_WORDS = "|".join(LEVELS[1:])
KEEPS = ("count", "distinct", "all", "latest")
WHERES = ("nccl", "line", "other")

# Fields that a message of this role must have; csrc/logscan/pattern.c lists the optional ones.
ROLES: Mapping[str, tuple[str, ...]] = {
    "rpc.served": ("op", "type"),
    "rpc.begun": ("operation", "res"),
    "rpc.received": ("op",),
    "rpc.matched": ("op",),
    "rpc.queued": ("op",),
    "rpc.dequeued": ("op",),
    "rpc.new_conn": ("dir", "local_rank", "transport"),
    "rpc.connected": ("peer", "conn"),
    "fd.asked": ("op",),
    "fd.received": ("op",),
    "fd.answered": ("op",),
    "fd.done": ("op",),
    "fd.returned": ("handle", "peer", "fd"),
    "comm.start": ("comm", "rank", "nranks"),
    "comm.complete": ("comm", "rank", "nranks"),
    "comm.end": ("comm",),
    "comm.named": ("comm", "rank"),
    "seq.op": ("coll", "count", "datatype", "comm"),
    "ledger.open": (),
    "ledger.import": (),
    "ledger.close": (),
    "data.progress": ("step",),
    "data.stream": ("stream",),
    "data.event": ("step",),
    "data.published": ("step",),
    "proc.birth": (),
}

# Fields that name the end of a connection that a line of a data path is about: it keeps the latest state of each end.
DATA_END = ("role", "comm", "rank", "peer", "channel", "conn_index", "connection", "pair")
DATA_ROLES = frozenset(role for role in ROLES if role.startswith("data."))
_SIDES = ("send", "recv")
_STATES = ("recorded", "done")

# Roles whose lines are events of interest themselves; lines of the other roles only feed their tracker.
_RETAINED = frozenset({"comm.start", "comm.complete", "comm.end", "comm.named", "proc.birth"})

_TEXT_KEYS = frozenset(
    "name pattern level where versions rccl vccl keep role ledger scope severity finding blames meaning next_step subsystem own_rank title".split()
)
_LIST_KEYS = frozenset("patterns distinct key known_issues repairs".split())
_KEYS = _TEXT_KEYS | _LIST_KEYS | {"confidence", "early", "order", "origin", "relays", "sample", "set"}


_MAPPED = "::ffff:"


@row(frozen=True, slots=True)
class Sample:
    """A line and the fields parsed from it. ``kind`` is ``real`` (then ``source`` names its origin) or ``constructed``."""

    text: str
    kind: str
    source: str | None = None
    fields: Mapping[str, Value] = field(default_factory=dict)


@row(frozen=True, slots=True)
class Message:
    """A log message: its patterns, who prints it, what it means, and what a scan does with it.

    ``patterns`` are spellings of one message with the same fields. ``where`` is ``nccl`` (the whole message after
    ``NCCL LEVEL``) or ``line`` (anywhere in a line without a NCCL prefix) or ``other`` (anywhere in a line that no other entry knows). ``keep`` is ``all``, ``distinct``,
    ``latest`` or ``count``. ``role`` names the tracker that it feeds. ``own_rank`` is the field with the rank of the process that prints the line, or
    of the process with the line's ``pid``. ``early`` lines show device 0, because no
    device is selected when they are written. ``repairs`` names messages about failures that this line ends.
    ``relays`` lines repeat the result of a call that failed before: another line says why.
    ``next_step`` can name fields of each pattern in braces; :meth:`advice` fills them in.
    ``constants`` are fields that each sighting has beside those of its text. ``file`` is its catalogue file.
    ``title`` is the headline of a line that says by itself who failed (see :mod:`psmkit.catalogue.titles`). With an ``order`` and a ``confidence``
    it counts only if nothing else explains the end of a run; the lowest order leads.
    """

    name: str
    subsystem: str
    patterns: tuple[str, ...]
    level: str = "INFO"
    where: str = "nccl"
    versions: str | None = None
    rccl: str | None = None
    vccl: str | None = None
    keep: str = "distinct"
    distinct: tuple[str, ...] = ()
    role: str | None = None
    ledger: str | None = None
    key: tuple[str, ...] = ()
    scope: str = "process"
    severity: str | None = None
    finding: str | None = None
    blames: str | None = None
    origin: bool | None = None
    meaning: str = ""
    next_step: str | None = None
    known_issues: tuple[str, ...] = ()
    own_rank: str | None = None
    title: str | None = None
    order: int | None = None
    confidence: float = 0.9
    early: bool = False
    relays: bool = False
    repairs: tuple[str, ...] = ()
    constants: Mapping[str, Value] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    file: str = ""

    @property
    def complaint(self) -> bool:
        """Whether the line reports an error, or is a step of the chain of returns that follows one."""
        reports = self.level in ("WARN", "ABORT") or self.severity in ("error", "warning")
        return reports or self.name.startswith("debug.chain")

    def advice(self, fields: Mapping[str, Value]) -> str | None:
        """What to do about a line with these fields. An IPv4 address in a GID is printed as address."""
        if self.next_step is None or "{" not in self.next_step:
            return self.next_step
        return titles.fill(self.next_step, lambda blank: str(fields.get(blank.name, "?")).removeprefix(_MAPPED))


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words with a meaning wherever they occur in a text.

    ``says`` is the meaning that a rule asks for; several phrases may share one. ``patterns`` are in lower case and match anywhere in the text;
    ``\\n`` is its end. ``within`` bounds integer fields, both ends included. ``finding`` and ``issue`` are what the words prove or resemble.
    ``next_step`` is what to do about it.
    ``samples`` are texts with the phrase, ``others`` texts without it.
    """

    says: str
    patterns: tuple[str, ...]
    within: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finding: str | None = None
    issue: str | None = None
    meaning: str = ""
    next_step: str | None = None
    samples: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    file: str = ""


def read_file(file: str, table: Mapping[str, Any]) -> list[Message]:
    """The entries of one parsed TOML file.

    Raises:
        CatalogueError: an entry is invalid; the error names file, entry and reason.
    """
    unknown = sorted(set(table) - {"subsystem", "message", "phrase"})
    if unknown:
        raise CatalogueError(f"unknown key {unknown[0]!r} at the top of the file", file=file)
    entries = table.get("message", [])
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        raise CatalogueError("messages must be written as [[message]]", file=file)
    return [_message(file, str(table.get("subsystem", "user")), entry) for entry in entries]


def read_phrases(file: str, table: Mapping[str, Any]) -> list[Phrase]:
    """The phrases of one parsed TOML file.

    Raises:
        CatalogueError: an entry is invalid; the error names file, entry and reason.
    """
    entries = table.get("phrase", [])
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        raise CatalogueError("phrases must be written as [[phrase]]", file=file)
    return [_phrase(file, entry) for entry in entries]


def _phrase(file: str, entry: Mapping[str, Any]) -> Phrase:
    def fail(reason: str) -> CatalogueError:
        return CatalogueError(reason, file=file, entry=str(entry.get("says", "")) or None)

    for key, value in entry.items():
        if key not in ("says", "patterns", "within", "finding", "issue", "meaning", "next_step", "sample", "other"):
            raise fail(f"unknown key {key!r}")
        if key in ("patterns", "sample", "other"):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise fail(f"{key} must be a list of strings")
        elif key != "within" and not isinstance(value, str):
            raise fail(f"{key} must be a string")
    if not entry.get("says") or not entry.get("patterns"):
        raise fail("a phrase needs says and patterns")
    if any(p != p.lower() for p in entry["patterns"]):
        raise fail("patterns of a phrase must be in lower case")
    if entry.get("finding") is not None and entry["finding"] not in CODES:
        raise fail(f"no such finding {entry['finding']!r}")
    within = entry.get("within", {})
    if not isinstance(within, Mapping) or not all(
        isinstance(v, list) and len(v) == 2 and all(isinstance(n, int) for n in v) for v in within.values()
    ):
        raise fail("within takes two integers for each field, as in within = {code = [1, 7]}")
    return Phrase(
        says=entry["says"],
        patterns=tuple(entry["patterns"]),
        within={name: (low, high) for name, (low, high) in within.items()},
        finding=entry.get("finding"),
        issue=entry.get("issue"),
        meaning=entry.get("meaning", ""),
        next_step=entry.get("next_step"),
        samples=tuple(entry.get("sample", ())),
        others=tuple(entry.get("other", ())),
        file=file,
    )


def _message(file: str, subsystem: str, entry: Mapping[str, Any]) -> Message:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise CatalogueError("an entry without a name", file=file, entry=str(entry.get("pattern", ""))[:60] or None)

    def fail(reason: str) -> CatalogueError:
        return CatalogueError(reason, file=file, entry=name)

    _check_keys(entry, fail)
    patterns = tuple(entry["patterns"]) if "patterns" in entry else (entry["pattern"],)
    if not patterns:
        raise fail("patterns is empty")
    level = _choice(entry, "level", LEVELS, "INFO", fail)
    where = _choice(entry, "where", WHERES, "nccl", fail)
    role = entry.get("role")
    if role is not None and role not in ROLES:
        raise fail(f"no such role {role!r}")
    ledger = entry.get("ledger")
    if (role or "").startswith("ledger.") != (ledger is not None):
        raise fail('a ledger role needs ledger = "...", and only it')
    if ledger is not None and not 1 <= len(entry.get("key", [])) <= 4:
        raise fail("a ledger needs key = [...], one to four field names")
    keep = _keep(entry, level, role, fail)
    return Message(
        name=name,
        subsystem=entry.get("subsystem", subsystem),
        patterns=patterns,
        level=level or "INFO",
        where=where or "nccl",
        versions=entry.get("versions"),
        rccl=entry.get("rccl"),
        vccl=entry.get("vccl"),
        keep=keep,
        distinct=tuple(entry.get("distinct", ())),
        role=role,
        ledger=ledger,
        key=tuple(entry.get("key", ())),
        scope=_choice(entry, "scope", ("process", "host"), "process", fail) or "process",
        severity=_choice(entry, "severity", ("error", "warning", "info", "harmless"), None, fail),
        finding=entry.get("finding"),
        blames=_choice(entry, "blames", ("self", "peer", "unknown"), None, fail),
        origin=entry.get("origin"),
        meaning=entry.get("meaning", ""),
        next_step=_next_step(entry, patterns, fail),
        known_issues=tuple(entry.get("known_issues", ())),
        own_rank=_own_rank(entry, patterns, keep, fail),
        title=_title(entry, patterns, fail),
        order=_order(entry, fail),
        confidence=float(entry.get("confidence", 0.9)),
        early=entry.get("early", False),
        relays=entry.get("relays", False),
        repairs=tuple(entry.get("repairs", ())),
        constants=_constants(entry, patterns, role, fail),
        samples=tuple(_sample(s, fail) for s in entry.get("sample", ())),
        file=file,
    )


def _keep(entry: Mapping[str, Any], level: str | None, role: str | None, fail: Any) -> str:
    default = "all" if level == "WARN" else "distinct"
    if role is not None:
        default = "all" if role in _RETAINED else "latest" if role in DATA_ROLES else "count"
    keep = _choice(entry, "keep", KEEPS, default, fail) or default
    if role in DATA_ROLES and keep in ("count", "distinct"):
        raise fail(f'role {role} needs the newest state of each end: keep = "latest" or "all"')
    return keep


def _check_keys(entry: Mapping[str, Any], fail: Any) -> None:
    for key, value in entry.items():
        if key not in _KEYS:
            raise fail(f"unknown key {key!r}")
        if key in _TEXT_KEYS and not isinstance(value, str):
            raise fail(f"{key} must be a string")
        if key in _LIST_KEYS and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise fail(f"{key} must be a list of strings")
    if ("pattern" in entry) == ("patterns" in entry):
        raise fail("expected either pattern or patterns")
    if "finding" in entry and entry["finding"] not in CODES:
        raise fail(f"no such finding {entry['finding']!r}")
    for flag in ("early", "origin", "relays"):
        if not isinstance(entry.get(flag, False), bool):
            raise fail(f"{flag} must be true or false")


def _own_rank(entry: Mapping[str, Any], patterns: tuple[str, ...], keep: str, fail: Any) -> str | None:
    own_rank: str | None = entry.get("own_rank")
    if own_rank is not None and not any(f"{{{own_rank}:int}}" in pattern for pattern in patterns):
        raise fail(f"own_rank names {own_rank!r}, which is an int of no pattern")
    if own_rank is not None and keep == "count":
        raise fail('a line that is only counted names no rank: own_rank needs keep = "distinct" or "all"')
    return own_rank


def _next_step(entry: Mapping[str, Any], patterns: tuple[str, ...], fail: Any) -> str | None:
    step = entry.get("next_step")
    if step is not None and "{" in step:
        try:
            names = [blank.name for part in titles.read(step) for blank in part if isinstance(blank, titles.Blank)]
        except ValueError as e:
            raise fail(f"bad next_step: {e}") from None
        for name in names:
            if not all(f"{{{name}:" in pattern for pattern in patterns):
                raise fail(f"next_step names {name!r}, which is not a field of each pattern")
    return step


def _title(entry: Mapping[str, Any], patterns: tuple[str, ...], fail: Any) -> str | None:
    title = entry.get("title")
    if title is None:
        return None
    if "finding" not in entry:
        raise fail("a title needs a finding")
    known = {"who", "by", *entry.get("set", {})}
    try:
        blanks = [blank for part in titles.read(title) for blank in part if isinstance(blank, titles.Blank)]
    except ValueError as e:
        raise fail(f"bad title: {e}") from None
    for blank in blanks:
        has = [f"{{{blank.name}:" in pattern for pattern in patterns]
        if blank.name not in known and not (any(has) if blank.optional or blank.default is not None else all(has)):
            raise fail(f"title names {blank.name!r}, which is not a field of each pattern")
    return str(title)


def _order(entry: Mapping[str, Any], fail: Any) -> int | None:
    order, confidence = entry.get("order"), entry.get("confidence")
    if order is None and confidence is None:
        return None
    if type(order) is not int or not isinstance(confidence, float) or not 0 < confidence < 1:
        raise fail("order and confidence belong together: a whole number, and a number between 0 and 1")
    if "title" not in entry:
        raise fail("an order needs a title")
    return order


def _constants(entry: Mapping[str, Any], patterns: tuple[str, ...], role: str | None, fail: Any) -> dict[str, Value]:
    constants = entry.get("set", {})
    if not isinstance(constants, Mapping) or not all(
        isinstance(v, int | float | str) and not isinstance(v, bool) for v in constants.values()
    ):
        raise fail('set takes a number or a text for each field, as in set = {role = "send"}')
    for name in constants:
        if any(f"{{{name}:" in pattern for pattern in patterns):
            raise fail(f"set names {name!r}, which is a field of a pattern")
    for name, known in (("role", _SIDES), ("state", _STATES)):
        value = constants.get(name, known[0])
        if role in DATA_ROLES and value not in known:
            raise fail(f"bad {name} {value!r} in set, expected {' or '.join(known)}")
    return dict(constants)


def _choice(entry: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str | None, fail: Any) -> str | None:
    value = entry.get(key, default)
    if value is not None and value not in choices:
        raise fail(f"bad {key} {value!r}, expected one of {', '.join(choices)}")
    return None if value is None else str(value)


def _sample(sample: Any, fail: Any) -> Sample:
    if not isinstance(sample, Mapping) or not isinstance(sample.get("text"), str):
        raise fail("a sample needs a text")
    unknown = sorted(set(sample) - {"text", "kind", "source", "fields"})
    if unknown:
        raise fail(f"unknown key {unknown[0]!r} in a sample")
    kind = sample.get("kind", "constructed")
    if kind not in ("real", "constructed"):
        raise fail("the kind of a sample must be real or constructed")
    if kind == "real" and not sample.get("source"):
        raise fail("a real sample must name its source")
    return Sample(sample["text"], kind, sample.get("source"), dict(sample.get("fields", {})))
