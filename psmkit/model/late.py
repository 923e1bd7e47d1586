"""What is finished on first use: the methods of data classes, and regular expressions.

A short command imports hundreds of both and uses few. Generating the methods of a data class takes half a millisecond, compiling an expression as
long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
    from re import compile as regex
else:
    import dataclasses
    import re

    def dataclass(cls=None, /, *, frozen=False, eq=True, order=False, repr=True, unsafe_hash=False, **options):
        """As :func:`dataclasses.dataclass`. The methods are generated when the first of them is called."""
        options |= {"frozen": frozen, "eq": eq, "order": order, "repr": repr, "unsafe_hash": unsafe_hash}
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        if order:
            return dataclasses.dataclass(cls, **options)
        own = set(vars(cls))
        # A class without a text gets its signature as one, which takes as long as its methods.
        cls.__doc__ = cls.__doc__ or cls.__name__
        eager = options | {"init": False, "repr": False, "eq": False, "frozen": False, "unsafe_hash": False}
        made = dataclasses.dataclass(cls, **eager)
        late = {"__init__"}
        late |= {"__repr__"} if repr else set()
        late |= {"__eq__"} if eq else set()
        late |= {"__hash__"} if unsafe_hash or (eq and frozen) else set()
        late -= own
        if frozen:
            for name in ("__setattr__", "__delattr__"):
                setattr(made, name, _REFUSED[name])
            if options.get("slots"):
                made.__getstate__, made.__setstate__ = _state, _restore
        if eq and not frozen and not unsafe_hash and "__hash__" not in own:
            made.__hash__ = None
        for name in late:
            setattr(made, name, _late(made, name, late, options))
        return made

    def _late(cls, name, late, options):
        def finish(self, *args, **kwargs):
            if name == "__init__":
                cls.__init__ = _constructor(cls, options["frozen"])
            else:
                _compare(cls, late, options)
            return getattr(cls, name)(self, *args, **kwargs)

        finish.__name__ = name
        finish.__qualname__ = f"{cls.__qualname__}.{name}"
        return finish

    def _constructor(cls, frozen):
        known = {"_set": object.__setattr__, "_absent": _ABSENT}
        plain, named, body = [], [], []
        for at, field in enumerate(dataclasses.fields(cls)):
            name, value = field.name, field.name
            if field.default is not dataclasses.MISSING:
                known[f"_{at}"] = field.default
                taken, value = f"{name}=_{at}", name if field.init else f"_{at}"
            elif field.default_factory is not dataclasses.MISSING:
                known[f"_{at}"] = field.default_factory
                taken, value = f"{name}=_absent", f"_{at}()"
                if field.init:
                    value = f"_{at}() if {name} is _absent else {name}"
            else:
                taken = name
                if not field.init:
                    continue
            if field.init:
                (named if field.kw_only else plain).append(taken)
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        taken = ", ".join(["self", *plain, *(["*", *named] if named else [])])
        text = f"def __init__({taken}):\n " + "\n ".join(body or ["pass"])
        exec(text, known)
        made = known["__init__"]
        made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        return made

    def _compare(cls, late, options):
        # The methods of a class with the same fields: dataclasses makes them, as ever.
        names = {"__annotations__": {}, "__qualname__": cls.__qualname__, "__module__": cls.__module__}
        names["__doc__"] = cls.__name__
        for field in dataclasses.fields(cls):
            names["__annotations__"][field.name] = field.type
            names[field.name] = dataclasses.field(repr=field.repr, hash=field.hash, compare=field.compare)
        hashed = "__hash__" in late
        twin = dataclasses.dataclass(
            type(cls.__name__, (), names),
            init=False,
            repr="__repr__" in late,
            eq=options["eq"],
            unsafe_hash=hashed,
        )
        for name in late - {"__init__"}:
            setattr(cls, name, vars(twin)[name])

    def _refused_set(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refused_delete(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    _ABSENT = object()
    _REFUSED = {"__setattr__": _refused_set, "__delattr__": _refused_delete}

    def _state(self):
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def _restore(self, state):
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    class _Pattern:
        """A regular expression. Its first use compiles it, and puts the methods of the compiled one in their place."""

        def __init__(self, text, flags):
            self._given = text, flags

        def __getattr__(self, name):
            value = getattr(re.compile(*self._given), name)  # re keeps what it compiled
            setattr(self, name, value)
            return value

    def regex(text, flags=0):
        """As :func:`re.compile`, without an error until the first use."""
        return _Pattern(text, flags)


__all__ = ["dataclass", "regex"]
