"""``psmkit config --plugins``: a folder in which NCCL finds our plugins without a setting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.plugins import check, release
from tests.cli.conftest import Result

LOOK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(ctypes.c_char_p.in_dll(library, sys.argv[2]).value.decode())
"""


@pytest.mark.parametrize(
    ("kind", "symbol"),
    [("net", "ncclNetPlugin_v8"), ("tuner", "ncclTunerPlugin_v4"), ("profiler", "ncclProfiler_v4")],
)
def test_the_loader_finds_our_plugin_by_its_default_name(
    psmkit_cli: Callable[..., Result], kind: str, symbol: str
) -> None:
    folder = psmkit_cli("config", "--plugins").out.strip()
    name = f"libnccl-{kind}.so"
    done = subprocess.run(
        [sys.executable, "-c", LOOK, name, symbol],
        env={**os.environ, "LD_LIBRARY_PATH": folder},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "PSM", done.stderr
    (use,) = check(Path(folder, name), [release("NCCL", "2.30.7")]).uses
    assert (f"NCCL_{kind.upper()}_PLUGIN", None) in use.settings[kind]
