"""Programs that run under the handle sanitizer, in hostcuda or in the shim over it, and what it told of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.lab.cuda import folder
from tests.hostcuda.conftest import HERE, PROLOGUE

DEADLINE = 60.0
SHIM = "libpsm_sanitize_shim.so"
_LINE = re.compile(r"NCCL (?:WARN|INFO) (sanitizer.*)$", re.MULTILINE)
_WORDS = """
drv = Face("cuda")
def rest(*words):
    print("RESTS", *words, flush=True)
    return sys.stdin.readline().strip()
def value(handle):
    return int(ffi.cast("uintptr_t", handle))
"""

STREAM = "s = new('cudaStream_t *'); ok.cudaStreamCreate(s); s = s[0]\n"
EVENT = "e = new('cudaEvent_t *'); ok.cudaEventCreate(e); e = e[0]\n"
MEMORY = "p = new('void **'); ok.cudaMalloc(p, 4096); p = p[0]\n"


@dataclass
class Told:
    """What a program printed: its own lines, and those of the sanitizer, stacks apart."""

    code: int
    text: str
    reports: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, code: int, text: str) -> Told:
        """Sort the lines of an output."""
        told = cls(code, text)
        for line in _LINE.findall(text):
            if re.match(r"sanitizer report \d+, ", line):
                told.stacks.append(line)
            elif line.startswith("sanitizer report"):
                told.reports.append(re.sub(r"^sanitizer report \d+: ", "", line))
            else:
                told.remarks.append(line)
        return told

    def one(self) -> str:
        """The only report of a program that ended well."""
        assert len(self.reports) == 1 and self.code == 0, self.text
        return self.reports[0]

    def expect_nothing(self) -> None:
        """No report, and a good end."""
        assert not self.reports and not self.stacks and self.code == 0, self.text


class Program:
    """Python code in a process of its own, with `rt`, `drv`, `ok`, `new`, `ffi` and `rest()`, which waits for the test's word.

    Args:
        library: a soname of the runtime, as a key of psmkit.lab.cuda.LIBRARIES.
        where: ``hostcuda`` or ``shim``: who checks.
        mode: off, warn or error.
        records: the folder of record files, which all processes of one job share.
        code: what to run; each line stands for itself, without indentation.
        env: further variables.
    """

    def __init__(self, library: str, where: str, mode: str, records: Path, code: str, env: Mapping[str, str]) -> None:
        text = (
            PROLOGUE.format(library=library, path=None) + _WORDS + "\n".join(line.strip() for line in code.splitlines())
        )
        variables = {**os.environ, "PSM_RECORD_DIR": str(records), "PSM_HOSTCUDA_SANITIZE": mode}
        if where == "shim":
            variables |= {"PSM_HOSTCUDA_SANITIZE": "off", "PSM_SANITIZE": mode, "LD_PRELOAD": str(folder() / SHIM)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            env={**variables, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE.parents[1],
        )
        self.seen = ""

    def rests(self) -> list[str]:
        """What it said when it came to its next rest()."""
        stream = self.process.stdout
        assert stream is not None
        late = threading.Timer(DEADLINE, self.process.kill)
        late.start()
        try:
            for line in stream:
                self.seen += line
                if line.startswith("RESTS"):
                    return line.split()[1:]
        finally:
            late.cancel()
        raise AssertionError(f"the program did not come to its rest\n{self.seen}")

    def has_told(self) -> bool:
        """Whether the sanitizer has reported something up to the last rest()."""
        return "sanitizer report" in self.seen

    def go(self, word: str = "") -> None:
        """Let it go on after a rest()."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self) -> Told:
        """Wait for its end."""
        try:
            rest, _ = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return Told.of(self.process.returncode, self.seen + rest)

    def close(self) -> None:
        """Let nothing of it remain, as SIGKILL does."""
        self.process.kill()
        self.process.wait(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
