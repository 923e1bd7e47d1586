"""The record of works: what the interpreter was given, as psmkit.lab.works reads it. A process of its own decides whether it records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.lab import works
from psmkit.lab.cuda import LabError
from tests.csrc.base.compiled import environment
from tests.csrc.nccl.compiled import Interpreter

# Two launches of each rank: of sends and recvs, and of a collective.
CODE = """
import ctypes, sys
import numpy as np
from tests.csrc.nccl.compiled import Interpreter
own = Interpreter(ctypes.CDLL(sys.argv[1]))
send, recv = ([np.zeros(900, np.uint8) for _ in range(3)] for _ in range(2))
print(own.launch("SendRecv", send, recv, 300, channels=2, twist=sys.argv[2], ll=True))
print(own.launch("AllGather RING LL", [array[:300] for array in send], recv, 300, channels=2))
"""


def record(interpreter: Interpreter, folder: Path, twist: str = "", **settings: str) -> None:
    library = interpreter.library._name
    env = environment(PSM_RECORD_DIR=str(folder), PSM_RECORD_KEEP="1", **settings)
    done = subprocess.run(
        [sys.executable, "-c", CODE, library, twist], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.count("(0, ") == 2, done.stdout + done.stderr


@pytest.mark.parametrize(("twist", "storage"), [("", "arguments"), ("work FIFO", "fifo")])
def test_each_work_of_each_launch_is_recorded(
    interpreter: Interpreter, tmp_path: Path, twist: str, storage: str
) -> None:
    record(interpreter, tmp_path / "records", twist, PSM_KERNELS_WORKS="100")
    launches = works.read(tmp_path / "records")
    # The communicators of the two calls exist one after the other, perhaps at the same address.
    mine = [launch for launch in launches if launch.rank == 1]
    assert len(launches) == 6 and [launch.storage for launch in mine] == [storage, "arguments"]
    first, second = mine
    assert [(w.channel, w.batch, w.extends) for w in first.works] == [(c, 0, False) for c in (0, 1) for _ in range(3)]
    assert {w.offset - first.works[0].offset for w in first.works} == {0, 48, 96}
    assert [(w.round_to, w.round_from) for w in first.works[:3]] == [(1, 1), (2, 0), (0, 2)]
    halves = [(m.peer, m.nbytes, m.whole, m.parts, m.ll) for w in first.works for m in (w.send, w.recv) if m]
    # A part is a multiple of 4096 bytes, so the second channel has none.
    assert halves[2:4] == [(2, 300, 300, 2, True), (0, 300, 300, 2, True)] and halves[8][:3] == (2, 0, 300)
    assert {w.function for w in second.works} == {"AllGather RING LL"}
    assert all(w.send is None and w.recv is None and w.round_to == -1 for w in second.works)


def test_a_record_without_its_first_works_is_refused(interpreter: Interpreter, tmp_path: Path) -> None:
    record(interpreter, tmp_path / "records", PSM_KERNELS_WORKS="16")
    with pytest.raises(LabError, match="it has only the last 16 works: raise PSM_KERNELS_WORKS"):
        works.read(tmp_path / "records")


@pytest.mark.parametrize("value", ["0", "-1", "many", "7x", ""])
def test_nothing_is_recorded_by_default(interpreter: Interpreter, tmp_path: Path, value: str) -> None:
    record(interpreter, tmp_path / "records", **({"PSM_KERNELS_WORKS": value} if value else {}))
    (tmp_path / "records").mkdir(exist_ok=True)
    with pytest.raises(LabError, match="no record of works"):
        works.read(tmp_path / "records")
