"""The net plugin under sanitizers."""

from __future__ import annotations

import pytest

from tests.csrc.plugins.net.built import Built, build


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Plugin and driver under ASan and UBSan."""
    return build(tmp_path_factory.mktemp("net"), "address,undefined")


@pytest.fixture(scope="session")
def net_threads(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Plugin and driver under TSan."""
    return build(tmp_path_factory.mktemp("net-threads"), "thread")
