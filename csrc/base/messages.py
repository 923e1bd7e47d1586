"""Write psm_messages.h: a C function for each message of psmkit's own catalogue file.

Usage: python messages.py psmkit.toml psm_messages.h

What these functions print is what the scanner reads, because both are made from the same patterns. For a message ``a.b`` with the pattern
``text {x:int}`` there are ``psm_msg_a_b(x)``, which logs it, ``psm_text_of_a_b(text, x)``, which renders it, and ``PSM_MESSAGE_A_B``, name,
level and pattern for a record's schema. Further patterns of a message get a number: ``psm_msg_a_b_2``.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_LEVELS = {"WARN": "PSM_LEVEL_WARN", "INFO": "PSM_LEVEL_INFO"}
# Field type -> (C type, function). Texts get the literal that follows them, too.
_TYPES = {
    "int": ("int64_t", "int"),
    "uint": ("uint64_t", "uint"),
    "hex": ("uint64_t", "hex"),
    "ptr": ("uint64_t", "ptr"),
    "float": ("double", "float"),
    "word": ("const char *", "word"),
    "str": ("const char *", "str"),
    "rest": ("const char *", "str"),
}
_TEXTS = ("word", "str", "rest")
_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return"
    " short signed sizeof static struct switch typedef union unsigned void volatile while".split()
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


def functions(name: str, level: str, pattern: str) -> str:
    """The C text for one pattern."""
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
    if (!psm_log_enabled({level})) return;
    char line_[PSM_LINE_SIZE];
    struct psm_text text_ = {{line_, 0, sizeof line_, 0}};
    psm_text_of_{name}(&text_{names});
    psm_log_write({level}, line_, text_.n);
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
        f"/* Made by messages.py from {file.name}; do not edit. */\n#ifndef PSM_MESSAGES_H\n#define PSM_MESSAGES_H\n"
    ]
    out.append('#include "log.h"\n')
    for message in tomllib.loads(file.read_text("utf-8"))["message"]:
        level = message.get("level", "INFO")
        if level not in _LEVELS:
            raise ValueError(f"{message['name']}: level {level}; WARN or INFO is meant")
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


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        Path(sys.argv[2]).write_text(header(Path(sys.argv[1])), "utf-8")
    except ValueError as problem:
        sys.exit(f"messages.py: {problem}")
