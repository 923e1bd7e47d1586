"""libnccl-net-psm.so with sockets: two processes use it through every version of NCCL's table, as NCCL does."""

from __future__ import annotations

import re

import pytest

from tests.csrc.plugins.net.built import VERSIONS, Built

GROUPED = {"PSM_NET_MAX_RECVS": "8"}
STRIPED = {"PSM_NET_STREAMS": "3", "PSM_NET_MIN_SHARE": "4096"}
SETTINGS = [{}, GROUPED, STRIPED, GROUPED | STRIPED]
NAMES = ["plain", "grouped", "striped", "grouped-striped"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["data", "many", "loopback", "devices", "profiler"])
def test_every_version_of_the_table_works(net: Built, scenario: str, version: int) -> None:
    net.expect_success(scenario, version)


@pytest.mark.parametrize("settings", SETTINGS[1:], ids=NAMES[1:])
@pytest.mark.parametrize("scenario", ["data", "many", "loopback"])
def test_messages_come_whole_over_groups_and_streams(net: Built, scenario: str, settings: dict[str, str]) -> None:
    net.expect_success(scenario, **settings)


@pytest.mark.parametrize("version", range(5, 13))
def test_tags_choose_in_the_first_group_that_is_posted(net: Built, version: int) -> None:
    net.expect_success("groups", version, **GROUPED)


@pytest.mark.parametrize("groups", ["2", "5"])
def test_groups_are_as_large_as_the_setting_says(net: Built, groups: str) -> None:
    net.expect_success("groups", **STRIPED, PSM_NET_MAX_RECVS=groups)


@pytest.mark.parametrize("settings", [{}, STRIPED], ids=["plain", "striped"])
def test_messages_that_are_sent_before_their_receives_are_kept(net: Built, settings: dict[str, str]) -> None:
    net.expect_success("ahead", **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_both_ends_are_told_of_a_message_that_is_too_large(net: Built, settings: dict[str, str]) -> None:
    net.expect_too_large(r"127\.0\.0\.1<\d+>", **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("scenario", ["sender_dies", "receiver_dies", "receiver_closes"])
def test_requests_end_when_the_peer_is_gone(net: Built, scenario: str, settings: dict[str, str]) -> None:
    net.expect_lost_peer(scenario, r"127\.0\.0\.1<\d+> (closed|is gone)", **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_what_was_sent_comes_after_the_sender_closed(net: Built, settings: dict[str, str]) -> None:
    net.expect_success("closes_early", **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_strangers_are_turned_away(net: Built, settings: dict[str, str]) -> None:
    _, log = net.run("stranger", **settings)
    assert "it does not speak our protocol" in log
    assert "it closed before it said who it is" in log
    assert "it does not have the secret of this listener's handle" in log


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_a_crowd_that_says_nothing_does_not_keep_a_peer_out(net: Built, settings: dict[str, str]) -> None:
    _, log = net.run("crowd", **settings)
    assert re.search(r"rejected \S+: it did not say who it is, and others wait for its place", log)


def test_refusals_are_logged_at_a_limited_rate_and_counted(net: Built) -> None:
    _, log = net.run("knocks")
    named = len(re.findall(r"rejected \S+: it closed before it said who it is", log))
    more = sum(int(n) for n in re.findall(r"NET/PSM : (\d+) more connections were rejected", log))
    assert 0 < named < 100 and named + more == 1000


def test_ipv6(net: Built) -> None:
    _, log = net.run("data", NCCL_SOCKET_FAMILY="AF_INET6")
    assert "peer rank 0 at ::1<" in log


def test_threads_with_connections_of_their_own(net_threads: Built) -> None:
    net_threads.expect_success("threads")
    net_threads.expect_success("threads", **GROUPED, **STRIPED)


def devices(net: Built, **env: str) -> list[str]:
    """Names of the devices."""
    return [line.split()[0] for line in net.run("devices", **env)[0].splitlines()]


def test_interfaces_follow_nccls_rules(net: Built) -> None:
    every = devices(net, NCCL_SOCKET_IFNAME="^none-is-called-so", NCCL_SOCKET_FAMILY="AF_INET")
    assert "lo" in every and len(set(every)) == len(every)
    for rule, meant in {
        "=lo": [name for name in every if name == "lo"],
        "l": [name for name in every if name.startswith("l")],
        "=l,lo": [name for name in every if name in ("l", "lo")],
        "zz,lo:1": [name for name in every if name.startswith(("zz", "lo"))],
        "^lo": [name for name in every if not name.startswith("lo")],
        "^=lo": [name for name in every if name != "lo"],
        "^=l": every,
    }.items():
        if meant:
            assert devices(net, NCCL_SOCKET_IFNAME=rule, NCCL_SOCKET_FAMILY="AF_INET") == meant, rule
    assert devices(net, NCCL_SOCKET_IFNAME="^lo", PSM_NET_IFNAME="=lo") == ["lo"]


@pytest.mark.parametrize(
    ("env", "latency"),
    [
        ({"PSM_NET_IFNAME": "=lo"}, {2.5}),
        ({"PSM_NET": "shm"}, {0.2}),
        ({"PSM_NET_IFNAME": "=lo", "PSM_NET_LATENCY": "7.25"}, {7.25}),
        ({"PSM_NET": "shm", "PSM_NET_LATENCY": "1"}, {1}),
    ],
)
def test_each_network_has_a_latency(net: Built, env: dict[str, str], latency: set[float]) -> None:
    assert {float(line.split()[-1]) for line in net.run("devices", **env)[0].splitlines()} == latency


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"NCCL_SOCKET_IFNAME": "=nowhere0"}, r'NCCL_SOCKET_IFNAME "=nowhere0", address family any'),
        ({"NCCL_SOCKET_FAMILY": "AF_UNIX"}, r'NCCL_SOCKET_FAMILY is "AF_UNIX"; expected AF_INET or AF_INET6'),
        ({"PSM_NET_STREAMS": "17"}, r'PSM_NET_STREAMS is "17"; expected a number from 1 to 16'),
        ({"PSM_NET_MIN_SHARE": "1T"}, r'PSM_NET_MIN_SHARE is "1T"; expected bytes from 4K to 1G'),
        ({"PSM_NET_LATENCY": "0"}, r'PSM_NET_LATENCY is "0"; expected microseconds from 0\.001 to 100000'),
        ({"PSM_NET": "pigeon"}, r'PSM_NET is "pigeon"; '),
    ],
)
def test_a_wrong_setting_is_said_and_init_fails(net: Built, env: dict[str, str], says: str) -> None:
    process = net.start("devices", **env)
    _, log = process.communicate(timeout=60)
    assert process.returncode != 0
    assert re.search(says, log), log


def test_a_congestion_control_that_is_not_there_is_an_error(net: Built) -> None:
    process = net.start("data", PSM_NET_CONGESTION="none-such")
    _, log = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "setting congestion control none-such failed: No such file or directory (ENOENT)" in log
