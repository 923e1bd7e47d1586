"""Analyse mutated logs for a while. Whatever ends this program other than the clock is a bug; the seed it prints repeats it.

fuzz.py SECONDS [FIRST_SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import psmkit
from psmkit.model.errors import PsmkitError
from tests.mutilate import CUTS, DAMAGE, DRESS
from tests.test_mutilated import SUBJECTS, load


def main(seconds: float, seed: int) -> None:
    ways = {**DRESS, **CUTS, **DAMAGE}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rng = random.Random(seed)
        subject = rng.choice(SUBJECTS)
        files = load(subject)
        chosen = [rng.choice(sorted(ways)) for _ in range(rng.randint(1, 3))]
        print(f"seed {seed}: {subject}, {', '.join(chosen)}", flush=True)
        for name in chosen:
            # What is compressed cannot be cut by lines any more, which is fine: it is damaged then.
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


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
