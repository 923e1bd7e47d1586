"""The shim that checks profilers, a caller that can be wrong, and profilers to wrap, compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
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
        words = (str(self.library), str(version), way)
        done = compiled.run(self.caller, *words, env=compiled.environment(**settings))
        assert done.returncode == 0, (done.stdout, done.stderr)
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def build(folder: Path, sanitizers: str) -> Built:
    """Compile the shim and the caller with sanitizers, and the profilers without."""
    made = folder / "generated"
    compiled.messages("psm_profiler_check", made / "psm_profiler_check_messages.h")
    compiled.messages("psmkit", made / "psm_messages.h")
    compiled.abi_versions(made)
    options = [*sanitized.options(sanitizers), "-O0", f"-I{CHECK}", f"-I{made}", f"-I{compiled.BASE}"]
    built = Built(
        folder / "libnccl-profiler-check.so",
        folder / "caller",
        drive_libraries.profiler(folder),
        drive_libraries.profiler_of(folder, 4),
        folder / "records",
    )
    shared = [*options, "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete"]
    sanitized.link(
        built.library,
        [*sorted(CHECK.glob("*.c")), sanitized.SAY / "plugin_say.c", *sorted(compiled.BASE.glob("*.c"))],
        shared,
    )
    sanitized.link(built.caller, [HERE / "caller.c", CHECK / "event.c", CHECK / "rules.c"], options)
    return built
