"""The rows of the net plugin's recorder as tables: for each connection, what each end sent and received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psmkit.logparse.records import RecordFile, Value

__all__ = ["connections"]

_HEADERS = ("message", "tag", "send", "bytes", "at", "took", "recv", "bytes", "room", "at", "took")


@dataclass
class _End:
    """One end: its file, the row of the connection, and those of its requests by number."""

    file: RecordFile
    row: dict[str, Value]
    requests: list[dict[str, Value]] = field(default_factory=list)

    @property
    def who(self) -> str:
        rank = self.row["rank"]
        return f"rank {rank}" if int(rank) >= 0 else f"process {self.file.pid}"

    def time(self, value: Value) -> str:
        try:
            return datetime.fromtimestamp(self.file.time_of(int(value))).strftime("%H:%M:%S.%f")
        except (OverflowError, ValueError, OSError):
            return "?"  # a damaged time


def connections(files: Sequence[RecordFile], width: int) -> Iterator[str]:
    """Lines of text: each connection of the net plugin, with both ends where their files are given."""
    from psmkit.report.ranktable import fit

    for number, ends in sorted(_ends(files).items()):
        sender = next((end for end in ends if end.row["role"] == "send"), None)
        receiver = next((end for end in ends if end.row["role"] == "recv"), None)
        first = sender or receiver
        assert first is not None
        known, peer = first.who, f"rank {first.row['peer']}" if int(first.row["peer"]) >= 0 else first.row["address"]
        pair = f"{known} -> {receiver.who if receiver else peer}" if sender else f"{peer} -> {known}"
        yield f"{first.row['backend']} connection {number:016x}, {pair}, maxRecvs {first.row['max_recvs']}"
        for end in ends:
            yield f"  {end.row['role']}: {_state(end)}"
        rows = list(_rows(sender, receiver))
        if rows:
            yield from (f"  {line}" for line in fit(_HEADERS, rows, width - 2))


def _ends(files: Sequence[RecordFile]) -> dict[int, list[_End]]:
    found: dict[int, list[_End]] = defaultdict(list)
    for file in files:
        rows = {s.name: [s.values(i) for i in range(len(s))] for s in file.sections if s.name.startswith("psm.net")}
        for row in rows.get("psm.net.comm", []):
            if not {"connection", "rank", "role", "peer", "backend", "max_recvs", "closed"} <= set(row):
                continue  # a file of an older version
            mine = [
                r
                for r in rows.get("psm.net", [])
                if (r["connection"], r["op"]) == (row["connection"], row["role"]) and "message" in r
            ]
            found[int(row["connection"])].append(_End(file, row, sorted(mine, key=lambda r: int(r["number"]))))
    return found


def _state(end: _End) -> str:
    row = end.row
    opened = sum(1 for r in end.requests if not r["completed"])
    parts = [
        f"{end.who} device {row['device']}, {end.file.host}:{end.file.pid}, {opened} of the last {len(end.requests)} open"
    ]
    if row["later"]:
        parts.append(
            f"was asked to send {row['later_size']} bytes with tag {row['later_tag']} later since {end.time(row['later'])}"
        )
    if row["looked"]:
        parts.append(f"asked in vain at {end.time(row['looked'])}")
    if row["error"]:
        where = f" in {row['call']}" if row["call"] else ""
        parts.append(f"error {row['error']}{where} by {row['cause']} at {end.time(row['error_at'])}")
    if row["closed"]:
        parts.append(f"closed at {end.time(row['closed'])} with {row['open']} open")
    if row["unseen"]:
        parts.append(f"{row['unseen']} requests have no row")
    return ", ".join(parts)


def _rows(sender: _End | None, receiver: _End | None) -> Iterator[tuple[str, ...]]:
    """A line for each send beside the receive it went into, in the order of the receives."""
    receives = {int(r["message"]): r for r in receiver.requests} if receiver else {}
    sends = list(sender.requests) if sender else []
    shown = set()
    lines = []
    for send in sends:
        message = int(send["message"])
        into = receives.get(message) if message >= 0 else None
        part = f"{message}/{send['slot']}" if into is not None and int(into["n"]) > 1 else str(message)
        lines.append(
            (
                message,
                int(send["number"]),
                (
                    part if message >= 0 else "lost",
                    str(send["tag"]),
                    *_half(sender, send),
                    *_recv(receiver, into, message in shown),
                ),
            )
        )
        shown.add(message)
    for message, recv in receives.items():
        if message not in shown or message < 0:
            tags = " ".join(str(recv["tag" + (str(i) if i else "")]) for i in range(int(recv["n"])))
            name = str(message) if message >= 0 else "lost"
            lines.append((message, int(recv["number"]), (name, tags, "", "", "", "", *_recv(receiver, recv, False))))
    # What never came to the network has no place among the messages but that of its number.
    for _, _, line in sorted(lines, key=lambda at: (at[0] if at[0] >= 0 else at[1], at[1])):
        yield line


def _half(end: _End | None, row: dict[str, Value]) -> tuple[str, str, str, str]:
    """State, bytes, time and duration of a request."""
    assert end is not None
    done, posted = int(row["completed"]), int(row["posted"])
    state = "open" if not done else f"error {row['error']}" if row["error"] else "done"
    return state, str(row["total"]), end.time(posted), f"{(done - posted) / 1e3:.1f} us" if done else ""


def _recv(end: _End | None, row: dict[str, Value] | None, again: bool) -> tuple[str, str, str, str, str]:
    if row is None or again:
        return "", "", "", "", ""
    state, size, at, took = _half(end, row)
    return state, size if state == "done" else "", str(row["room"]), at, took
