"""The driver of the schedulers, built once."""

from __future__ import annotations

import pytest

from tests.csrc.psm.plan import scheduling


@pytest.fixture(scope="session")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> scheduling.Driver:
    return scheduling.Driver(scheduling.build(tmp_path_factory.mktemp("scheduler")))
