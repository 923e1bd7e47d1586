"""Learn the names of people and machines from texts, and replace them in texts.

Placeholders are numbered in order of appearance, so the same texts give the same placeholders and equal names stay equal.
:class:`psmkit.names.pseudonyms.Pseudonyms` numbers them in the order of the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from psmkit.names import patterns as p
from psmkit.names import secrets
from psmkit.names.secrets import has

__all__ = ["Redactor"]

# Lone surrogates that enclose the number of a replacement during processing: no decoded text holds them.
_OPEN, _CLOSE = "\ud800", "\ud801"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
# What stands before the processes in the reason for a verdict when no line of theirs was read: nothing else names them.
_LIST = "were not given: "
_OF_USER = ("user", "login", "owner", "logname")
_OF_HOST = ("host", "master", "node", "-H ", "-w ", "rdzv")
_OF_PID = ("pid", "tid", "proc", "thread")
_OF_ACCOUNT = ("arn:", "account", "dkr.ecr")
_OF_SLURM = ("partition", "reservation", "qos", "account", "cluster")
_OF_PROJECT = ("projects/", "subscriptions/", "resourceGroups/")
_DOMAINS = tuple(f".{name}" for name in p.DOMAINS)
_PACKED = re.compile("[0-9a-f]{32}")
_CLOUD = re.compile("-[0-9a-f]{8}")
_BRACKET = re.compile(r"\w\[\d")
# Sites whose addresses say nothing about who writes: documentation and public code.
_SITES = re.compile(
    r"^(?:www\.|docs\.|developer\.|discuss\.|forums?\.)?(?:github\.com|pytorch\.org|nvidia\.com|python\.org|readthedocs\.io|kernel\.org|"
    r"open-mpi\.org|openmpi\.org|ray\.io|wikipedia\.org|stackoverflow\.com|localhost|example\.(?:com|org|net))$"
)
_OF_GIT = re.compile(r"\.git(?!\w)")
_SUFFIX = re.compile(r"\.(?:py|cc|cu|cpp|h|hpp|c|so|log|txt)$")
_RUN = re.compile(r"[\w-]+")
_NUMBERED = re.compile(r"\d{5}-")
_SHORTEST = 4  # A shorter name of a path may be any word elsewhere.
_FEWEST = 5  # A shorter number is more often a size or a count than a pid. Behind its host it is a pid.


class Redactor:
    """Learns names from texts, then replaces them in texts."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, str]] = {}
        self._processes: dict[str, set[str]] = {}
        self._inputs: list[str] = []
        # The first run of letters of each host, user and pid: a text without one of them holds no known name.
        self._firsts: set[str] = set()

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
            self.remember(kind, name)
        return table[name]

    def remember(self, kind: str, name: str) -> None:
        """Note that a name is known, so that texts are searched for it."""
        if kind in ("host", "user", "pid"):
            first = _RUN.search(name)
            if first is not None:
                self._firsts.add(first.group())

    def process(self, host: str, pid: str) -> None:
        """Record a process; each ``host:pid`` of it is replaced, also if the pid is short."""
        self.host(host)
        self.place("pid", pid)
        self._processes.setdefault(host, set()).add(pid)

    def lead(self, name: str) -> tuple[str, str]:
        """What stands before a host in a prefix that was damaged, and the host."""
        return "", name

    def learn(self, text: str) -> None:
        """Record the names in ``text`` that stand where only a name can stand."""
        if "[" in text:
            text = p.COLOUR.sub(" ", text)
        low = text.lower()
        if "@" in text:
            text = secrets.replace(p.ENTRY.sub(" ", text), low, lambda kind, name: " ")
        if ":" in text:
            for match in p.PREFIX.finditer(text):
                if host := self.lead(match["host"])[1]:
                    self.process(host, match["pid"])
                self.place("pid", match["tid"])
            if "process " in text:
                for match in p.NAMED.finditer(text):
                    self.process(match["host"], match["pid"])
            if _LIST in text:
                for match in p.PAIR.finditer(text.partition(_LIST)[2]):
                    self.process(match["host"], match["pid"])
        if has(low, _OF_PID) or _BRACKET.search(text):
            for match in p.PID_WORD.finditer(text):
                self.place("pid", match["pid"])
        if has(low, _OF_USER) or "/home/" in low:
            for match in p.USER.finditer(text):
                if not self.is_prose(match):
                    self.user(match["user"])
        if "@" in text:
            for match in p.USER_AT.finditer(text):
                if not is_symbol(match):
                    self.user(match["user"])
        if "<" in text:
            for match in p.ADDRESS_HOST.finditer(text):
                self.host(match["host"])

    def is_prose(self, match: re.Match[str]) -> bool:
        """Whether a word where a user may stand is a word of the language: "user buffer" is said of a buffer, "user=buffer" is not."""
        head = match["head"]
        return head.endswith(" ") and "=" not in head and ":" not in head and self.common(match["user"].rstrip("."))

    def host(self, name: str) -> str:
        """The placeholder of a host; addresses have placeholders of their own kind."""
        if name in p.NOT_HOSTS or not name:
            return name
        if p.is_address(name):
            return self.place("ip", name)
        return self.place("host", name)

    def user(self, name: str) -> str:
        """The placeholder of a user; some words stand where a user could."""
        return name if name.lower() in p.NOT_USERS else self.place("user", name)

    def pid(self, pid: int) -> int:
        """The placeholder of a pid."""
        return int(self.place("pid", str(pid)))

    def path(self, path: str) -> str:
        """The placeholder of a whole path, whatever it contains."""
        return path if path in ("-", "<stdin>") else self.place("path", path)

    def words(self, text: str) -> str:
        """The placeholder of the name of a project or a part of a cluster."""
        return self.place("name", text)

    def public_path(self, path: str) -> str:
        """A path of the kernel's files, which identify nobody."""
        return path

    def common(self, name: str) -> bool:
        """Whether a name is a word of the language, so that it is a name only where a name must stand."""
        return False

    def domain(self, tail: str) -> str:
        """What takes the place of the labels behind the name of a host."""
        return ""

    def text(self, text: str) -> str:
        """``text`` with all names replaced."""
        return self.rewrite(text.replace(_OPEN, "?").replace(_CLOSE, "?"), Marks(self))

    def rewrite(self, text: str, marks: Marks) -> str:
        """``text``, in which some names may be set aside already, with all names replaced."""
        put = marks.put
        if "[" in text:
            text = p.COLOUR.sub(lambda m: marks.aside(m.group()), text)
        low = text.lower()
        if "@entry" in text:
            text = p.ENTRY.sub(lambda m: marks.aside(m.group()), text)
        text = secrets.replace(text, low, put)
        if ":" in text:
            text = p.PREFIX.sub(marks.prefix, text)
            text = p.LOOSE_PREFIX.sub(marks.loose_prefix, text)
        # Paths come before words, because they contain hosts, users and pids.
        for name in self._inputs:
            text = text.replace(name, put("path", name)) if name in text else text
        if "://" in text:
            text = p.URL.sub(marks.url, text)
        if '"' in text:
            text = p.JSON_NAME.sub(marks.named, text)
            text = p.JSON_PID.sub(lambda m: m["head"] + put("pid", m["pid"]), text)
            text = p.FILE.sub(marks.file, text)
        if has(low, _OF_ACCOUNT):
            text = p.ACCOUNT.sub(marks.account, text)
        if has(low, _OF_SLURM):
            bare = p.OF_SLURM.search(text) is not None
            text = p.SLURM.sub(
                lambda m: m["head"] + put("words", m["name"]) if bare or not m["bare"] else m.group(), text
            )
        if ":\\" in text:
            text = p.DRIVE_PATH.sub(lambda m: put("path", m.group()), text)
        if "@" in text and "/" in text:
            text = p.GIT.sub(marks.repository, text)
        if "/" in text:
            if has(text, _OF_PROJECT):
                text = p.PROJECT.sub(lambda m: m["head"] + put("name", m["project"]), text)
            text = p.PATH.sub(marks.path, text)
        colons = text.count(":")
        if colons:
            if "process " in text:
                text = p.NAMED.sub(marks.named_process, text)
            text = p.PROCESS.sub(marks.process, text)
        text = self._numbers(text, low, put)
        if colons > 4:
            text = p.MAC.sub(lambda m: put("mac", m.group()), text)
        if colons > 1:
            text = p.IPV6.sub(marks.address, text)
        if text.count(".") > 2:
            text = p.IPV4.sub(marks.address, text)
        if "@" in text:
            text = p.USER_AT.sub(marks.user_at, text)
        if "ip-" in text:
            text = p.ADDRESS_NAME.sub(lambda m: put("host", m["host"]), text)
        if has(low, _OF_USER):
            text = p.USER.sub(marks.user, text)
        if has(low, _OF_PID) or _BRACKET.search(text):
            text = p.PID_WORD.sub(lambda m: m["head"] + put("pid", m["pid"]), text)
        if "]:" in text:
            text = p.BRACKET_HOST.sub(marks.some_host, text)
        if has(low, _OF_HOST):
            text = p.HOST_OPTION.sub(marks.hosts, text)
            text = p.HOST_SETTING.sub(marks.some_host, text)
        if "<" in text:
            text = p.ADDRESS_HOST.sub(lambda m: m["head"] + put("host", m["host"]), text)
        text = self._words(text, marks)
        if "." in text and has(low, _DOMAINS):
            text = p.NAME.sub(marks.domain, text)
        return marks.resolve(text)

    @staticmethod
    def _numbers(text: str, low: str, put: Callable[[str, str], str]) -> str:
        """Replace numbers that machines, containers and their parts are known by."""
        if text.count("-") > 3:
            text = p.UUID.sub(lambda m: put("uuid", m.group()), text)
        if len(text) > 31 and _PACKED.search(text):
            text = p.LONG_HEX.sub(lambda m: put("id", m.group()), text)
        if "-" in text and _CLOUD.search(text):
            text = p.CLOUD.sub(lambda m: put("cloud", m.group()), text)
        if "guid" in low:
            text = p.GUID.sub(lambda m: m["head"] + put("guid", m["guid"]), text)
        return text

    def _words(self, text: str, marks: Marks) -> str:
        """Replace the names that were seen elsewhere."""
        hosts, users, pids, names = (self._names.get(kind, {}) for kind in ("host", "user", "pid", "name"))
        if names and not names.keys().isdisjoint(p.PART.findall(text)):
            text = p.PART.sub(lambda m: marks.part(m, names), text)
        if self._firsts.isdisjoint(_RUN.findall(text)) and not _NUMBERED.search(text):
            return text

        def word(match: re.Match[str]) -> str:
            whole = match.group()
            at = 0
            while True:
                end = whole.find(".", at)
                name = whole if end < 0 else whole[:end]
                tail = "" if end < 0 else whole[end:]
                if name in hosts and not self.common(name):
                    return marks.host_of(name, tail)
                if name in users and not self.common(name):
                    return marks.put("user", name) + tail
                if end < 0:
                    break
                at = end + 1
            digits = whole.partition("-")[0].partition(".")[0]
            if len(digits) >= _FEWEST and digits in pids:
                return marks.put("pid", digits) + whole[len(digits) :]
            return whole

        return p.WORD.sub(word, text)

    def runs_on(self, host: str, pid: str) -> bool:
        """Whether this process was recorded."""
        return pid in self._processes.get(host, ())


