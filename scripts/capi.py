"""The C reference of the site: a page for each public header, made of its comments and declarations.

The comments of the headers are plain text, and stand above what they are about. So a page needs no tool: a comment becomes a paragraph, the
declarations below it a block of code, and their names the heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HEADERS = Path(__file__).resolve().parents[1] / "csrc" / "psm" / "include" / "psm"
NAMES = ("psm_p2p", "psm_net", "psm_launch", "psm_proxy", "psm_host_ops", "psm_variant", "psm", "psm_share", "psm_segment", "psm_fifo",
         "psm_plan", "psm_plan_events", "psm_plan_cuda")  # fmt: skip

_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_GUARD = re.compile(
    r"#ifdef __cplusplus\n(?:extern \"C\" \{|\})\n#endif\n|^#include .*\n|^#ifndef (\w+)_H\n#define \1_H\n|^#pragma once\n|#endif\s*\Z",
    re.MULTILINE,
)
_DECLARED = (
    re.compile(r"^(?:typedef )?(?:struct|enum|union) (\w+)\s*\{", re.MULTILINE),
    re.compile(r"^typedef [^;{]*?\(?\*?(\w+)\)?(?:\([^;]*\))?;", re.MULTILINE),
    re.compile(r"^(?:PSM_\w*API|static inline|extern)?\b[\w *]*?\b(\w+)\((?!\*)", re.MULTILINE),
    re.compile(r"^#define (\w+)", re.MULTILINE),
    re.compile(r"^(enum) \{", re.MULTILINE),
)
_CODE = re.compile(
    r"(`[^`]*`|(?<!\w)\*?\b(?:psm[A-Z_]\w*|PSM_\w+|nccl[A-Z]\w*|cu(?:da)?[A-Z]\w+)(?:\(\))?|(?<!\w)\*\w+)"
)
_SPECIAL = re.compile(r"([*<\[])")


def page(name: str) -> str:
    """The page of a header in Markdown."""
    text = (HEADERS / f"{name}.h").read_text("utf-8")
    out = [f"# psm/{name}.h", ""]
    if about := re.match(r"/\*.*?\*/\n(?=#ifndef|#pragma once)", text, re.DOTALL):
        out += [prose(about[0]), ""]
        text = text[about.end() :]
    text = _GUARD.sub("", text)
    for comment, code in chunks(text):
        if code:
            out += [f"## {heading(code)}", ""]
        if comment:
            out += [prose(comment), ""]
        if code:
            out += ["```c", code, "```", ""]
    return "\n".join(out)


def chunks(text: str) -> Iterator[tuple[str, str]]:
    """Comments and the declarations that follow each; a declaration without a comment has an empty one."""
    comment, code, depth = "", [], 0
    lines = iter(text.splitlines())
    for line in lines:
        if depth == 0 and (not line.strip() or line.lstrip().startswith("/*")):
            if code or (comment and line.strip()):
                yield comment, "\n".join(code)
                comment, code = "", []
            if line.strip():
                held = [line]
                while "*/" not in held[-1]:
                    held.append(next(lines))
                comment = "\n".join(held)
            continue
        code.append(line)
        bare = _COMMENT.sub("", line)
        depth += bare.count("{") - bare.count("}") + bare.count("(") - bare.count(")")
    if comment or code:
        yield comment, "\n".join(code)


def heading(code: str) -> str:
    """The names that some lines declare: at most three."""
    bare = _COMMENT.sub("", code)
    found = sorted((m.start(), m[1]) for pattern in _DECLARED for m in pattern.finditer(bare))
    names = list(dict.fromkeys(name for _, name in found if not name.startswith("PSM_SHAREABLE")))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "Declarations"


def prose(comment: str) -> str:
    """A comment as Markdown: the names in it as code."""
    text = "\n".join(
        line.strip().removeprefix("* ").removeprefix("*") for line in _COMMENT.sub(r"\1", comment).splitlines()
    )
    parts = _CODE.split(text.strip())
    return "".join(f"`{part.strip('`')}`" if at % 2 else _SPECIAL.sub(r"\\\1", part) for at, part in enumerate(parts))
