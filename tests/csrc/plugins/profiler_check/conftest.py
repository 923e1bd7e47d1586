"""The shim under sanitizers."""

from __future__ import annotations

import pytest

from tests.csrc.plugins.profiler_check.built import Built, build


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Under ASan and UBSan."""
    return build(tmp_path_factory.mktemp("profiler-check"), "address,undefined")


@pytest.fixture(scope="session")
def check_threads(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Under TSan."""
    return build(tmp_path_factory.mktemp("profiler-check-threads"), "thread")
