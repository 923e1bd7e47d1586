"""The names of libpsm's errors, for processes that do not load libpsm, such as the one that starts the ranks of the lab."""

from __future__ import annotations

__all__ = ["STATUSES"]

#: ``psm_status`` without ``PSM_ERR_``, as psm.h lists them.
STATUSES = (
    "INVALID",
    "NO_MEMORY",
    "NO_RESOURCE",
    "UNSUPPORTED",
    "NOT_FOUND",
    "REFUSED",
    "TIMEOUT",
    "PEER_DEAD",
    "PEER_CLOSED",
    "PROTOCOL",
    "VERSION",
    "MISMATCH",
    "DENIED",
    "ABORTED",
    "CUDA",
    "SYSTEM",
    "INTERNAL",
)
