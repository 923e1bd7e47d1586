"""What events say of a launch, in words: which stream waits for which, and the attributes of its kernel."""

from __future__ import annotations

from psmkit._native.psm import lib
from psmkit.model.wording import counted

__all__ = ["attributes", "stream"]


def stream(place: int) -> str:
    """The stream at a place of the traces."""
    known = {lib.PSM_PLAN_ON_DEVICE: "device", lib.PSM_PLAN_ON_HOST: "host", lib.PSM_PLAN_ON_LAUNCH: "launch"}
    return known.get(place, f"user's {place - lib.PSM_PLAN_ON_LAUNCH + 1}.")


def attributes(c: int) -> str:
    """Blocks, clusters and memory domain of a launched kernel."""
    if not c:
        return ""
    cluster, remote = c & 0xFF, c & lib.PSM_PLAN_ATTR_REMOTE
    return (
        f"; {counted(c >> lib.PSM_PLAN_ATTR_GRID & 0xFFFF, 'block')}"
        + (f", clusters of {cluster}" if cluster else "")
        + (", remote memory domain" if remote else "")
    )
