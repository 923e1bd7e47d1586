"""The tuner plugin under sanitizers."""

from __future__ import annotations

import pytest

from tests.csrc.plugins.tuner.built import Built, build


@pytest.fixture(scope="session")
def tuner(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All of it under ASan and UBSan."""
    return build(tmp_path_factory.mktemp("tuner"), "address,undefined")


@pytest.fixture(scope="session")
def tuner_threads(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All of it under TSan."""
    return build(tmp_path_factory.mktemp("tuner-threads"), "thread")
