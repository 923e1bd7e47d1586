"""``python -m psmkit.nvcc``."""

from __future__ import annotations

import sys

from psmkit.nvcc.driver import main

sys.exit(main(sys.argv[1:]))
