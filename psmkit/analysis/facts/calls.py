"""Compare the calls of the members of a communicator after they diverge."""

from __future__ import annotations

from collections.abc import Mapping

from psmkit.logparse.types import SeqDivergence, Value

__all__ = ["TYPES", "retyped", "type_name"]

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
