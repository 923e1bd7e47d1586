"""What an input is, by its first bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from psmkit.logparse.foreign import KINDS, load, parse, sniff

FLIGHT = b'{"version": "2.4", "nccl_version": "2.21.5", "pg_config": {}, "entries": []}'


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (FLIGHT, "flight-recorder"),
        (b"\xef\xbb\xbf\n" + FLIGHT, "flight-recorder"),
        (b'{"entries": [{"frames": [{"name": "f"}], "record_id": 0', "flight-recorder"),
        (b'{"0": {"pg_status": {}}}', "flight-recorder"),
        (b'{\n  "nccl_version": "2.29.1",\n  "cuda_runtime_version": 13000,\n', "ras-json"),
        (b'{\n  "timestamp": "2026-01-01 00:00:00",\n  "group": "LIFECYCLE",\n  "event": "PEER_DEAD",', "ras-json"),
        (b"NCCL version 2.27.5 compiled with CUDA 12.9\nCUDA runtime\n\nJob summary\n===========\n", "ras-text"),
        (b"RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n====\n", "ras-text"),
        (b"Thread 5 (Thread 0x7f5e7fb000 (LWP 51)):\n#0  0x00 in poll ()\n", "gdb"),
        (b'* 1    Thread 0x7f5e7fb000 (LWP 51) "python" 0x00 in poll ()\n', "gdb"),
        (b"Process 812: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n", "py-spy"),
        (b"PID 4711 - process\nTID 4711:\n#0  0x00007f sched_yield\n", "gdb"),
        (b"TID 4711:\n#0  0x00007f sched_yield\n", "gdb"),
        (b"84\t../sysdeps/x.S: No such file\n(gdb) bt\n#0  0x0 in sched_yield () at x.S:84\n", "gdb"),
        (b"3: Thread 5 (Thread 0x7f5e7fb000 (LWP 51)):\n", "gdb"),
        (b"[1,3]<stdout>:Thread 5 (LWP 51):\n", "gdb"),
        (b"#0  sched_yield () at a.c:1\n#1  f () at b.c:2\n", "gdb"),
        (b"sched_yield (libc.so.6)\nwaitWorkFifoAvailable (enqueue.cc:745)\nuploadWork (enqueue.cc:777)\n", "py-spy"),
        (b'Timeout (0:10:00)!\nThread 0x00007f1 (most recent call first):\n  File "a.py", line 1 in f\n', "py-spy"),
        (b'Current thread 0x00007f1 [python] (most recent call first):\n  File "a.py", line 1 in f\n', "py-spy"),
        (b'[{"pid": 1, "thread_id": 1, "owns_gil": false, "frames": []}]', "py-spy-json"),
        (b'{"schema": "psmkit-inspection/1", "pid": 1}', "inspection"),
        (b'[{"schema": "psmkit-inspection/1", "command": ["x NCCL INFO y"]}]', "inspection"),
        (b'Thread 0x7FD3B19A (idle): "MainThread"\n    wait (threading.py:302)\n', "py-spy"),
    ],
)
def test_kinds_are_told_apart(head: bytes, kind: str) -> None:
    assert sniff(head) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{}",
        b'{"name": "config", "entries": 3}',
        b'[{"lr": 0.1}, {"lr": 0.2}]',
        b"h:1:2 [0] NCCL INFO Bootstrap: Using eth0\n[New LWP 12]\n",
        b"h:1:2 [0] NCCL INFO x\nThread 5 (Thread 0x7f5e7fb000 (LWP 51)):\n",
        b"Thread 5 finished\nProcess 12: done\n",
        b"ACTIVE OPS\n[X]\n",
        b'Fatal Python error: Aborted\n\nThread 0x00007f1 (most recent call first):\n  File "a.py", line 1 in f\n',
        b"loaded (a.py:3)\nready\ndone (b.py:1)\n",
        b"[rank1]:[W703 00:59:30.44 ProcessGroupNCCL.cpp:981] Warning: x\nJob summary\n===========\n",
        bytes(range(256)),
    ],
)
def test_logs_and_all_else_are_not_foreign(head: bytes) -> None:
    assert sniff(head) is None


def test_a_compressed_input_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dump_rank_3.json.gz"
    path.write_bytes(gzip.compress(FLIGHT))
    loaded = load(str(path), "flight-recorder")
    assert loaded.error is None
    assert [d.rank for d in loaded.flights] == [3]


def test_a_size_limit_cuts_the_input(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Process 1: a\n" + "".join(f'Thread {n} (idle): "T"\n    f (a.py:1)\n' for n in range(1, 9)))
    loaded = load(str(path), "py-spy", limit=80)
    assert loaded.truncated
    assert len(loaded.stacks[0].threads) == 2


def test_an_input_that_is_gone_has_its_reason(tmp_path: Path) -> None:
    loaded = load(str(tmp_path / "none"), "gdb")
    assert loaded.error is not None
    assert loaded.stacks == ()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="pickle"):
        parse("", "pickle")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "{", "[[[[" * 500, '{"a": ' * 200, "#0-0 (00) MISMATCH\n" * 3, "\0\x1b[31m" * 9])
def test_damaged_text_is_survived(kind: str, text: str) -> None:
    assert parse(text, kind).kind == kind
