"""``python -m psmkit.audit types|sources|ways SECONDS``: the child process of :mod:`psmkit.audit.child`. A request on standard input, an answer on standard output."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

_MEMORY = 3 << 30  # bytes of address space, beside the file


def main() -> int:
    what, deadline = sys.argv[1], float(sys.argv[2])
    request = json.load(sys.stdin)
    size = os.stat(request["path"]).st_size
    seconds = int(deadline) + 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY + 2 * size, _MEMORY + 2 * size))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds + 1))
    try:
        answer = {"types": _types, "sources": _sources, "ways": _ways}[what](request)
    except MemoryError:
        answer = {"error": "it needs more memory than a sound file does"}
    except Exception as error:  # of a parser, over a foreign file
        text = " ".join(str(error).split())[:300]
        answer = {"error": f"it cannot be read: {text or type(error).__name__}"}
    json.dump(answer, sys.stdout)
    return 0


def _types(request: dict[str, Any]) -> dict[str, Any]:
    from psmkit.audit.knowledge import knowledge
    from psmkit.audit.reader import read
    from psmkit.audit.types import encoded

    structs, missing = read(Path(request["path"]), knowledge().wires, request["asked"])
    return {"structs": [encoded(one) for one in structs], "missing": missing}


def _sources(request: dict[str, Any]) -> dict[str, Any]:
    from psmkit.audit.sources import read

    return read(request)


def _ways(request: dict[str, Any]) -> dict[str, Any]:
    from psmkit.audit.ways import read

    return read(request)


if __name__ == "__main__":
    sys.exit(main())
