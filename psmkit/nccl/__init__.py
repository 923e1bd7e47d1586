"""A user's NCCL tree with libpsm's transport in it: what has to change, the build of psmkit's part, and the check of the result."""

from __future__ import annotations

__all__: list[str] = []
