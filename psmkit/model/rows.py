"""Immutable records of which an analysis makes many for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["row"]

if TYPE_CHECKING:
    from dataclasses import dataclass as row
else:
    from psmkit.model.late import dataclass

    def row(*, frozen, slots):
        """As ``dataclass(frozen=True, slots=True)``, for the type checker. At run time an assignment is not refused, because that
        refusal makes the constructor three times slower."""
        assert frozen and slots
        return dataclass(slots=True, unsafe_hash=True)
