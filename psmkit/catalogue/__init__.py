"""The catalogue: all log messages that psmkit understands, as data.

The entries are in ``*.toml`` beside this file. :func:`load` reads and checks them, and those of a user, into
:class:`Message` objects. The C scanner compiles their patterns; there is no other parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psmkit.catalogue.entries import Message, Phrase, Sample

if TYPE_CHECKING:
    from psmkit.catalogue.loader import Catalogue, load

__all__ = ["Catalogue", "Message", "Phrase", "Sample", "load"]


def __getattr__(name: str) -> Any:
    # Late, because the build reads the entries when there is no scanner yet.
    if name in ("Catalogue", "load"):
        from psmkit.catalogue import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'psmkit.catalogue' has no attribute {name!r}")
