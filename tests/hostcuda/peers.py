"""Another process that does as it is told: for what one process hands to another. Every answer has a deadline."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psmkit.lab.cuda import Face

DEADLINE = 60.0
ROOT = Path(__file__).parents[2]
SIZE = 1 << 20

LOOP = """
import os, signal, socket, sys, traceback
from psmkit.lab.cuda import Face, CudaError
from tests.hostcuda import peers
rt, drv = Face({library!r}, {path!r}), Face("cuda", os.environ.get("PSM_TEST_CUDA"))
ok, new, ffi = rt.ok, rt.new, rt.ffi
ok.cudaSetDevice(0)
ok.cudaFree(ffi.NULL)
drv.ok.cuInit(0)
line = socket.socket(fileno=int(sys.argv[1]))
scope = dict(rt=rt, drv=drv, ok=ok, new=new, ffi=ffi, os=os, signal=signal, CudaError=CudaError)
peers.serve(line, scope)
"""


def serve(line: socket.socket, scope: dict[str, Any]) -> None:
    """The other process's side: runs what comes, answers with `answer` and the descriptors in `give`."""
    while True:
        text, fds, _, _ = socket.recv_fds(line, SIZE, 16)
        if not text:
            return
        scope.update(answer=None, give=[], fds=fds)
        try:
            exec(text.decode(), scope)
            reply = ("answer", scope["answer"])
        except Exception as error:
            reply = ("error", repr(error))
        socket.send_fds(line, [repr(reply).encode()], scope["give"])
        for fd in {*scope["give"], *fds}:
            os.close(fd)


class Peer:
    """A process with the same libraries. `run` executes Python there; `rt`, `drv`, `ok`, `new`, `ffi` are at hand."""

    def __init__(self, rt: Face, env: dict[str, str] | None = None) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.settimeout(DEADLINE)
        self._line = mine
        self.fds: list[int] = []  # of the last answer; the caller closes them
        code = LOOP.format(library=rt.library, path=str(rt.path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **(env or {})},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def run(self, code: str, *, fds: Sequence[int] = (), **values: Any) -> Any:
        """Executes code with `values` as variables and `fds` as descriptors of its own; returns what it put into `answer`."""
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        try:
            socket.send_fds(self._line, [(head + code).encode()], list(fds))
            text, self.fds, _, _ = socket.recv_fds(self._line, SIZE, 16)
        except ConnectionError:
            text = b""
        assert text, f"the other process ended: {self.end()}"
        kind, answer = ast.literal_eval(text.decode())
        assert kind == "answer", answer
        return answer

    def kill(self) -> None:
        """As SIGKILL does it: nothing is given back by the process itself."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def end(self) -> str:
        """Lets it go; returns what it wrote to standard error."""
        self._line.close()
        try:
            _, said = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, said = self.process.communicate()
        return str(said)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None or self._line.fileno() >= 0:
            self.end()


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    """Mappings of memfds in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:psm-hostcuda")
