"""``python -m psmkit.live.state PID``: the state of a process as a tree; ``--json``: for :func:`psmkit.live.state.read`, which starts this program."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator

from psmkit.live import state
from psmkit.model.errors import PsmkitError
from psmkit.model.inspection import Inspection, StateObject, Value, to_json

_MEMORY = 16 << 30  # address space of the reader


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m psmkit.live.state", description="The state of a live process.")
    parser.add_argument("pid", type=int)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds that this may take")
    parser.add_argument("--gap", type=float, default=0.2, help="seconds between the two samples")
    parser.add_argument("--json", action="store_true", help="read in this process, and write an inspection")
    given = parser.parse_args()
    if given.json:
        _child(given.pid, given.deadline, given.gap)
        return 0
    try:
        objects, libraries, notes = state.read(given.pid, deadline=given.deadline, gap=given.gap)
    except PsmkitError as error:
        print(error, file=sys.stderr)
        return 2
    for library in libraries:
        print(
            f"{library.path}: symbols: {library.symbols}" + (f", version {library.version}" if library.version else "")
        )
    for line in (line for one in objects for line in _lines(one, "")):
        print(line)
    for note in notes:
        print(f"note: {note.what}" + (f"; {note.remedy}" if note.remedy else ""))
    return 0


def _child(pid: int, deadline: float, gap: float) -> None:
    from psmkit.live.state.reader import inspect  # it needs drgn

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    objects, libraries, notes = inspect(pid, deadline, gap)
    found = Inspection(pid, "", (), time.time(), state=tuple(objects), libraries=tuple(libraries), notes=tuple(notes))
    json.dump(to_json(found), sys.stdout)


def _lines(one: StateObject, indent: str) -> Iterator[str]:
    values = ", ".join(map(_shown, one.values))
    yield f"{indent}{one.kind}: {one.name}" + (f" at {one.address:#x}" if one.address else "") + f": {values}"
    for part in one.parts:
        yield from _lines(part, indent + "  ")


def _shown(value: Value) -> str:
    was = f", was {value.before}" if value.before is not None else ""
    return f"{value.name}={value.value}" + (f" (moving{was})" if value.moving else "")


if __name__ == "__main__":
    sys.exit(main())
