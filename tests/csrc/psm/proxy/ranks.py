"""Ranks of a job as processes that obey: the driver rank.c, compiled with the sources of the proxy."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

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


class Rank(ground.Driver):
    """One process."""

    def __init__(self, program: Path, log: Path, **env: str) -> None:
        settings = {"PSM_TIMEOUT": "30", "PSM_DEBUG": "INFO", "PSM_DEBUG_FILE": f"{log}.lines", **env}
        super().__init__(program, log, **settings)
        self.address = ""

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
            assert time.monotonic() < end, f"{now}, expected {counters}"

    def held(self) -> tuple[int, int]:
        """Descriptors and threads of the process."""
        fds, threads = self.ask("held")
        return int(fds), int(threads)

    def until_held(self, meant: tuple[int, int]) -> None:
        """Return as soon as the process holds these; another thread of it closes them."""
        end = time.monotonic() + DEADLINE
        while (now := self.held()) != meant:
            assert time.monotonic() < end, f"{now}, expected {meant}"


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
