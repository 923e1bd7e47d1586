"""The compiled parts of csrc/base."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csrc.base import compiled


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver under ASan and UBSan."""
    return compiled.driver(tmp_path_factory.mktemp("base"), "address,undefined")
