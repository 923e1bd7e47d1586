"""Write psm_messages.h: a C function for each message of one of psmkit's own catalogue files.

Usage: python messages.py psmkit.toml psm_messages.h
       python messages.py --list messages.list CATALOGUE_FOLDER psm_lib_messages.h

The scanner reads what these functions print, because both come from the same patterns. For a message ``a.b`` with the pattern
``text {x:int}`` there are ``psm_msg_a_b(x)``, which logs it, ``psm_text_of_a_b(text, x)``, which renders it, and ``PSM_MESSAGE_A_B``, name,
level and pattern for a record's schema. Further patterns of a message get a number: ``psm_msg_a_b_2``.

A list names messages of any catalogue files, including NCCL's, for libpsm, which filters by subsystem. Its lines are

    FILE NAME[#PATTERN] SUBSYSTEM[|SUBSYSTEM...]

NAME may contain ``*``; PATTERN, counted from 1, selects one of several patterns. Every selected pattern must be printable.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import tomllib
from pathlib import Path

_LEVELS = {"WARN": "PSM_LEVEL_WARN", "INFO": "PSM_LEVEL_INFO"}
# Field type -> (C type, function). Text functions also get the literal that follows the field.
_TYPES = {
    "int": ("int64_t", "int"),
    "uint": ("uint64_t", "uint"),
    "hex": ("uint64_t", "hex"),
    "ptr": ("uint64_t", "ptr"),
    "word": ("const char *", "word"),
    "str": ("const char *", "str"),
    "rest": ("const char *", "str"),
}
_TEXTS = ("word", "str", "rest")
_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return"
    " short signed sizeof static struct switch typedef union unsigned void volatile while".split()
)
# enum psm_subsystem of csrc/psm/core/internal.h.
_SUBSYSTEMS = frozenset(
    "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE RAS ALL".split()
)
_PART = re.compile(r"\{\{|\}\}|\{ \}|\{([^{}:]+):([a-z]+)\}|[{}]")


def tokens(pattern: str) -> list[tuple[str, str]]:
    """Literals as ("", text) and fields as (name, type), in order.

    Raises:
        ValueError: the pattern has a field that cannot be printed.
    """
    out: list[tuple[str, str]] = []
    text, at = "", 0
    for match in _PART.finditer(pattern):
        text += pattern[at : match.start()]
        at = match.end()
        found = match[0]
        if found in ("{{", "}}", "{ }"):
            text += found[1]
            continue
        if not match[1]:
            raise ValueError(f"a lone {found!r}")
        if match[2] not in _TYPES or match[1] == "_":
            raise ValueError(f"{found}: psm_base cannot print such a field")
        if text:
            out.append(("", text))
        elif out and out[-1][0]:
            raise ValueError(f"{found}: nothing between two fields")
        text = ""
        out.append((match[1], match[2]))
    text += pattern[at:]
    if text:
        out.append(("", text))
    return out


def literal(text: str) -> str:
    """A C string literal."""
    # Octal escapes are at most three digits long, so that what follows cannot run into them; trigraphs are broken up.
    raw = "".join(chr(b) if 0x20 <= b < 0x7F and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{raw}"'


def functions(name: str, level: str, pattern: str, subsystems: str = "") -> str:
    """The C code for one pattern. With subsystems it is for libpsm, which has its own filter."""
    wanted = f"psm_log_on({level}, {subsystems})" if subsystems else f"psm_log_enabled({level})"
    write = "psm_log_put" if subsystems else "psm_log_write"
    parts = tokens(pattern)
    arguments: dict[str, str] = {}
    body = []
    for i, (field, what) in enumerate(parts):
        if not field:
            body.append(f"    psm_text_literal(text_, {literal(what)}, {len(what.encode())});")
            continue
        kind, function = _TYPES[what]
        if field in _KEYWORDS:
            field += "_"
        if arguments.setdefault(field, kind) != kind:
            raise ValueError(f"field {field} has two types")
        stop = f", {literal(parts[i + 1][1]) if i + 1 < len(parts) else literal('')}" if what in _TEXTS else ""
        body.append(f"    psm_text_{function}(text_, {field}{stop});")
    typed = "".join(f", {kind}{'' if kind.endswith('*') else ' '}{field}" for field, kind in arguments.items())
    names = "".join(f", {field}" for field in arguments)
    rendered = "\n".join(body)
    return f"""#define PSM_MESSAGE_{name.upper()} {{{literal(name_of[name])}, {level}, {literal(pattern)}}}
