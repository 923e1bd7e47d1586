"""A rank for tests of `psmkit record`: prints lines of NCCL's into the file that its settings name, then does what its words say.

standin_rank.py [DO[=VALUE]]...    DO: steps=N, sleep=SECONDS, spin, die=SIGNAL, exit=STATUS, only=RANK (the rest is for this rank)
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def main() -> None:
    rank = next((int(os.environ[name]) for name in RANKS if name in os.environ), 0)
    host, pid = socket.gethostname().split(".")[0], os.getpid()
    log = open(os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(pid)), "w", buffering=1)  # noqa: SIM115
    log.write(f"{host}:{pid}:{pid} [0] NCCL INFO NCCL version 2.26.2+cuda12.4\n")
    print(f"rank {rank} runs", flush=True)
    mine = True
    for word in sys.argv[1:]:
        do, _, value = word.partition("=")
        if do == "only":
            mine = rank == int(value)
        elif not mine:
            continue
        elif do == "steps":
            for step in range(int(value)):
                time.sleep(0.1)
                log.write(f"{host}:{pid}:{pid} [0] NCCL INFO Channel {step:02d}/0 : {rank}[0] -> 1[1] via SHM\n")
        elif do == "sleep":
            time.sleep(float(value))
        elif do == "die":
            os.kill(pid, getattr(signal, value))
        elif do == "exit":
            print(f"rank {rank} gives up", file=sys.stderr)
            sys.exit(int(value))


main()
