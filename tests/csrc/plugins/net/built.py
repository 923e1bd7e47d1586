"""The net plugin and the driver that uses it, compiled with options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psmkit.plugins.abi import spoken
from tests.csrc.base import compiled
from tests.csrc.psm import ground

ROOT = compiled.ROOT
NET = ROOT / "csrc" / "plugins" / "net"
PSM = ROOT / "csrc" / "psm"
HERE = Path(__file__).parent
VERSIONS = sorted(spoken("net"))


@dataclass(frozen=True)
class Built:
    """The library, the driver, and the folder of records."""

    library: Path
    driver: Path
    records: Path

    def start(self, scenario: str, version: int = 12, **env: str) -> subprocess.Popen[str]:
        """Both processes of a scenario; the loopback interface unless ``env`` says another."""
        settings = {"PSM_RECORD_DIR": str(self.records), "NCCL_SOCKET_IFNAME": "=lo", "NCCL_DEBUG": "INFO"}
        return subprocess.Popen(
            [self.driver, self.library, str(version), scenario],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=compiled.environment(**{**settings, **env}),
        )

    def run(self, scenario: str, version: int = 12, **env: str) -> tuple[str, str]:
        """A scenario to its end: what it printed, and its log. A failed check or a report of a sanitizer is an error."""
        process = self.start(scenario, version, **env)
        try:
            out, log = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, out + log
        assert "Sanitizer" not in log and "runtime error" not in log, log
        return out, log

    def expect_success(self, scenario: str, version: int = 12, **env: str) -> None:
        """For a test whose checks are those of the scenario."""
        self.run(scenario, version, **env)


def build(folder: Path, sanitizers: str) -> Built:
    """Compile both, with sanitizers."""
    folder.mkdir(parents=True, exist_ok=True)
    generated = ground.generate(folder / "generated")
    command: list[str | Path] = [sys.executable, compiled.BASE / "messages.py", ROOT / "psmkit/catalogue/psm_net.toml"]
    subprocess.run([*command, generated / "psm_net_messages.h"], check=True, timeout=60)
    compiled.abi_versions(generated)
    options = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{ROOT / 'psmkit' / 'psm' / 'include'}"]
    if sanitizers == "thread":
        options.append("-Wno-tsan")
    library = [path for place in (NET, PSM / "core", PSM / "shm", compiled.BASE) for path in sorted(place.rglob("*.c"))]
    shared = [
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-eliminate-unused-debug-types",
        f"-I{NET}",
        *ground.includes(generated),
    ]
    built = Built(folder / "libnccl-net-psm.so", folder / "driver", folder / "records")
    _compile(built.library, library, [*options, *shared])
    _compile(built.driver, [HERE / "driver.c"], options)
    return built


def _compile(output: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    command = [compiled.compiler(), *compiled.WARNINGS, *options, *sources, "-o", output, "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, env=compiled.environment(), timeout=300)
    assert done.returncode == 0, done.stderr
