"""Write the headers of NCCL's plugin ABIs from the facts in psmkit/plugins/abi.json.

Usage: python generate.py headers abi.json OUT_FOLDER TEMPLATE.h.in...
       python generate.py versions abi.json OUT_FOLDER

The second is for psmkit's own code (versions.py).

A template is a header whose lines ``@...`` are replaced:

    @types STEM [FIRST-LAST], ...    each type STEM_vN_t, oldest version first
    @enum NAME [TYPE]                the newest values of an enum of the facts; TYPE: a name by a typedef
    @tables KIND [FIRST-LAST]        the declarations of the tables
    @{KIND.first}, @{KIND.last}      within a line: the first and the last version of a table

FIRST and LAST are optional: ``4-``, ``-3``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import versions
from complete import problems
from layout import Facts, Member, function, known_versions, members, newest, types

_WIDTH = 120


def _comment(text: str, indent: str = "") -> list[str]:
    """A comment, wrapped as clang-format does it."""
    lines, line = [], f"{indent}/* "
    for word in text.split():
        if len(line) + len(word) + (0 if line.endswith(" ") else 1) > _WIDTH:
            lines.append(line)
            line = f"{indent} * "
        line += word if line.endswith(" ") else f" {word}"
    return [*lines, f"{line} */"] if len(line) + 3 <= _WIDTH else [*lines, line, f"{indent} */"]


def _named(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


def _declared(member: Member, indent: str) -> list[str]:
    """A member that is not a struct or union itself."""
    returns, parameters = function(member.type)
    if returns is None:
        kind, _, rooms = member.type.partition(" [")
        rooms = "".join(f"[{room}]" for room in member.dimensions) or (f"[{rooms}" if rooms else "")
        return [f"{indent}{_named(kind, member.name)}{rooms};"]
    words = [_named(kind, name) for kind, name in zip(parameters, member.parameters, strict=True)] or ["void"]
    line = f"{indent}{_named(returns, f'(*{member.name})')}("
    room = " " * len(line)
    lines = []
    for at, word in enumerate(words):
        word += ", " if at + 1 < len(words) else ");"
        if len(line) + len(word.rstrip()) > _WIDTH and not line.endswith("("):
            lines.append(line.rstrip())
            line = room
        line += word
    return [*lines, line]


def _aligned(lines: Iterator[str]) -> Iterator[str]:
    """Comments at the ends of lines that follow each other begin in one column, as clang-format places them."""
    group: list[tuple[str, str]] = []

    def flush() -> Iterator[str]:
        at = max((len(code) for code, _ in group), default=0)
        fits = all(at + 1 + len(note) <= _WIDTH for _, note in group)
        yield from (f"{code.ljust(at) if fits else code} {note}" for code, note in group)
        group.clear()

    for line in lines:
        code, mark, note = line.partition(" /* ")
        if mark and code.strip():
            group.append((code, f"/* {note}"))
            continue
        yield from flush()
        yield line
    yield from flush()


def _members(some: list[Member], indent: str) -> Iterator[str]:
    for member in some:
        if member.members:
            yield f"{indent}{member.type} {{"
            yield from _members(member.members, indent + "    ")
            yield f"{indent}}}{f' {member.name}' if member.name else ''};"
            continue
        lines = _declared(member, indent)
        note = f" /* {member.note} */" if member.note else ""
        if len(lines) == 1 and len(lines[0]) + len(note) <= _WIDTH:
            yield lines[0] + note
        else:
            yield from _comment(member.note, indent) if note else ()
            yield from lines


def _types(facts: Facts, words: str) -> Iterator[str]:
    some = types(facts, words)
    for kind, after in zip(some, [*some[1:], None], strict=True):
        yield from _comment(kind.note) if kind.note else ()
        if kind.same:
            yield f"typedef {kind.same} {kind.name};"
            if after and after.same and not after.note:
                continue
        else:
            yield f"typedef {kind.kind} {{"
            yield from _aligned(_members(members(facts, kind.name), "    "))
            yield f"}} {kind.name};"
        yield ""


def _enum(facts: Facts, words: str) -> Iterator[str]:
    name, _, type_name = words.partition(" as ")
    history = facts["enums"][name]
    values = newest(history)
    seen = {one: start for start, _, some in reversed(history) for one in some}
    bits = all(value & (value - 1) == 0 and value for value in values.values())
    yield "typedef enum {" if type_name else "enum {" if name.startswith("(") else f"enum {name} {{"
    yield from _aligned(_values(values, seen, history[0][0], bits))
    yield f"}} {type_name};" if type_name else "};"


def _values(values: dict[str, int], seen: dict[str, str], first: str, bits: bool) -> Iterator[str]:
    for at, (one, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        text = f"    {one} = {f'1 << {value.bit_length() - 1}' if bits else value}{',' if at + 1 < len(values) else ''}"
        yield text if seen[one] in (first, None) else f"{text} /* {seen[one].rpartition('.')[0]} */"


def _tables(facts: Facts, words: str) -> Iterator[str]:
    kind, _, some = words.partition(" ")
    for version in known_versions(facts, kind, some):
        entry = facts["tables"][kind][str(version)]
        own = f"{entry['symbol'].replace('Plugin', '')}_t"
        yield f"extern PSM_ABI_TABLE {own if own in facts['typedefs'] else entry['struct']} {entry['symbol']};"


def header(facts: Facts, template: Path) -> str:
    """The header of a template.

    Raises:
        ValueError: a line of the template is wrong; the error cites it.
    """
    commands: dict[str, Callable[[Facts, str], Iterator[str]]] = {"types": _types, "enum": _enum, "tables": _tables}

    def number(found: re.Match[str]) -> str:
        known = known_versions(facts, found[1])
        return str(known[0] if found[2] == "first" else known[-1])

    out = [f"/* Made from {template.name} and psmkit/plugins/abi.json by csrc/abi/generate.py; do not edit. */"]
    for at, line in enumerate(template.read_text("utf-8").splitlines(), 1):
        command, _, words = line[1:].partition(" ")
        try:
            if not line.startswith("@"):
                out.append(re.sub(r"@\{(\w+)\.(first|last)\}", number, line))
            else:
                out.extend(commands[command](facts, words))
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{template.name}:{at}: {line}: {_said(error)}") from None
        # A type ends with an empty line, and so may the template.
        if len(out) > 1 and not out[-1] and not out[-2]:
            out.pop()
    return "\n".join(out) + "\n"


def write(file: Path, text: str) -> None:
    """Write a file, unless it has this text already: then it keeps its time."""
    if not file.exists() or file.read_text("utf-8") != text:
        file.write_text(text, "utf-8")


def read(facts_file: str) -> Facts:
    """The facts, if they are whole. What is missing ends the program."""
    try:
        facts: Facts = json.loads(Path(facts_file).read_text("utf-8"))
        found = problems(facts)
    except json.JSONDecodeError as error:
        found = [f"not JSON: {error}"]
    except (KeyError, ValueError, IndexError) as error:
        found = [f"cannot read the facts: {_said(error)}"]
    if found:
        sys.exit("\n".join(f"{facts_file}: {line}" for line in found))
    return facts


def _said(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["headers", facts_file, out, *templates]:
            facts = read(facts_file)
            for template in map(Path, templates):
                try:
                    text = header(facts, template)
                except ValueError as error:
                    sys.exit(f"{facts_file}: {error}")
                write(Path(out) / template.name.removesuffix(".in"), text)
        case ["versions", facts_file, out]:
            facts = read(facts_file)
            for name, made in versions.HEADERS.items():
                try:
                    text = made(facts)
                except (KeyError, ValueError) as error:
                    sys.exit(f"{facts_file}: cannot write {name}: {_said(error)}")
                write(Path(out) / name, text)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
