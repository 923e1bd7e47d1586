"""Replace names of people and machines in a report: hosts, addresses, paths, users and pids.

Placeholders are numbered in order of appearance, so the same log gives the same placeholders and equal names stay equal.
A pid becomes a small number, because the reports have numbers in those fields.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from psmkit.model import Culprit, Evidence, Finding, RankRow, Report, Run, Shape

__all__ = ["Redactor", "redact"]

_T = TypeVar("_T")

# Each pattern that begins with a run of characters begins where the run does. Otherwise a line without a match would be searched again from
# each place in the run.
_START = r"(?<![\w.-])"
# host:pid:tid [dev] NCCL, after any prefix that a launcher adds.
_PREFIX = re.compile(r"(?<![^\s:\[\]()<>\"'])(?P<host>[^\s:\[\]()<>\"']+):(?P<pid>\d+):(?P<tid>\d+)(?= (?:\[|NCCL))")
_PAIR = re.compile(_START + r"[\d.-]*(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+)\b")
_NAMED = re.compile(rf"\bprocess {_PAIR.pattern}")
# What stands before the processes in the reason for a verdict when no line of theirs was read: nothing else names them.
_LIST = "were not given: "
_PROCESS = re.compile(r"^(?P<host>.+):(?P<pid>\d+)$")
_PID_WORD = re.compile(
    r"(?i)(?P<head>\b(?:pid|tid|process|proc|thread)(?: id)?[ =:#]{1,3}|/proc/|(?<![\w.-])[\d.-]*[A-Za-z][\w.-]*\[)(?P<pid>\d+)(?=\b)"
)
_USER = re.compile(
    r"(?i)(?P<head>/(?:home|Users)/|\b(?:user(?:name)?|logname|login|owner)[ =:]{1,2}[\"']?)(?P<user>[A-Za-z_][\w.-]*)"
)
_USER_AT = re.compile(_START + r"(?P<head>[\d.-]*)(?P<user>[A-Za-z_][\w.-]*)@(?P<host>[A-Za-z0-9][\w.-]*)")
_ADDRESS_HOST = re.compile(_START + r"[\d.-]*(?P<host>[A-Za-z][\w.-]*)(?=<\d+>)")
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]*+:)[0-9A-Fa-f:.]++(?:%[\w.-]++)?(?!\w)")
_MAC = re.compile(r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,}\b")
_NAME = re.compile(r"(?<![A-Za-z0-9.-])[.-]*(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*)")
_DOMAINS = frozenset("com net org edu gov io ai cloud local localdomain internal lan corp svc cluster".split())
# A path does not begin in the middle of a word or path. Kernel and device files identify nobody.
_PATH = re.compile(r"(?<![\w/.:>])~?/(?!/)[^\s\"'`,;:<>()\[\]{}|=]+")
_PUBLIC = re.compile(r"^/(?:dev|sys|proc)(?:/|$)|^/(?:home|Users)/?$")
# Private-use characters that enclose the number of a replacement during processing.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_NOT_HOSTS = frozenset({"localhost", "NCCL", "rank", "peer", "local", "lo", "eth0", "?"})
_NOT_USERS = frozenset({"root", "buffer", "buf", "id", "name", "space", "defined", "provided", "env", "rank", "by"})


class Redactor:
    """Learns names from texts, then replaces them in texts."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}
        self._processes: dict[str, set[str]] = {}
        self._known: re.Pattern[str] | None = None
        self._pairs: re.Pattern[str] | None = None
        self._inputs: list[str] = []

    def input(self, path: str) -> None:
        """Record the path of an input; each occurrence is replaced as a whole."""
        if path and path not in self._inputs and self.path(path) != path:
            self._inputs.append(path)
            self._inputs.sort(key=len, reverse=True)

    def place(self, kind: str, name: str) -> str:
        """The placeholder of ``name``; a number if ``kind`` is "pid"."""
        table = self._names.setdefault(kind, {})
        if name not in table:
            table[name] = str(len(table) + 1) if kind == "pid" else f"{kind}{len(table) + 1}"
            if kind in ("host", "user", "pid"):
                self._known = None
        return table[name]

    def process(self, host: str, pid: str) -> None:
        """Record a process; each ``host:pid`` of it is replaced, also if the pid is short."""
        self.host(host)
        self.place("pid", pid)
        self._processes.setdefault(host, set()).add(pid)
        self._pairs = None

    def learn(self, text: str) -> None:
        """Record the names in ``text`` that stand where only a name can stand."""
        for match in _PREFIX.finditer(text):
            self.process(match["host"], match["pid"])
            self.place("pid", match["tid"])
        for match in _NAMED.finditer(text):
            self.process(match["host"], match["pid"])
        for match in _PAIR.finditer(text.partition(_LIST)[2]):
            self.process(match["host"], match["pid"])
        for match in _PID_WORD.finditer(text):
            self.place("pid", match["pid"])
        for pattern in (_USER, _USER_AT):
            for match in pattern.finditer(text):
                if match["user"].lower() not in _NOT_USERS:
                    self.place("user", match["user"])
        for match in _ADDRESS_HOST.finditer(text):
            self.host(match["host"])

    def host(self, name: str) -> str:
        """The placeholder of a host; addresses have placeholders of their own kind."""
        if name in _NOT_HOSTS or not name:
            return name
        if _address(name):
            return self.place("ip", name)
        return self.place("host", name)

    def pid(self, pid: int) -> int:
        """The placeholder of a pid."""
        return int(self.place("pid", str(pid)))

    def path(self, path: str) -> str:
        """The placeholder of a whole path, whatever it contains."""
        return path if path in ("-", "<stdin>") else self.place("path", path)

    def text(self, text: str) -> str:
        """``text`` with all names replaced."""
        marks = _Marks(self)
        # Paths come before words, because they contain hosts, users and pids.
        text = text.replace(_OPEN, "?").replace(_CLOSE, "?")
        text = _PREFIX.sub(marks.prefix, text)
        for name in self._inputs:
            text = text.replace(name, marks.put("path", name)) if name in text else text
        text = _PATH.sub(marks.path, text)
        if self._pairs is None:
            self._pairs = _pairs(self._processes)
        text = self._pairs.sub(marks.process, text)
        text = _MAC.sub(lambda m: marks.put("mac", m.group()), text)
        text = _IPV4.sub(marks.address, text)
        text = _IPV6.sub(marks.address, text)
        text = _USER_AT.sub(lambda m: f"{m['head']}{marks.put('user', m['user'])}@{marks.put('host', m['host'])}", text)
        text = _PID_WORD.sub(lambda m: m["head"] + marks.put("pid", m["pid"]), text)
        if self._known is None:
            self._known = self._compile()
        text = self._known.sub(marks.word, text)
        text = _NAME.sub(marks.domain, text)
        return _MARK.sub(lambda m: marks.done[int(m[1])], text)

    def runs_on(self, host: str, pid: str) -> bool:
        """Whether this process was recorded."""
        return pid in self._processes[host]

    def _compile(self) -> re.Pattern[str]:
        hosts, users = (sorted(self._names.get(kind, {}), key=len, reverse=True) for kind in ("host", "user"))
        # A short number is more often a size or a count than a pid. Behind its host it is a pid: see _pairs.
        pids = [pid for pid in self._names.get("pid", {}) if len(pid) >= 5]
        parts = []
        if hosts:
            parts.append(rf"(?P<host>(?:{'|'.join(map(re.escape, hosts))}))(?:\.[A-Za-z][\w-]*)*(?![\w-])")
        if users:
            parts.append(rf"(?P<user>(?:{'|'.join(map(re.escape, users))}))(?![\w-])")
        if pids:
            parts.append(rf"(?P<pid>(?:{'|'.join(pids)}))(?!\w)")
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(parts)})") if parts else re.compile(r"(?!)")


