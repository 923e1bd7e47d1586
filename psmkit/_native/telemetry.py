"""The consumer of the profiler's windows, as csrc/telemetry/telemetry.cdef.h declares it. Nothing else imports the module it comes from."""

from __future__ import annotations

from psmkit._native._telemetry import ffi, lib

__all__ = ["ffi", "lib"]
