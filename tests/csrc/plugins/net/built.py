"""The net plugin and the driver that uses it, compiled with options."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from psmkit.plugins.abi import spoken
from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
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

    def link(self, source: str, program: Path, *options: str) -> Path:
        """A program of this folder, with the lists of the versions of each signature."""
        return sanitized.link(program, [HERE / source], [*options, f"-I{self.library.parent / 'generated'}"])

    def expect_too_large(self, address: str, **env: str) -> None:
        """Both ends report a message that is larger than its receive; ``address`` is a pattern of the peer's."""
        _, log = self.run("too_large", **env)
        for role, rank, peer in (("recv", 1, 0), ("send", 0, 1)):
            where = rf"{role}, rank {rank} device 0, peer rank {peer} at {address}"
            assert re.search(rf"{where}: a message of 1000 bytes with tag 0 for a receive of 999$", log, re.M), log

    def expect_lost_peer(self, scenario: str, what: str, **env: str) -> None:
        """The end that stays reports the one that goes; ``what`` is a pattern of its address and of what it did."""
        _, log = self.run(scenario, **env)
        peer = 0 if scenario == "sender_dies" else 1
        assert re.search(rf"rank {1 - peer} device 0: peer rank {peer} at {what}", log), log


def build(folder: Path, sanitizers: str) -> Built:
    """Compile both, with sanitizers."""
    folder.mkdir(parents=True, exist_ok=True)
    generated = ground.generate(folder / "generated")
    compiled.messages("psm_net", generated / "psm_net_messages.h")
    compiled.abi_versions(generated)
    options = sanitized.options(sanitizers)
    library = [
        path
        for place in (NET, sanitized.SAY, PSM / "core", PSM / "shm", compiled.BASE)
        for path in sorted(place.rglob("*.c"))
    ]
    shared = [
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-eliminate-unused-debug-types",
        f"-I{NET}",
        *ground.includes(generated),
    ]
    built = Built(folder / "libnccl-net-psm.so", folder / "driver", folder / "records")
    sanitized.link(built.library, library, [*options, *shared])
    built.link("driver.c", built.driver, *sanitized.options(sanitizers))
    return built
