"""Events to matches to findings to a verdict. Rules are plain functions over a :class:`~psmkit.analysis.facts.job.Job`."""

from __future__ import annotations

from psmkit.analysis.pipeline import RULES, analyse_job, analyze

__all__ = ["RULES", "analyse_job", "analyze"]
