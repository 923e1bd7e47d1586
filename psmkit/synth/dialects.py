"""What one release prints differently from another. Formats are facts; the values are the simulator's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = ["DIALECTS", "Dialect"]


@dataclass(frozen=True)
class Dialect:
    """A release as its log shows it. Templates are :meth:`str.format` texts."""

    name: str
    version: str
    driver: int
    init: str  # between "NCCL INFO " and " - Init START"
    split: tuple[str, str]  # the whole lines when a child communicator starts and is complete
    matches: str = "resp.opId={op} matches expected opId={op}"
    connected: str = "Connected to proxy localRank {rank} -> connection {conn}"
    bootstrap: str = "Bootstrap: Using eth0:{ip}<0>"
    transport: int = 0
    via: str = "P2P/CUMEM/read"
    psm: bool = False  # SM-free copies: the send side keeps its state in host memory and owes a Connect
    uds: bool = True  # memory crosses processes as file descriptors
    ras: bool = False
    stamped: bool = False  # WARN lines begin with a time stamp
    functions: bool = False  # file:line (function)
    counts: bool = True  # opCount grows; from 2.27 it stays 0 on one node
    closes: bool = False  # a clean teardown says "Connection closed by localRank"
    channel: str = "Channel {channel:02d}/{index} : {rank}[{dev}] -> {peer}[{peer_dev}] via {via}"
    trees: str = "{down}/-1/-1->{rank}->{up}"
    transfers: bool = True  # ncclSend and ncclRecv exist
    rings: bool = True  # each rank prints its neighbours in each ring
    thresholds: str = "512 | 512"
    cuda_failure: str = "Cuda failure {code} '{text}'"
    closed: str = "socketProgress: Connection closed by remote peer {host}<{port}>"
    silent: tuple[str, ...] = ()  # parts of lines that the release does not print
    scored: bool = False  # only the score takes it: the tests of each scenario have enough dialects
    init_size: int = 16
    get_fd: str = "UDS: ClientGetFd handle {handle} tpRank {peer} returned fd {fd} sameProcess 0"
    recv_setup: tuple[int, str] = (88, "Allocated shareable buffer {ptr} size {size} ipcDesc {desc}")

    @property
    def ends(self) -> bool:
        """Whether the end of a communicator is printed, so that a log shows a clean end."""
        return "Destroy COMPLETE" not in self.silent


_RANK = "comm {comm} rank {rank} nranks {n} cudaDev {dev} nvmlDev {dev} busId {bus} commId {commid}"

_CHILD = "ncclCommSplit comm {comm} rank {rank} nranks {n} cudaDev {dev} nvmlDev {dev} busId {bus} parent {parent} "
_COUNTED = _CHILD + "{count} 1 color {color} key {key}"

DIALECTS: dict[str, Dialect] = {
    d.name: d
    for d in (
        Dialect(
            "2.18",
            "NCCL version 2.18.5+cuda12.2",
            12020,
            _RANK,
            (_RANK + " - Init START", _RANK + " - Init COMPLETE"),
            matches="recvOpId={op} matches expected opId={op}",
            connected="Connection to proxy localRank {rank} -> connection {conn}",
            bootstrap="Bootstrap : Using eth0:{ip}<0>",
            via="P2P/IPC/read",
            uds=False,
            closes=True,
            cuda_failure="Cuda failure '{text}'",
        ),
        Dialect(
            "2.21",
            "NCCL version 2.21.5+cuda12.4",
            12040,
            "ncclCommInitRank " + _RANK,
            (
                _CHILD + "color {color} key {key} commId {commid} - Init START",
                _CHILD + "color {color} key {key} commId {commid} - Init COMPLETE",
            ),
            bootstrap="Bootstrap : Using eth0:{ip}<0>",
            closes=True,
            get_fd="UDS: ClientGetFd handle {handle} tpRank {peer} returned fd {fd}",
        ),
        Dialect(
            "2.27",
            "NCCL version 2.27.7+cuda12.9",
            12090,
            "ncclCommInitRankConfig " + _RANK,
            (
                _COUNTED.replace("{count}", "splitCount") + "- Init START",
                _COUNTED.replace("{count}", "splitCount") + " - Init COMPLETE",
            ),
            via="P2P/CUMEM",
            ras=True,
            stamped=True,
            counts=False,
        ),
        Dialect(
            "2.30",
            "NCCL version 2.30.7+cuda13.0",
            13000,
            "{tag}ncclCommInitRank " + _RANK,
            (
                _COUNTED.replace("{count}", "childCount") + "- Init START",
                _COUNTED.replace("{count}", "childCount") + " - Init COMPLETE",
            ),
            connected="Connected to proxy tpRank {rank} -> connection {conn}",
            via="P2P/CUMEM",
            ras=True,
            stamped=True,
            functions=True,
            counts=False,
            init_size=24,
            recv_setup=(
                88,
                "transport/p2p.cc:255 (ncclP2pAllocateShareableBuffer) Allocated shareable buffer {ptr} size {size} ipcDesc {desc}",
            ),
        ),
        Dialect(
            "passsm",
            "VCCL version 2.26.62+cuda13.0",
            13000,
            "ncclCommInitRank " + _RANK,
            (
                _COUNTED.replace("{count}", "splitCount") + "- Init START",
                _COUNTED.replace("{count}", "splitCount") + " - Init COMPLETE",
            ),
            transport=5,
            via="PSM_P2P/CUMEM",
            psm=True,
            ras=True,
            stamped=True,
            recv_setup=(88, "PSM:Allocated shareable buffer {ptr} size {size} ipcDesc {desc}"),
        ),
    )
}

_PROXY = ("opId", "Received and initiated", "roxy ", "shareable", "] exit: stop")
# Before 2.14 no release has a driver to name, before 2.12 a proxy service or a word for the end of a communicator.
_NAMELESS = (*_PROXY, "Init START", "nRanks", "NVLS", "P2P Chunksize")
_ENDLESS = (*_NAMELESS, "cudaDriverVersion", "Connection closed by localRank", "Destroy COMPLETE")
_BUS = "comm {comm} rank {rank} nranks {n} cudaDev {dev} busId {bus}"


def _old(name: str, version: str, silent: tuple[str, ...], init: str = _BUS, **more: Any) -> Dialect:
    """A release in which a child communicator is made as any other, and an error has no number."""
    return replace(
        DIALECTS["2.18"],
        name=name,
        version=f"NCCL version {version}",
        init=init,
        split=(init + " - Init START", init + " - Init COMPLETE"),
        via="P2P/IPC",
        silent=silent,
        scored=True,
        **{"thresholds": "8/8/64", "closed": "Net : Connection closed by remote peer {host}<{port}>"} | more,
    )


_LINE = "Channel {channel:02d} : {rank}[{bus}] -> {peer}[{peer_bus}] via {via}"
_SAID = "Net : Connection closed by remote peer"
for _release in (
    _old(
        "2.4",
        "2.4.8+cuda10.1",
        (*_ENDLESS, "Using network", "threadThresholds", "coll channels", "Connected all"),
        "comm {comm} rank {rank} nranks {n} cudaDev {dev} nvmlDev {dev}",
        bootstrap="Bootstrap : Using [0]eth0:{ip}<0>",
        channel="Ring {channel:02d} : {rank}[{dev}] -> {peer}[{peer_dev}] via {via}",
        trees="{up}->{rank}->{down}/-1/-1",
        rings=False,
        transfers=False,
        closed=_SAID,
    ),
    _old(
        "2.7",
        "2.7.8+cuda10.2",
        (*_ENDLESS, "Connected all"),
        bootstrap="Bootstrap : Using [0]eth0:{ip}<0>",
        channel=_LINE,
        trees="{down}/-1/-1->{rank}->{up}|{up}->{rank}->{down}/-1/-1",
        rings=False,
        closed=_SAID,
    ),
    _old("2.9", "2.9.9+cuda11.3", _ENDLESS, channel=_LINE, rings=False, closed=_SAID),
    _old("2.10", "2.10.3+cuda11.3", _ENDLESS, channel=_LINE),
    _old("2.11", "2.11.4+cuda11.5", _ENDLESS, channel=_LINE),
    _old("2.12", "2.12.12+cuda11.7", (*_NAMELESS, "cudaDriverVersion"), channel=_LINE),
    _old(
        "2.14",
        "2.14.3+cuda11.7",
        _NAMELESS,
        driver=11070,
        thresholds="512 | 512",
        channel="Channel {channel:02d}/{index} : {rank}[{bus}] -> {peer}[{peer_bus}] via {via}",
    ),
    replace(DIALECTS["2.30"], name="2.32", version="NCCL version 2.32.3+cuda13.1", driver=13010, scored=True),
    replace(
        DIALECTS["2.21"],
        name="rccl",
        version="RCCL version 2.21.5+hip6.3",
        driver=60300,
        via="P2P/direct pointer",
        scored=True,
    ),
):
    DIALECTS[_release.name] = _release