class _Marks:
    """The replacements in a text. They are set aside until the end, so that no later pattern mistakes a placeholder for a name."""

    def __init__(self, redactor: Redactor) -> None:
        self._of = redactor
        self.done: list[str] = []

    def put(self, kind: str, name: str) -> str:
        """A mark for the placeholder of a name."""
        if kind == "host":
            placeholder = self._of.host(name)
        elif kind == "user" and name.lower() in _NOT_USERS:
            placeholder = name
        else:
            placeholder = self._of.place(kind, name)
        self.done.append(placeholder)
        return f"{_OPEN}{len(self.done) - 1}{_CLOSE}"

    def prefix(self, match: re.Match[str]) -> str:
        return ":".join((self.put("host", match["host"]), self.put("pid", match["pid"]), self.put("pid", match["tid"])))

    def address(self, match: re.Match[str]) -> str:
        name = match.group().rstrip(".")
        name = name if _address(name) else name.removesuffix(":")
        return self.put("ip", name) + match.group()[len(name) :] if _address(name) else match.group()

    def path(self, match: re.Match[str]) -> str:
        name = match.group().rstrip(".")
        tail = match.group()[len(name) :]
        return match.group() if _PUBLIC.match(name) else self.put("path", name) + tail

    def word(self, match: re.Match[str]) -> str:
        kind, value = next((kind, value) for kind, value in match.groupdict().items() if value is not None)
        return self.put(kind, value)

    def domain(self, match: re.Match[str]) -> str:
        name = match["name"].rstrip(".-")
        if _DOMAINS.isdisjoint(name.lower().split(".")[1:]):
            return match.group()
        head, tail = match.start("name") - match.start(), match["name"][len(name) :]
        return match.group()[:head] + self.put("host", name) + tail

    def process(self, match: re.Match[str]) -> str:
        if not self._of.runs_on(match["host"], match["pid"]):
            return match.group()
        parts = [self.put("host", match["host"]), self.put("pid", match["pid"])]
        return ":".join([*parts, self.put("pid", match["tid"])] if match["tid"] else parts)


