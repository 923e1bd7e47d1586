"""Exceptions for expected errors. The command line prints each as one line and exits with status 2."""

from __future__ import annotations

__all__ = ["CatalogueError", "InputError", "NothingToAnalyse", "PsmkitError"]


class PsmkitError(Exception):
    """Base of psmkit's expected errors. ``str()`` of it is one line for the user."""


class InputError(PsmkitError):
    """An input cannot be read: missing file, no permission, damaged compression.

    Attributes:
        path: the input as the user named it.
        reason: what failed.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NothingToAnalyse(PsmkitError):  # noqa: N818 - the name says what is wrong
    """The inputs are readable but hold nothing that psmkit can judge."""


class CatalogueError(PsmkitError):
    """A catalogue file is invalid: its syntax, a pattern, a field, a sample.

    Attributes:
        file: the catalogue file, None if it has no name.
        entry: the name of the invalid message, None if the file itself is invalid.
    """

    def __init__(self, message: str, *, file: str | None = None, entry: str | None = None) -> None:
        place = ": ".join(part for part in (file, entry) if part)
        super().__init__(f"{place}: {message}" if place else message)
        self.file = file
        self.entry = entry