def is_symbol(match: re.Match[str]) -> bool:
    """Whether what looks like a user at a host is a symbol with its version, or a package with its own."""
    host: str = match["host"]
    if p.SYMBOL.match(host) or p.LIBRARY.match(match["user"]):
        return True
    return host[0].isdigit() and not p.is_address(host.rstrip("."))


class Marks:
    """The replacements in a text. They are set aside until the end, so that no later pattern mistakes a placeholder for a name."""

    def __init__(self, redactor: Redactor) -> None:
        self._of = redactor
        self.done: list[str] = []

    def aside(self, text: str) -> str:
        """A mark for a text that stays as it is."""
        self.done.append(text)
        return f"{_OPEN}{len(self.done) - 1}{_CLOSE}"

    def put(self, kind: str, name: str) -> str:
        """A mark for the placeholder of a name."""
        if kind in ("host", "user", "path", "words"):
            return self.aside(getattr(self._of, kind)(name))
        return self.aside(self._of.place(kind, name))

    def resolve(self, text: str) -> str:
        """``text`` with the placeholders for their marks; a placeholder may hold marks of others."""
        while _OPEN in text:
            text = _MARK.sub(lambda m: self.done[int(m[1])], text)
        return text

    def prefix(self, match: re.Match[str]) -> str:
        lead, host = self._of.lead(match["host"])
        before = self.aside(lead) if lead else ""
        return before + ":".join((self.put("host", host), self.put("pid", match["pid"]), self.put("pid", match["tid"])))

    def loose_prefix(self, match: re.Match[str]) -> str:
        host = self.put("host", match["host"]) + match["blank"] if match["host"] else ""
        return f"{host}:{self.put('pid', match['pid'])}:{self.put('pid', match['tid'])}"

    def address(self, match: re.Match[str]) -> str:
        name = match.group().rstrip(".")
        name = name if p.is_address(name) else name.removesuffix(":")
        if not p.is_address(name) or (":" not in name and p.is_version(match.string, match.start())):
            return match.group()
        return self.put("ip", name) + match.group()[len(name) :]

    def some_host(self, match: re.Match[str]) -> str:
        name = match["host"].rstrip(".")
        # A word of the language stands here, too: "host: unreachable".
        if self._of.common(name) or _SUFFIX.search(name):
            return match.group()
        return match["head"] + self.put("host", name) + match["host"][len(name) :]

    def hosts(self, match: re.Match[str]) -> str:
        out = []
        for part in match["hosts"].split(","):
            name, colon, slots = part.partition(":")
            known = name if not name or name.isdecimal() or self._of.common(name) else self.put("host", name)
            out.append(known + colon + slots)
        return match["head"] + ",".join(out)

    def part(self, match: re.Match[str], names: Collection[str]) -> str:
        word = match.group()
        if word not in names or len(word) < _SHORTEST or match.string[match.start() - 1 : match.start()] == _OPEN:
            return word
        return self.put("name", word)

    def path(self, match: re.Match[str]) -> str:
        name = match.group().rstrip(".")
        tail = match.group()[len(name) :]
        return (self.aside(self._of.public_path(name)) if p.PUBLIC.match(name) else self.put("path", name)) + tail

    def file(self, match: re.Match[str]) -> str:
        name = match["path"]
        # "<string>" and "<frozen importlib>" are no files.
        return match.group() if name.startswith("<") or p.PUBLIC.match(name) else match["head"] + self.put("path", name)

    def named(self, match: re.Match[str]) -> str:
        name = match["name"]
        if not name.strip("0123456789 -.") and not p.is_address(name):
            return match.group()
        kind = "user" if match["key"].lower() in ("user", "user_name", "username", "owner", "login") else "host"
        # A key such as "node" holds a sentence at times.
        return match.group() if " " in name else match["head"] + self.put(kind, name)

    def named_process(self, match: re.Match[str]) -> str:
        return f"{match['head']}{match['lead']}{self.put('host', match['host'])}:{self.put('pid', match['pid'])}"

    def account(self, match: re.Match[str]) -> str:
        if match["registry"]:
            return self.put("account", match["registry"])
        return match["head"] + self.put("account", match["account"])

    def url(self, match: re.Match[str]) -> str:
        host, path = match["host"] or "", match["path"] or ""
        if _SITES.match(host.lower()):
            # What git is given may be private: who asks for it has a name there.
            if not (match["head"].endswith("@") or "git" in match["scheme"].lower() or _OF_GIT.search(path)):
                return self.aside(match.group())
            rest = path[:1] + (self.put("path", path[1:]) if path[1:] else "")
            return f"{match['head']}{self.aside(host)}{match['port'] or ''}{rest}"
        named = host if not host else self.put("ip", host) if p.is_address(host) else self.site(host)
        rest = path if path in ("", "/") else self.put("path", path)
        return f"{match['head']}{named}{match['port'] or ''}{rest}"

    def repository(self, match: re.Match[str]) -> str:
        if match["user"] != "git" and not match["path"].endswith(".git"):
            return match.group()
        return f"{self.put('user', match['user'])}@{self.site(match['host'])}:{self.put('path', match['path'])}"

    def site(self, host: str) -> str:
        if host.startswith("["):
            return "[" + (self.put("ip", host[1:-1]) if p.is_address(host[1:-1]) else host[1:-1]) + "]"
        if self._of.common(host) or _SITES.match(host.lower()):
            return self.aside(host)
        return self.put("ip" if p.is_address(host) else "host", host)

    def user(self, match: re.Match[str]) -> str:
        return match.group() if self._of.is_prose(match) else match["head"] + self.put("user", match["user"])

    def user_at(self, match: re.Match[str]) -> str:
        if is_symbol(match):
            return match.group()
        host = match["host"].rstrip(".-")
        named = self.aside(host) if _SITES.match(host.lower()) else self.put("host", host)
        return f"{match['head']}{self.put('user', match['user'])}@{named}{match['host'][len(host) :]}"

    def host_of(self, name: str, tail: str) -> str:
        """A known host and the labels behind it, from where they are those of a domain."""
        kept = ""
        labels = tail.split(".")[1:]
        for number, part in enumerate(labels):
            if not part[:1].isalpha():
                kept = "." + ".".join(labels[number:])
                labels = labels[:number]
                break
        middle = "." + ".".join(labels) if labels else ""
        return self.put("host", name) + (self.aside(self._of.domain(middle)) if middle else "") + kept

    def domain(self, match: re.Match[str]) -> str:
        name = match["name"].rstrip(".-")
        if p.DOMAINS.isdisjoint(name.lower().split(".")[1:]) or _SITES.match(name.lower()):
            return match.group()
        head, tail = match.start("name") - match.start(), match["name"][len(name) :]
        return match.group()[:head] + self.put("host", name) + tail

    def process(self, match: re.Match[str]) -> str:
        if not self._of.runs_on(match["host"], match["pid"]):
            return match.group()
        parts = [self.put("host", match["host"]), self.put("pid", match["pid"])]
        return ":".join([*parts, self.put("pid", match["tid"])] if match["tid"] else parts)
