"""The expected errors of telemetry."""

from __future__ import annotations

from psmkit.model.errors import PsmkitError

__all__ = ["TelemetryError", "missing"]


class TelemetryError(PsmkitError):
    """Telemetry cannot be read or exported."""


def missing(what: str, error: ImportError) -> TelemetryError:
    """The error for a missing optional dependency."""
    return TelemetryError(f"{what} needs {error.name or error}: pip install 'psmkit[telemetry]'")
