"""Logs as tables: Arrow columns, SQL over them, files.

:mod:`psmkit.query.schema` says which tables and columns there are; all else is made from it. This package loads neither pyarrow nor duckdb
before :func:`load` is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psmkit.query.logs import Logs

__all__ = ["load"]


def load(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    catalogue: Sequence[str | os.PathLike[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Logs:
    """The logs of a job as tables: ``load("logs/").events.pandas()``, ``load("logs/").query("SELECT ...")``.

    Args:
        paths: a file, glob or folder, or several, as for :func:`psmkit.analyze`; but no pipe, because the logs are read twice.
        catalogue: TOML files with additional messages, read after psmkit's.
        progress: called with the bytes read so far and the total.

    Raises:
        QueryError: a package is missing.
        InputError: a path does not exist, cannot be read, or can be read only once.
        NothingToAnalyse: the input is no log.
        CatalogueError: a TOML file is invalid.
    """
    from psmkit.query.errors import needs_extra

    with needs_extra("psmkit.load"):
        from psmkit.query.logs import Logs
    return Logs([paths] if isinstance(paths, str | os.PathLike) else paths, catalogue, progress)
