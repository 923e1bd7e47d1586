"""The errors that psmkit raises on purpose. The command line turns each into one line and exit status 2."""

from __future__ import annotations

__all__ = ["CatalogueError", "InputError", "NothingToAnalyse", "PsmkitError"]


class PsmkitError(Exception):
    """Base of all errors that psmkit raises on purpose. ``str()`` of it is one line for the user."""


class InputError(PsmkitError):
    """An input cannot be read: no such file, no permission, damaged compression.

    Attributes:
        path: the input as the user named it.
        reason: what went wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NothingToAnalyse(PsmkitError):  # noqa: N818 - the name says what is wrong
    """The inputs were read and hold nothing that psmkit knows how to judge."""


class CatalogueError(PsmkitError):
    """A catalogue file is not valid: its syntax, a pattern, a field, a sample.

    Attributes:
        file: the catalogue file, None for one that has no name.
        entry: the name of the message that is wrong, None when the file itself is.
    """

    def __init__(self, message: str, *, file: str | None = None, entry: str | None = None) -> None:
        place = ": ".join(part for part in (file, entry) if part)
        super().__init__(f"{place}: {message}" if place else message)
        self.file = file
        self.entry = entry
