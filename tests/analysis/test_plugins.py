"""Plugins that were asked for and do not load, and the default ones that nobody misses."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity, Verdict
from tests.analysis.texts import Rank, find, of, report_of

_VERSION = (
    "{0}/Plugin: Plugin load returned 2 : /opt/efa/lib/libfabric.so.1: version `FABRIC_1.8' not found (required by {1}) : "
    "when loading {1}"
)
_GONE = "{0}/Plugin: Plugin load returned 2 : {1}: cannot open shared object file: No such file or directory : when loading {1}"


def _logs(*lines: str, network: str = "Socket", n: int = 2) -> list[Rank]:
    logs = []
    for r in range(n):
        log = Rank(r, n).born()
        for line in lines:
            log.line(line)
        if network:
            log.line(f"Using network {network}")
        logs.append(log.line(f"{log._member()} - Init START").complete().work(2))
    return logs


def test_plugin_that_the_user_named_and_that_misses_a_symbol_version_is_a_warning(tmp_path: Path) -> None:
    lib = "libnccl-net-ofi.so"
    logs = _logs("NCCL_NET_PLUGIN set by environment to ofi.", _VERSION.format("NET", lib))
    report = report_of(tmp_path, logs)
    found = of(report.findings, "PSM606")
    assert [(f.severity, f.ranks) for f in found] == [(Severity.WARNING, (0, 1))]
    assert "FABRIC_1.8" in found[0].title and "Socket" in found[0].title
    assert "FABRIC_1.8" in found[0].evidence[0].text and "NCCL_NET_PLUGIN" in found[0].evidence[1].text
    assert "FABRIC_1.8" in report.reason and not of(report.findings, "PSM801")


@pytest.mark.parametrize(
    "lines",
    [
        ["NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin."],
        ["NET/Plugin: Plugin name set by env to libmine.so", "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol."],
        ["NCCL_NET_PLUGIN set by environment to mine.", "External network plugin mine is unsupported"],
        ["NCCL_TUNER_PLUGIN set by environment to libmine.so.", _VERSION.format("TUNER", "libmine.so")],
        ["NCCL_PROFILER_PLUGIN set by environment to x.", "PROFILER/Plugin: Could not find: x libnccl-profiler-x.so. "],
        ["NCCL_NET_PLUGIN set by environment to libnccl-net.so.", _GONE.format("NET", "libnccl-net.so")],
    ],
)
def test_every_kind_of_plugin_that_was_asked_for_is_missed(lines: list[str], tmp_path: Path) -> None:
    found = of(find("plugins", tmp_path, _logs(*lines)), "PSM606")
    assert [f.severity for f in found] == [Severity.WARNING]


@pytest.mark.parametrize(
    "lines",
    [
        ["NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."],
        [_GONE.format("NET", "libnccl-net.so"), "NET/Plugin: Using internal network plugin."],
        ["NCCL_NET_PLUGIN set by environment to none.", "NET/Plugin: Could not find: libnccl-net.so. "],
        ["NCCL_NET_PLUGIN set by environment to ofi.", "TUNER/Plugin: Could not find: libnccl-tuner.so. "],
        [
            "ncclOsDlopen(libnccl-env.so) failed: libnccl-env.so: cannot open shared object file: No such file or directory"
        ],
    ],
)
def test_default_plugins_that_are_not_there_stay_harmless(lines: list[str], tmp_path: Path) -> None:
    report = report_of(tmp_path, _logs(*lines))
    assert not of(report.findings, "PSM606")


def test_older_table_of_a_plugin_that_loads_is_no_trouble(tmp_path: Path) -> None:
    lines = [
        "NCCL_NET_PLUGIN set by environment to ofi.",
        "NET/Plugin: Could not find: ofi. ",
        "NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.",
        "NET/Plugin: Loaded net plugin AWS Libfabric (v9)",
    ]
    assert not find("plugins", tmp_path, _logs(*lines, network="AWS Libfabric"))


@pytest.mark.parametrize(("network", "warned"), [("Socket", True), ("IB", False)])
def test_installed_default_plugin_that_does_not_load_matters_on_sockets_only(
    network: str, warned: bool, tmp_path: Path
) -> None:
    found = find("plugins", tmp_path, _logs(_VERSION.format("NET", "libnccl-net.so"), network=network))
    assert bool(found) is warned


def test_missing_plugin_does_not_make_a_good_run_bad(tmp_path: Path) -> None:
    lines = ["NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin."]
    report = report_of(tmp_path, [log.destroy() for log in _logs(*lines)])
    assert report.verdict is Verdict.HEALTHY and of(report.findings, "PSM606")


@pytest.mark.parametrize(
    ("later", "unloads", "warned"), [("Socket", True, True), ("PSM", True, False), ("Socket", False, False)]
)
def test_net_plugin_that_is_not_loaded_again_is_missed_by_later_communicators(
    later: str, unloads: bool, warned: bool, tmp_path: Path
) -> None:
    logs = _logs("NCCL_NET_PLUGIN set by environment to libnccl-net-psm.so", network="PSM")
    for log in logs:
        log.destroy()
        if unloads:
            log.line("Unloading plugin libnccl-net-psm.so")
        log.line(f"Using network {later}")
    found = of(find("plugins", tmp_path, logs), "PSM606")
    assert [f.ranks for f in found] == [(0, 1)] * warned
    assert all("the network was PSM and is Socket" in f.title for f in found)
