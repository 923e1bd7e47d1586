"""A real NCCL over the emulated driver opens the names that psmkit says, and takes the table: `make test-nccl`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from psmkit.lab import nccl_library
from psmkit.plugins import release
from psmkit.plugins.abi import spoken, tables
from psmkit.plugins.lookup import names, opening
from tests.cli.conftest import psmkit_cli  # noqa: F401 - a fixture
from tests.plugins.build import HEAD, build, table

LIBRARY = os.environ.get("PSM_TEST_NCCL")
pytestmark = pytest.mark.skipif(not LIBRARY, reason="PSM_TEST_NCCL names no NCCL library: make test-nccl")

# In the loader's path; psm2 has a name that is no library's.
FILES = (
    "libnccl-net.so",
    "libnccl-net-psm.so",
    "libnccl-net-s.so",
    "libnccl-net-none.so",
    "libnccl-net-x.so",
    "libfoo.so",
    "psm2",
)
VALUES = (
    None,
    "",
    "psm",
    "psm2",
    "s",
    "STATIC_PLUGIN",
    "none",
    "x,psm",
    "missing,psm",
    "libfoo.so",
    "./psm2",
    "foo",
    "s,psm",
)

# Each says on NCCL's log that it was begun, by which table, and then gives up: NCCL goes on with what it has built in.
BEGIN = """
static ncclResult_t begin{n}({parameters}) {{
    {logger}(NCCL_LOG_INFO, NCCL_INIT | NCCL_NET, "", 0, "psm test: %s was begun as v{n}", WHO);
    return ncclSystemError;
}}
"""


def parameters(version: int) -> tuple[str, str]:
    """Of init, and which of them is the logger."""
    if version >= 11:
        return (
            f"void **c, uint64_t id, ncclNetCommConfig_v{version}_t *g, ncclDebugLogger_t log, ncclProfilerCallback_t p",
            "log",
        )
    return ("ncclDebugLogger_t log, ncclProfilerCallback_t p" if version == 10 else "ncclDebugLogger_t log"), "log"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    for name in FILES:
        source = f'#define WHO "{name}"\n'
        for version in spoken("net"):
            given, logger = parameters(version)
            source += BEGIN.format(n=version, parameters=given, logger=logger)
            source += table(f"ncclNetPlugin_v{version}").replace(".init = (void *)nothing", f".init = begin{version}")
        built = build(folder, source, name if name.endswith(".so") else f"{name}.so", head=HEAD)
        os.rename(built, folder / name)
    return folder


def expected(version: str, value: str | None, folder: Path) -> list[str]:
    """The plugins that are begun: of each element of a list the first name that is there."""
    found = []
    for plugin in opening(release("NCCL", version), "net", value).plugins:
        for name in names(plugin):
            if name == "the program itself":
                break
            if (folder / name).is_file():
                found.append(Path(name).name)
                break
    return found


@pytest.mark.parametrize("value", VALUES)
def test_nccl_begins_the_plugins_that_are_told(
    value: str | None,
    plugins: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    psmkit_cli: object,  # noqa: F811
) -> None:
    version = nccl_library.find(Path(str(LIBRARY))).version
    assert version is not None and callable(psmkit_cli)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(plugins))
    monkeypatch.delenv("NCCL_NET_PLUGIN", raising=False)
    monkeypatch.chdir(plugins)
    settings = [] if value is None else ["--env", f"NCCL_NET_PLUGIN={value}"]
    out = tmp_path / "out"
    psmkit_cli(
        "lab", "nccl", "--lib", LIBRARY, "--ranks", "1", "--iters", "0", "--deadline", "60", *settings, "--out", out
    )
    log = (out / "logs" / "rank-0.log").read_text()
    begun = re.findall(r"psm test: (\S+) was begun as v(\d+)", log)
    assert [name for name, _ in dict.fromkeys(begun)] == expected(version, value, plugins), log
    wanted = max(t.version for t in release("NCCL", version).tables("net"))
    assert {int(n) for _, n in begun} <= {wanted}
    assert wanted in {t.version for t in tables() if t.kind == "net"}
