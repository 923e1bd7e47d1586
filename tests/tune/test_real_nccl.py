"""A real NCCL over the emulated driver asks the tuner: `make test-nccl`, or PSM_TEST_NCCL=FOLDER of any release from 2.21."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psmkit.cli.app import main

LIBRARY = os.environ.get("PSM_TEST_NCCL")
pytestmark = pytest.mark.skipif(not LIBRARY, reason="PSM_TEST_NCCL names no NCCL library: make test-nccl")
PLUGIN = Path(__file__).parents[2] / "psmkit" / "psm" / "lib" / "libnccl-tuner-psm.so"


def test_nccl_asks_and_the_log_names_the_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text("op,bytes,algorithm,protocol,channels,note\nallreduce,..1M,ring,simple,1,for the lab\n")
    out = tmp_path / "run"
    settings = {"NCCL_TUNER_PLUGIN": str(PLUGIN), "PSM_TUNER_CONFIG": str(rules)}
    words = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    # Without kernels the collective cannot run; it is decided before that.
    main(
        ["lab", "nccl", "--lib", str(LIBRARY), "--pattern", "allreduce", "--type", "float32", *words, "--out", str(out)]
    )
    log = "\n".join(path.read_text("utf-8", "replace") for path in (out / "logs").iterdir())
    assert log.count(f"TUNER/PSM : 1 rules and 0 constants from {rules} for communicator") == 2
    assert log.count("2 ranks on 1 nodes: ring simple, channels 1, by line 2, for the lab") == 2
