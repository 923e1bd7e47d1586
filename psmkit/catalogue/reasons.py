"""What a failure of libpsm or the lab was about, of lines that version 0.1 wrote: its reason was a text alone.

The patterns are those of 0.1's texts, matched by the same engine as log lines. They are kept apart from the catalogue because a reason is
a field of several messages, and a field cannot be matched as part of a line and kept whole at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from psmkit.catalogue.entries import Value
from psmkit.catalogue.loader import Catalogue, read_tables

__all__ = ["DAMAGED", "FOLLOWS", "OTHER", "about", "cause_of", "origin_of"]

OTHER = "other"
#: Causes of a failure that follows from another rank, which it names.
FOLLOWS = frozenset({"peer-died", "peer-closed", "peer-failed", "peer-sent", "deadline"})
#: Causes that say which word of shared memory is damaged. Either rank may have done that.
DAMAGED = {"damaged-recvTail": "recvTail", "damaged-sendHead": "sendHead"}
_FOLDER = Path(__file__).parent / "v01"
_NESTED, _DEEPEST = "nested", 4
#: A reason has at most 256 bytes.
_MOST_RANKS = 12


@lru_cache(maxsize=1)
def _reasons() -> Catalogue:
    return read_tables(sorted(_FOLDER.glob("*.toml")))


def about(fields: Mapping[str, Value]) -> tuple[str, int | None]:
    """The cause of a failure and the rank that it names, of a line of either version."""
    cause = fields.get("cause")
    if cause is None:
        return cause_of(str(fields.get("reason", "")))
    named = fields.get("named")
    return str(cause), named if isinstance(named, int) and named >= 0 else None


def cause_of(reason: str) -> tuple[str, int | None]:
    """The cause and the rank that it names, as later versions print them; ``other`` where the reason says neither."""
    return next(_links(reason, _DEEPEST), (OTHER, None))


def origin_of(reason: str) -> tuple[str, int | None]:
    """The cause at the end of a reason that passed through several ranks, as far as the text reaches; each of them put its own words before it."""
    return [(OTHER, None), *_links(reason, _MOST_RANKS)][-1]


def _links(reason: str, most: int) -> Iterator[tuple[str, int | None]]:
    """The causes that a reason names, from its begin to the innermost, each with the rank that it names."""
    for _ in range(most):
        found = _reasons().match(reason)
        if found is None:
            return
        message, fields = found
        if message.name != _NESTED:
            named = fields.get("named")
            yield message.name, named if isinstance(named, int) else None
        if "inner" not in fields:
            return
        reason = str(fields["inner"])
