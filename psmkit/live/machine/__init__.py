"""What this machine can do for NCCL and psmkit: each check says what was seen, why it matters, and what to do.

A check claims only what it saw: what a container hides is "not visible". All reading goes through :class:`Machine`, of which tests make
one with a root of their own.
"""

from __future__ import annotations

from psmkit.live.machine.check import Check, Level
from psmkit.live.machine.facts import Interface, Machine

__all__ = ["Check", "Interface", "Level", "Machine", "checks"]


def checks(machine: Machine, ranks: int = 0) -> list[Check]:
    """All checks of the machine, in the order in which people read them.

    Args:
        machine: what is looked at.
        ranks: per node; 0: as many as the environment or the GPUs say.
    """
    from psmkit.live.machine import environment, gpus, memory, network, tools

    return [
        *tools.checks(machine),
        *memory.checks(machine, ranks),
        *gpus.checks(machine),
        *network.checks(machine),
        *environment.checks(machine),
    ]
