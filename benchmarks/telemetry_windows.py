"""Measure the cost per event of the consumer of the profiler's windows: all sums and trees.

    python benchmarks/telemetry_windows.py [--rows N] [--repeat N] [--output benchmarks/telemetry_windows.md]

Three windows are written to a record file as the plugin writes them, and taken repeatedly: one of ring collectives (in 145 rows one is a
collective, 16 are proxy ops, the rest steps of both sides), one of short p2p operations to many peers, and one of kernel channels and network
events. Each figure is the minimum of all runs, because other work on the machine only adds time.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from psmkit.telemetry.reader import Reader  # noqa: E402
from tests.telemetry import made  # noqa: E402


def collectives(comm: made.Comm, i: int) -> None:
    """145 rows."""
    comm.collective(10**6 + i * 1000, channels=8, steps=8, step_bytes=1 << (12 + i % 8), seq=i)


def p2p(comm: made.Comm, i: int) -> None:
    """4 rows."""
    start, peer = 10**6 + i * 1000, i % 64
    top = comm.add(made.P2P_T, start, start + 500, flags=made.COMPLETE, count=4096, func=made.SEND, datatype=0, peer=peer, channels=1,
        ops_begun=1, ops_ended=1, done_ns=start + 9000)  # fmt: skip
    op = comm.add(made.PROXY_OP_T, start + 100, start + 9000, parent=top, flags=made.SENDS, peer=peer, channel=i % 4)
    for k in range(2):
        comm.add(made.STEP_T, start + 200, start + 4000 + i % 512, parent=op, flags=made.SENDS, peer=peer, channel=i % 4, bytes=2048 << k,
            gpu_ns=start + 200, peer_ns=start + 300, net_ns=start + 400)  # fmt: skip


def kernels(comm: made.Comm, i: int) -> None:
    """6 rows."""
    start = 10**6 + i * 1000
    top = comm.add(made.COLL_T, start, start + 500, flags=made.COMPLETE, count=4096, func=4, datatype=7, channels=4, kernels_begun=4,
        kernels_ended=4, done_ns=start + 9000)  # fmt: skip
    for k in range(4):
        comm.add(made.KERNEL_T, start, start + 9000, parent=top, channel=k, gpu_begin_ns=start, gpu_end_ns=start + 7000)
    comm.add(made.NET_T, start, start + 700, parent=top, id=1 << 16 | 1, size=40)


def measure(make: Callable[[made.Comm, int], None], rows: int, repeat: int, spans: int) -> tuple[int, float, float]:
    """The number of rows, and the minimum ns per row of a poll and of all take_* after it."""
    with tempfile.TemporaryDirectory() as folder:
        comm = made.Comm(0, 128, slots=100_000)
        i = 0
        while int(comm.window["next"][0]) < rows:
            make(comm, i)
            i += 1
        comm.write(Path(folder))
        n = int(comm.window["next"][0])
        polls, takes = [], []
        with Reader(folder) as reader:
            reader.set(spans=spans)
            for _ in range(repeat):
                comm.write(Path(folder))
                start = time.perf_counter()
                assert reader.poll() == 1
                taken = time.perf_counter()
                reader.take_ops(), reader.take_links(), reader.take_times(), reader.take_spans(), reader.open_now()
                takes.append(time.perf_counter() - taken)
                polls.append(taken - start)
    return n, min(polls) * 1e9 / n, min(takes) * 1e9 / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "| window | rows | trees kept | ns a row | rows a second | take_* ns a row | of one core at 100,000 a second |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, make in (("ring collectives", collectives), ("p2p to 64 peers", p2p), ("kernel channels", kernels)):
        for spans in (0, 64):
            rows, poll, take = measure(make, options.rows, options.repeat, spans)
            lines.append(
                f"| {name} | {rows} | {spans} | {poll:.0f} | {1e9 / poll:,.0f} | {take:.1f} | {(poll + take) / 1e9 * 1e5:.2%} |"
            )
    text = "\n".join(
        [f"# The consumer of the profiler's windows\n\n{platform.machine()}, {platform.system()}\n", *lines, ""]
    )
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
