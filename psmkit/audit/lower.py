"""Functions of sources in a small form that can be followed: what they read, write, call and decide. Only the child process imports it.

An expression or a statement is a tuple; its first word says what it is. Casts, parentheses and macros are gone. What this form has no word for is
``("unknown", place)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int, c_longlong, c_void_p
from dataclasses import dataclass, field
from typing import Any

from clang.cindex import Cursor, CursorKind, TokenKind, TypeKind, conf

from psmkit.audit import layout
from psmkit.audit.expressions import FUNCTIONS, file_of, line_of, operator
from psmkit.audit.terms import terms

__all__ = ["Function", "Lowering", "evaluated", "parts", "text"]

K = CursorKind
_CASTS = (
    K.CSTYLE_CAST_EXPR,
    K.CXX_STATIC_CAST_EXPR,
    K.CXX_REINTERPRET_CAST_EXPR,
    K.CXX_CONST_CAST_EXPR,
    K.CXX_FUNCTIONAL_CAST_EXPR,
)
_ARRAYS = (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY, TypeKind.VARIABLEARRAY)
_CONSTANTS = (K.INTEGER_LITERAL, K.CHARACTER_LITERAL, K.CXX_BOOL_LITERAL_EXPR, K.CXX_UNARY_EXPR)
# CXBinaryOperatorKind, CXUnaryOperatorKind
_BINARY = {3: "*", 4: "/", 5: "%", 6: "+", 7: "-", 8: "<<", 9: ">>", 11: "<", 12: ">", 13: "<=", 14: ">=", 15: "==",
           16: "!=", 17: "&", 18: "^", 19: "|", 20: "&&", 21: "||", 22: "=", 23: "*=", 24: "/=", 25: "%=", 26: "+=",
           27: "-=", 28: "<<=", 29: ">>=", 30: "&=", 31: "^=", 32: "|=", 33: ","}  # fmt: skip
_UNARY = {1: "p++", 2: "p--", 3: "++", 4: "--", 5: "&", 6: "*", 7: "+", 8: "-", 9: "~", 10: "!", 13: "+"}
_MOST_DEPTH = 200


@dataclass(slots=True)
class Function:
    """A function: its parameters by USR, name and type, and its body.

    Attributes:
        params: USR, name, whether it is a reference, name of the struct that it points to.
        labels: where in the body's first list a label stands.
    """

    name: str
    usr: str
    file: str
    line: int
    params: list[tuple[str, str, bool, str]]
    returns: str
    cursor: Any
    body: Any = None
    labels: dict[str, int] = field(default_factory=dict)


def evaluated(cursor: Any) -> int | None:
    """The value of a constant, as the compiler knows it."""
    lib = conf.lib
    lib.clang_Cursor_Evaluate.argtypes, lib.clang_Cursor_Evaluate.restype = [Cursor], c_void_p
    lib.clang_EvalResult_getKind.argtypes, lib.clang_EvalResult_getKind.restype = [c_void_p], c_int
    lib.clang_EvalResult_getAsLongLong.argtypes, lib.clang_EvalResult_getAsLongLong.restype = [c_void_p], c_longlong
    lib.clang_EvalResult_dispose.argtypes, lib.clang_EvalResult_dispose.restype = [c_void_p], None
    found = lib.clang_Cursor_Evaluate(cursor)
    if not found:
        return None
    try:
        return int(lib.clang_EvalResult_getAsLongLong(found)) if lib.clang_EvalResult_getKind(found) == 1 else None
    finally:
        lib.clang_EvalResult_dispose(found)


def _record(kind: Any) -> tuple[str, int]:
    """Name and size of the struct that a pointer leads to, or that a type is."""
    found = layout.record(layout.pointee(kind))
    if found is None:
        return "", 0
    name = found.get_declaration().spelling
    return ("" if "(" in name else name), max(found.get_size(), 0)


def _is_array(kind: Any) -> bool:
    return kind.get_canonical().kind in _ARRAYS


def _bytes(cursor: Any) -> int:
    """The size of what a pointer leads to, before it becomes a void*."""
    while cursor.kind == K.UNEXPOSED_EXPR and len(children := list(cursor.get_children())) == 1:
        cursor = children[0]
    kind = cursor.type
    return max(int((kind if _is_array(kind) else layout.pointee(kind)).get_size()), 0)


def _points_twice(kind: Any) -> bool:
    plain = kind.get_canonical()
    return bool(plain.kind == TypeKind.POINTER and plain.get_pointee().kind == TypeKind.POINTER)


def _is_number(kind: Any) -> bool:
    plain = kind.get_canonical()
    return bool(layout.record(kind) is None and plain.kind not in (TypeKind.POINTER, *_ARRAYS))


def _is_reference(kind: Any) -> bool:
    return kind.get_canonical().kind in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE)


class Lowering:
    """Lowers functions on request. ``first``: of each struct, the struct that is its first member; ``fields``: names of its members."""

    def __init__(self) -> None:
        self.first: dict[str, str] = {}
        self.fields: dict[str, list[str]] = {}
        self.depth = 0

    def function(self, cursor: Any) -> Function:
        """A function without its body, which ``body`` adds."""
        params = [one for one in cursor.get_children() if one.kind == K.PARM_DECL]
        return Function(
            cursor.spelling,
            cursor.get_usr(),
            file_of(cursor),
            line_of(cursor),
            [(one.get_usr(), one.spelling, _is_reference(one.type), _record(one.type)[0]) for one in params],
            cursor.result_type.spelling,
            cursor,
        )

    def body(self, function: Function) -> Any:
        """The body of a function."""
        if function.body is None:
            found = next((one for one in function.cursor.get_children() if one.kind == K.COMPOUND_STMT), None)
            function.body = self._statement(found) if found is not None else ("block", [])
            for at, one in enumerate(function.body[1]):
                while one[0] == "label":
                    function.labels[one[1]] = at
                    one = one[2]
        return function.body

    def _seen(self, kind: Any) -> str:
        """Name of a struct, whose first member is noted."""
        found = layout.record(kind)
        if found is None:
            return ""
        name = found.get_declaration().spelling
        if name not in self.fields:
            members = list(found.get_fields())
            self.fields[name] = [one.spelling for one in members]
            if members and (inner := layout.record(members[0].type)) is not None:
                self.first[name] = inner.get_declaration().spelling
                self._seen(members[0].type)
        return "" if "(" in name else name

    def entries(self, cursor: Any) -> list[Any]:
        """Names and values of an initializer."""
        return list(self._list(cursor, list(cursor.get_children()))[1])

    # ---- statements ----

    def _statement(self, cursor: Any) -> Any:
        kind = cursor.kind
        children = list(cursor.get_children())
        if kind == K.COMPOUND_STMT:
            return ("block", [self._statement(one) for one in children])
        if kind == K.DECL_STMT:
            return ("block", [self._declared(one) for one in children if one.kind == K.VAR_DECL])
        if kind == K.IF_STMT:
            return self._if(children, line_of(cursor))
        if kind == K.WHILE_STMT:
            return ("loop", None, self.expression(children[0]), None, self._statement(children[-1]), line_of(cursor))
        if kind == K.DO_STMT:
            return ("do", self._statement(children[0]), self.expression(children[-1]), line_of(cursor))
        if kind == K.FOR_STMT:
            return self._for(cursor, children)
        if kind == K.SWITCH_STMT:
            return ("switch", self.expression(children[-2]), self._cases(children[-1]))
        if kind == K.RETURN_STMT:
            return ("return", self.expression(children[0]) if children else ("int", 0), line_of(cursor))
        if kind == K.GOTO_STMT:
            return ("goto", children[0].spelling if children else "")
        if kind == K.LABEL_STMT:
            return ("label", cursor.spelling, self._statement(children[0]) if children else ("block", []))
        if kind == K.BREAK_STMT:
            return ("break",)
        if kind == K.CONTINUE_STMT:
            return ("continue",)
        if kind == K.NULL_STMT:
            return ("block", [])
        if kind.is_expression():
            return ("expr", self.expression(cursor), line_of(cursor))
        if kind == K.UNEXPOSED_STMT and len(children) == 1:  # an attribute
            return self._statement(children[0])
        return ("other", f"{file_of(cursor)}:{line_of(cursor)}", kind.name)

    def _if(self, children: list[Any], line: int) -> Any:
        # A declaration or an initial statement comes before the condition.
        before = []
        while len(children) > 2 and not children[0].kind.is_expression():
            before.append(
                self._declared(children[0]) if children[0].kind == K.VAR_DECL else self._statement(children[0])
            )
            children = children[1:]
        parts = [self._statement(one) for one in children[1:3]]
        empty: Any = ("block", [])
        found = (
            "if",
            self.expression(children[0]),
            parts[0] if parts else empty,
            parts[1] if len(parts) > 1 else empty,
            line,
        )
        return ("block", [*before, found]) if before else found

    def _for(self, cursor: Any, children: list[Any]) -> Any:
        body = children[-1]
        stops = []
        deep = 0
        for token in cursor.get_tokens():
            if token.kind != TokenKind.PUNCTUATION:
                continue
            deep += (token.spelling in "([{") - (token.spelling in ")]}")
            if token.spelling == ";" and deep == 1:
                stops.append(token.extent.start.offset)
            if len(stops) == 2:
                break
        first = condition = step = None
        for one in children[:-1]:
            at = one.extent.start.offset
            if len(stops) < 2:  # of a macro
                place = {K.DECL_STMT: 0}.get(one.kind, 1 if condition is None else 2)
            else:
                place = sum(at > stop for stop in stops)
            if place == 0:
                first = self._statement(one)
            elif place == 1:
                condition = self.expression(one)
            else:
                step = self.expression(one)
        return ("loop", first, condition or ("int", 1), step, self._statement(body), line_of(cursor))

    def _cases(self, body: Any) -> list[Any]:
        """Statements of a switch, with the cases that lead to each: None is the default."""
        out: list[Any] = []
        for one in body.get_children() if body.kind == K.COMPOUND_STMT else [body]:
            labels: list[int | None] = []
            while one.kind in (K.CASE_STMT, K.DEFAULT_STMT):
                parts = list(one.get_children())
                if one.kind == K.CASE_STMT:
                    value = self.expression(parts[0])
                    labels.append(value[1] if value[0] in ("int", "size") else -(1 << 40))
                else:
                    labels.append(None)
                one = parts[-1]
            out.append((labels, self._statement(one)))
        return out

    def _declared(self, cursor: Any) -> Any:
        values = [one for one in cursor.get_children() if one.kind.is_expression()]
        if _is_array(cursor.type) and values and values[-1].kind not in (K.INIT_LIST_EXPR, K.STRING_LITERAL):
            values = []  # the length
        start = self.expression(values[-1]) if values else None
        static = cursor.storage_class.name == "STATIC"
        return (
            "decl",
            cursor.get_usr(),
            cursor.spelling,
            _is_reference(cursor.type),
            None if static else start,
            self._seen(cursor.type),
            line_of(cursor),
        )

    # ---- expressions ----

    def expression(self, cursor: Any) -> Any:
        """An expression in the small form."""
        self.depth += 1
        try:
            if self.depth > _MOST_DEPTH:
                return self._unknown(cursor)
            return self._inner(cursor)
        finally:
            self.depth -= 1

    def _unknown(self, cursor: Any) -> Any:
        return ("unknown", f"{line_of(cursor)}.{cursor.location.column}")

    def _inner(self, cursor: Any) -> Any:
        kind = cursor.kind
        children = list(cursor.get_children())
        if kind in _CONSTANTS:
            value = evaluated(cursor)
            if value is None:
                return self._unknown(cursor)
            if kind == K.CXX_UNARY_EXPR:
                return ("size", value, "".join(token.spelling + " " for token in list(cursor.get_tokens())[:8]).strip())
            return ("int", value)
        if kind in (K.CXX_NULL_PTR_LITERAL_EXPR, K.GNU_NULL_EXPR):
            return ("int", 0)
        if kind == K.STRING_LITERAL:
            return ("str", cursor.spelling[:80])
        if kind in (K.UNEXPOSED_EXPR, K.PAREN_EXPR):
            if len(children) != 1:
                return self._unknown(cursor)
            inner = self.expression(children[0])
            decays = _is_array(children[0].type) and cursor.type.get_canonical().kind == TypeKind.POINTER
            return ("decay", inner) if decays and inner[0] != "str" else inner
        if kind in _CASTS:
            if not children:
                return self._unknown(cursor)
            return ("cast", self.expression(children[-1]), *_record(cursor.type))
        if kind == K.DECL_REF_EXPR:
            return self._named(cursor)
        if kind == K.MEMBER_REF_EXPR:
            return self._member(cursor, children)
        if kind == K.ARRAY_SUBSCRIPT_EXPR:
            base, index = (self.expression(one) for one in children[:2])
            return ("index", base, index)
        if kind == K.UNARY_OPERATOR:
            word = _UNARY.get(operator("Unary", cursor), "")
            inner = self.expression(children[0])
            return inner if word == "+" else ("un", word, inner) if word else self._unknown(cursor)
        if kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR):
            word = _BINARY.get(operator("Binary", cursor), "")
            left, right = (self.expression(one) for one in children[:2])
            if not word:
                return self._unknown(cursor)
            if word.endswith("=") and word not in ("==", "!=", "<=", ">="):
                record = layout.record(children[0].type) is not None
                return ("assign", word[:-1], left, right, record, _is_number(children[0].type))
            return ("bin", word, left, right)
        if kind == K.CONDITIONAL_OPERATOR:
            return ("cond", *(self.expression(one) for one in children[:3]))
        if kind == K.CALL_EXPR:
            return self._call(cursor, children)
        if kind == K.INIT_LIST_EXPR:
            return self._list(cursor, children)
        if kind == K.COMPOUND_LITERAL_EXPR and children:
            return ("literal", self.expression(children[-1]), cursor.hash)
        if kind == K.StmtExpr and children:
            return ("statement", self._statement(children[0]))
        if kind == K.CXX_NEW_EXPR:
            return ("new", _record(cursor.type)[0], file_of(cursor), line_of(cursor))
        if kind == K.CXX_DELETE_EXPR and children:
            return (
                "call",
                "delete",
                "",
                None,
                [self.expression(children[-1])],
                (file_of(cursor), line_of(cursor)),
                "",
                [""],
            )
        return self._unknown(cursor)

    def _named(self, cursor: Any) -> Any:
        found = cursor.referenced
        if found is None:
            return self._unknown(cursor)
        if found.kind == K.ENUM_CONSTANT_DECL:
            return ("int", int(found.enum_value), found.spelling)
        if found.kind in FUNCTIONS:
            return ("function", found.get_usr(), found.spelling)
        if found.kind not in (K.VAR_DECL, K.PARM_DECL):
            return self._unknown(cursor)
        static = found.kind == K.VAR_DECL and (
            found.semantic_parent.kind in (K.TRANSLATION_UNIT, K.NAMESPACE, K.LINKAGE_SPEC)
            or found.storage_class.name == "STATIC"
        )
        one = ("var", found.get_usr(), found.spelling, static)
        return ("un", "*", one) if _is_reference(found.type) else one

    def _member(self, cursor: Any, children: list[Any]) -> Any:
        if not children:
            return self._unknown(cursor)
        base = self.expression(children[0])
        owner = children[0].type
        arrow = owner.get_canonical().kind == TypeKind.POINTER
        if not cursor.spelling:  # the member asked for is inside one without a name
            return ("un", "*", base) if arrow else base
        whole = self._seen(layout.pointee(owner) if arrow else owner)
        if (
            whole in self.first
            and self.fields[whole][0] == cursor.spelling
            and terms().bases.fullmatch(cursor.spelling)
        ):
            return ("un", "*", base) if arrow else base  # what it is made of stands where it stands
        return ("member", base, cursor.spelling, arrow, *_record(owner))

    def _call(self, cursor: Any, children: list[Any]) -> Any:
        name = cursor.spelling
        found = cursor.referenced
        place = (file_of(cursor), line_of(cursor))
        if found is not None and found.kind == K.CONSTRUCTOR:
            arguments = list(cursor.get_arguments())
            same = len(arguments) == 1 and layout.record(arguments[0].type) is not None
            return self.expression(arguments[0]) if same else ("unknown", f"{place[1]}.{cursor.location.column}")
        given = list(cursor.get_arguments())
        arguments = [self.expression(one) for one in given]
        if name == "operator=" and len(children) >= 2:
            left, right = arguments if len(arguments) == 2 else [self.expression(children[0]), arguments[-1]]
            return ("assign", "", left, right, True, False)
        usr = found.get_usr() if found is not None and found.kind in FUNCTIONS else ""
        target = self.expression(children[0]) if children and not usr else None
        made: list[Any] = [_record(layout.pointee(one.type))[0] if _points_twice(one.type) else "" for one in given]
        if "memcpy" in name or "memmove" in name:
            made = [_bytes(one) for one in given]
        return ("call", name, usr, target, arguments, place, cursor.type.spelling, made)

    def _list(self, cursor: Any, children: list[Any]) -> Any:
        names: list[str] = []
        if layout.record(cursor.type) is not None:
            self._seen(cursor.type)
            names = self.fields.get(layout.record(cursor.type).get_declaration().spelling, [])  # type: ignore[union-attr]
        entries = []
        for at, one in enumerate(children):
            parts = list(one.get_children())
            if one.kind == K.UNEXPOSED_EXPR and len(parts) > 1 and parts[0].kind == K.MEMBER_REF:  # .name = value
                entries.append((parts[0].spelling, self.expression(parts[-1])))
            else:
                entries.append((names[at] if at < len(names) else at, self.expression(one)))
        return ("list", entries)


def parts(one: Any) -> Iterator[Any]:
    """All expressions and statements within one."""
    if isinstance(one, tuple):
        if one and isinstance(one[0], str):
            yield one
        for each in one:
            yield from parts(each)
    elif isinstance(one, list):
        for each in one:
            yield from parts(each)


def text(one: Any) -> str:
    """An expression as people write it, as far as that is short."""
    word = one[0]
    if word == "var":
        return str(one[2])
    if word == "member":
        return f"{text(one[1])}{'->' if one[3] else '.'}{one[2]}"
    if word == "index":
        return f"{text(one[1])}[{text(one[2])}]"
    if word == "int":
        return str(one[1])
    if word == "size":
        return str(one[2])
    if word in ("cast", "decay", "literal"):
        return text(one[1])
    if word == "un":
        return text(one[2]) if one[1] == "&" else f"{one[1].removeprefix('p')}{text(one[2])}"
    if word == "bin":
        return f"{text(one[2])} {one[1]} {text(one[3])}"
    if word == "call":
        return f"{one[1]}()"
    if word == "function":
        return str(one[2])
    return "..."
