"""libnccl-net-psm.so over shared memory."""

from __future__ import annotations

import re

import pytest

from tests.csrc.plugins.net.built import VERSIONS, Built

SHM = {"PSM_NET": "shm", "NCCL_SOCKET_IFNAME": ""}
GROUPED = SHM | {"PSM_NET_MAX_RECVS": "8"}
SMALL = SHM | {"PSM_NET_SHM_SLOTS": "2", "PSM_NET_SHM_SIZE": "4096"}
SETTINGS = [SHM, GROUPED, SMALL]
NAMES = ["plain", "grouped", "small-ring"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["data", "loopback"])
def test_every_version_of_the_table_works(net: Built, scenario: str, version: int) -> None:
    net.expect_success(scenario, version, **SHM)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("scenario", ["data", "many", "loopback", "closes_early", "devices", "profiler"])
def test_messages_come_whole(net: Built, scenario: str, settings: dict[str, str]) -> None:
    net.expect_success(scenario, **settings)


@pytest.mark.parametrize("groups", ["2", "8"])
def test_tags_choose_in_the_first_group_that_is_posted(net: Built, groups: str) -> None:
    net.expect_success("groups", **GROUPED | {"PSM_NET_MAX_RECVS": groups})
    net.expect_success("groups", **SMALL | {"PSM_NET_MAX_RECVS": groups})


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_both_ends_are_told_of_a_message_that_is_too_large(net: Built, settings: dict[str, str]) -> None:
    net.expect_too_large(r"pid-\d+", **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("scenario", ["sender_dies", "receiver_dies", "receiver_closes"])
def test_requests_end_when_the_peer_is_gone(net: Built, scenario: str, settings: dict[str, str]) -> None:
    net.expect_lost_peer(scenario, r"pid-\d+ closed the connection", **settings)


def test_a_connection_that_is_cut_ends_both_ends(net: Built) -> None:
    out, log = net.run("faults", **SHM, PSM_FAULTS="net.connection:drop:rank=0:nth=4")
    assert re.findall(r"result (\d) done 0", out) == ["6", "6"]
    assert "recv, rank 1 device 0: peer rank 0" in log


def test_threads_with_connections_of_their_own(net_threads: Built) -> None:
    net_threads.expect_success("threads", **SHM)
    net_threads.expect_success("threads", **GROUPED)
