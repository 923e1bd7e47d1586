"""Expressions of sources, as libclang gives them: what they lead to, without casts and steps."""

from __future__ import annotations

import re
from ctypes import c_uint
from pathlib import Path
from typing import Any

from clang.cindex import Cursor, CursorKind, TypeKind, conf

from psmkit.audit import layout

__all__ = [
    "FUNCTIONS",
    "constant",
    "file_of",
    "is_assignment",
    "is_object",
    "letter",
    "line_of",
    "moves",
    "object_of",
    "operator",
    "references",
    "strip",
    "text_of",
    "where",
]

_CASTS = (
    CursorKind.CSTYLE_CAST_EXPR,
    CursorKind.CXX_STATIC_CAST_EXPR,
    CursorKind.CXX_REINTERPRET_CAST_EXPR,
    CursorKind.CXX_CONST_CAST_EXPR,
    CursorKind.UNEXPOSED_EXPR,
    CursorKind.PAREN_EXPR,
)
FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.FUNCTION_TEMPLATE)
# CXBinaryOperator_Assign, CXUnaryOperator_AddrOf: the Python module has no name for them before 19
_ASSIGN, _ADDRESS = 22, 5


def strip(cursor: Any) -> Any:
    """An expression without casts, parentheses, & and *, indices and steps of a pointer."""
    for _ in range(64):
        children = list(cursor.get_children())
        if cursor.kind in _CASTS and children:
            cursor = children[-1]
        elif cursor.kind in (CursorKind.UNARY_OPERATOR, CursorKind.ARRAY_SUBSCRIPT_EXPR) and children:
            cursor = children[0]
        elif cursor.kind == CursorKind.BINARY_OPERATOR and len(children) == 2 and not is_assignment(cursor):
            pointers = [
                one for one in children if one.type.get_canonical().kind in (TypeKind.POINTER, TypeKind.CONSTANTARRAY)
            ]
            if not pointers:
                return cursor
            cursor = pointers[0]
        else:
            return cursor
    return cursor


def moves(cursor: Any) -> bool:
    """Whether an expression adds to a pointer."""
    return any(
        one.kind in (CursorKind.BINARY_OPERATOR, CursorKind.ARRAY_SUBSCRIPT_EXPR)
        for one in [cursor, *cursor.walk_preorder()]
        if one.kind.is_expression()
    )


def object_of(cursor: Any) -> Any | None:
    """The type of what an expression leads to, before casts: what a pointer points to, else the object itself."""
    inner = strip(cursor)
    # &pointer is the pointer itself; a pointer is what it leads to.
    taken = addressed(cursor)
    kind = inner.type
    return kind if taken else layout.pointee(kind)


def addressed(cursor: Any) -> bool:
    """Whether the address of an object is taken, with no * between."""
    for _ in range(64):
        children = list(cursor.get_children())
        if cursor.kind in _CASTS and children:
            cursor = children[-1]
        else:
            return cursor.kind == CursorKind.UNARY_OPERATOR and operator("Unary", cursor) == _ADDRESS
    return False


def is_object(cursor: Any) -> bool:
    """Whether a name is a variable that is an object, and no pointer to one."""
    return cursor.referenced is not None and cursor.type.get_canonical().kind != TypeKind.POINTER


def operator(kind: str, cursor: Any) -> int:
    function = getattr(conf.lib, f"clang_getCursor{kind}OperatorKind")
    function.argtypes, function.restype = [Cursor], c_uint
    return int(function(cursor))


def is_assignment(cursor: Any) -> bool:
    return operator("Binary", cursor) == _ASSIGN


def constant(cursor: Any) -> int | None:
    """The value of a size, where the compiler knows it."""
    evaluate = getattr(cursor, "evaluate", None)
    found = evaluate() if evaluate else None
    if isinstance(found, int):
        return found
    inner = strip(cursor)
    if inner.kind == CursorKind.CXX_UNARY_EXPR:  # sizeof
        children = list(inner.get_children())
        if children:
            size = children[-1].type.get_size()
            return size if size > 0 else None
    if inner.kind == CursorKind.INTEGER_LITERAL:
        text = next((one.spelling for one in inner.get_tokens()), "")
        return int(text, 0) if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", text) else None
    if (
        inner.kind == CursorKind.DECL_REF_EXPR
        and inner.referenced is not None
        and inner.referenced.kind == CursorKind.ENUM_CONSTANT_DECL
    ):
        return int(inner.referenced.enum_value)
    return None


def references(cursor: Any) -> set[str]:
    """USRs of the functions and variables that an expression or a body refers to."""
    return {
        one.referenced.get_usr()
        for one in cursor.walk_preorder()
        if one.kind == CursorKind.DECL_REF_EXPR
        and one.referenced is not None
        and one.referenced.kind in (*FUNCTIONS, CursorKind.VAR_DECL)
    }


def text_of(cursor: Any) -> str:
    """The first string in an initializer, not in a list within it: the name of its entry."""
    for child in cursor.get_children():
        if child.kind == CursorKind.INIT_LIST_EXPR:
            return ""
        for one in child.walk_preorder():
            if one.kind == CursorKind.STRING_LITERAL:
                return str(one.spelling).strip('"')
    return ""


def letter(kind: Any) -> str:
    """v: void*; p: another pointer; i: an int; x: all else."""
    plain = kind.get_canonical()
    if plain.kind == TypeKind.POINTER:
        return "v" if plain.get_pointee().kind == TypeKind.VOID else "p"
    return "i" if plain.kind == TypeKind.INT else "x"


def line_of(cursor: Any) -> int:
    return int(cursor.location.line)


def file_of(cursor: Any) -> str:
    return str(cursor.location.file.name) if cursor.location.file else ""


def where(cursor: Any) -> str:
    return f"{Path(file_of(cursor)).name}:{cursor.location.line}"
