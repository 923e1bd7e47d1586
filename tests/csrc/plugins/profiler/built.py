"""The profiler plugin and the program that calls it, in one, compiled with sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized

ROOT = compiled.ROOT
PLUGIN = ROOT / "csrc" / "plugins" / "profiler"
HERE = Path(__file__).parent
SETTINGS = {"NCCL_DEBUG": "INFO", "PSM_PROFILER_SLOTS": "2000"}


def build(folder: Path, sanitizers: str) -> Path:
    """The driver."""
    generated = folder / "generated"
    compiled.messages("psm_profiler", generated / "psm_profiler_messages.h")
    compiled.abi_versions(generated)
    sources = [
        *sorted(compiled.BASE.glob("*.c")),
        sanitized.SAY / "plugin_say.c",
        *sorted(PLUGIN.glob("*.c")),
        *sorted(HERE.glob("*.c")),
    ]
    includes = [f"-I{p}" for p in (HERE, PLUGIN, ROOT / "csrc" / "telemetry")]
    return compiled.compile_c(folder / "driver", sources, [*includes, "-rdynamic", *sanitized.options(sanitizers)])


@dataclass(frozen=True)
class Driver:
    """The program, and the folder of its records."""

    program: Path
    records: Path

    def environment(self, **env: str) -> dict[str, str]:
        return compiled.environment(PSM_RECORD_DIR=str(self.records), **{**SETTINGS, **env})

    def run(self, *arguments: str, **env: str) -> str:
        """Run it to its end: what it printed. Whatever a sanitizer says fails the test."""
        return str(compiled.run(self.program, *arguments, env=self.environment(**env)).stdout)

    @contextmanager
    def process(self, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """It runs until its standard input ends; its first line is the file of its events."""
        with subprocess.Popen(
            [self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**env),
        ) as child:
            assert child.stdin is not None and child.stdout is not None and child.stderr is not None
            try:
                yield child
            finally:
                if not child.stdin.closed:
                    child.stdin.close()
                child.stdout.read()
                log = child.stderr.read()
                child.wait(timeout=60)
            assert "Sanitizer" not in log and "runtime error" not in log, log
