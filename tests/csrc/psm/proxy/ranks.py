"""Ranks of a job as processes that obey: the driver rank.c, compiled with the sources of the proxy."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
PROXY = ground.PSM / "proxy"
DEADLINE = 60.0
SETUP, CONNECT, CLOSE, REGISTER = 3, 4, 6, 11
ECHO, FAIL, NEVER, FETCH, SILENT_FAIL = range(5)


def build(folder: Path, options: Sequence[str]) -> Path:
    """The driver, with compiler options."""
    generated = ground.generate(folder / "generated")
    proxy = [source for source in PROXY.glob("*.c") if not source.name.startswith("fuzz_")]
    sources = [*compiled.BASE.glob("*.c"), *ground.PSM.glob("core/*.c"), *proxy, HERE / "rank.c"]
    options = [*compiled.WARNINGS, *ground.includes(generated), *options]
    return compiled.link(folder / "rank", sources, options, ["-lpthread", "-ldl"])


class Rank:
    """One process. Leave it as a context: then it has to end without a complaint of a sanitizer, unless it was killed."""

    def __init__(self, program: Path, log: Path, **env: str) -> None:
        self.log = log
        self.address = ""
        self._killed = False
        settings = {"PSM_TIMEOUT": "30", "PSM_DEBUG": "INFO", "PSM_DEBUG_FILE": f"{log}.lines", **env}
        with log.open("wb") as sink:
            self.child = subprocess.Popen(
                [program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                bufsize=0,
                env=compiled.environment(**settings),
            )
        assert self.child.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.child.stdout, selectors.EVENT_READ)
        self._rest = b""

    def __enter__(self) -> Rank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        assert self.child.stdin and self.child.stdout
        self.child.stdin.close()
        try:
            self.child.wait(timeout=DEADLINE)
        finally:
            self.child.kill()
            self.child.wait(timeout=DEADLINE)
            self.child.stdout.close()
        if kind is None and not self._killed:
            assert self.child.returncode == 0, self.log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self.child.pid

    def send(self, *words: object) -> None:
        """A command whose answer is read later."""
        assert self.child.stdin
        self.child.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def answer(self) -> list[str]:
        """The words of the next answer; an error is raised."""
        assert self.child.stdout
        end = time.monotonic() + DEADLINE
        while b"\n" not in self._rest:
            assert self._selector.select(max(0.0, end - time.monotonic())), "no answer"
            got = os.read(self.child.stdout.fileno(), 65536)
            assert got, f"the rank died: {self.log.read_text(errors='replace')}"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        text = line.decode()
        if text.startswith("err "):
            raise ground.failure(text)
        assert text.startswith("ok"), text
        return text.split()[1:]

    def ask(self, *words: object) -> list[str]:
        self.send(*words)
        return self.answer()

    def number(self, *words: object) -> int:
        return int(self.ask(*words)[0], 0)

    def count(self) -> dict[str, int]:
        """The proxy's counters."""
        return {name: int(value) for name, value in (word.split("=") for word in self.ask("count"))}

    def until(self, **counters: int) -> dict[str, int]:
        """The counters, as soon as they are these; another thread of the rank moves them."""
        end = time.monotonic() + DEADLINE
        while True:
            now = self.count()
            if all(now[name] == value for name, value in counters.items()):
                return now
            assert time.monotonic() < end, f"{now}, {counters} are meant"

    def held(self) -> tuple[int, int]:
        """Descriptors and threads of the process."""
        fds, threads = self.ask("held")
        return int(fds), int(threads)

    def may_die(self) -> None:
        """Its end is not looked at: a fault kills it."""
        self._killed = True

    def kill(self) -> None:
        self._killed = True
        self.child.kill()
        self.child.wait(timeout=DEADLINE)

    def lines(self) -> str:
        """What it logged."""
        path = Path(f"{self.log}.lines")
        return path.read_text() if path.exists() else ""


def start_proxies(ranks: Sequence[Rank]) -> None:
    """Init, exchange of addresses, Create."""
    for i, rank in enumerate(ranks):
        rank.address = rank.ask("init", i, len(ranks))[0]
    for rank in ranks:
        rank.ask("addresses", *(other.address for other in ranks))
        rank.ask("create")


def connect_all(ranks: Sequence[Rank]) -> None:
    """Every rank to every proxy: slot i is the proxy of rank i."""
    for rank in ranks:
        for i in range(len(ranks)):
            rank.ask("connect", i, i, 1)


def names(pids: Sequence[int]) -> list[str]:
    """Abstract sockets of libpsm that processes hold."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    return [row[7] for row in rows if len(row) > 7 and row[7].startswith("@psm-") and row[6] in inodes]
