"""psmkit: a debugging toolkit for custom NCCL transports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psmkit.analysis import analyze
    from psmkit.model import Evidence, Finding, Report, Verdict
    from psmkit.query import load

__all__ = ["Evidence", "Finding", "Report", "Verdict", "analyze", "load"]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # Late, so that `psmkit --help` and the model do not load the scanner.
    if name == "analyze":
        from psmkit.analysis import analyze

        return analyze
    if name == "load":
        from psmkit.query import load

        return load
    if name in __all__:
        import psmkit.model

        return getattr(psmkit.model, name)
    raise AttributeError(f"module 'psmkit' has no attribute {name!r}")
