"""Write libpsm's version script: every function that the public headers mark with PSM_API, and nothing else.

Usage: python exports.py OUT.map HEADER...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NODE = "PSM_0"


def functions(text: str) -> list[str]:
    """The names that a header declares with PSM_API, in order.

    Raises:
        ValueError: something else than a function is marked.
    """
    plain = re.sub(r"/\*.*?\*/|//[^\n]*|#define[^\n]*", "", text, flags=re.DOTALL)
    names = []
    for declaration in re.findall(r"\bPSM_API\b([^;{]*)", plain):
        match = re.match(r"[^(]*?(\w+)\s*\(", declaration)
        if not match:
            raise ValueError(f"PSM_API{declaration.rstrip()}: no function")
        names.append(match[1])
    return names


def main(out: str, headers: list[str]) -> None:
    names = sorted({name for header in headers for name in functions(Path(header).read_text("utf-8"))})
    Path(out).write_text(f"{NODE} {{\nglobal:\n" + "".join(f"    {name};\n" for name in names) + "local:\n    *;\n};\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2:])
    except ValueError as problem:
        sys.exit(f"exports.py: {problem}")
