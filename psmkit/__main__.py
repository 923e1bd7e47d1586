"""``python -m psmkit`` is ``psmkit``."""

from __future__ import annotations

import sys

from psmkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
