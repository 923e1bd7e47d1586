"""The ground of libpsm (csrc/psm/core, csrc/psm/shm) as a process that obeys: the driver ground.c under ASan and UBSan."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.csrc.base import compiled

ROOT = Path(__file__).parents[3]
PSM = ROOT / "csrc" / "psm"
CUDA = ROOT / "csrc" / "cuda"
RULES = ROOT / "csrc" / "planrules"
ABI = ROOT / "psmkit" / "psm" / "include"
HERE = Path(__file__).parent
MEMFD, POSIX = 2, 3
DEADLINE = 60.0


def generate(folder: Path) -> Path:
    """The headers that the build makes, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = [
        [compiled.BASE / "messages.py", compiled.CATALOGUE, folder / "psm_messages.h"],
        [
            compiled.BASE / "messages.py",
            "--list",
            PSM / "messages.list",
            compiled.CATALOGUE.parent,
            folder / "psm_lib_messages.h",
        ],
        [CUDA / "generate.py", "psm-cuda", folder / "psm_cuda.h"],
    ]
    for command in lists:
        subprocess.run([sys.executable, *command], check=True, timeout=60)
    compiled.abi_versions(folder)
    return folder


def includes(generated: Path) -> list[str]:
    """Where the sources of libpsm look for headers."""
    return [f"-I{place}" for place in (PSM, PSM / "include", CUDA, RULES, ABI, compiled.BASE, generated)]


def build(folder: Path, options: Sequence[str]) -> Path:
    """The driver, with compiler options."""
    generated = generate(folder / "generated")
    sources = [*compiled.BASE.glob("*.c"), *PSM.glob("core/*.c"), *PSM.glob("shm/*.c"), HERE / "ground.c"]
    options = [*compiled.WARNINGS, *includes(generated), *options]
    return compiled.link(folder / "ground", sources, options, ["-lpthread", "-ldl"])


@dataclass(eq=False)
class GroundError(Exception):
    """What psm_last_error said."""

    status: str
    errno: int
    cuda: int
    rank: int
    peer: int
    op_id: int
    stage: str
    text: str

    def __str__(self) -> str:
        return f"{self.status}: {self.text}"


def failure(answer: str) -> GroundError:
    status, *numbers, stage, text = answer.removeprefix("err ").split("|", 7)
    errno, cuda, rank, peer = map(int, numbers[:4])
    return GroundError(status, errno, cuda, rank, peer, int(numbers[4], 16), stage, text)


@dataclass(frozen=True)
class Segment:
    """A segment as its maker tells it."""

    slot: int
    fd: int
    id: int
    share: bytes
    pid: int

    @property
    def path(self) -> str:
        """The descriptor in its maker, for another process to open."""
        return f"/proc/{self.pid}/fd/{self.fd}" if self.fd >= 0 else "-"

    @property
    def name(self) -> str:
        return self.share[32:].split(b"\0")[0].decode()


class Driver:
    """A process that obeys: a command a line, an answer a line. As a context it has to end without a complaint, unless it was killed."""

    def __init__(self, program: Path, log: Path, **settings: str) -> None:
        self.log = log
        self._killed = False
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

    def __enter__(self) -> Self:
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
        if kind is None:
            said = self.log.read_text(errors="replace")
            assert self._killed or self.child.returncode == 0, said
            assert "Sanitizer" not in said and "runtime error" not in said, said

    @property
    def pid(self) -> int:
        return self.child.pid

    def send(self, *words: object) -> None:
        """A command whose answer is read later."""
        assert self.child.stdin
        self.child.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def line(self) -> str:
        """The next line of the answer."""
        assert self.child.stdout
        end = time.monotonic() + DEADLINE
        while b"\n" not in self._rest:
            assert self._selector.select(max(0.0, end - time.monotonic())), "no answer"
            got = os.read(self.child.stdout.fileno(), 65536)
            assert got, f"the driver died: {self.log.read_text(errors='replace')}"
            self._rest += got
        text, _, self._rest = self._rest.partition(b"\n")
        return text.decode()

    def answer(self) -> list[str]:
        """The words of the next answer; an error is raised."""
        answer = self.line()
        if answer.startswith("err "):
            raise failure(answer)
        assert answer.startswith("ok"), answer
        return answer.split()[1:]

    def ask(self, *words: object) -> list[str]:
        self.send(*words)
        return self.answer()

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


class Ground(Driver):
    """One process."""

    def __init__(self, program: Path, log: Path, **env: str) -> None:
        super().__init__(program, log, **{"PSM_LOG_FILE": f"{log}.lines", **env})

    def create(self, kind: int, size: int, label: str = "test") -> Segment:
        slot, fd, id_, share = self.ask("create", kind, size, label)
        return Segment(int(slot), int(fd), int(id_, 16), bytes.fromhex(share), self.pid)

    def attach(self, share: bytes, path: str = "-") -> int:
        """The slot of the mapping."""
        return int(self.ask("attach", share.hex(), path)[0])

    def held(self) -> tuple[int, int]:
        """Descriptors and mappings of segments that the process has."""
        fds, maps = self.ask("held")
        return int(fds), int(maps)