def _pairs(hosts: Iterable[str]) -> re.Pattern[str]:
    """``host:pid`` or ``host:pid:tid`` of these hosts."""
    names = "|".join(map(re.escape, sorted(filter(None, hosts), key=len, reverse=True)))
    if not names:
        return re.compile(r"(?!)")
    return re.compile(rf"(?<![\w./-])(?P<host>{names}):(?P<pid>\d+)(?::(?P<tid>\d+))?(?!\w|\.\d)")


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return text not in ("::", "0.0.0.0", "127.0.0.1", "::1")


def redact(report: Report) -> Report:
    """``report`` with placeholders for hosts, addresses, paths, users and pids in all its texts, evidence included."""
    redactor = Redactor()
    # Ranks come first, so that the numbers follow their order.
    for part in (*_walk(report.ranks), *_walk(report)):
        _learn(redactor, part)
    return _rewrite(report, redactor)


def _walk(value: Any) -> Iterator[Any]:
    """All dataclasses and texts below ``value``, in order."""
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from _walk(getattr(value, item.name))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _walk(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _walk(part)


def _learn(redactor: Redactor, part: Any) -> None:
    if isinstance(part, str):
        redactor.learn(part)
        return
    if isinstance(part, (Evidence, Shape)):
        redactor.input(part.file)
    elif isinstance(part, RankRow) and part.last:
        redactor.input(part.last.rpartition(":")[0])
    elif isinstance(part, Finding):
        for process in part.processes:
            match = _PROCESS.match(process)
            if match:
                redactor.process(match["host"], match["pid"])
    elif isinstance(part, Run):
        for name in part.hosts:
            redactor.host(name)
    if isinstance(part, (RankRow, Culprit)):
        if part.host is not None:
            redactor.host(part.host)
        if part.pid is not None:
            redactor.pid(part.pid)
        if part.host is not None and part.pid is not None:
            redactor.process(part.host, str(part.pid))


# Texts that psmkit itself writes, by field.
_KEPT = frozenset(
    {"code", "comm", "communicators", "known_issue", "missing_subsystems", "name", "parent", "stage", "state"}
)


def _rewrite(value: _T, redactor: Redactor, field: str = "") -> _T:
    result: Any = value
    if isinstance(value, Enum) or field in _KEPT:
        pass
    elif isinstance(value, str):
        result = _string(value, redactor, field)
    elif field == "pid" and isinstance(value, int):
        result = redactor.pid(value)
    elif isinstance(value, Sequence):
        result = tuple(_rewrite(part, redactor, field) for part in value)
    elif isinstance(value, dict):
        result = {key: _rewrite(part, redactor) for key, part in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _rewrite(getattr(value, f.name), redactor, f.name) for f in dataclasses.fields(value)}
        result = dataclasses.replace(value, **changed)
    return cast(_T, result)


def _string(text: str, redactor: Redactor, field: str) -> str:
    if field == "file":
        return redactor.path(text)
    if field in ("host", "hosts"):
        return redactor.host(text)
    if field == "last":
        file, colon, line = text.rpartition(":")
        return f"{redactor.path(file)}:{line}" if colon else redactor.text(text)
    match = _PROCESS.match(text) if field == "processes" else None
    if match:
        return f"{redactor.host(match['host'])}:{redactor.place('pid', match['pid'])}"
    return redactor.text(text)
