"""Two samples of the state become one, in which the words that changed are marked."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

from psmkit.model.inspection import StateObject, Value

__all__ = ["merged"]

_CLOCKS = frozenset({"age_ms"})  # they change with the time


def merged(first: Sequence[StateObject], second: Sequence[StateObject]) -> list[StateObject]:
    """The objects of the second sample. What is new in it has ``sample`` as a value that moves; what went away between the two is left out."""
    before = defaultdict[object, list[StateObject]](list)
    for one in first:
        before[_key(one)].append(one)
    return [_pair(before[_key(one)].pop(0) if before[_key(one)] else None, one) for one in second]


def _key(one: StateObject) -> tuple[object, ...]:
    identity = next((value.value for value in one.values if value.name in ("opId", "id")), None)
    return one.kind, one.address, one.peer, one.channel, identity


def _pair(before: StateObject | None, now: StateObject) -> StateObject:
    if before is None:
        return dataclasses.replace(now, values=(*now.values, Value("sample", "only in the second", moving=True)))
    return dataclasses.replace(
        now, values=tuple(_values(before.values, now.values)), parts=tuple(merged(before.parts, now.parts))
    )


def _values(before: Iterable[Value], now: Iterable[Value]) -> Iterable[Value]:
    old = {value.name: value.value for value in before}
    for value in now:
        if value.name in _CLOCKS or value.name not in old or old[value.name] == value.value:
            yield value
        else:
            yield Value(value.name, value.value, moving=True, before=old[value.name])
