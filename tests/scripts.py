"""The scripts of the repository as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load(name: str) -> ModuleType:
    """scripts/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"psmkit_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
