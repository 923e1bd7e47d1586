"""Four processes launch a mixed group (collectives, sends and recvs) through plans: python examples/mixed_group.py [--variant NAME].

Without a GPU they use emulated CUDA. NAME is one of `psmkit plan variants`. A broken variant hangs; each rank aborts it after one second and
reports the rule that it broke.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection

import numpy as np

from psmkit import transport
from psmkit.lab import cuda
from psmkit.plan import Config, Scheduler
from psmkit.plan.communicator import Communicator
from psmkit.proxy import Address, Proxy, PsmError
from psmkit.transport import P2P, PeerInfo

RANKS = 4


class Bootstrap:
    """Exchanges data with the other ranks. The parent process forwards it."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    def exchange(self, parts: Mapping[int, bytes]) -> dict[int, bytes]:
        self._parent.send(dict(parts))
        got: dict[int, bytes] = self._parent.recv()
        return got

    def gather(self, data: bytes) -> list[bytes]:
        got = self.exchange(dict.fromkeys(range(RANKS), data))
        return [got[rank] for rank in range(RANKS)]


# docs/communicator.md shows this function.
def run(rank: int, bootstrap: Bootstrap, config: Config) -> str:
    with Proxy(rank, RANKS, device=rank, transports={P2P: transport.variant()}) as proxy:
        proxy.set_addresses([Address(data) for data in bootstrap.gather(proxy.address.pack())])
        peers = [PeerInfo(data) for data in bootstrap.gather(transport.peer_info(proxy).pack())]
        with Communicator(proxy, peers, bootstrap.exchange, config) as comm:
            numbers = np.full(1_000_000, rank, dtype=np.float32)
            note, blocks, came = np.full(5, rank), np.empty(5 * RANKS, int), np.empty(5, int)
            with comm.group() as group:
                group.all_reduce(numbers)
                group.all_gather(note, blocks)
                group.send(note, (rank + 1) % RANKS)
                group.recv(came, (rank - 1) % RANKS)
            try:
                comm.wait(timeout=1 if config.variant != "coll-first" else None)
            except PsmError as error:
                comm.abort(f"rank {rank} has waited for a second")
                comm.close()
                return f"{error.text}: {', '.join(sorted({breach.rule for breach in comm.breaches()})) or 'no rule is broken'}"
            assert (numbers == sum(range(RANKS))).all() and (came == (rank - 1) % RANKS).all()
            assert (blocks == np.repeat(np.arange(RANKS), 5)).all()
            bootstrap.gather(b"done")  # nobody goes while another still works
            return f"{comm.counters().plans} plan, {len(comm.breaches())} broken rules, all data right"


def rank_main(rank: int, parent: Connection, config: Config) -> None:
    # The ranks share the output: write each line in one call.
    sys.stdout.write(f"rank {rank}: {run(rank, Bootstrap(parent), config)}\n")
    sys.stdout.flush()


def pass_on(pipes: list[Connection]) -> None:
    """Forward data between the ranks until the first rank ends."""
    while True:
        try:
            parts = [pipe.recv() for pipe in pipes]
        except EOFError:
            return
        for rank, pipe in enumerate(pipes):
            pipe.send({source: part[rank] for source, part in enumerate(parts) if rank in part})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", default="coll-first")
    parser.add_argument("--scheduler", choices=["legacy", "planner"], default="planner")
    options = parser.parse_args()
    config = Config(
        ranks=RANKS, channels=2, p2p_channels=2, variant=options.variant, scheduler=Scheduler[options.scheduler.upper()]
    )
    if not os.path.exists("/proc/driver/nvidia/version"):
        os.environ.update(cuda.environment())  # for the child processes
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(RANKS):
        here, there = context.Pipe()
        ranks.append(context.Process(target=rank_main, args=(rank, there, config)))
        ranks[-1].start()
        there.close()
        pipes.append(here)
    pass_on(pipes)
    for process in ranks:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
