"""``plugin check --nccl FILE``: which tables an NCCL library looks up, by the names in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from psmkit.model.errors import InputError
from psmkit.plugins import check
from psmkit.plugins.abi import symbols_of
from psmkit.plugins.nccl_names import looked_up, release_of
from tests.cli.conftest import Result
from tests.plugins.build import all_tables, build


def nccl(path: Path, names: Iterable[str], version: str = "2.26.6", more: bytes = b"") -> Path:
    """A file with what the check reads of a libnccl.so: its version, and the strings for dlsym."""
    strings = b"".join(name.encode() + b"\0" for name in sorted(names))
    path.write_bytes(b"\x7fELF\0NCCL version " + version.encode() + b"+cuda12.8\0" + more + b"\0" + strings)
    return path


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plugin"), all_tables("net").replace("ncclNetPlugin_v1 ", "unused "))


def test_a_library_with_all_names_of_its_release_is_judged_as_the_release(plugin: Path, tmp_path: Path) -> None:
    release = release_of("NCCL", nccl(tmp_path / "libnccl.so.2", symbols_of("2.26.6")))
    assert release.symbols == symbols_of("2.26.6") and str(release) == "NCCL 2.26.6 (libnccl.so.2)"
    result = check(plugin, [release])
    assert result.findings == () and result.uses[0].taken["net"].version == 10


def test_a_fork_that_looks_no_net_plugin_up_is_an_error_with_the_evidence(
    psmkit_cli: Callable[..., Result], plugin: Path, tmp_path: Path
) -> None:
    # The look-up is a comment; a message still names the table.
    kept = [name for name in symbols_of("2.26.6") if not name.startswith("ncclNetPlugin")]
    fork = nccl(tmp_path / "libnccl.so.2", kept, "2.26.62", b"Failed to find ncclNetPlugin_v10 symbol.\0")
    result = psmkit_cli("plugin", "check", plugin, "--nccl", fork)
    assert result.status == 1
    words = " ".join(result.out.split())
    assert "error PSM906 NCCL 2.26.62 (libnccl.so.2) does not look net plugins up" in words
    assert "holds none of ncclNetPlugin_v6 to v10, which NCCL 2.26.6 looks for." in words
    assert "Its messages mention them: the look-up itself was taken out. It does hold ncclCollNetPlugin_v" in words
    data = json.loads(psmkit_cli("plugin", "check", plugin, "--nccl", fork, "--format", "json").out)
    assert data["releases"][0]["read_from"] == str(fork) and data["releases"][0]["takes"] == {}


def test_a_fork_that_looks_up_fewer_versions_takes_the_newest_of_them(plugin: Path, tmp_path: Path) -> None:
    fork = nccl(tmp_path / "libnccl.so.2", ["ncclNetPlugin_v8", "ncclNetPlugin_v7"])
    result = check(plugin, [release_of("NCCL", fork)])
    assert result.uses[0].taken["net"].version == 8 and result.clean


def test_a_name_at_the_end_of_a_longer_string_counts_because_linkers_merge_them(tmp_path: Path) -> None:
    path = nccl(tmp_path / "libnccl.so.2", [], more=b"failed to find ncclProfiler_v2")
    assert looked_up(path) == (frozenset({"ncclProfiler_v2"}), frozenset())


def test_a_file_that_is_no_nccl_is_an_error_of_the_user(
    psmkit_cli: Callable[..., Result], plugin: Path, tmp_path: Path
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing")
    with pytest.raises(InputError, match="no library of NCCL"):
        release_of("NCCL", text)
    for wrong in (text, tmp_path / "missing" / "libnccl.so.2"):
        result = psmkit_cli("plugin", "check", plugin, "--nccl", wrong)
        assert result.status == 2 and result.err.startswith("psmkit: ")
