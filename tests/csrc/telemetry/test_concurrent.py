"""The consumer beside writers that run: each event is taken once, and what is not taken is counted."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from psmkit.telemetry.reader import Reader
from tests.csrc.base import compiled
from tests.telemetry import made

HERE = Path(__file__).parent
CSRC = compiled.ROOT / "csrc"
PLUGIN = compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-profiler-psm.so"
LIMIT = 120.0


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs `writer` and `rank`."""
    folder = tmp_path_factory.mktemp("programs")
    options = [f"-I{CSRC / 'telemetry'}", f"-I{compiled.ROOT / 'psmkit/psm/include'}", "-O2"]
    compiled.compile_c(folder / "writer", [HERE / "writer.c"], options)
    compiled.compile_c(folder / "rank", [HERE / "rank.c"], [*options, "-ldl"])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def drain(reader: Reader, child: subprocess.Popen[str]) -> tuple[np.void, np.ndarray, dict[str, float]]:
    """Polls until the owner has ended and all was taken: its last row of comms, the starts of all rows, sums."""
    end, starts, last = time.monotonic() + LIMIT, [], None
    sums = dict.fromkeys(("ops", "incomplete", "op_transfers", "op_bytes", "transfers", "bytes"), 0.0)
    while time.monotonic() < end:
        reader.poll()
        rows, dropped = reader.take_rows()
        assert not dropped
        starts.append(rows["start_ns"])
        ops, links = reader.take_ops(), reader.take_links()
        links = links[links["channel"] == -1]
        for name, value in (
            ("ops", ops["duration"]["count"]), ("incomplete", ops["incomplete"]), ("op_transfers", ops["transfer_bytes"]["count"]),
            ("op_bytes", ops["transfer_bytes"]["sum"]), ("transfers", links["count"]), ("bytes", links["bytes"]),
        ):  # fmt: skip
            sums[name] += float(value.sum())
        comms = reader.comms()
        if len(comms):
            last = comms[0].copy()
        elif last is not None and child.poll() is not None:
            return last, np.concatenate(starts), sums
    raise AssertionError("the consumer did not come to an end")


@pytest.mark.parametrize("threads", [1, 3])
def test_each_event_is_taken_once(programs: Path, folder: Path, threads: int) -> None:
    each = 60_000 // threads
    with subprocess.Popen(
        [programs / "writer", str(threads), str(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        comm = made.Comm(pid=child.pid, slots=1024, force_ns=3600 * 10**9)
        path = comm.write(folder)
        with Reader(folder) as reader:
            reader.set(rows=10**6, spans=0)
            assert reader.poll() == 0
            child.stdin.write(f"{path}\n")
            child.stdin.close()
            last, starts, _ = drain(reader, child)
        dropped = int(child.stdout.read())
    assert child.returncode == 0
    assert len(np.unique(starts)) == len(starts), "none twice"
    assert len(starts) == last["events"] and last["torn"] == 0
    assert len(starts) + dropped == threads * each
    assert set(np.unique(starts >> np.uint64(32))) <= set(range(threads))
    assert not path.exists()


@pytest.mark.parametrize(
    ("left_open", "settings"),
    [
        (2, {"PSM_PROFILER_SLOTS": "8192", "PSM_PROFILER_TRIGGER": "2048", "PSM_PROFILER_FORCE_MS": "60000"}),
        (16, {"PSM_PROFILER_SLOTS": "4096", "PSM_PROFILER_TRIGGER": "1024", "PSM_PROFILER_FORCE_MS": "1"}),
    ],
    ids=["in time", "by force"],
)
def test_what_the_plugin_was_told_is_taken_or_counted(
    programs: Path, folder: Path, left_open: int, settings: dict[str, str]
) -> None:
    """Nothing is lost that is not counted, whatever was open when a window was taken."""
    assert PLUGIN.exists(), "make setup builds the profiler plugin"
    env = compiled.environment(PSM_RECORD_DIR=str(folder), **settings)
    if "LD_PRELOAD" in os.environ:  # a plugin under a sanitizer wants its runtime first
        env["LD_PRELOAD"] = os.environ["LD_PRELOAD"]
    with subprocess.Popen(
        [programs / "rank", PLUGIN, "2", "1500", "3", str(left_open)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline().startswith("ready")
        with Reader(folder) as reader:
            reader.set(rows=10**6)
            reader.poll()
            assert len(reader.comms()) == 1, "its file is there before init returns"
            child.stdin.write("\n")
            child.stdin.close()
            last, _, sums = drain(reader, child)
            orphans = int(reader.losses()["orphans"][0])
        started, refused, colls, steps, size = map(int, child.stdout.read().split())
    assert child.returncode == 0
    assert last["begun"] == started
    assert last["dropped_full"] + last["dropped_memory"] == refused
    assert last["events"] + last["torn"] + last["overwritten"] == started - refused
    assert last["pid"] == child.pid and last["nranks"] == 2 and last["comm_hash"] == 0xABCDEF
    if not last["overwritten"] and not last["torn"]:
        assert sums["ops"] + sums["incomplete"] == colls
        assert sums["op_transfers"] + orphans == sums["transfers"] <= steps
    if not last["forced"] and not refused:
        assert (sums["transfers"], sums["bytes"]) == (steps, size)
        assert (sums["op_transfers"], sums["op_bytes"]) == (steps, size)
    assert os.listdir(folder) == []
