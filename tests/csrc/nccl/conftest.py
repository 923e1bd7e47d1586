"""The interpreter of NCCL's device work."""

from __future__ import annotations

import pytest

from tests.csrc.nccl import compiled


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> compiled.Interpreter:
    """Compiled against facts; it needs a C++ compiler, which psmkit itself does not."""
    if not compiled.compiler():
        pytest.skip("no C++ compiler")
    return compiled.Interpreter(compiled.build(tmp_path_factory.mktemp("interpreter")))
