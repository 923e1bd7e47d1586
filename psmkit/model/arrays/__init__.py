"""Columns of numbers: by numpy for long ones, by plain Python for short ones and where numpy is not installed.

Import ``np`` and ``npt`` from here in modules that an analysis of logs loads. They have the part of numpy's interface that is in
:mod:`psmkit.model.arrays.plain`, and all of it after :func:`need`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

__all__ = ["Layout", "need", "np", "npt", "prepare", "using_numpy"]

#: Bytes of logs up to which the import of numpy takes longer than what it saves.
ENOUGH = 8 << 20

_numpy: Any = None


def need() -> None:
    """Use numpy from now on.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    global _numpy
    if _numpy is None:
        import numpy

        _numpy = numpy


def prepare(size: int) -> None:
    """Choose for a scan of so many bytes: numpy if it is loaded or the logs are long, plain Python if it is not installed."""
    if "numpy" in sys.modules or size > ENOUGH:
        with contextlib.suppress(ModuleNotFoundError):
            need()


def using_numpy() -> bool:
    """Whether columns are numpy's now."""
    return _numpy is not None


class Layout:
    """The layout of records in memory.

    Args:
        names: of the members.
        formats: of each member, numpy's name of its type or a layout.
        offsets: where it begins, in bytes.
        itemsize: bytes of a record.
    """

    def __init__(self, names: list[str], formats: list[Any], offsets: list[int], itemsize: int) -> None:
        self.names, self.formats, self.offsets, self.itemsize = names, formats, offsets, itemsize
        self._made: Any = None

    @property
    def numpy(self) -> Any:
        """As a type of numpy."""
        if self._made is None:
            import numpy

            self._made = numpy.dtype(
                {
                    "names": self.names,
                    "formats": [f.numpy if isinstance(f, Layout) else f for f in self.formats],
                    "offsets": self.offsets,
                    "itemsize": self.itemsize,
                }
            )
        return self._made

    @property
    def dtype(self) -> Any:
        """As a type for :func:`np.frombuffer` and :func:`np.empty`."""
        return self.numpy if _numpy is not None else self


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:

    class _Current:
        """What numpy has under a name, or plain Python in its place."""

        def __getattr__(self, name):
            if _numpy is not None:
                return getattr(_numpy, name)
            from psmkit.model.arrays import plain

            try:
                return getattr(plain, name)
            except AttributeError:
                raise AttributeError(f"psmkit.model.arrays.plain has no {name}") from None

    class _Named:
        def __getitem__(self, _):
            return Any

    class _Types:
        NDArray = _Named()

    np = _Current()
    npt = _Types()
