"""The scanner's C interface, as csrc/logscan/logscan.cdef.h declares it. Nothing else imports the module it comes from."""

from __future__ import annotations

from psmkit._native._logscan import ffi, lib

__all__ = ["ffi", "lib"]
