"""Faults on purpose at the net plugin's sites, and what its record keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.lab import elf
from psmkit.logparse.records import open_record
from tests.csrc.plugins.net.built import VERSIONS, Built
from tests.psm import dwarf

ENDED = re.compile(r"(\w+) (\d+): result (\d+) done (\d) size (\d+) (.)(.)")


def ends(out: str, who: str) -> list[tuple[int, int, int, str, str]]:
    """Of each message: result, done, size, first byte and one in the middle."""
    return [(int(m[3]), int(m[4]), int(m[5]), m[6], m[7]) for m in ENDED.finditer(out) if m[1] == who]


def test_without_a_fault_all_is_well(net: Built) -> None:
    out, _ = net.run("faults")
    assert [end[:3] for end in ends(out, "receiver")] == [(0, 1, 64)] * 10


def test_a_message_that_is_dropped_never_comes(net: Built) -> None:
    out, log = net.run("faults", PSM_FAULTS="net.isend:drop:nth=3")
    assert "PSM_FAULTS: drop at net.isend, call 3, rank 0" in out + log
    assert "".join(end[3] for end in ends(out, "receiver")) == "abdefghij-"
    assert ends(out, "receiver")[-1][1] == 0
    assert [end[1] for end in ends(out, "sender")] == [1] * 10


def test_a_message_is_cut_short_and_another_damaged(net: Built) -> None:
    out, _ = net.run("faults", PSM_FAULTS="net.isend:short=10:nth=2;net.isend:corrupt:nth=4")
    got = ends(out, "receiver")
    assert got[1][2:] == (10, "b", "-")
    assert got[3][3] == "d" and got[3][4] != "d"


@pytest.mark.parametrize("site", ["isend", "irecv", "test"])
def test_an_error_is_what_the_fault_says(net: Built, site: str) -> None:
    rank = 0 if site == "isend" else 1
    out, _ = net.run("faults", PSM_FAULTS=f"net.{site}:error=ncclRemoteError:nth=2:rank={rank}")
    who = "sender" if rank == 0 else "receiver"
    assert 6 in [end[0] for end in ends(out, who)]


def test_a_connection_that_is_cut_ends_both_ends(net: Built) -> None:
    out, log = net.run("faults", PSM_FAULTS="net.connection:drop:rank=0:nth=4")
    assert ends(out, "sender")[-1][0] == 6
    assert ends(out, "receiver")[-1][0] == 6
    assert len(ends(out, "receiver")) == 4
    assert re.search(r"recv, rank 1 device 0: peer rank 0 at 127.0.0.1<\d+> closed the connection", log)


def test_a_test_that_stalls_says_not_done(net: Built) -> None:
    out, _ = net.run("faults", PSM_FAULTS="net.test:drop:rank=1:nth=1+")
    assert [end[:2] for end in ends(out, "receiver")] == [(0, 0)]


def test_sites_are_listed_in_the_library(net: Built) -> None:
    names = {site.name for site in elf.sites(net.library)}
    assert names >= {f"net.{n}" for n in "listen connect accept isend irecv test connection".split()}


def test_nothing_of_one_process_is_given_to_another(net: Built) -> None:
    marked = dwarf.shareable(net.library)
    assert {name for name in marked if name.startswith(("socket_", "shm_"))} == {
        *(f"socket_{name}" for name in "handle hello message posted slot refused".split()),
        *(f"shm_{name}" for name in "handle hello posted_slot posted head slot".split()),
    }
    assert [fault for _, faults in marked.values() for fault in faults] == []


def test_the_record_of_a_killed_process_tells_its_requests(net: Built, tmp_path: Path) -> None:
    net.run("sender_dies", PSM_RECORD_DIR=str(tmp_path))
    (left,) = tmp_path.glob("*.rec")
    found = open_record(str(left))
    sections = {section.name: section for section in found.sections}
    comm = sections["psm.net.comm"].values(0)
    assert (comm["backend"], comm["role"], comm["rank"], comm["peer"]) == ("socket", "send", 0, 1)
    assert str(comm["address"]).startswith("127.0.0.1<")
    assert len(sections["psm.net"]) == 1
    request = sections["psm.net"].values(0)
    assert request["connection"] == comm["connection"]
    assert (request["op"], request["size"], request["n"], request["error"]) == ("send", 100, 1, 0)
    assert 0 < int(request["posted"]) <= int(request["completed"])  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_pointers_that_were_never_given_are_refused(net: Built, version: int) -> None:
    _, log = net.run("invented", version)
    for call, what in {
        "test": "this is not a request of an open comm",
        "isend": "the buffer is outside the memory of its mhandle",
        "accept": "this is not an open listener",
    }.items():
        assert f"NET/PSM : {call}: {what}" in log
