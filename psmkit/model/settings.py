"""The settings with which NCCL's logs answer the most: `psmkit record` sets them, `psmkit analyze` advises them."""

from __future__ import annotations

__all__ = ["LOG_NAME", "STAMPED", "SUBSYSTEMS", "WANTED", "logs_of_a_run"]

#: The subsystems whose lines an analysis of a hang needs, and the part of the catalogue that shows that they were enabled.
WANTED = {"INIT": "init", "PROXY": "proxy", "COLL": "coll", "P2P": "transport", "ENV": "param"}
#: All that help. The full list costs little, and half a list risks a third run.
SUBSYSTEMS = "INIT,ENV,BOOTSTRAP,PROXY,P2P,SHM,NET,COLL,REG,ALLOC,RAS,DESTROY"
#: One file for each process: NCCL replaces %h by the host and %p by the pid.
LOG_NAME = "nccl.%h.%p.log"
#: The levels whose lines get a time stamp.
STAMPED = "INFO,WARN,TRACE"


def logs_of_a_run(folder: str = "") -> dict[str, str]:
    """The environment for complete logs: one file for each process, in ``folder`` if given, and time stamps on every line."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_DEBUG_FILE": f"{folder}/{LOG_NAME}" if folder else LOG_NAME,
        "NCCL_DEBUG_TIMESTAMP_LEVELS": STAMPED,
    }
