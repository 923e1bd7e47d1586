"""Follows one way through the functions of a connection: Setup, Connect and Free of the caller, and the proxy's handlers that they call.

Memory holds what is known: numbers, pointers, resources. All else is a name, such as ``comm.cudaDev``. A condition over names is a question that whoever
runs the machine decides, once for each way; the same question has the same answer on one way. What a function of another library does is taken as
success. A loop whose end is not known runs once.
"""

from __future__ import annotations

import contextlib
from typing import Any

from psmkit.audit.calls import HANDLERS, Calls
from psmkit.audit.lower import Function, parts, text
from psmkit.audit.state import Ended, NeedMode, Open
from psmkit.audit.terms import terms
from psmkit.audit.values import Place, Value, element, moved, negated, operation, said

__all__ = ["Machine"]

_MOST_STEPS = 300_000
_MOST_TURNS = 64
_MODES = {mode.variable: mode.name for mode in terms().modes if mode.variable}


class _Return(Exception):  # noqa: N818 - no error
    pass


class _Break(Exception):  # noqa: N818 - no error
    pass


class _Continue(Exception):  # noqa: N818 - no error
    pass


class _Goto(Exception):  # noqa: N818 - no error
    pass


class Machine(Calls):
    """One way that is run."""

    # ---- the connection ----

    def run(self) -> None:
        """Setup, Connect and Free of the caller; then the proxy's Free."""
        parts = self.half.functions
        for stage in ("setup", "connect", "free"):
            if stage in parts:
                self.stage = stage
                got = self._enter(parts[stage], self._outer(self.program.function(parts[stage])))
                if isinstance(got, int) and got not in (0, 7):  # not success, not in progress
                    raise Ended("refused")
        if "setup" not in parts:
            self._proxy_only()
        if "proxyFree" in parts:
            self.stage, self.proxy = "proxyFree", True
            got = self._enter(parts["proxyFree"], self._outer(self.program.function(parts["proxyFree"])))
            if isinstance(got, int) and got != 0:
                raise Ended("refused")

    def receive(
        self, word: str, usr: str, asks: str, place: tuple[str, int], size: int, room: int
    ) -> list[dict[str, Any]]:
        """What a handler finds wrong with the sizes of a message."""
        self.frames, self.place = [asks], place
        with contextlib.suppress(Ended, NeedMode):
            self._handled(word, usr, ("s", "request"), size, ("s", "answer"), room, place)
        return [one for one in self.finds.values() if one["kind"] in ("size", "beyond")]

    def _proxy_only(self) -> None:
        """A table of handlers whose caller is not known: the sizes of its messages are those that it expects."""
        for name in ("Setup", "Connect"):
            if (usr := self.half.functions.get(HANDLERS[name])) is None:
                continue
            function = self.program.function(usr)
            self.stage, self.proxy = HANDLERS[name], True
            self.memory.setdefault("done", {})[()] = 1
            got = self._enter(usr, self._outer(function))
            if isinstance(got, int) and got != 0:
                raise Ended("refused")
            self._state(name)
        self.proxy = False

    def _outer(self, function: Function) -> list[Value]:
        """Arguments of a function of the table, by their types and names."""
        known = {"ncclConnector": ("p", "connector", ()), "ncclConnect": ("p", "message", ()),
                 "ncclProxyConnection": ("p", "connection", ()), "psmProxyConnection": ("p", "connection", ())}  # fmt: skip
        out: list[Value] = []
        for _, name, _, record in function.params:
            if name == "done":
                out.append(("p", "done", ()))
            else:
                out.append(known.get(record, ("s", name)))
        return out

    # ---- places ----

    def _at(self, one: Any, access: bool = True) -> Place:
        """Where an expression that names an object leads. ``access``: it is read or written, and not only its address taken."""
        word = one[0]
        if word == "var":
            return (f"g:{one[1]}:{one[2]}" if one[3] else f"v:{self.running[-1]}:{one[1]}:{one[2]}", ())
        if word == "member":
            base, arrow = one[1], one[3]
            root, path = self._led(self._value(base)) if arrow else self._at(base, access)
            if access:
                self._access(root, path, one[4], one[5])
            return root, (*path, one[2])
        if word == "index":
            index = self._value(one[2])
            if one[1][0] == "decay":
                root, path = self._at(one[1][1], access)
                return root, (*path, element(index))
            return self._led(moved(self._value(one[1]), index))
        if word == "un" and one[1] == "*":
            return self._led(self._value(one[2]))
        if word in ("cast", "decay"):
            return self._at(one[1], access)
        if word == "literal":
            place = (f"v:{self.running[-1]}:literal{one[2]}", ())
            self._fill(place, one[1])
            return place
        if word == "assign":
            self._value(one)
            return self._at(one[2], access)
        if word == "cond":
            return self._at(one[2] if self._truth(self._value(one[1])) else one[3], access)
        return self._led(self._value(one))

    def _fill(self, place: Place, one: Any) -> None:
        """An object from a list of values."""
        self._put(*place, 0)
        for name, value in one[1]:
            at = (place[0], (*place[1], name))
            if value[0] == "list":
                self._fill(at, value)
            elif value[0] in ("var", "member", "index"):
                self._copy(at, self._at(value))
            else:
                self._put(*at, self._value(value))

    # ---- expressions ----

    def _value(self, one: Any) -> Value:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise Ended("it is too long")
        word = one[0]
        if word in ("int", "size"):
            return one[1]
        if word == "var":
            if one[2] in _MODES and one[1] not in self.program.fixed:
                return self._mode(_MODES[one[2]])
            if one[3] and one[1] in self.program.fixed:
                return self.program.fixed[one[1]]
            return self._get(*self._at(one))
        if word in ("member", "index"):
            place = self._at(one)
            return self._get(*place)
        if word == "un":
            return self._unary(one)
        if word == "bin":
            return self._binary(one)
        if word == "assign":
            return self._assign(one)
        if word == "call":
            return self._call(one)
        if word == "cast":
            return self._value(one[1])
        if word == "decay":
            root, path = self._at(one[1], access=False)
            return ("p", root, (*path, 0))
        if word == "cond":
            return self._conditional(one)
        if word == "str":
            return ("t", one[1])
        if word == "function":
            return ("f", one[1], one[2])
        if word == "literal":
            return self._get(*self._at(one))
        if word == "statement":
            self._run(one[1])
            return ("s", "...")
        if word == "new":
            return self._object(one[1], "new", (one[2], one[3]))
        if word == "list":
            return self._value(one[1][0][1]) if one[1] else 0
        return ("s", f"{self.frames[-1] if self.frames else ''}@{one[1]}")

    def _conditional(self, one: Any) -> Value:
        if one[2][0] == one[3][0] == "str":  # a word for the log
            return ("s", "...")
        return self._value(one[2] if self._truth(self._value(one[1])) else one[3])

    def _unary(self, one: Any) -> Value:
        word, inner = one[1], one[2]
        if word == "&":
            if inner[0] == "function":
                return self._value(inner)
            place = self._at(inner, access=False)
            return ("p", *place)
        if word == "*":
            found = self._value(inner)
            return found if isinstance(found, tuple) and found[0] == "f" else self._get(*self._led(found))
        if word in ("++", "--", "p++", "p--"):
            place = self._at(inner)
            old = self._get(*place)
            new = moved(old, 1 if "+" in word else -1)
            self._put(*place, new)
            return old if word[0] == "p" else new
        value = self._value(inner)
        if word == "!":
            return int(not value) if isinstance(value, int) else (("s", negated(value[1])) if value[0] == "s" else 0)
        if isinstance(value, int):
            return -value if word == "-" else ~value
        return ("s", f"{word}{said(value)}")

    def _binary(self, one: Any) -> Value:
        word = one[1]
        if word in ("&&", "||"):
            return self._both(one, word == "&&")
        left, right = self._value(one[2]), self._value(one[3])
        if word == ",":
            return right
        if word in ("==", "!="):
            self._compared(one, left, right)
        return operation(word, left, right)

    def _both(self, one: Any, both: bool) -> int:
        try:
            left = self._truth(self._value(one[2]))
        except Open:  # the other side may decide alone
            if self._truth(self._value(one[3])) != both:
                return int(not both)
            raise
        return int(self._truth(self._value(one[3])) if left == both else left)

    def _compared(self, one: Any, left: Value, right: Value) -> None:
        """The size of a message is compared with the expected one."""
        for mine, got, other, want in ((one[2], left, one[3], right), (one[3], right, one[2], left)):
            while mine[0] == "cast":
                mine = mine[1]
            which = self.sizes.get(mine[1]) if mine[0] == "var" else None
            if which and isinstance(got, int) and isinstance(want, int) and got != want:
                self.mismatch = (which, got, want, text(other))

    def _assign(self, one: Any) -> Value:
        _, word, left, right, record, _ = one
        if record and not word:
            to = self._at(left)
            if right[0] == "literal":
                self._fill(to, right[1])
            elif right[0] == "list":
                self._fill(to, right)
            elif right[0] in ("var", "member", "index", "un", "cond", "cast"):
                self._copy(to, self._at(right))
            else:
                self._put(*to, self._value(right))
            return ("s", "...")
        value = self._value(right)
        to = self._at(left)
        if word:
            value = operation(word, self._get(*to), value)
        self._put(*to, value)
        return value

    # ---- functions ----

    def _enter(self, usr: str, values: list[Value]) -> Value:
        """Run a function."""
        function = self.program.function(usr)
        body = self.program.lowering.body(function)
        self.serial += 1
        before = self.place
        self.place = (function.file, function.line)
        self.frames.append(function.name)
        self.running.append(self.serial)
        self.deep += 1
        try:
            for (param, name, _, _), value in zip(function.params, values, strict=False):
                self._put(f"v:{self.serial}:{param}:{name}", (), value)
            start = 0
            for _ in range(8):
                try:
                    for one in body[1][start:]:
                        self._run(one)
                    return 0
                except _Goto as jump:
                    if jump.args[0] not in function.labels:
                        raise Ended(f"a goto in {function.name}") from None
                    start = function.labels[jump.args[0]]
            raise Ended(f"a goto in {function.name}")
        except _Return as back:
            return back.args[0]
        finally:
            self.deep -= 1
            self.frames.pop()
            self.running.pop()
            self.place = before

    # ---- statements ----

    def _run(self, one: Any) -> None:
        word = one[0]
        if word in ("expr", "if", "decl", "return"):
            self.place = (self.place[0], one[-1])
        if word == "expr":
            self._value(one[1])
        elif word == "block":
            for each in one[1]:
                self._run(each)
        elif word == "if":
            self._branch(one)
        elif word == "decl":
            self._declare(one)
        elif word == "loop":
            self._loop(one)
        elif word == "do":
            self._do(one)
        elif word == "return":
            raise _Return(self._value(one[1]))
        elif word == "switch":
            self._switch(one)
        elif word == "label":
            self._run(one[2])
        elif word == "break":
            raise _Break
        elif word == "continue":
            raise _Continue
        elif word == "goto":
            raise _Goto(one[1])
        else:
            self.notes[f"a statement of {self.frames[-1]} ({one[2]})"] = one[1]

    def _declare(self, one: Any) -> None:
        _, usr, name, reference, start, _, _ = one
        place = self._at(("var", usr, name, False))
        if start is None:
            self.memory.pop(place[0], None)
        elif reference:
            self._put(*place, ("p", *self._at(start)))
        elif start[0] == "list":
            self._fill(place, start)
        elif start[0] == "literal":
            self._fill(place, start[1])
        elif start[0] in ("var", "member", "index") or (start[0] == "un" and start[1] == "*"):
            self._copy(place, self._at(start))
            if start[0] == "var":  # a mode may be in it
                value = self._value(start)
                if isinstance(value, int):
                    self._put(*place, value)
        else:
            self._put(*place, self._value(start))

    def _branch(self, one: Any) -> None:
        fails = self._fails(one)
        if fails or self._inert(one):
            before = self.peeks
            self.peeks = "fails" if fails else "inert"
            try:
                truth = self._truth(self._value(one[1]))
            except Open:
                if not fails:
                    self._blur((one[2], one[3]))
                return
            finally:
                self.peeks = before
        else:
            truth = self._truth(self._value(one[1]))
        self._run(one[2] if truth else one[3])

    def _blur(self, part: Any) -> None:
        """What a branch that may run or not changes is not known after it."""
        if not isinstance(part, tuple | list) or not part:
            return
        if isinstance(part, list) or not isinstance(part[0], str):
            for each in part:
                self._blur(each)
            return
        if part[0] == "if":
            try:
                self._blur(part[2] if self._truth(self._value(part[1])) else part[3])
            except Open:
                self._blur((part[2], part[3]))
        elif part[0] == "assign" or (part[0] == "un" and part[1] in ("++", "--", "p++", "p--")):
            self._put(*self._at(part[2]), ("s", f"{text(part[2])}#{self.serial}.{self.steps}"))
        else:
            self._blur(list(part[1:]))

    def _fails(self, one: Any) -> bool:
        """Whether a branch only ends with an error: where its condition is not known, it is taken as not true."""
        if one[3] != ("block", []):
            return False
        body = one[2][1] if one[2][0] == "block" else [one[2]]
        last = body[-1] if body else None
        if last is None or not all(self._harmless(part) for part in parts((one[1], body[:-1]))):
            return False
        if last[0] == "goto":
            return bool(terms().failing.fullmatch(last[1]))
        if last[0] != "return":
            return False
        value = last[1]
        return (value[0] == "int" and value[1] not in (0, 7)) or (
            value[0] == "call" and bool(terms().failing.fullmatch(value[1]))
        )

    def _inert(self, one: Any) -> bool:
        key = id(one)
        if key not in self.program.inert:
            self.program.inert[key] = all(self._harmless(part) for part in parts(one))
        return self.program.inert[key]

    def _harmless(self, part: Any) -> bool:
        """Whether a part of a statement changes numbers at most."""
        word = part[0]
        if word in ("return", "goto", "break", "continue", "other", "new", "statement", "switch", "loop", "do"):
            return False
        if word == "assign":
            return bool(part[5]) and part[2][0] in ("var", "member")
        if word == "un" and part[1] in ("++", "--", "p++", "p--"):
            return part[2][0] in ("var", "member")
        if word == "call":
            shown = (
                text(part[3])
                if part[3] is not None and part[3][0] == "member" and not part[1].startswith("cuda")
                else part[1]
            )
            known = (terms().messages, terms().makes, terms().releases)
            if any(pattern.fullmatch(shown) for some in known for pattern, _ in some):
                return False
            return part[2] not in self.program.cursors and not terms().releasing.fullmatch(shown) and part[3] is None
        return True

    def _loop(self, one: Any) -> None:
        _, first, condition, step, body, _ = one
        if first is not None:
            self._run(first)
        open_ = False
        for _ in range(_MOST_TURNS):
            value = self._value(condition)
            if not isinstance(value, int) and value[0] == "s" and value[1] not in self.asked:
                if open_:
                    return
                open_ = True
            elif not self._truth(value):
                return
            try:
                self._run(body)
            except _Break:
                return
            except _Continue:
                pass
            if step is not None:
                self._value(step)
        raise Ended(f"a long loop in {self.frames[-1]}")

    def _do(self, one: Any) -> None:
        for _ in range(_MOST_TURNS):
            try:
                self._run(one[1])
            except _Break:
                return
            except _Continue:
                pass
            value = self._value(one[2])
            if not isinstance(value, int) or value == 0:
                return

    def _switch(self, one: Any) -> None:
        value = self._value(one[1])
        chosen = None
        for at, (labels, _) in enumerate(one[2]):
            for label in labels:
                if label is not None and chosen is None and self._truth(operation("==", value, label)):
                    chosen = at
        if chosen is None:
            chosen = next((at for at, (labels, _) in enumerate(one[2]) if None in labels), None)
        if chosen is None:
            return
        try:
            for _, each in one[2][chosen:]:
                self._run(each)
        except _Break:
            pass
