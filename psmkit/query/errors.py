"""Errors of queries and exports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psmkit.model.errors import PsmkitError

__all__ = ["QueryError", "needs_extra"]

#: The packages of the extra ``query``.
_PACKAGES = ("duckdb", "pandas", "pyarrow")


class QueryError(PsmkitError):
    """A query cannot be answered, or an export cannot be written."""


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Name the extra if one of its packages is missing.

    Raises:
        QueryError: it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise QueryError(f"{what} needs {error.name}: pip install 'psmkit[query]'") from None
