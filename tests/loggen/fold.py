"""The log of a job whose processes drive several devices, made from one with a process for each rank."""

from __future__ import annotations

import re

__all__ = ["folded"]

_PREFIX = re.compile(r"^(?P<before>.*? )?(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[-?\d+\]")
#: What a process prints once, whatever the number of its devices; the first of them before all else.
_FIRST = ("cudaDriverVersion", "Bootstrap", "NCCL version")
_ONCE = (*_FIRST, "RAS ")
#: Keeps the threads of the ranks of a process apart.
_APART = 1000


def folded(text: str, devices: int) -> str:
    """The lines of each ``devices`` neighbouring ranks of a host as lines of one process, which prints first what it prints once."""
    ranks = sorted({(m["host"], int(m["pid"])) for line in text.splitlines() if (m := _PREFIX.match(line))})
    on: dict[str, list[int]] = {}
    for host, pid in ranks:
        on.setdefault(host, []).append(pid)
    first = {(host, pid): pids[at - at % devices] for host, pids in on.items() for at, pid in enumerate(pids)}
    heads, body = [], []
    for line in text.splitlines(keepends=True):
        found = _PREFIX.match(line)
        if found is None:
            body.append(line)
            continue
        rank = (found["host"], int(found["pid"]))
        if first[rank] != rank[1] and any(word in line for word in _ONCE):
            continue
        tid = int(found["tid"]) + _APART * ranks.index(rank)
        new = f"{line[: found.start('pid')]}{first[rank]}:{tid}{line[found.end('tid') :]}"
        (heads if any(word in line for word in _FIRST) else body).append(new)
    return "".join(heads + body)
