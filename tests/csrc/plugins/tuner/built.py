"""The tuner plugin, the program that calls it and the one that reads rules, compiled with sanitizers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.plugins.abi import spoken
from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized

ROOT = compiled.ROOT
TUNER = ROOT / "csrc" / "plugins" / "tuner"
RULES = [TUNER / name for name in ("rules.c", "csv.c", "toml.c", "table.c")]
VERSIONS = sorted(spoken("tuner"))
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
OPS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")


class Session:
    """A process that holds communicators of the plugin; questions are answered while it lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, question: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.close()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def begin(self, ranks: int = 16, nodes: int = 2, domains: int = 1) -> int:
        answer = self.ask(f"init {ranks} {nodes} {domains}")
        assert answer["result"] == 0
        return int(answer["context"])

    def get(
        self,
        context: int,
        op: str = "allreduce",
        size: int = 1024,
        *,
        pipe_ops: int = 1,
        registered: int = 0,
        collnet: int = 0,
        nvls: int = 0,
        costs: dict[tuple[str, str], float] | None = None,
    ) -> tuple[str, str, int]:
        """Algorithm, protocol and channels; without ``costs`` everything is offered at 9, in v3 and later."""
        offers = costs if costs is not None else {(a, p): 9.0 for a in ALGORITHMS for p in PROTOCOLS}
        words = " ".join(f"{ALGORITHMS.index(a)}/{PROTOCOLS.index(p)}={c}" for (a, p), c in offers.items())
        answer = self.ask(f"get {context} {OPS.index(op)} {size} {pipe_ops} {registered} {collnet} {nvls} {words}")
        assert answer["result"] == 0 and not answer["outside"]
        return answer["algorithm"], answer["protocol"], answer["channels"]

    def close(self) -> str:
        """End it, and give what it logged."""
        _, log = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, log
        assert "Sanitizer" not in log and "runtime error" not in log, log
        return log


@dataclass(frozen=True)
class Built:
    """The library and both programs."""

    library: Path
    driver: Path
    rules: Path
    records: Path

    def environment(self, **env: str) -> dict[str, str]:
        return compiled.environment(**{"PSM_RECORD_DIR": str(self.records), "NCCL_DEBUG": "INFO", **env})

    def session(self, version: int, **env: str) -> Session:
        return Session(
            subprocess.Popen(
                [self.driver, self.library, str(version), "--ask"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environment(**env),
            )
        )

    def drive(self, version: int, library: Path | None = None, **env: str) -> list[dict[str, Any]]:
        """All that the driver reports."""
        words = (str(library or self.library), str(version))
        done = compiled.run(self.driver, *words, env=self.environment(**env))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def read(self, path: Path, queries: Sequence[str] = ()) -> list[dict[str, Any]]:
        """What the plugin makes of a file of rules, then its answers."""
        done = subprocess.run(
            [self.rules, path],
            input="".join(f"{query}\n" for query in queries),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in (0, 1) and not done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def build(folder: Path, sanitizers: str) -> Built:
    """Compile all with sanitizers."""
    made = folder / "generated"
    compiled.messages("psm_tuner", made / "psm_tuner_messages.h")
    compiled.messages("psmkit", made / "psm_messages.h")
    compiled.abi_versions(made)
    options = [*sanitized.options(sanitizers), f"-I{TUNER}", f"-I{made}", f"-I{compiled.BASE}"]
    shared = [*options, "-shared", "-fPIC", "-fvisibility=hidden"]
    tools = TUNER / "tools"
    built = Built(
        folder / "libnccl-tuner-psm.so", folder / "psm_tuner_drive", folder / "psm_tuner_rules", folder / "records"
    )
    sanitized.link(
        built.library,
        [*sorted(TUNER.glob("*.c")), sanitized.SAY / "plugin_say.c", *sorted(compiled.BASE.glob("*.c"))],
        shared,
    )
    sanitized.link(built.driver, [*RULES, tools / "call.c", tools / "drive.c"], options)
    sanitized.link(built.rules, [*RULES, tools / "rules_main.c"], options)
    return built
