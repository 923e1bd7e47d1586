"""The shim that checks profilers, a caller that can be wrong, and profilers to wrap, compiled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.csrc.base import compiled
from tests.plugins import drive_libraries

CHECK = compiled.ROOT / "csrc" / "plugins" / "profiler_check"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Built:
    """The library, who calls it, and profilers: one with all versions, one with v4 alone."""

    library: Path
    caller: Path
    profiler: Path
    profiler_v4: Path
    records: Path

    def run(self, way: str, version: int = 6, **env: str) -> list[str]:
        """What was logged."""
        settings = {"PSM_RECORD_DIR": str(self.records), "NCCL_DEBUG": "INFO", **env}
        done = subprocess.run(
            [self.caller, self.library, str(version), way],
            capture_output=True,
            text=True,
            timeout=120,
            env=compiled.environment(**settings),
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def build(folder: Path, sanitizers: str) -> Built:
    """Compile the shim and the caller with sanitizers, and the profilers without."""
    made = folder / "generated"
    made.mkdir(parents=True, exist_ok=True)
    for name in ("psm_profiler_check", "psmkit"):
        header = made / ("psm_messages.h" if name == "psmkit" else f"{name}_messages.h")
        catalogue = compiled.ROOT / "psmkit" / "catalogue" / f"{name}.toml"
        subprocess.run([sys.executable, compiled.BASE / "messages.py", catalogue, header], check=True, timeout=60)
    compiled.abi_versions(made)
    options = [
        f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all",
        f"-I{compiled.ROOT / 'psmkit' / 'psm' / 'include'}",
    ]
    options += ["-O0", f"-I{CHECK}", f"-I{made}", f"-I{compiled.BASE}"]
    if sanitizers == "thread":
        options.append("-Wno-tsan")
    built = Built(
        folder / "libnccl-profiler-check.so",
        folder / "caller",
        drive_libraries.profiler(folder),
        drive_libraries.profiler_of(folder, 4),
        folder / "records",
    )
    shared = [*options, "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete"]
    _compile(built.library, [*sorted(CHECK.glob("*.c")), *sorted(compiled.BASE.glob("*.c"))], shared)
    _compile(built.caller, [HERE / "caller.c", CHECK / "event.c", CHECK / "rules.c"], options)
    return built


def _compile(output: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    command = [compiled.compiler(), *compiled.WARNINGS, *options, *sources, "-o", output, "-lpthread", "-ldl", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, env=compiled.environment(), timeout=300)
    assert done.returncode == 0, done.stderr
