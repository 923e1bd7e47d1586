"""Peer infos and the way that two ranks are connected: pure, and the same both ways round."""

from __future__ import annotations

import itertools

import pytest

from psmkit._native.psm import ffi, lib
from psmkit.transport import Capability, ConnectInfo, Mode, PeerInfo, can_connect, find_intermediate

ALL = Capability.CUMEM_FD | Capability.CUDA_IPC | Capability.MEMFD | Capability.POSIX_SHM | Capability.PEER_ACCESS


def peer(
    rank: int, *, host: int = 7, process: int | None = None, can: Capability = ALL, reaches: int = 0xFF
) -> PeerInfo:
    record = ffi.new("struct psm_peer_info *")
    record.size, record.version = ffi.sizeof("struct psm_peer_info"), lib.PSM_WIRE_VERSION
    record.rank, record.device, record.host_hash = rank, rank, host
    record.process_hash = 100 + rank if process is None else process
    record.capabilities, record.peer_access, record.bus_id = int(can), reaches, f"0000:{rank:02x}:00.0".encode()
    record.proxy.rank = rank
    return PeerInfo.of(record)


def test_info_is_read_as_it_was_packed() -> None:
    info = peer(3, can=Capability.MEMFD | Capability.DIRECT)
    again = PeerInfo(info.pack())
    assert again == info and len(info.pack()) == 120 and hash(again) == hash(info)
    assert (again.rank, again.device, again.bus_id, again.address.rank) == (3, 3, "0000:03:00.0", 3)
    assert again.capabilities == Capability.MEMFD | Capability.DIRECT
    changed = info.with_capabilities(add=Capability.CUMEM_FD, remove=Capability.DIRECT)
    assert changed.capabilities == Capability.MEMFD | Capability.CUMEM_FD
    assert info.capabilities == again.capabilities


def test_connect_info_has_128_bytes() -> None:
    assert ConnectInfo(bytes(128)).mode is Mode.NONE
    with pytest.raises(ValueError, match="127 bytes for a struct psm_p2p_connect, expected 128"):
        ConnectInfo(bytes(127))


@pytest.mark.parametrize(
    ("a", "b", "mode"),
    [
        (peer(0), peer(1), Mode.CUMEM),
        (peer(0), peer(1, can=ALL & ~Capability.CUMEM_FD), Mode.IPC),
        (peer(0), peer(1, reaches=0), Mode.SHM),
        (peer(0), peer(1, host=8), Mode.NONE),
        (peer(0), peer(1, can=Capability(0)), Mode.NONE),
    ],
    ids=["cumem", "ipc", "shm", "another host", "nothing in common"],
)
def test_both_sides_find_the_same_way(a: PeerInfo, b: PeerInfo, mode: Mode) -> None:
    assert can_connect(a, b) is can_connect(b, a) is mode


def test_way_is_the_same_both_ways_round_for_all_capabilities() -> None:
    kinds = [Capability.CUMEM_FD, Capability.CUDA_IPC, Capability.MEMFD, Capability.POSIX_SHM, Capability.DIRECT]
    sets = [Capability(sum(some)) for n in range(len(kinds) + 1) for some in itertools.combinations(kinds, n)]
    for left, right in itertools.product(sets, sets):
        a, b = peer(0, can=left, process=1), peer(1, can=right, process=1)
        assert can_connect(a, b) is can_connect(b, a)


def test_rank_between_is_found() -> None:
    # Devices 0 and 1 do not reach each other; device 2 reaches both.
    a, b, c = peer(0, reaches=0b101), peer(1, reaches=0b110), peer(2, reaches=0b111)
    assert find_intermediate([a, b, c], a, b) == c
    assert find_intermediate([a, b], a, b) is None
    assert find_intermediate([a, b, c], a, c) is None
