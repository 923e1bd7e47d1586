"""What sources do with messages: what they copy into one, and what they write over their own resources out of one. Only the child process imports it.

Each function is looked at by itself, in any order of its statements; what an argument is goes from a call to the function that is called, also across
sources. So a finding says that such a copy stands there, and never that it runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clang.cindex import (
    CursorKind,
    Diagnostic,
    Index,
    TranslationUnit,
    TranslationUnitLoadError,
    TypeKind,
)

from psmkit.audit import layout
from psmkit.audit.expressions import (
    FUNCTIONS,
    constant,
    file_of,
    is_assignment,
    is_object,
    letter,
    line_of,
    moves,
    object_of,
    references,
    strip,
    text_of,
    where,
)
from psmkit.audit.knowledge import MARK, knowledge
from psmkit.model.structs import Field, Struct

__all__ = ["Sources", "read"]

_COPIES = re.compile(r"(?:__builtin_|__builtin___)?mem(?:cpy|move)(?:_chk)?")
_ALLOCATES = re.compile(r"\w*[cmr]alloc\w*|ncclCalloc\w*", re.IGNORECASE)
_DECLARED = (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.CLASS_DECL, CursorKind.TYPEDEF_DECL)
_ROUNDS = 16  # calls within calls

# What a value is, or what it points to. A message that came in, from the peer or from whoever calls; one that goes out; resources that this process
# had before; memory that was allocated here.
IN, PEER, OUT, OWN, FRESH = "in", "peer", "out", "own", "fresh"


_POINTS = (
    CursorKind.VAR_DECL,
    CursorKind.BINARY_OPERATOR,
    CursorKind.CALL_EXPR,
    CursorKind.CSTYLE_CAST_EXPR,
    CursorKind.CXX_REINTERPRET_CAST_EXPR,
)


@dataclass(slots=True)
class _Function:
    name: str
    file: str
    line: int
    params: list[str]
    labels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of variables by USR
    ways: dict[str, str] = field(default_factory=dict)  # how a message travels, by USR
    cursor: Any = None
    refs: set[str] = field(default_factory=set)
    points: list[Any] = field(default_factory=list)  # what its body holds of calls, assignments, declarations and casts

    def look(self) -> list[Any]:
        if not self.points:
            self.points = [one for one in self.cursor.walk_preorder() if one.kind in _POINTS]
        return self.points


@dataclass(slots=True)
class _Flow:
    """A copy that matters."""

    kind: str  # leak, write, read
    function: str
    file: str
    line: int
    struct: str
    way: str
    peer: bool
    fields: list[Field]
    part: bool  # only a part of the struct is copied, and which is not known
    reached: list[str] = field(default_factory=list)


class Sources:
    """Sources that were parsed: functions, tables of functions, and what is known of their variables."""

    def __init__(self, asked: Iterable[str] = ()) -> None:
        self.asked = frozenset(asked)
        self.functions: dict[str, _Function] = {}
        self.tables: list[tuple[str, set[str]]] = []  # name of an entry, USRs that it refers to
        self.variables: dict[str, set[str]] = {}  # USRs that a global's initializer refers to
        self.types: dict[tuple[str, int, str], Struct] = {}  # by name, size, and the source that declares it
        self.known: dict[tuple[str, int, str], Struct] = {}
        self.flows: dict[tuple[str, str, int, str], _Flow] = {}
        self.resources: dict[Path, dict[str, Any]] = {}  # types that resources were given, by file and name
        self.units: list[Any] = []
        self.notes: list[str] = []

    # ---- parse ----

    def parse(self, path: str, arguments: list[str]) -> None:
        try:
            unit = Index.create().parse(path, ["-ferror-limit=0", *arguments], options=TranslationUnit.PARSE_NONE)
        except TranslationUnitLoadError:
            raise ValueError(f"{path} cannot be parsed") from None
        wrong = [one for one in unit.diagnostics if one.severity >= Diagnostic.Error]
        first = next((one for one in wrong if one.severity >= Diagnostic.Fatal), wrong[0] if wrong else None)
        if first is not None:
            where = f"{first.location.file.name}:{first.location.line}" if first.location.file else path
            said = f"{where}: {first.spelling}"
            if first.severity >= Diagnostic.Fatal:  # a header is missing: all types of it are
                raise ValueError(f"{said}: give the flags of its compilation with --cflags")
            self.notes.append(
                f"libclang does not accept all of the sources, and what it refuses was not looked at: {said}"
            )
        self.units.append(unit)
        for cursor in unit.cursor.get_children():
            self._top(cursor)

    def _top(self, cursor: Any) -> None:
        if cursor.location.is_in_system_header:
            return
        if cursor.kind in (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            for child in cursor.get_children():
                self._top(child)
        elif cursor.kind in FUNCTIONS and cursor.is_definition():
            usr = cursor.get_usr()
            if usr not in self.functions:
                params = [one for one in cursor.get_children() if one.kind == CursorKind.PARM_DECL]
                place = cursor.location
                self.functions[usr] = _Function(
                    cursor.spelling,
                    place.file.name if place.file else "",
                    place.line,
                    [one.get_usr() for one in params],
                    cursor=cursor,
                )
                self._seed(self.functions[usr], params)
        elif cursor.kind == CursorKind.VAR_DECL:
            self._variable(cursor)
        elif cursor.kind in _DECLARED:
            self._declared(cursor)

    def _declared(self, cursor: Any) -> None:
        """A type that is known to cross: by the user, by its name, by its mark."""
        name = cursor.spelling
        if cursor.kind == CursorKind.TYPEDEF_DECL and name.startswith(MARK):
            self._type(cursor.underlying_typedef_type, "", "PSM_SHAREABLE")
        elif name in self.asked:
            self._type(cursor.type, "", "--wire")
        elif (wire := knowledge().wire(name)) is not None and cursor.is_definition():
            # By what the code does with it, if it does something: that comes later, and says more.
            one = layout.struct_of(cursor.type, wire.way, wire.basis)
            if one is not None:
                self.known.setdefault((one.name, one.size, one.file), one)

    def _variable(self, cursor: Any) -> None:
        """A global: what its initializer refers to, and the entries of a table of functions."""
        refs = references(cursor)
        self.variables.setdefault(cursor.get_usr(), set()).update(refs)
        lists = [one for one in cursor.get_children() if one.kind == CursorKind.INIT_LIST_EXPR]
        for whole in lists:
            rows = [row for row in whole.get_children() if row.kind == CursorKind.INIT_LIST_EXPR]
            for entry in [whole] if text_of(whole) else rows:
                name = text_of(entry)
                if name:
                    self.tables.append((f"{name} ({Path(file_of(cursor)).name})", references(entry)))

    def _seed(self, function: _Function, params: list[Any]) -> None:
        """What the arguments of a handler are, by its signature."""
        shape = "".join(letter(one.type) for one in params)
        usrs = function.params
        if re.fullmatch(r"ppvivip", shape):  # connection, state, request, its size, answer, its size, done
            self._label(function, usrs[2], {IN}, "a request")
            self._label(function, usrs[4], {OUT}, "an answer")
        elif re.fullmatch(r"ppvip", shape):
            self._label(function, usrs[2], {IN}, "a request")
        known = knowledge()
        setup = len(params) >= 7
        for one in params:
            target = layout.record(layout.pointee(one.type))
            name = target.get_declaration().spelling if target is not None else ""
            if name in known.connect_info:
                self._label(function, one.get_usr(), {OUT} if setup else {IN, PEER}, "connect info")
            elif (wire := known.wire(name)) is not None and wire.peer and one.type.get_pointee().is_const_qualified():
                self._label(function, one.get_usr(), {IN, PEER}, wire.way)

    @staticmethod
    def _label(function: _Function, usr: str, labels: set[str], way: str = "") -> bool:
        before = len(function.labels[usr])
        function.labels[usr] |= labels
        if way:
            function.ways.setdefault(usr, way)
        return len(function.labels[usr]) != before

    # ---- labels ----

    def settle(self) -> None:
        """Labels of all variables: from assignments, and from calls to what is called."""
        for _ in range(_ROUNDS):
            changed = False
            for function in self.functions.values():
                for cursor in function.look():
                    changed |= self._statement(function, cursor)
            if not changed:
                return

    def _statement(self, function: _Function, cursor: Any) -> bool:
        if cursor.kind == CursorKind.VAR_DECL:
            values = [one for one in cursor.get_children() if one.kind.is_expression()]
            if not values:
                return False
            self._typed(cursor, self._look(function, values[-1]))
            return self._assigned(function, cursor.get_usr(), cursor.type, values[-1])
        if cursor.kind == CursorKind.BINARY_OPERATOR and is_assignment(cursor):
            left, right = list(cursor.get_children())
            target = strip(left)
            if target.kind == CursorKind.DECL_REF_EXPR and target.referenced is not None:
                return self._assigned(function, target.referenced.get_usr(), left.type, right)
            return False
        if cursor.kind == CursorKind.CALL_EXPR:
            return self._call(function, cursor)
        return False

    def _assigned(self, function: _Function, usr: str, kind: Any, value: Any) -> bool:
        seen, way = self._look(function, value)[:2]
        if layout.pointee(kind) is kind and layout.record(kind) is None:  # a number: it carries no message
            return False
        return self._label(function, usr, seen, way)

    def _typed(self, cursor: Any, seen: tuple[set[str], str, str]) -> None:
        """The type that a source gives to a connection's resources."""
        target = layout.record(layout.pointee(cursor.type))
        if OWN in seen[0] and seen[2] and target is not None and target.get_size() > 0:
            self.resources.setdefault(Path(file_of(cursor)), {}).setdefault(target.get_declaration().spelling, target)

    def _call(self, function: _Function, cursor: Any) -> bool:
        name = cursor.spelling
        arguments = list(cursor.get_arguments())
        changed = False
        if _COPIES.fullmatch(name) and len(arguments) >= 2:
            target = strip(arguments[0])
            if target.kind == CursorKind.DECL_REF_EXPR and is_object(target):
                seen, way = self._look(function, arguments[1])[:2]
                changed |= self._label(function, target.referenced.get_usr(), seen & {IN, PEER}, way)
            return changed
        if _ALLOCATES.fullmatch(name):
            for one in arguments:
                target = strip(one)
                if target.kind == CursorKind.DECL_REF_EXPR and target.referenced is not None:
                    changed |= self._label(function, target.referenced.get_usr(), {FRESH})
            return changed
        for sender in knowledge().senders:
            if sender.receives >= 0 and len(arguments) > sender.receives and re.fullmatch(sender.name, name):
                target = strip(arguments[sender.receives])
                if target.kind == CursorKind.DECL_REF_EXPR and is_object(target):
                    labels = {IN, PEER} if sender.peer else {IN}
                    changed |= self._label(function, target.referenced.get_usr(), labels, sender.way)
        called = cursor.referenced
        callee = self.functions.get(called.get_usr()) if called is not None else None
        if callee is not None:
            for usr, one in zip(callee.params, arguments, strict=False):
                seen, way = self._look(function, one)[:2]
                changed |= self._label(callee, usr, seen - {FRESH}, way)
        return changed

    def _look(self, function: _Function, cursor: Any) -> tuple[set[str], str, str]:
        """What an expression is: labels, how a message travels, and the field that holds resources."""
        known = knowledge()
        labels: set[str] = set()
        held = ""
        peer = False
        for _ in range(64):
            cursor = strip(cursor)
            target = layout.record(layout.pointee(cursor.type))
            wire = known.wire(target.get_declaration().spelling) if target is not None else None
            peer = peer or (wire is not None and wire.peer)
            if cursor.kind == CursorKind.MEMBER_REF_EXPR:
                if cursor.spelling in known.resources:
                    return labels | {OWN}, "", cursor.spelling
                base = list(cursor.get_children())
                if not base:
                    return labels, "", held
                cursor = base[0]
                continue
            if cursor.kind == CursorKind.DECL_REF_EXPR and cursor.referenced is not None:
                usr = cursor.referenced.get_usr()
                labels |= function.labels.get(usr, set())
                if IN in labels and peer:
                    labels = labels | {PEER}
                return labels, function.ways.get(usr, ""), held
            if cursor.kind == CursorKind.CALL_EXPR and _ALLOCATES.fullmatch(cursor.spelling or ""):
                return labels | {FRESH}, "", held
            return labels, "", held
        return labels, "", held

    # ---- flows ----

    def judge(self) -> None:
        """Copies that leak, and copies that write over what this process has."""
        for function in self.functions.values():
            for cursor in function.look():
                if cursor.kind == CursorKind.CALL_EXPR:
                    self._judge_call(function, cursor)
                elif cursor.kind == CursorKind.BINARY_OPERATOR and is_assignment(cursor):
                    left, right = list(cursor.get_children())
                    if layout.record(left.type) is not None:
                        self._copy(function, cursor, left, right, None)
                    elif (what := layout.kind_of(right.type)) is not None and what[0] in layout.HANDLES:
                        self._read(function, cursor, left, right, what[0])
                elif cursor.kind == CursorKind.VAR_DECL and (what := layout.kind_of(cursor.type)) is not None:
                    values = [one for one in cursor.get_children() if one.kind.is_expression()]
                    if values and what[0] in layout.HANDLES:
                        self._read(function, cursor, None, values[-1], what[0])

    def _judge_call(self, function: _Function, cursor: Any) -> None:
        name = cursor.spelling
        arguments = list(cursor.get_arguments())
        if _COPIES.fullmatch(name) and len(arguments) >= 2:
            self._copy(function, cursor, arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None)
            return
        if name == "operator=" and len(arguments) == 2:
            self._copy(function, cursor, arguments[0], arguments[1], None)
            return
        for sender in knowledge().senders:
            if re.fullmatch(sender.name, name):
                for at, verb in ((sender.sends, "sent"), (sender.receives, "received")):
                    if 0 <= at < len(arguments):
                        kind = object_of(arguments[at])
                        self._type(kind, f"{sender.way}, {verb}", f"{name} at {where(cursor)}")
        for one in arguments:
            if (what := layout.kind_of(one.type)) is not None and what[0] in layout.HANDLES:
                self._read(function, cursor, None, one, what[0])

    def _type(self, kind: Any, way: str, basis: str) -> None:
        one = layout.struct_of(kind, way, basis) if kind is not None else None
        if one is not None and "(unnamed)" not in one.name:
            self.types.setdefault((one.name, one.size, one.file), one)

    def crossing(self) -> None:
        """Types that the buffers of messages are taken for."""
        for function in self.functions.values():
            for cursor in function.look():
                if cursor.kind not in (
                    CursorKind.CSTYLE_CAST_EXPR,
                    CursorKind.VAR_DECL,
                    CursorKind.CXX_REINTERPRET_CAST_EXPR,
                ):
                    continue
                values = [one for one in cursor.get_children() if one.kind.is_expression()]
                source = strip(values[-1]) if values else None
                if source is None or source.kind != CursorKind.DECL_REF_EXPR or source.referenced is None:
                    continue
                usr = source.referenced.get_usr()
                buffer = layout.pointee(source.type).get_canonical()
                blank = buffer.kind == TypeKind.VOID or buffer.get_declaration().spelling in knowledge().connect_info
                taken = usr in function.params and blank and function.labels.get(usr, set()) & {IN, OUT}
                if taken and cursor.type.get_canonical().kind == TypeKind.POINTER:
                    self._type(
                        layout.pointee(cursor.type),
                        function.ways.get(usr, ""),
                        f"{function.name} at {where(cursor)}",
                    )

    def _copy(self, function: _Function, cursor: Any, to: Any, source: Any, size: Any) -> None:
        into, way, _ = self._look(function, to)
        out, came, _ = self._look(function, source)
        if OUT in into and not out & {IN, OUT}:
            fields, part, one, blank = self._copied(cursor, source, size, out)
            if fields or blank:
                self._add(cursor, function, "leak", one, way, PEER in into or way == "connect info", fields, part)
        elif out & {IN} and self._ours(into):
            fields, part, one, blank = self._copied(cursor, to, size, into)
            if fields or blank:
                self._add(cursor, function, "write", one, came, PEER in out, fields, part)

    def _copied(
        self, cursor: Any, place: Any, size: Any, labels: set[str]
    ) -> tuple[list[Field], bool, Struct | None, bool]:
        """What is copied, as `_fields` says, and whether it is of resources whose type no source shows."""
        kind = object_of(place)
        blank = OWN in labels and (kind is None or kind.get_canonical().kind == TypeKind.VOID)
        if blank:
            kind = self._resources(kind, cursor)
        fields, part, one = self._fields(kind, place, size)
        return fields, part, one, blank and one is None

    @staticmethod
    def _ours(labels: set[str]) -> bool:
        """Whether a copy goes over what the process had before."""
        return OWN in labels and FRESH not in labels and OUT not in labels

    def _resources(self, kind: Any, cursor: Any) -> Any:
        """The type of a connection's resources: that which sources give them in this folder or the next one above, if it is one."""
        if layout.record(kind) is not None:
            return kind
        place = Path(file_of(cursor))
        for near in (place, *place.parents):
            found = {}
            for file, types in self.resources.items():
                if file == near or near in file.parents:
                    found.update(types)
            if found:
                return next(iter(found.values())) if len(found) == 1 else None
        return None

    def _fields(self, kind: Any, expression: Any, size: Any) -> tuple[list[Field], bool, Struct | None]:
        """The local fields of what is copied, whether it is a part that is not known, and the struct."""
        if kind is None:
            return [], True, None
        one = layout.struct_of(kind)
        if one is None:
            what = layout.kind_of(kind)
            fields = [Field("", kind.spelling, what[0], 0, kind.get_size(), what[1])] if what else []
            return fields, False, None
        moved = moves(expression)
        length = constant(size) if size is not None else None
        fields = list(one.local)
        if not moved and length is not None:
            fields = [entry for entry in fields if entry.offset < length]
        part = moved or (length is not None and length < one.size)
        return fields, part, one

    def _read(self, function: _Function, cursor: Any, to: Any | None, source: Any, kind: str) -> None:
        """A handle out of a message of the peer is used."""
        place = strip(source)
        if place.kind != CursorKind.MEMBER_REF_EXPR:
            return
        labels, way, _ = self._look(function, source)
        if IN in labels and PEER in labels and OUT not in labels:
            one = Field(place.spelling, source.type.spelling, kind, 0, source.type.get_size(), line=line_of(cursor))
            self._add(cursor, function, "read", None, way, True, [one], False)

    def _add(
        self,
        cursor: Any,
        function: _Function,
        kind: str,
        one: Struct | None,
        way: str,
        peer: bool,
        fields: list[Field],
        part: bool,
    ) -> None:
        file = file_of(cursor) or function.file
        flow = _Flow(
            kind, function.name, file, line_of(cursor), one.name if one else "", way or "a message", peer, fields, part
        )
        flow.reached = self._entries(function)
        self.flows.setdefault((kind, file, flow.line, flow.struct), flow)

    # ---- tables ----

    def _entries(self, function: _Function) -> list[str]:
        """The entries of tables from which a function can be reached."""
        usr = function.cursor.get_usr()
        return sorted({name for name, refs in self.tables if usr in self._closure(refs)})

    def leading_to(self, usr: str) -> list[str]:
        """The entries of tables from which a global can be reached."""
        return sorted({name for name, refs in self.tables if usr in self._closure(refs)})

    def handlers(self) -> set[str]:
        """The functions that have to do with messages, by USR."""
        return {usr for usr, one in self.functions.items() if any({IN, OUT} & some for some in one.labels.values())}

    def entries(self) -> list[str]:
        """The entries of tables that lead to a handler of messages: transports, variants."""
        handlers = self.handlers()
        return sorted({name for name, refs in self.tables if handlers & self._closure(refs)})

    def _closure(self, refs: set[str]) -> set[str]:
        seen: set[str] = set()
        todo = list(refs)
        while todo:
            usr = todo.pop()
            if usr in seen:
                continue
            seen.add(usr)
            todo += self.variables.get(usr, ())
            if (function := self.functions.get(usr)) is not None:
                if not function.refs:
                    function.refs = references(function.cursor)
                todo += function.refs
        return seen


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Types that cross and copies that matter in some sources."""
    reader = Sources(request.get("asked", ()))
    for path, arguments in request["sources"]:
        reader.parse(path, arguments)
    reader.settle()
    reader.crossing()
    reader.judge()
    return {
        "structs": [asdict(one) for one in (reader.known | reader.types).values()],
        "flows": [asdict(one) for one in reader.flows.values()],
        "entries": reader.entries(),
        "handlers": len(reader.handlers()),
        "notes": list(dict.fromkeys(reader.notes)),
    }
