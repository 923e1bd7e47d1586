"""The plugin of docs/net_write.md works, and the tables of docs/net.md name what there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit.lab import elf
from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
from tests.csrc.plugins.net.built import NET, Built

PAGE, WRITE = ((compiled.ROOT / "docs" / name).read_text("utf-8") for name in ("net.md", "net_write.md"))


@pytest.fixture(scope="module")
def mine(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The plugin of the page, compiled as it is."""
    folder = tmp_path_factory.mktemp("mine")
    (code,) = re.findall(r"^```c\n(.*?)^```", WRITE, re.DOTALL | re.MULTILINE)
    (folder / "mine.c").write_text(code)
    library = folder / "libnccl-net-mine.so"
    options = ["-shared", "-fPIC", *sanitized.options("address,undefined")]
    return replace(net, library=sanitized.link(library, [folder / "mine.c"], options))


@pytest.mark.parametrize("scenario", ["data", "many", "closes_early", "receiver_closes"])
def test_the_plugin_of_the_page_works(mine: Built, scenario: str) -> None:
    mine.expect_success(scenario, 8)


def test_the_page_names_every_setting() -> None:
    code = "".join(path.read_text() for path in NET.rglob("*.c"))
    settings = set(re.findall(r'"((?:PSM_NET|NCCL_SOCKET)[A-Z_]*)"', code))
    assert len(settings) > 10
    assert [name for name in sorted(settings) if f"`{name}`" not in PAGE] == []


def test_the_page_names_every_fault_site(net: Built) -> None:
    sites = [site.name for site in elf.sites(net.library) if site.name.startswith("net.")]
    assert [name for name in sites if f"`{name}`" not in PAGE] == []
    assert set(re.findall(r"`(net\.[a-z]+)`", PAGE)) == set(sites)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE + WRITE):
        assert (Path(compiled.ROOT) / "docs" / target).exists(), target
