"""The module that pytest loads (entry point pytest11): the marker ``ranks`` and the fixture of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from psmkit.testing.ranks import Ranks

__all__ = ["pytest_configure", "ranks"]

_MARKER = "ranks(count=2, deadline=30.0, cuda=False): number of processes that the ranks fixture runs, their deadline in seconds, and whether they use emulated CUDA"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def _settings(count: int = 2, deadline: float = 30.0, cuda: bool = False) -> dict[str, Any]:
    return {"count": count, "deadline": deadline, "cuda": cuda}


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Run a function or a program in several processes with barriers and one deadline; see psmkit.testing.Ranks."""
    # Imported late, so that a session without such tests does not pay for it.
    from psmkit.testing.ranks import Ranks

    marker = request.node.get_closest_marker("ranks")
    try:
        settings = _settings(*marker.args, **marker.kwargs) if marker else _settings()
    except TypeError as error:
        raise pytest.UsageError(f"{request.node.nodeid}: bad marker, expected {_MARKER}; {error}") from None
    return Ranks(tmp_path_factory.mktemp("ranks"), **settings)
