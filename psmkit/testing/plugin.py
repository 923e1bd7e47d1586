"""The module that pytest loads (entry point pytest11): the marker ``ranks``, the fixture of the same name, the options ``--psmkit*``."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from psmkit.testing.ranks import Ranks

__all__ = ["pytest_addoption", "pytest_configure", "pytest_runtest_makereport", "pytest_runtest_setup", "ranks"]

_MARKER = "ranks(count=2, deadline=30.0, cuda=False): number of processes that the ranks fixture runs, their deadline in seconds, and whether they use emulated CUDA"


_BEFORE = pytest.StashKey[Mapping[str, tuple[int, int, int]]]()
#: Fixtures whose value is a folder of one test.
_FOLDERS = ("tmp_path", "tmpdir")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("psmkit")
    group.addoption(
        "--psmkit",
        action="store_true",
        help="Analyse the logs of each test that fails, and print the verdict under the failure. "
        "Logs: what pytest captured, the files in its tmp_path, the folder of its ranks, and those of --psmkit-logs.",
    )
    group.addoption(
        "--psmkit-logs",
        action="append",
        default=[],
        metavar="GLOB",
        help="With or without --psmkit: also the files of this pattern that changed while the test ran. Repeatable.",
    )
    parser.addini("psmkit_logs", "patterns as of --psmkit-logs", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def _patterns(config: pytest.Config) -> list[str]:
    """The patterns of logs, those of the file of settings relative to it."""
    ini = [str(config.rootpath / pattern) for pattern in config.getini("psmkit_logs")]
    return [*ini, *config.getoption("--psmkit-logs")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the files of the patterns are before a test: those that stay so are not its logs."""
    if patterns := _patterns(item.config):
        from psmkit.testing.evidence import states

        item.stash[_BEFORE] = states(patterns)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add psmkit's verdict to the report of a test that failed."""
    report = yield
    patterns = _patterns(item.config)
    if report.failed and (patterns or item.config.getoption("--psmkit")):
        # Imported late, so that a session without failures does not pay for it.
        from psmkit.testing.evidence import logs_of, verdict

        values = getattr(item, "funcargs", {})
        folders = [Path(str(values[name])) for name in _FOLDERS if name in values]
        if "ranks" in values:
            folders.append(values["ranks"].folder)
        files = logs_of(dict.fromkeys(folders), patterns, item.stash.get(_BEFORE, {}))
        captured = "\n".join(text for name, text in report.sections if name.startswith("Captured std"))
        if said := verdict(files, captured):
            report.sections.append(("psmkit", said))
    return report


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
