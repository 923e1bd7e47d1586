"""Analyse mutated logs for a while, give damaged input to each reader, and read damaged messages of ranks. If anything but the clock ends this
program, that is a bug; the printed seed reproduces it.

fuzz.py SECONDS [FIRST_SEED]
fuzz.py --cases N [FIRST_SEED [READER...]]    N cases of each reader in Python (tests/readers.py), whatever time they take
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psmkit
from psmkit.lab.bootstrap import Bootstrap, ProtocolError
from psmkit.model.errors import PsmkitError
from tests.mutilate import CUTS, DAMAGE, DRESS
from tests.readers import READERS, Reader, attack, limited
from tests.test_mutilated import SUBJECTS, load


def main(seconds: float, seed: int) -> None:
    ways = {**DRESS, **CUTS, **DAMAGE}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            print(f"seed {seed}: messages and readers", flush=True)
            for _ in range(50):
                messages(rng)
            for reader in READERS:
                case(reader, seed)
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


def case(reader: Reader, seed: int) -> None:
    """One damaged input of one reader. A case that fails leaves its input behind."""
    data = attack(reader, random.Random(f"{reader.name} {seed}"))
    try:
        with limited():
            reader.read(data)
    except BaseException:
        kept = Path(tempfile.gettempdir()) / f"psmkit-fuzz-{reader.name.replace(' ', '-')}-{seed}"
        kept.write_bytes(data)
        print(f"reader {reader.name!r}, seed {seed}: its {len(data)} bytes of input are in {kept}", flush=True)
        raise


def cases(number: int, seed: int, names: Sequence[str]) -> None:
    for reader in READERS:
        if names and reader.name not in names:
            continue
        print(f"{reader.name}: seeds {seed} to {seed + number - 1}", flush=True)
        for each in range(seed, seed + number):
            case(reader, each)


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
    if sys.argv[1] == "--cases":
        cases(int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1, sys.argv[4:])
    else:
        main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
