"""Virtual devices that makeVDevice merges, over another plugin with several devices."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.plugins import sanitized
from tests.csrc.plugins.net.built import Built
from tests.plugins import drive_libraries


@pytest.fixture(scope="session")
def several(net: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The program merged.c, under ASan and UBSan as the plugin is."""
    program = tmp_path_factory.mktemp("merged") / "merged"
    options = [*sanitized.options("address,undefined"), "-Wno-unused-function"]
    return replace(net, driver=net.link("merged.c", program, *options))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin that merges nothing itself; DEVICES says how many it has."""
    return drive_libraries.plugin(tmp_path_factory.mktemp("other"))


def run(several: Built, other: Path, version: int, sender: int, receiver: int, **env: str) -> str:
    settings = {
        "PSM_RECORD_DIR": str(several.records),
        "PSM_NET": f"chain:{other}",
        "DEVICES": "4",
        "PSM_NET_MERGE": "1",
    }
    words = (str(several.library), str(version), str(sender), str(receiver))
    done = compiled.run(several.driver, *words, env=compiled.environment(**{**settings, **env}))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


expect_success = run  # for a test whose checks are those of the driver


@pytest.mark.parametrize(("version", "sender", "receiver"), [(12, 4, 4), (11, 2, 2), (10, 3, 2), (9, 2, 4)])
def test_messages_take_the_rails_in_turn(several: Built, other: Path, version: int, sender: int, receiver: int) -> None:
    log = run(several, other, version, sender, receiver)
    assert f"NET/PSM : device 4 is made of {'+'.join(['lo'] * sender)}" in log
    rails = min(sender, receiver)
    assert len(re.findall(rf"merged connection [0-9a-f]+ (?:send|recv), .* {rails} streams, rails", log)) == 4


@pytest.mark.parametrize(("sender", "receiver"), [(0, 3), (3, 0), (0, 0)])
def test_one_end_may_be_a_physical_device(several: Built, other: Path, sender: int, receiver: int) -> None:
    expect_success(several, other, 12, sender, receiver)


def test_interfaces_are_merged(several: Built, other: Path) -> None:
    names = [path.name for path in Path("/sys/class/net").iterdir() if (path / "operstate").read_text() != "down\n"]
    if len(names) < 2:
        pytest.skip("one interface")
    settings = {"PSM_NET": "socket", "PSM_NET_MERGE": "1", "NCCL_SOCKET_IFNAME": "=" + ",".join(sorted(names)[:2])}
    process = subprocess.run(
        [several.driver, several.library, "12", "2", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        env=compiled.environment(PSM_RECORD_DIR=str(several.records), PSM_NET_SPEED="1000", **settings),
    )
    if "no interface is up that fits" in process.stderr or "devices) ==" in process.stderr:
        pytest.skip("one interface has an address")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("auto", "devices are not merged: one is on no bus"),
        ("0", "devices are not merged: PSM_NET_MERGE=0"),
        ("yes", "expected 0, 1 or auto"),
    ],
)
def test_devices_that_nccl_would_not_find_are_not_merged(several: Built, other: Path, setting: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        run(several, other, 12, 2, 2, PSM_NET_MERGE=setting)
