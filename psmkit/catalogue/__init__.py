"""The catalogue: all log messages that psmkit understands, as data.

The entries are in ``*.toml`` beside this file. :func:`load` reads and checks them, and those of a user, into
:class:`Message` objects. The C scanner compiles their patterns; there is no other parser.
"""

from __future__ import annotations

from psmkit.catalogue.entries import Message, Phrase, Sample
from psmkit.catalogue.loader import Catalogue, load

__all__ = ["Catalogue", "Message", "Phrase", "Sample", "load"]
