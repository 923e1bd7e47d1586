"""The log of examples/query: a made job of four ranks in which an answer is lost. Its lines have time stamps, as from NCCL 2.26 on.

python -m tests.query.made writes it.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path

from psmkit.synth.job import Plan
from tests.loggen import generate

__all__ = ["LOG", "text"]

LOG = Path(__file__).parents[2] / "examples" / "query" / "job.log"


def text() -> str:
    """Lines of all ranks, as one terminal shows them."""
    log = generate("answer_lost", "2.30", plan=Plan(ranks=4, work="p2p", steps=2))
    chance, now = random.Random(7), datetime.datetime(2026, 11, 21, 2, 35, 22, 104000)
    out = []
    for line in log.lines:
        now += datetime.timedelta(milliseconds=chance.choice((0, 0, 1, 1, 2, 5)))
        stamp = f"[{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d}] " if line.nccl else ""
        out.append(f"{stamp}{line.text}\n")
    return "".join(out)


if __name__ == "__main__":
    LOG.write_text(text())
