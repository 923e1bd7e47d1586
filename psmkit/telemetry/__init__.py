"""From the profiler's windows to OpenTelemetry and Prometheus: the implementation of ``psmkit telemetry``."""
