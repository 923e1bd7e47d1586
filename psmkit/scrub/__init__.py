"""Write the same evidence without names of people and machines.

:class:`~psmkit.scrub.lines.Lines` replaces the names in a line, :func:`~psmkit.scrub.run.scrub` those of inputs,
:func:`~psmkit.scrub.check.check` finds what looks like a name still.
"""

from psmkit.scrub.check import Check, Left, check
from psmkit.scrub.run import Result, find, scrub, write_mapping

__all__ = ["Check", "Left", "Result", "check", "find", "scrub", "write_mapping"]
