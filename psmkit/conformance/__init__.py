"""The conformance suite: the contract of a transport's variant, checked in real processes over emulated CUDA. docs/transport_guide.md."""

from __future__ import annotations

from psmkit.conformance.checks import CHECKS, Check, Kind, check
from psmkit.conformance.suite import Conformance, Result, run, selected

__all__ = ["CHECKS", "Check", "Conformance", "Kind", "Result", "check", "run", "selected"]
