"""The registry of finding codes. A published code keeps its meaning.

An entry holds all that is known of its code; see :class:`~psmkit.model.kinds.Code`. Each module of this package
holds the entries of one or more families.
"""

from __future__ import annotations

from psmkit.model.codes import collectives, control, errors, memory, plugins, running, surroundings
from psmkit.model.kinds import Code

__all__ = ["CODES", "code"]

_TABLES = (control, collectives, errors, memory, surroundings, plugins, running)

CODES: dict[str, Code] = {
    entry.code: entry for entry in sorted((c for table in _TABLES for c in table.TABLE), key=lambda c: c.code)
}


def code(name: str) -> Code:
    """The :class:`Code` of ``name``, ignoring case.

    Raises:
        KeyError: there is no such code.
    """
    return CODES[name.upper()]
