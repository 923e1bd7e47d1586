"""Runs `psmkit record` for tests, and reads what it packed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

RANK = (sys.executable, str(Path(__file__).with_name("standin_rank.py")))
PSMKIT = (sys.executable, "-m", "psmkit")
#: Variables of launchers and settings that the machine of a test may have.
_STRANGE = ("NCCL_", "PSM_", "PSMKIT_", "TORCH", "OMPI_", "PMIX_", "SLURM_", "RANK", "LOCAL_RANK", "MASTER_")


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_STRANGE)}
    return {**kept, **more}


def start(folder: Path, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """`psmkit record WORDS` with a copy of its output; ``env`` adds variables."""
    env = environment(**options.pop("env", {}))
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*PSMKIT, "record", *words], cwd=folder, env=env, **options)


def run(folder: Path, *words: str, **options: Any) -> tuple[int, bytes, bytes]:
    process = start(folder, *words, **options)
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def until(true: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


class Archive:
    """The members of an archive by their names without the first folder."""

    def __init__(self, path: Path) -> None:
        data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            self.members = {
                m.name.partition("/")[2]: file.read()
                for m in tar.getmembers()
                if (file := tar.extractfile(m)) is not None
            }

    def __getitem__(self, name: str) -> str:
        return self.members[name].decode()

    @property
    def manifest(self) -> dict[str, Any]:
        found = json.loads(self["manifest.json"])
        assert isinstance(found, dict)
        return found

    def under(self, folder: str) -> list[str]:
        return sorted(name for name in self.members if name.startswith(f"{folder}/"))

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.manifest["events"]]
