"""Read the ids of device functions from the table that NCCL's build makes (host_table.cc).

usage: functions.py host_table.cc functions.inc
"""

import re
import sys
from pathlib import Path

_ROW = re.compile(r"/\*\s*\d+\*/\s*(\d+),\s*//\s*(\w[\w ]*)")


def names(text: str) -> dict[int, str]:
    """By id, the function that NCCL's device code has. Sums of signed integers are those of unsigned ones: one id, two rows."""
    rows = text.partition("ncclDevFuncRowToId[]")[2].partition("};")[0]
    out: dict[int, str] = {}
    for number, name in _ROW.findall(rows):
        key, name = int(number), name.strip()
        known = out.get(key)
        if known is None or _unsigned(known) == name:
            out[key] = name
        elif known != name and _unsigned(name) != known:
            raise SystemExit(
                f"function {key} is {known!r} and {name!r}: this table is of a kind that psmkit does not know"
            )
    return out


def _unsigned(name: str) -> str:
    return re.sub(r" i(8|32|64) ", r" u\1 ", name)


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:3])
    found = names(source.read_text())
    if "SendRecv" not in found.values():
        raise SystemExit(
            f"{source} has no table ncclDevFuncRowToId[] with named rows: is it the host_table.cc of an NCCL build?"
        )
    target.write_text("".join(f'{{{key}, "{name}"}},\n' for key, name in sorted(found.items())))


main()
