"""Classes and expressions that are finished on first use behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from psmkit.model import late
from psmkit.model.rows import row


def classes(make: Callable[..., Any]) -> dict[str, type]:
    """The same classes, made by one of the two decorators."""

    @make(frozen=True, slots=True)
    class Frozen:
        """Text."""

        name: str
        count: int = 3
        parts: list[int] = field(default_factory=list)
        label: ClassVar[str] = "label"

        @property
        def twice(self) -> int:
            return 2 * self.count

    @make(slots=True)
    class Open:
        name: str
        hidden: int = field(default=1, compare=False, repr=False)
        made: list[int] = field(default_factory=list, init=False)
        fixed: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            self.made.append(self.hidden)

    @make(frozen=True, slots=True, kw_only=True)
    class Named:
        last: str
        first: str = "x"

    @make(frozen=True)
    class Base:
        a: int

    @make(frozen=True)
    class Derived(Base):
        b: int = 2

    @make(eq=False, slots=True)
    class Unequal:
        a: int

    @make(frozen=True, slots=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    @make
    class Bare:
        a: int = 0

    @make(frozen=True, order=True)
    class Ordered:
        a: int

    return {name: made for name, made in locals().items() if name != "make"}


LATE, OURS = classes(late.dataclass), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Frozen", ("n",), {}),
    ("Frozen", ("n", 4), {"parts": [1]}),
    ("Frozen", (), {}),
    ("Frozen", ("n", 4, [], 5), {}),
    ("Frozen", ("n",), {"label": 1}),
    ("Open", ("n",), {}),
    ("Open", ("n", 2), {}),
    ("Open", ("n", 2, [3]), {}),
    ("Named", (), {"last": "l"}),
    ("Named", ("l",), {}),
    ("Base", (1,), {}),
    ("Derived", (1,), {}),
    ("Derived", (1, 3), {}),
    ("Unequal", (1,), {}),
    ("Own", (1,), {}),
    ("Bare", (), {}),
    ("Ordered", (1,), {}),
]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, AttributeError) as error:
        # the name of a function is in the text of some releases
        return type(error), re.sub(r"\b[\w.<>]+\.(?=__init__)", "", str(error))


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_a_late_class_does_what_that_of_the_library_does(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    said = []
    for made in (LATE[name], OURS[name]):
        thing = outcome(lambda made=made: made(*args, **kwargs))
        if isinstance(thing, tuple):
            said.append([thing])
            continue
        other = made(*args, **kwargs)
        shown = re.sub(r" at 0x\w+", "", repr(thing)) if name != "Unequal" else ""
        said.append(
            [
                shown.replace("classes.<locals>.", ""),
                thing == other,
                thing != other,
                thing == 1,
                outcome(lambda thing=thing: type(hash(thing))),
                outcome(lambda thing=thing, other=other: hash(thing) == hash(other)) if name != "Unequal" else None,
                [f.name for f in dataclasses.fields(made)],
                dataclasses.asdict(thing) if name != "Open" else [thing.name, thing.hidden, thing.made, thing.fixed],
                outcome(lambda thing=thing: setattr(thing, dataclasses.fields(thing)[0].name, 1)),
                outcome(lambda thing=thing: delattr(thing, dataclasses.fields(thing)[0].name)),
                made.__match_args__,
                outcome(lambda thing=thing: copy.copy(thing) == thing) if name != "Unequal" else None,
                hasattr(thing, "__dict__"),
            ]
        )
    assert said[0] == said[1]


def test_each_order_of_first_uses_works() -> None:
    for first in ("__repr__", "__eq__", "__hash__"):
        made = classes(late.dataclass)["Derived"]
        one, other = made(1), made(1)
        getattr(one, first)(*([other] if first == "__eq__" else []))
        assert one == other and hash(one) == hash(other) and "b=2" in repr(one)
        assert one != made(2)


@late.dataclass(frozen=True, slots=True)
class Kept:
    """Of the module, as pickle needs it."""

    a: int
    b: str = "b"


def test_instances_are_pickled_replaced_and_matched() -> None:
    kept = Kept(1)
    assert pickle.loads(pickle.dumps(kept)) == kept == copy.deepcopy(kept)
    assert dataclasses.replace(kept, b="c") == Kept(1, "c")
    match kept:
        case Kept(a, b):
            assert (a, b) == (1, "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept.a = 2  # type: ignore[misc]


def test_a_row_has_a_hash_and_can_be_compared() -> None:
    @row(frozen=True, slots=True)
    class Row:
        a: int

    assert {Row(1): 2}[Row(1)] == 2 and Row(1) != Row(2)


def test_an_expression_is_compiled_by_its_first_use() -> None:
    made = late.regex(r"a(\d)", re.IGNORECASE)
    found = made.match("A7")
    assert found is not None and found.group(1) == "7"
    assert made.pattern == r"a(\d)" and made.sub("x", "a1a2") == "xx" and made.groups == 1
    with pytest.raises(re.error):
        late.regex("(").match("")
