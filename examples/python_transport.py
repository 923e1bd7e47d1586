"""Two processes send each other an array through libpsm, from Python: python examples/python_transport.py [--variant NAME].

Without a GPU they use emulated CUDA. NAME is one of `psmkit variants`, or `stubborn`, a broken variant defined below. Each rank prints
its result or its error.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

import numpy as np

from psmkit import transport
from psmkit.lab import cuda
from psmkit.proxy import Address, Proxy, PsmError
from psmkit.transport import P2P, Capability, ConnectInfo, PeerInfo, Recv, RightSetup, Send


def stubborn(setup: RightSetup, me: PeerInfo, peer: PeerInfo) -> ConnectInfo:
    """The receiver's Setup of a broken variant: it chooses the mode from capabilities that it did not publish."""
    return setup(me.with_capabilities(remove=Capability.CUMEM_FD), peer)


# docs/transport_python.md shows this function.
def run(rank: int, other: Connection, variant: transport.Variant) -> str:
    def swap(data: bytes) -> bytes:  # bootstrap: any way will do
        other.send_bytes(data)
        return other.recv_bytes()

    peer = 1 - rank
    with Proxy(rank, ranks=2, device=rank, transports={P2P: variant}) as proxy:
        address = Address(swap(proxy.address.pack()))
        proxy.set_addresses(sorted((proxy.address, address), key=lambda a: a.rank))
        me = transport.peer_info(proxy)
        them = PeerInfo(swap(me.pack()))

        send = transport.send_setup(proxy, me, them)
        recv = transport.recv_setup(proxy, me, them)
        got = swap(send.info.pack() + recv.info.pack())
        send.connect(ConnectInfo(got[128:]))  # to the peer's receiving end
        recv.connect(ConnectInfo(got[:128]))

        numbers = np.arange(1_000_000, dtype=np.float32) + rank
        came = np.zeros_like(numbers)
        transport.launch(proxy, [Send(send, numbers), Recv(recv, came)]).wait()
        assert np.array_equal(came, np.arange(1_000_000) + peer)
        swap(b"done")  # neither goes while the other still works
        return f"{came.nbytes} bytes from rank {peer} over {recv.info.mode.name}, all of them right"


def rank_main(rank: int, other: Connection, name: str) -> None:
    if name == "stubborn":
        outcome = "PSM401: Connect is refused with the modes of both sides"
        variant = transport.register_variant(
            name, "the receiver decides alone", wrong=True, outcome=outcome, recv_setup=stubborn
        )
    else:
        variant = transport.variant(name)
    try:
        say(f"rank {rank}: {run(rank, other, variant)}")
    except PsmError as error:
        say(f"rank {rank}: {error}")
    except EOFError:
        say(f"rank {rank}: the other rank is gone")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")  # in one call: the ranks share the output
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="split")
    name = parser.parse_args().variant
    if not os.path.exists("/proc/driver/nvidia/version"):
        os.environ.update(cuda.environment())  # for the child processes
    processes = multiprocessing.get_context("spawn")
    ends = processes.Pipe()
    ranks = [processes.Process(target=rank_main, args=(rank, ends[rank], name)) for rank in range(2)]
    for process in ranks:
        process.start()
    for end in ends:
        end.close()
    for process in ranks:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
