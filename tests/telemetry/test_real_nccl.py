"""A real NCCL with our profiler, over emulated CUDA: its events are what its log says. PSM_TEST_NCCL_BUILD names a libnccl of 2.23 or later
that is linked to the shared CUDA runtime, PSM_TEST_NCCL_BUILD_KERNELS the interpreter that was built with its tree (docs/kernels.md);
PSM_TEST_NCCL_ENGINE one of 2.29 or later, without kernels."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from psmkit.cli.app import main
from psmkit.telemetry.layout import CE, COLL, DATATYPES, FUNCTIONS, PROXY_OP, PROXY_STEP, member
from tests.csrc.base import compiled

LIBRARY = os.environ.get("PSM_TEST_NCCL_BUILD")
KERNELS = os.environ.get("PSM_TEST_NCCL_BUILD_KERNELS")
needs_kernels = pytest.mark.skipif(
    not (LIBRARY and KERNELS), reason="PSM_TEST_NCCL_BUILD and _KERNELS name no NCCL build"
)
ENGINE = os.environ.get("PSM_TEST_NCCL_ENGINE")
needs_copies = pytest.mark.skipif(not ENGINE, reason="PSM_TEST_NCCL_ENGINE names no NCCL library of 2.29 or newer")

PLUGIN = compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-profiler-psm.so"
LINE = re.compile(r"INFO (\w+): opCount [0-9a-f]+ .* count (\d+) datatype (\d+) ")
CHECKER = PLUGIN.with_name("libnccl-profiler-check.so")
COLLECTIVE, OPERATION, STEP = 1, 3, 4
COLL_API, CE_COLL, CE_SYNC, CE_BATCH = 9, 12, 13, 14
STOPPED, SENDS, COMPLETE = 1, 4, 16


@needs_kernels
def test_events_are_what_the_log_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, ranks = tmp_path / "out", 4
    command = [
        *("lab", "nccl", "--lib", str(LIBRARY), "--kernels", str(KERNELS), "--ranks", str(ranks), "--nodes", "2"),
        *("--pattern", "allreduce,allgather,reducescatter", "--type", "float32", "--size", "256K", "--iters", "3"),
        *("--env", f"NCCL_PROFILER_PLUGIN={PLUGIN}", "--env", "PSM_PROFILER_EVENTS=all,-proxyctrl"),
        *("--env", "PSM_RECORD_KEEP=1", "--deadline", "120", "--out", str(out), "--format", "json"),
    ]
    assert main(command) == 0, capsys.readouterr().out
    assert json.loads(capsys.readouterr().out)["analysis"]["verdict"] == "healthy"
    from psmkit.telemetry.reader import Reader

    os.chmod(out / "records", 0o700)
    with Reader(out / "records", consume=False) as reader:
        reader.set(rows=1_000_000)
        reader.poll(final=True)
        comms = {int(comm["id"]): comm for comm in reader.comms()}
        rows, dropped = reader.take_rows()
    assert dropped == 0 and {int(comm["rank"]) for comm in comms.values()} == set(range(ranks))
    kinds, flags = rows["event"]["type"], rows["event"]["flags"]
    for rank in range(ranks):
        mine = np.isin(rows["comm"], [number for number, comm in comms.items() if int(comm["rank"]) == rank])
        collectives = rows[mine & (kinds == COLLECTIVE)]
        u = member(collectives, COLL)
        log = (out / "logs" / f"rank-{rank}.log").read_text()
        said = Counter((name, int(count)) for name, count, _ in LINE.findall(log) if name in FUNCTIONS)
        sizes = np.where(u["datatype"] == DATATYPES.index("int8"), 4, 1)  # AllGather and its like are told in bytes
        seen = Counter((FUNCTIONS[c["func"]], int(c["count"]) // int(size)) for c, size in zip(u, sizes, strict=True))
        assert seen == said and sum(seen.values()) == 9
        # All have ended, by their kernel channels or proxy operations, after they began.
        assert (collectives["event"]["flags"] & COMPLETE).all() and (u["done_ns"] > collectives["start_ns"]).all()
    # Data crossed the network between nodes: what one side sent, the other received.
    steps = rows[(kinds == STEP) & (flags & STOPPED > 0)]
    bytes_ = member(steps, PROXY_STEP)["bytes"]
    sent = steps["event"]["flags"] & SENDS > 0
    assert bytes_[sent].sum() == bytes_[~sent].sum() > 0
    operations = rows[kinds == OPERATION]
    assert set(steps["event"]["parent"]) <= set(operations["handle"])
    assert (member(operations, PROXY_OP)["steps_ended"] > 0).all()


@needs_copies
def test_copy_engine_collectives_come_with_their_flags_and_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = [
        *("lab", "nccl", "--lib", str(ENGINE), "--ranks", "2", "--pattern", "allgather,gather", "--windows"),
        *("--cta-policy", "zero", "--size", "256K", "--iters", "2", "--env", f"NCCL_PROFILER_PLUGIN={CHECKER}"),
        *("--env", f"PSM_PROFILER_WRAP={PLUGIN}", "--env", "PSM_PROFILER_EVENTS=all", "--env", "PSM_RECORD_KEEP=1"),
        *("--deadline", "120", "--out", str(out), "--format", "json"),
    ]
    main(command)  # NCCL's own misuse of CUDA does not matter here
    capsys.readouterr()
    from psmkit.telemetry.reader import Reader

    os.chmod(out / "records", 0o700)
    with Reader(out / "records", consume=False) as reader:
        reader.set(rows=1_000_000)
        reader.poll(final=True)
        rows, dropped = reader.take_rows()
    kinds = rows["event"]["type"]
    kind_of = dict(zip(rows["handle"].tolist(), kinds.tolist(), strict=True))
    for kind, parent in ((CE_COLL, COLL_API), (CE_SYNC, CE_COLL), (CE_BATCH, CE_COLL)):
        assert {kind_of[handle] for handle in rows["event"]["parent"][kinds == kind].tolist()} == {parent}
    calls = int((kinds == CE_COLL).sum())
    assert dropped == 0 and calls == 8  # two ranks, two patterns, two iterations
    assert (kinds == CE_SYNC).sum() == 2 * calls and (kinds == CE_BATCH).sum() == calls
    flags = member(rows[kinds == CE_SYNC], CE)
    assert np.bincount(flags["complete"]).tolist() == [calls, calls] and set(flags["ops"].tolist()) == {2}
    copies = member(rows[kinds == CE_BATCH], CE)
    assert set(copies["bytes"].tolist()) <= {256 << 10, 512 << 10} and (copies["ops"] > 0).all()
    logs = "".join(path.read_text() for path in (out / "logs").glob("rank-*.log"))
    assert "0 breaches: none" in logs and "broke the contract" not in logs
