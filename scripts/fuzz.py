"""Analyse mutated logs for a while, and read mutated record files and messages of ranks. If anything but the clock ends this program, that is
a bug; the printed seed reproduces it.

fuzz.py SECONDS [FIRST_SEED]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psmkit
from psmkit.lab.bootstrap import Bootstrap, ProtocolError
from psmkit.lab.cuda import environment
from psmkit.logparse.records import open_record
from psmkit.model.errors import PsmkitError
from tests.mutilate import CUTS, DAMAGE, DRESS
from tests.test_mutilated import SUBJECTS, load


def main(seconds: float, seed: int) -> None:
    ways = {**DRESS, **CUTS, **DAMAGE}
    end = time.monotonic() + seconds
    whole = record()
    while time.monotonic() < end:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            print(f"seed {seed}: messages and records", flush=True)
            for _ in range(50):
                messages(rng)
                damaged_record(rng, whole)
            seed += 1
            continue
        subject = rng.choice(SUBJECTS)
        files = load(subject)
        chosen = [rng.choice(sorted(ways)) for _ in range(rng.randint(1, 3))]
        print(f"seed {seed}: {subject}, {', '.join(chosen)}", flush=True)
        for name in chosen:
            # A compressed log cannot be cut by lines after this, which is fine: it is damaged then.
            if all(len(data) > 1 for data in files.values()):
                files = ways[name](files, rng)
        with tempfile.TemporaryDirectory(prefix="psmkit-fuzz-") as folder:
            for name, data in files.items():
                (Path(folder) / name).write_bytes(data)
            try:
                psmkit.analyze([folder])
            except PsmkitError as error:  # refused, with a reason
                print(f"    {error}")
        seed += 1


def record() -> bytes:
    """The record of a process that used emulated CUDA and did not close it."""
    code = "import ctypes, os; c = ctypes.CDLL('libcudart.so.13'); c.cudaFree(0); c.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 64); os._exit(0)"
    with tempfile.TemporaryDirectory(prefix="psmkit-fuzz-") as folder:
        settings = {"PSM_RECORD_DIR": folder, "PSM_RECORD_MAX": "256k", "PSM_HOSTCUDA_BANNER": "0"}
        subprocess.run([sys.executable, "-c", code], env=environment({**os.environ, **settings}), check=True)
        return max((path.read_bytes() for path in Path(folder).iterdir()), key=len)


def damaged_record(rng: random.Random, whole: bytes) -> None:
    """A record file with changed bytes, or truncated. The reader must accept anything and never read beyond the end."""
    data = bytearray(whole)
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(rng.choice((4096, len(data))))  # the header matters most
        data[at : at + 8] = rng.choice((rng.randbytes(rng.randrange(1, 9)), b"\0" * 8, b"\xff" * 8, rng.randbytes(1)))[
            : len(data) - at
        ]
    with tempfile.NamedTemporaryFile(prefix="psmkit-fuzz-", suffix=".rec") as file:
        file.write(data[: rng.choice((len(data), rng.randrange(len(data))))])
        file.flush()
        found = open_record(file.name)
        for number, line in enumerate(found.lines()):
            assert number < len(data) and line.endswith(b"\n"), line
        assert sum(1 for _ in found.records()) <= len(data)


def messages(rng: random.Random) -> None:
    """Messages of ranks to their runner, valid and damaged: the runner answers, or rejects the rank."""
    ranks = rng.randrange(1, 4)
    job = Bootstrap(ranks)
    for _ in range(rng.randrange(1, 12)):
        rank = rng.randrange(ranks)
        parts = " ".join(
            f"{rng.randrange(ranks)}:{rng.randbytes(rng.randrange(9)).hex()}" for _ in range(rng.randrange(3))
        )
        lines = [f"hello {rank} 77", "stage setup", "trouble PSM_ERR_CUDA at move: x", "barrier b 0", "barrier b 1"]
        lines += [f"exchange e {parts}".rstrip(), 'report {"status": "PSM_OK"}']
        data = bytearray((rng.choice(lines) + "\n").encode())
        if rng.random() < 0.3:
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        try:
            answers = job.feed(rank, bytes(data))
        except ProtocolError as error:
            assert str(error)
            answers = job.leave(rank)
        for to, answer in answers:
            assert 0 <= to < ranks and answer.endswith(b"\n") and answer.count(b"\n") == 1, answer


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
