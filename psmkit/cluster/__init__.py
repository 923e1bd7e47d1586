"""The scan of a job on many machines, by dask.distributed. The result is that of :func:`psmkit.logparse.scan`, byte by byte."""

from __future__ import annotations

from psmkit.cluster.engine import Engine, connected

__all__ = ["Engine", "connected"]
