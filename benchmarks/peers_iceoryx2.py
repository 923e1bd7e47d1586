"""8 bytes there and back through iceoryx2's Python binding, each end on a processor of its own: iceoryx2 SECONDS, a line a turn, of one way.

    python benchmarks/peers_iceoryx2.py TURNS ROUNDS

A message takes a Python call to send and Python calls to poll, because PyPI has iceoryx2 with this binding only. The lines iceoryx2-calls show what the calls
alone cost: one that sends without a subscriber, and one that receives nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import iceoryx2 as iox2


def timed(call: Callable[[], object], rounds: int) -> float:
    begin = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - begin) / rounds


def main() -> None:
    turns, rounds = int(sys.argv[1]), int(sys.argv[2])
    iox2.set_log_level(iox2.LogLevel.Error)
    own = os.getpid()
    child = os.fork() == 0
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[child % len(os.sched_getaffinity(0))]})
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)

    def service(way: str) -> Any:
        name = iox2.ServiceName.new(f"psm-bench-{own}-{way}")
        return node.service_builder(name).publish_subscribe(ctypes.c_uint64).open_or_create()

    there, back = service("there"), service("back")
    out = (back if child else there).publisher_builder().create()
    source = (there if child else back).subscriber_builder().create()

    def get() -> int:
        while (sample := source.receive()) is None:
            pass
        return sample.payload().contents.value

    if child:
        os.write(ready[1], b".")
        for _ in range(turns * rounds):
            out.send_copy(ctypes.c_uint64(get()))
        return  # not by _exit: its objects remove their files
    os.read(ready[0], 1)
    for _ in range(turns):
        begin = time.perf_counter()
        for number in range(rounds):
            out.send_copy(ctypes.c_uint64(number))
            if get() != number:
                raise SystemExit("another word came back")
        print(f"iceoryx2 {(time.perf_counter() - begin) / rounds / 2:.9f}", flush=True)
    os.wait()
    alone = service("alone").publisher_builder().create()
    calls = timed(lambda: alone.send_copy(ctypes.c_uint64(1)), rounds) + timed(source.receive, rounds)
    print(f"iceoryx2-calls {calls:.9f}")


if __name__ == "__main__":
    ready = os.pipe()
    main()
