"""From events to findings to a verdict. Rules are plain functions of a :class:`~psmkit.analysis.facts.job.Job`."""

from __future__ import annotations

from psmkit.analysis.pipeline import analyse_job, analyze

__all__ = ["analyse_job", "analyze"]
