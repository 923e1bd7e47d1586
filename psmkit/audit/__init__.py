"""Audits: what leaves a process that means something only in it, and what a library exports and lacks.

A child process does the reading: drgn, libclang and the readers of ELF parse foreign files there, with a limit of time and memory, so that a damaged
file ends as one line.
"""

from __future__ import annotations

from psmkit.audit.structs import Audit, AuditError, audit_structs
from psmkit.audit.types import types_of

__all__ = ["Audit", "AuditError", "audit_structs", "types_of"]
