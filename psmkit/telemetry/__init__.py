"""From the profiler's windows to OpenTelemetry and Prometheus: what ``psmkit telemetry`` runs."""
