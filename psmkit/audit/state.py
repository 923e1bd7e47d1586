"""What is known on one way through the functions of a connection: memory, resources, answers to questions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psmkit.audit.lower import Function, Lowering
from psmkit.audit.terms import terms
from psmkit.audit.values import Place, Token, Value, named

__all__ = ["Ended", "Half", "NeedMode", "Open", "Program", "State"]

_CONDITIONS = [(re.compile(mode.condition), mode.name) for mode in terms().modes if mode.condition]


class Ended(Exception):  # noqa: N818 - no error
    """This way ends early: it cannot be followed, or the code refuses it."""


class NeedMode(Exception):  # noqa: N818 - no error
    """A mode decides here that whoever runs the machine has not set."""


class Open(Exception):  # noqa: N818 - no error
    """A condition is not decided yet."""


@dataclass(frozen=True, slots=True)
class Half:
    """One direction of a transport: its functions by the names of struct ncclTransportComm."""

    name: str
    table: str
    functions: dict[str, str]  # member -> USR


@dataclass(slots=True)
class Program:
    """All functions of the sources, by USR. ``fixed``: globals that nothing changes, by USR."""

    lowering: Lowering
    cursors: Mapping[str, Any]
    fixed: Mapping[str, int]
    inert: dict[int, bool] = field(default_factory=dict)
    lowered: dict[str, Function] = field(default_factory=dict)

    def function(self, usr: str) -> Function:
        """A function.

        Raises:
            Ended: the sources do not have it.
        """
        if usr not in self.lowered:
            if usr not in self.cursors:
                raise Ended("a function of the table is not in these sources")
            self.lowered[usr] = self.lowering.function(self.cursors[usr])
        return self.lowered[usr]


class State:
    """One way. ``modes``: what they are; ``answers``: to the questions, in order, as far as they are given."""

    def __init__(self, program: Program, half: Half, modes: Mapping[str, int], answers: Sequence[bool]) -> None:
        self.program, self.half, self.modes = program, half, dict(modes)
        self.answers = answers
        self.trail: list[tuple[str, bool]] = []
        self.asked: dict[str, bool] = {}
        self.memory: dict[str, dict[tuple[Any, ...], Value]] = {}
        self.zeroed = {"connector", "connection"}
        self.records: dict[str, str] = {}
        self.tokens: list[Token] = []
        self.finds: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.notes: dict[str, str] = {}
        self.frames: list[str] = []
        self.running: list[int] = []  # numbers of the calls that run: each has variables of its own
        self.serial = self.steps = self.deep = 0
        self.peeks = ""  # why no question is decided now: "inert", "fails"
        self.stage, self.proxy = "setup", False
        self.place = ("", 0)
        self.sizes: dict[str, str] = {}  # parameters that hold the size of a message, by USR
        self.messages: dict[Place, tuple[int, str]] = {}
        self.sent: list[
            tuple[Any, ...]
        ] = []  # message, who asks, where, sizes of request and answer, handler, whether it took them
        self.mismatch: tuple[str, int, int, str] | None = None
        self.later: dict[str, Place] = {}

    # ---- questions ----

    def _mode(self, name: str) -> int:
        if name not in self.modes:
            raise Open if self.peeks == "inert" else NeedMode(name)
        return self.modes[name]

    def _decide(self, said: str) -> bool:
        if said.startswith("!"):
            return not self._decide(said[1:])
        if said in self.asked:
            return self.asked[said]
        for pattern, value in terms().assume:
            if pattern.fullmatch(said):
                return value
        for pattern, name in _CONDITIONS:
            if pattern.fullmatch(said):
                return bool(self._mode(name))
        if self.peeks:
            raise Open
        answer = self.answers[len(self.trail)] if len(self.trail) < len(self.answers) else True
        self.trail.append((said, answer))
        self.asked[said] = answer
        return answer

    def _truth(self, value: Value) -> bool:
        if isinstance(value, int):
            return value != 0
        return self._decide(value[1]) if value[0] == "s" else True

    # ---- memory ----

    def _get(self, root: str, path: tuple[Any, ...]) -> Value:
        held = self.memory.get(root, {})
        if path in held:
            return held[path]
        for at in range(len(path) - 1, -1, -1):
            if path[:at] in held:
                above = held[path[:at]]
                if above == 0:
                    return 0
                if isinstance(above, tuple) and above[0] in "sr":
                    return ("s", named(f"{above[0] if above[0] == 'r' else ''}{above[1]}", path[at:]))
                break
        if root in self.zeroed:
            return 0
        return ("s", named(root.rpartition(":")[2], path))

    def _put(self, root: str, path: tuple[Any, ...], value: Value) -> None:
        held = self.memory.setdefault(root, {})
        for key in [key for key in held if key[: len(path)] == path and key != path]:
            del held[key]
        held[path] = value

    def _copy(self, to: Place, source: Place) -> None:
        held = self.memory.get(source[0], {})
        below = {key[len(source[1]) :]: value for key, value in held.items() if key[: len(source[1])] == source[1]}
        if () not in below:
            below[()] = self._get(*source)
        self._put(*to, below.pop(()))
        for key, value in below.items():
            self.memory[to[0]][to[1] + key] = value

    def _access(self, root: str, path: tuple[Any, ...], owner: str, size: int) -> None:
        """Whoever runs now reads or writes a member of a struct there."""
        if root == "connection" and not self.proxy and not self.modes.get("proxy here", 0):
            self._find("foreign", what=owner)
        elif root.startswith("r:") and self.tokens[int(root[2:])].kind == "device memory" and owner:
            self._find("device", what=owner, token=self.tokens[int(root[2:])])
        elif root.startswith("o:") and owner and not path:
            real = self.records.get(root, "")
            if real and not self._begins_with(real, owner):
                self._find("confused", what=owner, real=real, token=self.tokens[int(root[2:])])
        limit = self.messages.get((root, path))
        if limit is not None and self.proxy and size > limit[0]:
            self._find("beyond", what=owner, size=size, given=limit[0], which=limit[1])

    def _begins_with(self, real: str, taken: str) -> bool:
        first = self.program.lowering.first
        while real and real != taken:
            real = first.get(real, "")
        return bool(real)

    def _find(self, kind: str, token: Token | None = None, **more: Any) -> None:
        place = self.place
        about = {"function": self.frames[-1] if self.frames else "", "stage": self.stage, **more}
        if token is not None:
            about |= {"made": [token.kind, token.name, token.function, token.file, token.line]}
        self.finds.setdefault(
            (kind, *place, more.get("what", "")), {"kind": kind, "file": place[0], "line": place[1], **about}
        )

    def _led(self, value: Value) -> Place:
        """Where a pointer leads."""
        if isinstance(value, int):
            return ("s:NULL" if value == 0 else f"s:{value}", ())
        if value[0] == "p":
            return value[1], value[2]
        return (f"{'r' if value[0] == 'r' else 's'}:{value[1]}", ())
