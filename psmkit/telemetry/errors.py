"""What goes wrong here on purpose."""

from __future__ import annotations

from psmkit.model.errors import PsmkitError

__all__ = ["TelemetryError", "missing"]


class TelemetryError(PsmkitError):
    """Telemetry cannot be read or exported."""


def missing(what: str, error: ImportError) -> TelemetryError:
    """The error for an extra that is not installed."""
    return TelemetryError(f"{what} needs {error.name or error}: pip install 'psmkit[telemetry]'")