static inline void psm_text_of_{name}(struct psm_text *text_{typed})
{{
{rendered}
}}
static inline void psm_msg_{name}({typed[2:] or "void"})
{{
    if (!{wanted}) return;
    char line_[PSM_LINE_SIZE];
    struct psm_text text_ = {{line_, 0, sizeof line_, 0}};
    psm_text_of_{name}(&text_{names});
    {write}({level}, line_, text_.n);
}}
"""


# C name -> name in the catalogue.
name_of: dict[str, str] = {}


def header(file: Path) -> str:
    """The header for the messages of a catalogue file.

    Raises:
        ValueError: a message cannot be printed by psm_base, or two have the same name in C.
    """
    out = [
        f"/* Generated by messages.py from {file.name}; do not edit. */\n#ifndef PSM_MESSAGES_H\n#define PSM_MESSAGES_H\n"
    ]
    out.append('#include "log.h"\n')
    for message in tomllib.loads(file.read_text("utf-8"))["message"]:
        level = message.get("level", "INFO")
        if level not in _LEVELS:
            raise ValueError(f"{message['name']}: level {level}; expected WARN or INFO")
        for i, pattern in enumerate(message.get("patterns") or [message["pattern"]]):
            name = re.sub(r"\W", "_", message["name"]) + (f"_{i + 1}" if i else "")
            if name in name_of:
                raise ValueError(f"{message['name']} and {name_of[name]} are both {name} in C")
            name_of[name] = message["name"]
            try:
                out.append(functions(name, _LEVELS[level], pattern))
            except ValueError as error:
                raise ValueError(f"{file.name}: {message['name']}: {error}") from None
    out.append("#endif")
    return "\n".join(out) + "\n"


def listed(names: Path, folder: Path) -> str:
    """The header for the messages that a list names.

    Raises:
        ValueError: a line is wrong, matches no message, or selects a pattern that cannot be printed; the error cites the line.
    """
    out = [f"/* Generated by messages.py from {names.name}; do not edit. */\n#ifndef PSM_LIB_MESSAGES_H"]
    out.append('#define PSM_LIB_MESSAGES_H\n\n#include "core/internal.h"\n')
    levels = {**_LEVELS, "TRACE": "PSM_LEVEL_TRACE"}
    for number, line in enumerate(names.read_text("utf-8").splitlines(), 1):
        words = [] if line.lstrip().startswith("#") else line.split()
        if not words:
            continue
        where = f"{names.name}:{number}"
        if len(words) != 3:
            raise ValueError(f"{where}: {line.strip()!r}; expected FILE NAME[#PATTERN] SUBSYSTEM")
        file, what, subsystems = words
        glob, _, wanted = what.partition("#")
        strange = [word for word in subsystems.split("|") if word not in _SUBSYSTEMS]
        if strange:
            raise ValueError(f"{where}: subsystem {strange[0]}; expected one of {' '.join(sorted(_SUBSYSTEMS))}")
        if wanted and not wanted.isdigit():
            raise ValueError(f"{where}: {what}: expected a number after #, found #{wanted}")
        bits = " | ".join(f"PSM_SUB_{word}" for word in subsystems.split("|"))
        try:
            messages = tomllib.loads((folder / file).read_text("utf-8"))["message"]
        except OSError as error:
            raise ValueError(f"{where}: {file}: {error.strerror}") from None
        found = False
        for message in messages:
            if not fnmatch.fnmatchcase(message["name"], glob):
                continue
            for i, pattern in enumerate(message.get("patterns") or [message["pattern"]]):
                if wanted and int(wanted) != i + 1:
                    continue
                name = re.sub(r"\W", "_", message["name"]) + (f"_{i + 1}" if i else "")
                if name in name_of:
                    raise ValueError(f"{where}: {message['name']} is named a second time")
                name_of[name] = message["name"]
                try:
                    out.append(functions(name, levels[message.get("level", "INFO")], pattern, bits))
                except (KeyError, ValueError) as error:
                    raise ValueError(f"{where}: {message['name']}: {error}") from None
                found = True
        if not found:
            raise ValueError(f"{where}: {file} has no {what}")
    out.append("#endif")
    return "\n".join(out) + "\n"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--list", names, folder, out]:
            text = listed(Path(names), Path(folder))
        case [file, out]:
            text = header(Path(file))
        case _:
            sys.exit(__doc__)
    # A message of another file was edited: what includes this header need not be compiled again.
    if not (file_out := Path(out)).exists() or file_out.read_text("utf-8") != text:
        file_out.write_text(text, "utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as problem:
        sys.exit(f"messages.py: {problem}")
