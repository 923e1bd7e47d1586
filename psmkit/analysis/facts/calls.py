"""What a call of a collective needs from others, and whether calls that diverge move the same data."""

from __future__ import annotations

from collections.abc import Mapping

from psmkit.logparse.types import SeqDivergence, Value

__all__ = ["TYPES", "needs", "needs_all", "needs_root", "retyped", "type_name"]

#: ncclDataType_t, by value.
TYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "half",
    "float",
    "double",
    "bfloat16",
    "float8e4m3",
    "float8e5m2",
)

_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # bytes of each ncclDataType_t
#: Collectives that move bytes and compute nothing: another type of the same total size is an equal call.
_MOVING = frozenset("AllGather Broadcast Bcast AlltoAll AllToAll AllToAllPivot Gather Scatter".split())


#: Collectives whose result needs data from every rank, on every rank or on the root, and from the root.
_FROM_ALL = frozenset("AllReduce AllGather ReduceScatter AlltoAll AllToAll AllToAllPivot".split())
_TO_ROOT = frozenset("Reduce Gather".split())
_FROM_ROOT = frozenset("Broadcast Bcast Scatter".split())


def needs_all(call: Mapping[str, Value], rank: int) -> bool:
    """Whether a collective ends on this rank only after all ranks called it. An empty one ends at once."""
    coll = call.get("coll")
    return call.get("count") != 0 and (coll in _FROM_ALL or (coll in _TO_ROOT and call.get("root") == rank))


def needs_root(call: Mapping[str, Value]) -> bool:
    """Whether a collective ends only after its root called it. An empty one ends at once."""
    return call.get("count") != 0 and call.get("coll") in _FROM_ROOT


def needs(call: Mapping[str, Value], rank: int, other: int) -> bool:
    """Whether a collective ends on ``rank`` only after ``other`` called it."""
    return needs_all(call, rank) or (needs_root(call) and call.get("root") == other)


def type_name(datatype: int) -> str:
    """The name of an ``ncclDataType_t``, with its value."""
    return f"{TYPES[datatype]} ({datatype})" if 0 <= datatype < len(TYPES) else f"type {datatype}"


def retyped(div: SeqDivergence) -> bool:
    """Whether all calls of a divergence move the same number of bytes and differ only in their type."""
    first = div.ops[0] if div.ops else {}
    return (
        first.get("coll") in _MOVING
        and _bytes(first) is not None
        and all(
            op.get("coll") == first.get("coll") and op.get("root") == first.get("root") and _bytes(op) == _bytes(first)
            for op in div.ops
        )
    )


def _bytes(op: Mapping[str, Value]) -> int | None:
    count, datatype = op.get("count"), op.get("datatype")
    if not isinstance(count, int) or not isinstance(datatype, int) or not 0 <= datatype < len(_SIZES):
        return None
    return count * _SIZES[datatype]
