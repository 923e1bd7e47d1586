"""The names of NCCL's results."""

from __future__ import annotations

__all__ = ["RESULTS", "WORDS"]

#: ncclResult_t by number.
RESULTS = (
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
    "ncclTimeout",
)
#: What NCCL calls those that all its reports name alike.
WORDS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
}
