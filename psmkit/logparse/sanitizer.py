"""Reports of the handle sanitizer in record files, for programs that need more than its log lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from psmkit.logparse.records import open_record
from psmkit.model.late import dataclass

__all__ = ["Report", "reports"]


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the sanitizer, from the record file of its process.

    ``kind`` is the last part of the message's name (``foreign``, ``out_of_bounds``). ``fields`` are the fields of the message.
    ``stacks`` holds the frames under ``used``, ``born`` and ``ended``.
    """

    pid: int
    rank: int
    kind: str
    fields: Mapping[str, int | float | str]
    stacks: Mapping[str, str]


def reports(records: str | os.PathLike[str]) -> list[Report]:
    """The reports in the record files of a folder, by process and in the order of their files."""
    out: list[Report] = []
    for path in sorted(Path(records).glob("*.rec")):
        file = open_record(str(path))
        stacks: dict[int, dict[str, str]] = {}
        for record in file.records():
            number = int(record.fields.get("report", 0))
            if record.section != "sanitizer.reports" or record.message is None or not number:
                continue
            found = stacks.setdefault(number, {})
            if record.message == "sanitizer.stack":
                found[str(record.fields["which"])] = str(record.fields["stack"])
            else:
                out.append(Report(file.pid, file.rank, record.message.removeprefix("sanitizer."), record.fields, found))
    return out
