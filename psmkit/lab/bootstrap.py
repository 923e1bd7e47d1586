"""The runner's side of the bootstrap protocol: barriers, exchanges of bytes, reports. The state only, without sockets.

Lines of text, from rank to runner and back; docs/pytest.md has them all::

    hello RANK PID
    stage NAME
    trouble JSON or TEXT
    barrier NAME FAILED            ->  go NAME HOW_MANY_OTHERS_FAILED
    exchange NAME TO:HEX ...       ->  exchanged NAME FROM:HEX ...
    report JSON
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Bootstrap", "ProtocolError", "RankState"]

MAX_LINE = 1 << 28  # bytes; a rank that sends more without an end is not one of ours
MAX_REPORTS = 100_000
_NAME = re.compile(r"[\w.:/@+-]{1,80}\Z")
_PART = re.compile(r"(\d{1,6}):([0-9a-f]*)\Z")  # a repeated group would take a hundred bytes for each byte


class ProtocolError(Exception):
    """A rank sent a message that is invalid, or invalid in its state."""


@dataclass(slots=True)
class RankState:
    """The state of a rank, by its messages."""

    pid: int | None = None
    stage: str = ""
    trouble: str = ""  # the first failure, sent immediately
    failure: dict[str, Any] | None = None  # its fields
    waits: str | None = None  # "barrier connected": what it is blocked in
    failed: bool = False
    gone: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)
    buffer: bytearray = field(default_factory=bytearray)
    parts: dict[int, str] = field(default_factory=dict)


class Bootstrap:
    """Takes the messages of ranks and returns the answers.

    Args:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = [RankState() for _ in range(ranks)]

    def feed(self, rank: int, data: bytes) -> list[tuple[int, bytes]]:
        """Take what ``rank`` has sent.

        Returns:
            Answers: to which rank, and the bytes.

        Raises:
            ProtocolError: the message is invalid, or invalid in this state. The bad line leaves the state of the rank unchanged.
        """
        state = self.ranks[rank]
        seen = len(state.buffer)
        state.buffer += data
        out: list[tuple[int, bytes]] = []
        while (end := state.buffer.find(b"\n", seen)) >= 0:
            line = bytes(state.buffer[:end])
            del state.buffer[: end + 1]
            seen = 0
            out += self._line(rank, line)
        if len(state.buffer) > MAX_LINE:
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        return out

    def leave(self, rank: int) -> list[tuple[int, bytes]]:
        """``rank`` has left: it died, ended, or was rejected. Ranks that wait for it continue without it."""
        state = self.ranks[rank]
        if state.gone:
            return []
        state.gone, state.waits = True, None
        return self._complete()

    def disagreement(self) -> str | None:
        """The deadlock when all ranks wait, and not for the same thing. None: there is no deadlock."""
        waiting = {i: s.waits for i, s in enumerate(self.ranks) if not s.gone}
        if not waiting or None in waiting.values() or len(set(waiting.values())) < 2:
            return None
        return "; ".join(f"rank {i} waits in {what}" for i, what in waiting.items())

    def _line(self, rank: int, line: bytes) -> list[tuple[int, bytes]]:
        state = self.ranks[rank]
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolError(f"not UTF-8: {line[:40]!r}") from None
        word, _, rest = text.partition(" ")
        if state.waits is not None:
            raise ProtocolError(f"{word[:20]!r} while it waits in {state.waits}")
        match word:
            case "hello":
                mine, _, pid = rest.partition(" ")
                if mine != str(rank) or not pid.isdecimal() or len(pid) > 10:
                    raise ProtocolError(f"bad hello {rest[:40]!r}, expected rank {rank}")
                state.pid = int(pid)
            case "stage":
                state.stage = self._name(rest)
            case "trouble":
                if not state.trouble:
                    state.failure = self._failure(rest)
                    state.trouble = self._trouble(state.failure) if state.failure else rest[:1000]
            case "report":
                state.reports.append(self._report(rest, len(state.reports)))
            case "barrier":
                name, _, failed = rest.partition(" ")
                if failed not in ("0", "1"):
                    raise ProtocolError(f"barrier {name[:40]!r} with {failed[:20]!r}, expected 0 or 1")
                state.failed = failed == "1"
                state.waits = f"barrier {self._name(name)}"
                return self._complete()
            case "exchange":
                name, *parts = rest.split(" ")
                state.parts = dict(self._part(part) for part in parts if part)
                state.failed = False
                state.waits = f"exchange {self._name(name)}"
                return self._complete()
            case _:
                raise ProtocolError(f"unknown message {word[:20]!r}")
        return []

    def _complete(self) -> list[tuple[int, bytes]]:
        """The answers, once all remaining ranks wait for the same thing."""
        here = [i for i, s in enumerate(self.ranks) if not s.gone]
        waits = {self.ranks[i].waits for i in here}
        if len(waits) != 1 or (what := waits.pop()) is None:
            return []
        word, _, name = what.partition(" ")
        out: list[tuple[int, bytes]] = []
        bad = {i for i, s in enumerate(self.ranks) if s.gone or s.failed}
        for i in here:
            if word == "barrier":
                answer = f"go {name} {len(bad - {i})}"
            else:
                parts = [f"{j}:{self.ranks[j].parts[i]}" for j in here if i in self.ranks[j].parts]
                answer = " ".join([f"exchanged {name}", *parts])
            out.append((i, answer.encode() + b"\n"))
        for i in here:
            self.ranks[i].waits, self.ranks[i].parts = None, {}
        return out

    def _name(self, text: str) -> str:
        if not _NAME.match(text):
            raise ProtocolError(f"bad name {text[:40]!r}")
        return text

    def _part(self, text: str) -> tuple[int, str]:
        found = _PART.match(text)
        if not found or len(found[2]) % 2 or int(found[1]) >= len(self.ranks):
            raise ProtocolError(f"bad part {text[:40]!r} of an exchange, expected RANK:HEX")
        return int(found[1]), found[2]

    @staticmethod
    def _failure(text: str) -> dict[str, Any] | None:
        """The fields of a failure; None: it is a text."""
        try:
            found = json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    @staticmethod
    def _trouble(failure: Mapping[str, Any]) -> str:
        return f"{failure.get('status')} at {failure.get('stage')}: {failure.get('text')}"[:1000]

    @staticmethod
    def _report(text: str, count: int) -> dict[str, Any]:
        try:
            report = json.loads(text)
        except ValueError:
            report = None
        if not isinstance(report, dict) or count >= MAX_REPORTS:
            raise ProtocolError(
                f"a report that is not a JSON object, or more than {MAX_REPORTS} reports: {text[:60]!r}"
            )
        return report
