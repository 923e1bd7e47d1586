"""Calls on one way through the functions of a connection: messages to the proxy, resources, functions of other libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from psmkit.audit.lower import text
from psmkit.audit.state import Ended, State
from psmkit.audit.terms import Makes, Message, terms
from psmkit.audit.values import Place, Token, Value, named, said, whole

__all__ = ["HANDLERS", "Calls"]

HANDLERS = {"SharedInit": "proxySharedInit", "Setup": "proxySetup", "Connect": "proxyConnect",
            "Register": "proxyRegister", "Deregister": "proxyDeregister"}  # fmt: skip
_MOST_DEPTH = 40
_COPIES = re.compile(r"(?:__builtin_|__builtin___)?mem(?:cpy|move)(?:_chk)?")
_CLEARS = re.compile(r"(?:__builtin_|__builtin___)?memset(?:_chk)?")
_CALLS = {mode.call: mode.name for mode in terms().modes if mode.call}


class Calls(State):
    """One way, as far as calls go. A machine runs the expressions and the functions."""

    def _value(self, one: Any) -> Value:
        raise NotImplementedError

    def _at(self, one: Any, access: bool = True) -> Place:
        raise NotImplementedError

    def _enter(self, usr: str, values: list[Value]) -> Value:
        raise NotImplementedError

    def _state(self, message: str) -> None:
        """The proxy sets the state of the connection after a message."""
        if message in terms().states:
            self.memory.setdefault("connection", {})[terms().state_field,] = terms().states[message]

    # ---- calls ----

    def _call(self, one: Any) -> Value:
        _, name, usr, target, given, place, returns, made = one
        shown = text(target) if target is not None and target[0] == "member" and not name.startswith("cuda") else name
        self.place = place
        if name in _CALLS:
            return self._mode(_CALLS[name])
        if terms().settings.fullmatch(name):
            return ("s", f"{name}()")
        for pattern, entry in terms().messages:
            if pattern.fullmatch(name) and len(given) > entry.answer_size:
                return self._message(entry, given, place)
        for pattern, makes in terms().makes:
            if pattern.fullmatch(shown) and not (makes.but and re.fullmatch(makes.but, shown)):
                return self._made(makes, given, place, made)
        values = [self._value(each) for each in given]
        self.place = place
        for pattern, releases in terms().releases:
            if pattern.fullmatch(shown) and len(values) > releases.at:
                self._released(shown, values[releases.at], releases.kinds)
                return 0
        if (told := terms().tells.get(name)) is not None and values:
            self._put(*self._led(values[0]), ("s", told[self.proxy]))
            return 0
        if name == "ncclProxyConnect" and len(values) > 4:
            self._connected(values[4])
            return 0
        if name == "ncclPollProxyResponse" and len(values) > 3:
            if (key := repr(values[3])) in self.later:
                self._copy(self._led(values[2]), self.later[key])
            return 0
        if _COPIES.fullmatch(name) and len(values) >= 2:
            self._copied(values, made)
            return values[0]
        if _CLEARS.fullmatch(name) and len(values) >= 2:
            self._put(*whole(self._led(values[0])), 0 if values[1] == 0 else ("s", "..."))
            return values[0]
        if target is not None and not usr:
            led = self._value(target)
            if isinstance(led, tuple) and led[0] == "f":
                usr = led[1]
        if usr in self.program.cursors and not terms().apart.fullmatch(name):
            return self._inside(usr, values, given)
        return self._outside(shown, given, values, returns, place)

    def _inside(self, usr: str, values: list[Value], given: Sequence[Any]) -> Value:
        function = self.program.function(usr)
        for at, (param, _, reference, _) in enumerate(function.params[: len(given)]):
            if reference:
                values[at] = ("p", *self._at(given[at]))
            inner = given[at]
            while inner[0] == "cast":
                inner = inner[1]
            if inner[0] == "var" and inner[1] in self.sizes:
                self.sizes[param] = self.sizes[inner[1]]
        if self.deep > _MOST_DEPTH:
            raise Ended(f"calls within calls, at {function.name}")
        return self._enter(usr, values)

    def _outside(
        self, name: str, given: Sequence[Any], values: list[Value], returns: str, place: tuple[str, int]
    ) -> Value:
        """A function that is not in the sources."""
        known = terms().uses.fullmatch(name)
        for at, value in enumerate(values):
            if not isinstance(value, tuple):
                continue
            token = self._token(value)
            if token is not None and not known and not token.released:
                token.lost = name
            if value[0] != "p" or known:
                continue
            root, path = value[1], value[2]
            inner = self.memory.get(root, {})
            below = [each for key, each in inner.items() if key[: len(path)] == path]
            holds = [each for each in below if isinstance(each, tuple) and self._token(each) is not None]
            if terms().releasing.fullmatch(name):
                for each in holds:
                    self._token(each).lost = name  # type: ignore[union-attr]
            elif not holds and (path or root.startswith("v:")) and given[at][0] in ("un", "decay", "cast", "var"):
                self._put(root, path, ("s", f"{name}#{at}.{place[1]}"))
        if returns.replace("const ", "").strip() in terms().success:
            return 0
        return ("s", f"{name}({', '.join(said(each) for each in values)})"[:200])

    # ---- messages ----

    def _message(self, entry: Message, given: Sequence[Any], place: tuple[str, int]) -> Value:
        number = given[entry.message]
        while number[0] == "cast":
            number = number[1]
        word = next(
            (
                one
                for one in HANDLERS
                if number[0] == "int" and number[-1] in (f"ncclProxyMsg{one}", f"psmProxyMsg{one}")
            ),
            "",
        )
        values = [self._value(one) for one in given]
        self.place = place
        via = values[entry.via]
        if not word or via[:2] != ("p", "connector"):
            what = f"{word or 'a message'} from {self.frames[-1]}"
            self.notes[f"{what}: psmkit does not know the connection"] = f"{place[0]}:{place[1]}"
            return 0
        usr = self.half.functions.get(HANDLERS[word])
        if usr is None:
            self._find("nobody", what=word)
            raise Ended("refused")
        answer = values[entry.answer] if entry.answer >= 0 else ("p", f"answer{len(self.later)}", ())
        if entry.later >= 0:
            self.later[repr(values[entry.later])] = (f"answer{len(self.later)}", ())
        return self._handled(
            word, usr, values[entry.request], values[entry.request_size], answer, values[entry.answer_size], place
        )

    def _handled(
        self, word: str, usr: str, request: Value, size: Value, answer: Value, room: Value, place: tuple[str, int]
    ) -> Value:
        function = self.program.function(usr)
        asks = self.frames[-1]
        if word == "SharedInit":
            values: list[Value] = [("p", "connection", ()), ("s", "proxyState"), ("s", "nChannels")]
        else:
            values = [("p", "connection", ()), ("s", "proxyState"), request, size, answer, room, ("p", "done", ())]
            if word == "Deregister":
                values = [*values[:4], values[6]]
        names = [param[0] for param in function.params]
        before = self.stage, self.proxy, self.sizes, self.messages
        self.stage, self.proxy = HANDLERS[word], True
        self.sizes = dict(zip(names[3:6:2], ("request", "answer"), strict=False))
        self.messages = {}
        for pointer, bytes_, which in ((request, size, "request"), (answer, room, "answer")):
            if isinstance(bytes_, int) and isinstance(pointer, tuple) and pointer[0] in "ps":
                self.messages[self._led(pointer)] = (bytes_, which)
        self.mismatch = None
        got: Value = 0
        for _ in range(4):
            self._put("done", (), 1)
            got = self._enter(usr, list(values))
            if self._get("done", ()) != 0 or got not in (0, 7):
                break
        else:
            raise Ended("refused")  # it never is done
        self.stage, self.proxy, self.sizes, self.messages = before
        self.place = place
        fits = not (isinstance(got, int) and got not in (0, 7) and self.mismatch is not None)
        self.sent.append((word, asks, *place, said(size), said(room), function.name, fits))
        if isinstance(got, int) and got not in (0, 7):
            if self.mismatch is not None:
                which, sent, want, shown = self.mismatch
                self._find("size", what=word, which=which, given=sent, size=want, said=shown, handler=function.name,
                           at=[function.file, function.line], asks=asks)  # fmt: skip
            raise Ended("refused")
        self._state(word)
        return 0

    def _connected(self, connector: Value) -> None:
        """The caller has a connection to its proxy."""
        if connector[:2] == ("p", "connector"):
            root, path = connector[1], connector[2]
            self._put(root, (*path, "connection"), ("p", "connection", ()))
            self._put(root, (*path, "sameProcess"), ("s", "sameProcess"))
            self.memory.setdefault("connection", {})[("sameProcess",)] = ("s", "sameProcess")

    def _copied(self, values: list[Value], sizes: Sequence[Any]) -> None:
        to, source = whole(self._led(values[0])), whole(self._led(values[1]))
        size = values[2] if len(values) > 2 else None
        for pointer in (to, source):
            limit = self.messages.get(pointer)
            if limit is not None and isinstance(size, int) and size > limit[0]:
                self._find("beyond", what="", size=size, given=limit[0], which=limit[1])
        # Of a part nobody knows which members it has.
        parts = [isinstance(size, int) and each != size for each in sizes[:2]]
        for at, (root, path) in enumerate((to, source)):
            held = self.memory.get(root, {})
            tokens = [self._token(value) for key, value in held.items() if key[: len(path)] == path]
            if parts[at] and any(tokens):
                for token in tokens if at == 0 else ():
                    if token is not None and not token.released:
                        token.lost = "a copy over a part of a struct"
                if at == 1:
                    self._put(*to, ("s", named(root.rpartition(":")[2], path)))
                return
        self._copy(to, source)

    # ---- resources ----

    def _object(self, record: str, name: str, place: tuple[str, int]) -> Value:
        root = f"o:{len(self.tokens)}"
        self.zeroed.add(root)
        self.records[root] = record
        self.tokens.append(
            Token(f"struct {record}" if record else "a struct", name, self.frames[-1], *place, self.stage, root)
        )
        return ("p", root, ())

    def _made(self, makes: Makes, given: Sequence[Any], place: tuple[str, int], made: Sequence[str]) -> Value:
        values = [self._value(one) for one in given]
        self.place = place
        if makes.answer or makes.at is None:
            return self._object("", "", place) if makes.kind == "a struct" else self._token_of(makes.kind, "", place)
        at = makes.at if makes.at >= 0 else len(values) + makes.at
        if not 0 <= at < len(values):
            return 0
        inner = given[at]
        while inner[0] == "cast":
            inner = inner[1]
        if inner[:2] == ("un", "&") and inner[2][0] == "member":
            self._at(inner[2])  # the function writes there
        to = self._led(values[at])
        name = text(given[at]).removeprefix("&")
        if makes.kind == "a struct":
            self._put(*to, self._object(made[at] if at < len(made) else "", name, place))
            return 0
        self._put(*to, self._token_of(makes.kind, name, place))
        for other in makes.also:
            if other < len(values):
                self._put(*self._led(values[other]), ("p", f"m:{len(self.tokens) - 1}.{other}", ()))
        return 0

    def _token_of(self, kind: str, name: str, place: tuple[str, int]) -> Value:
        self.tokens.append(Token(kind, name, self.frames[-1], *place, self.stage))
        return ("r", len(self.tokens) - 1)

    def _token(self, value: Value) -> Token | None:
        if isinstance(value, tuple) and value[0] == "r":
            return self.tokens[value[1]]
        if isinstance(value, tuple) and value[0] == "p" and value[1].startswith("o:") and not value[2]:
            return self.tokens[int(value[1][2:])]
        return None

    def _released(self, name: str, value: Value, kinds: Sequence[str]) -> None:
        token = self._token(value)
        if token is None and isinstance(value, tuple) and value[0] == "p":
            token = self._token(self._get(value[1], value[2]))
        if token is None:
            return
        if kinds and ("a struct" if token.root else token.kind) not in kinds:
            self._find("wrong", what=name, token=token)
            token.wrong = True
            return
        if token.released:
            self._find("twice", what=name, token=token, first=token.released[0])
        token.released.append(self.frames[-1])

    def holders(self) -> dict[int, set[str]]:
        """Where each resource is kept: names of memory."""
        out: dict[int, set[str]] = {}
        for root, held in self.memory.items():
            for value in held.values():
                token = self._token(value)
                if token is not None:
                    out.setdefault(self.tokens.index(token), set()).add(root)
        return out
