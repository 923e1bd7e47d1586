"""The operations of a proxy dump (NCCL_PROXY_DUMP_SIGNAL), in all known dialects.

The lines of a dump lie in the middle of a log, so the scanner finds them (``proxydump.op``); this module parses the
content of the brackets of an operation.
"""

from __future__ import annotations

import re

from psmkit.model.late import dataclass, regex

__all__ = ["STATES", "ProxyOp", "ProxySub", "parse_op"]

#: The meaning of the state letters, by kind of operation.
STATES = {
    "I": "buffers not posted yet",
    "R": "waits for data from the peer",
    "F": "flushes received data",
    "S": "waits until the network has sent",
    "G": "waits for its own GPU",
    "D": "done",
}

_KIND = regex(r"^(?:(\w+)->)?(Send|Recv|Coll)\b\s*")
_SUB = regex(r"(-?\d{1,18})([A-Z ])?/(\d{1,18})")
# RCCL: Coll->Recv (1048576)[R] peer:0 channel:0(retries:6)
_LONG = regex(r"\((\d{1,18})\)\s*\[(.)\]\s*peer:(-?\d{1,18})\s+channel:(\d{1,18})(?:\(retries:(\d{1,18})\))?")
# Proposed for NCCL: Reduce | recv channel NET/00: 0 <- 2 / status R (nsteps 6144, posted 677, received 669, ...)
_WORDS = regex(
    r"(send|recv) channel (\w+)/(\d{1,18})(?::\s*(\d{1,18})\s*(?:<-|->)\s*(\d{1,18}))?(?:\s*/\s*status (\w)\s*\(([^)]*)\))?"
)


@dataclass(frozen=True, slots=True)
class ProxySub:
    """A connection of an operation. ``state`` is a key of :data:`STATES`, or None if the dump does not show it."""

    peer: int | None
    channel: int
    state: str | None
    counters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProxyOp:
    """An operation of a proxy progress thread. ``kind`` is Send, Recv or Coll; ``name`` is the collective, if printed."""

    pool: int
    index: int
    opcount: int
    kind: str
    name: str | None
    subs: tuple[ProxySub, ...]

    @property
    def waiting(self) -> tuple[ProxySub, ...]:
        """The connections that are in progress."""
        return tuple(s for s in self.subs if s.state is not None and s.state != "D")


def parse_op(pool: int, index: int, opcount: int, body: str) -> ProxyOp | None:
    """The operation whose bracket holds ``body`` after the second bar; None if ``body`` is not an operation."""
    text = body.strip()
    words = _WORDS.search(text)
    if words:
        name = text.split("|", 1)[0].strip() or None
        return ProxyOp(
            pool, index, opcount, words.group(1).capitalize(), name, tuple(_words(m) for m in _WORDS.finditer(text))
        )
    head = _KIND.match(text)
    if not head:
        return None
    rest = text[head.end() :]
    long = [
        ProxySub(
            int(m.group(3)), int(m.group(4)), _state(m.group(2)), (("retries", int(m.group(5))),) if m.group(5) else ()
        )
        for m in _LONG.finditer(rest)
    ]
    subs = long or [
        ProxySub(int(m.group(1)), int(m.group(3)), _state(m.group(2))) for m in _SUB.finditer(rest.split("]", 1)[0])
    ]
    return ProxyOp(pool, index, opcount, head.group(2), head.group(1), tuple(subs))


def _state(letter: str | None) -> str | None:
    return letter if letter in STATES else None


def _words(match: re.Match[str]) -> ProxySub:
    counters = re.findall(r"(\w+) (\d{1,18})", match.group(7) or "")
    return ProxySub(
        peer=int(match.group(5)) if match.group(5) else None,
        channel=int(match.group(3)),
        state=_state(match.group(6)),
        counters=tuple((name, int(value)) for name, value in counters),
    )
