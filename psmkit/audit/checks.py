"""The checks that sources make themselves: static_asserts about another struct than they name, switches that miss a value. Only the child process
imports it."""

from __future__ import annotations

import re
from typing import Any

from clang.cindex import CursorKind, TypeKind

from psmkit.audit.expressions import file_of, line_of
from psmkit.audit.sources import Sources

__all__ = ["checks"]

_NAMES = 8  # letters that the name of a struct has at least, if a text is to name it
_COUNTS = re.compile(
    r".*(Num|NUM|Count|COUNT|Max|MAX|Last|LAST|End|END)\w*|\w*_(N|NB)|.*(UNDEFINED|Undefined|INVALID|Invalid)"
)


def checks(sources: Sources) -> list[dict[str, Any]]:
    """What is wrong with the checks of the sources, not of system headers."""
    names = _structs(sources)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for unit in sources.units:
        seen: dict[tuple[str, str], int] = {}
        before: Any = None
        for cursor in unit.cursor.get_children():
            if cursor.location.is_in_system_header:
                continue
            if cursor.kind == CursorKind.STATIC_ASSERT:
                _assert(cursor, before, seen, names, found)
            elif cursor.is_definition() and cursor.kind not in (CursorKind.STRUCT_DECL, CursorKind.TYPEDEF_DECL):
                for one in cursor.walk_preorder():
                    if one.kind == CursorKind.STATIC_ASSERT:
                        _assert(one, None, seen, names, found)
                    elif one.kind == CursorKind.SWITCH_STMT:
                        _switch(one, cursor.spelling, found)
            before = cursor
    return list(found.values())


def _structs(sources: Sources) -> dict[str, str]:
    """Names of structs, by their letters in lower case."""
    out = {}
    for unit in sources.units:
        for cursor in unit.cursor.get_children():
            if cursor.kind == CursorKind.STRUCT_DECL and len(cursor.spelling) >= _NAMES:
                out[_letters(cursor.spelling)] = cursor.spelling
    return out


def _named(text: str) -> set[str]:
    """What whole words of a text, one or some in a row, can name: "P2P Connect info" is p2pConnectInfo, and psm_conn_progress is not psm_conn."""
    words = [_letters(word) for word in re.findall(r"\w+", text)]
    return {"".join(words[at:end]) for at in range(len(words)) for end in range(at + 1, min(at + 6, len(words) + 1))}


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _assert(
    cursor: Any,
    before: Any,
    seen: dict[tuple[str, str], int],
    names: dict[str, str],
    found: dict[tuple[str, int], dict[str, Any]],
) -> None:
    children = list(cursor.get_children())
    if not children:
        return
    file, line = file_of(cursor), line_of(cursor)
    checked = {
        one.spelling.removeprefix("struct ") for one in cursor.walk_preorder() if one.kind == CursorKind.TYPE_REF
    }
    condition = " ".join(token.spelling for token in children[0].get_tokens() if token.spelling != "struct")
    text = children[-1].spelling if children[-1].kind == CursorKind.STRING_LITERAL else ""
    said = _named(text)
    meant = {name for letters, name in names.items() if letters in said}
    # Where p2pConnectInfo and ConnectInfo both match, the longer name counts.
    meant = {one for one in meant if not any(one != other and one.lower() in other.lower() for other in meant)}
    if checked and meant and not meant & checked and not any(_letters(one) in said for one in checked):
        found[file, line] = {
            "kind": "assert", "file": file, "line": line, "checks": sorted(checked), "names": sorted(meant), "first": 0,
        }  # fmt: skip
    elif (
        (file, condition) in seen
        and before is not None
        and before.kind == CursorKind.STRUCT_DECL
        and before.spelling not in checked
        and before.is_definition()
        and checked
    ):
        found[file, line] = {
            "kind": "assert", "file": file, "line": line, "checks": sorted(checked), "names": [before.spelling],
            "first": seen[file, condition],
        }  # fmt: skip
    seen.setdefault((file, condition), line)


def _switch(cursor: Any, function: str, found: dict[tuple[str, int], dict[str, Any]]) -> None:
    parts = list(cursor.get_children())
    if not parts or cursor.location.is_in_system_header:
        return
    used: set[str] = set()
    kinds: dict[str, Any] = {}
    for one in parts[-1].walk_preorder():
        if one.kind == CursorKind.DEFAULT_STMT:
            return
        if one.kind == CursorKind.CASE_STMT:
            for inner in next(iter(one.get_children())).walk_preorder():
                value = inner.referenced
                if (
                    inner.kind == CursorKind.DECL_REF_EXPR
                    and value is not None
                    and value.kind == CursorKind.ENUM_CONSTANT_DECL
                ):
                    used.add(value.spelling)
                    kinds[value.semantic_parent.get_usr()] = value.semantic_parent
    # The type of the condition, before it becomes an int.
    for one in parts[0].walk_preorder() if len(parts) > 1 else ():
        plain = one.type.get_canonical()
        if plain.kind == TypeKind.ENUM:
            kinds[plain.get_declaration().get_usr()] = plain.get_declaration()
    if len(kinds) != 1 or not used:
        return
    (declared,) = kinds.values()
    values = {
        one.spelling: one.enum_value for one in declared.get_children() if one.kind == CursorKind.ENUM_CONSTANT_DECL
    }
    covered = {values[name] for name in used if name in values}
    missing = [name for name, value in values.items() if value not in covered and not _COUNTS.fullmatch(name)]
    if missing:
        file, line = file_of(cursor), line_of(cursor)
        found[file, line] = {
            "kind": "switch", "file": file, "line": line, "function": function, "enum": declared.spelling or "an enum",
            "missing": missing,
        }  # fmt: skip
