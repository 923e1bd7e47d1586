"""libpsm's C interface, as its public headers declare it. Nothing else imports the module it comes from."""

from __future__ import annotations

import ctypes
import os

# PSM_DIR points elsewhere, for other builds of libpsm. A library of this name that is in the process is not looked for again.
if os.environ.get("PSM_DIR"):
    ctypes.CDLL(os.path.join(os.environ["PSM_DIR"], "lib", "libpsm.so"))

from psmkit._native._psm import ffi, lib

__all__ = ["ffi", "lib"]
