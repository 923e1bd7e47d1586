"""Measure the CPU time of the telemetry sidecar for windows of a given number of events: reading, summing, spans, export by OTLP over gRPC.

    python benchmarks/telemetry.py [--ranks 8] [--collectives 3800] [--rounds 3]

The events are synthetic: ring collectives over two channels with three steps each, so 17 events per collective and rank. A separate process
receives the export. The output is the CPU time of one interval, and its share of one core at 100,000 events a second.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from psmkit.telemetry.online import Watch  # noqa: E402
from psmkit.telemetry.outputs import Outputs, Wanted  # noqa: E402
from psmkit.telemetry.reader import Reader  # noqa: E402
from psmkit.telemetry.sidecar import Taker  # noqa: E402
from tests.telemetry.made import Comm  # noqa: E402

_RECEIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.telemetry.receiver import Receiver
receiver = Receiver("grpc")
print(receiver.port, flush=True)
sys.stdin.read()
"""


def windows(folder: Path, ranks: int, collectives: int) -> list[Comm]:
    """A window for each rank; the rows differ only in their owner."""
    out: list[Comm] = []
    for rank in range(ranks):
        comm = Comm(rank, ranks, slots=1 << (collectives * 17).bit_length())
        if not out:
            for number in range(collectives):
                comm.collective(10**9 + number * 10**6, seq=number)
        else:
            comm.window, comm.rows, comm.head["begun"] = out[0].window, out[0].rows, out[0].head["begun"]
        comm.write(folder)
        out.append(comm)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--collectives", type=int, default=3800)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    receiver = subprocess.Popen(
        [sys.executable, "-c", _RECEIVER, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None and receiver.stdin is not None
    outputs = Outputs(Wanted(f"http://127.0.0.1:{receiver.stdout.readline().strip()}", "grpc"), print, watch=Watch())
    best: dict[str, float] = {}
    events = 0
    for number in range(given.rounds + 1):  # the first one loads modules
        with tempfile.TemporaryDirectory() as name:
            os.chmod(name, 0o700)
            comms = windows(Path(name), given.ranks, given.collectives)
            events = sum(int(c.head["begun"]) for c in comms)
            with Reader(name) as reader:
                reader.set(spans=62)
                taker = Taker(reader, name)
                marks = [time.process_time()]
                reader.poll(final=True)
                marks.append(time.process_time())
                outputs.pipeline.feed(taker.take())
                marks.append(time.process_time())
                assert outputs.outbox is not None
                while any(outputs.outbox.waiting().values()):
                    time.sleep(0.01)
                marks.append(time.process_time())
        if number:
            for what, spent in zip(
                ("windows", "metrics and spans", "export"),
                (b - a for a, b in itertools.pairwise(marks)),
                strict=True,
            ):
                best[what] = min(best.get(what, spent), spent)
    outputs.close(5)
    receiver.stdin.close()
    receiver.wait()
    total = sum(best.values())
    print(f"{events} events, {len(outputs.pipeline.points)} series; least CPU time of {given.rounds} rounds:")
    for what, spent in (*best.items(), ("together", total)):
        print(f"  {what:<18} {spent * 1e3:7.1f} ms")
    print(f"  of one core at 100,000 events/s: {100 * total / (events / 100_000):.1f} %")


if __name__ == "__main__":
    main()
