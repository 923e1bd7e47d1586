"""All of numpy, for the modules that cannot do without it: where it is not installed, they are not imported, and a command names the extra."""

from __future__ import annotations

from psmkit.model.arrays import need

need()

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

__all__ = ["np", "npt"]
