"""A stream of a real CUDA that waits for a word in pinned memory.

hostcuda runs host functions of several streams side by side, so that one of them can hold its stream. A real CUDA runs the host functions
of a context one after the other: one that waits there would hold those of all streams.
"""

from __future__ import annotations

import os
from typing import Any

from psmkit.lab.cuda import Face

_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ


class Held:
    """Holds a stream from the moment when it comes to this place until `open`."""

    def __init__(self, rt: Face, stream: Any) -> None:
        driver = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
        self._rt = rt
        place = rt.new("void **")
        rt.ok.cudaHostAlloc(place, 64, 1)
        self._word = rt.ffi.cast("volatile unsigned int *", place[0])
        self._word[0] = 0
        handle = driver.ffi.cast("CUstream", int(rt.ffi.cast("uintptr_t", stream)))
        driver.ok.cuStreamWaitValue32_v2(handle, int(rt.ffi.cast("uintptr_t", place[0])), 1, _AT_LEAST)

    def open(self) -> None:
        """Let the stream go on."""
        self._word[0] = 1

    def free(self) -> None:
        """Once the stream has gone on."""
        self._rt.cudaFreeHost(self._word)
