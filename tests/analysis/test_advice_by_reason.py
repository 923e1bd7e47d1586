"""What to do depends on the reason that the line gives, on the host of the peer, and on what stands above the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.report import render
from tests.analysis.texts import expect_step, first_error

_AT = "n0:70:71 [0] "
_CONNECT = (
    "\n"
    + _AT
    + "misc/socket.cc:440 NCCL WARN Net : Connect to {}<40611> failed : {}\n"
    + _AT
    + "NCCL INFO bootstrap.cc:91 -> 2\n"
)
_RECV = (
    "\n"
    + _AT
    + "misc/socket.cc:503 NCCL WARN Net : Call to recv from {}<40611> failed : {}\n"
    + _AT
    + "NCCL INFO proxy.cc:91 -> 2\n"
)
_CLOSED = (
    "\n"
    + _AT
    + "misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {}<40611>\n"
    + _AT
    + "NCCL INFO misc/socket.cc:58 -> 6\n"
)
_CUDA = "\n" + _AT + "{} NCCL WARN Cuda failure 801 'operation not supported'\n" + _AT + "NCCL INFO init.cc:1437 -> 1\n"
_UCX = "[n0:70:0:71] ib_mlx5_log.c:139  {} on mlx5_2:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n"
_IPC = (
    "\n"
    + _AT
    + "transport/p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : {}\n"
    + _AT
    + "NCCL INFO transport/p2p.cc:652 -> 1\n"
)
_IB = (
    "\n"
    + _AT
    + "transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<49189> with error {}, opcode 0, len 0, vendor err 81\n"
    + _AT
    + "NCCL INFO transport/net.cc:1120 -> 6\n"
    + _AT
    + "NCCL INFO proxy.cc:694 -> 6 [Proxy Thread]\n"
)
_ACCEPT = (
    "\n"
    + _AT
    + "misc/socket.cc:415 NCCL WARN socketTryAccept: Accept failed: Bad file descriptor\n"
    + _AT
    + "NCCL INFO init.cc:1679 -> 2\n"
)
_LAST = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.21.5\n"
    "[rank1]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n[rank1]: Last error:\n"
    "[rank1]: socketStartConnect: Connect to 10.0.0.9<52822> failed : {}\n"
)
_USING = _AT + "NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>\n"
_PROXY = (
    "\n"
    + _AT
    + "proxy.cc:1040 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2\n"
)
_ODD = "\n" + _AT + "graph/odd.cc:12 NCCL WARN Something odd was found\n" + _AT + "NCCL INFO init.cc:1437 -> 3\n"
_ROUTES = ("firewall", "routing")


@pytest.mark.parametrize(
    ("log", "words", "not_words"),
    [
        (_CONNECT.format("10.0.0.9", "Connection refused"), ("runs", "last lines"), _ROUTES),
        (_CONNECT.format("10.0.0.9", "Connection timed out"), ("firewall",), ()),
        (_CONNECT.format("10.0.0.9", "No route to host"), ("routing",), ("last lines",)),
        (_RECV.format("10.0.0.9", "Connection reset by peer"), ("last lines", "how it ended"), _ROUTES),
        (_RECV.format("10.0.0.9", "Broken pipe"), ("last lines", "how it ended"), _ROUTES),
        (_RECV.format("172.19.0.1", "Broken pipe"), ("NCCL_SOCKET_IFNAME",), _ROUTES),
        (_CLOSED.format("10.0.0.9"), ("last lines", "how it ended"), _ROUTES),
        (_CLOSED.format("n0.cluster"), ("same host",), _ROUTES),
        (_CLOSED.format("127.0.0.1"), ("same host",), _ROUTES),
        (_USING + _CLOSED.format("10.0.0.5"), ("same host",), _ROUTES),
        (_USING + _CLOSED.format("10.0.0.6"), ("other end",), ("same host",)),
        (_CUDA.format("init.cc:426"), ("memory pools",), ("NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE")),
        (_CUDA.format("transport/p2p.cc:426"), ("NCCL_CUMEM_ENABLE",), ("memory pools",)),
        (_UCX.format("Transport retry count exceeded"), ("peer process", "error counters"), ("memlock", "registered")),
        (_UCX.format("Local protection"), ("memlock",), ("UCX_RC_TIMEOUT",)),
        (_IPC.format("invalid argument"), ("NCCL_P2P_DISABLE",), ("free memory", "before")),
        (_IPC.format("out of memory"), ("memory",), ("NCCL_P2P_DISABLE",)),
        ("n0 starts\n" + _PROXY, ("peer of this connection",), ("warnings of the same thread",)),
        (_IB.format(4), ("freed or changed",), ("GID index",)),
        (_IB.format(10), ("log of the peer",), ("GID index",)),
        (_IB.format(13), ("stack of the peer",), ("GID index",)),
        (_IB.format(8), ("GID index",), ("freed or changed",)),
        (_CONNECT.format("10.0.0.9", "Software caused connection abort"), ("process at that address runs", "routing"), ("how it ended",)),
        (_ACCEPT, ("made the process close it",), ("network",)),
        (_LAST.format("Connection refused"), ("last lines",), (*_ROUTES, "Re-run")),
        (_LAST.format("an odd reason"), ("Re-run",), ()),
        ("n0 starts\n" + _ODD, ("no other warning of this process",), ("just before it",)),
    ],
)  # fmt: skip
def test_advice_fits_the_reason_of_the_line(
    tmp_path: Path, log: str, words: tuple[str, ...], not_words: tuple[str, ...]
) -> None:
    expect_step(tmp_path, log, words, not_words)


def test_earlier_warning_of_the_process_is_worth_reading(tmp_path: Path) -> None:
    earlier = _AT + "misc/param.cc:12 NCCL WARN Something odd comes first\n" + _AT + "NCCL INFO Using network Socket\n"
    assert "just before it" in first_error(tmp_path, earlier + _ODD).next_step
    # a warning of another process does not count
    assert "no other warning" in first_error(tmp_path, earlier.replace("n0:70", "n1:90") + _ODD).next_step


def test_unanswered_ucx_request_names_one_end_of_a_connection(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(_UCX.format("Transport retry count exceeded"))
    (end,) = analyze([str(tmp_path / "job.log")]).culprits
    assert end.host == "n0" and end.either and end.peer_unnamed
    (tmp_path / "job.log").write_text(_UCX.format("Local protection"))
    (own,) = analyze([str(tmp_path / "job.log")]).culprits
    assert own.host == "n0" and not own.either


_REQUEST = "[n0:70:0:71] ib_mlx5_log.c:139  RC QP 0x1a2b wqe[7]: SEND s-e [rqpn 0x2c3d {}] [inl len 26]\n"
_UCX_ERROR = "[1784273406.684686] [n0:70:0] {} UCX  ERROR {}\n"


@pytest.mark.parametrize(
    ("log", "hosts"),
    [
        (_UCX.format("Transport retry count exceeded") + _REQUEST.format("dgid=::ffff:10.0.0.9 sgid_index=3"), ["n0", "10.0.0.9"]),
        (_UCX.format("Transport retry count exceeded") + _REQUEST.format("rlid 703"), ["n0"]),
        (_UCX_ERROR.format("tcp_ep.c:1152", "send(fd=36) failed: Connection reset by peer"), ["n0"]),
    ],
)  # fmt: skip
def test_an_error_of_ucx_names_the_ends_that_its_lines_show(tmp_path: Path, log: str, hosts: list[str]) -> None:
    (tmp_path / "job.log").write_text(log)
    report = analyze([str(tmp_path / "job.log")])
    assert [c.host for c in report.culprits] == hosts
    assert all(c.either for c in report.culprits)
    assert all(c.peer_unnamed is (len(hosts) == 1) for c in report.culprits)


@pytest.mark.parametrize(
    ("place", "said"),
    [("sock.c:323", "connect(fd=36, dest_addr=10.0.0.9:18515) failed: Connection refused"), ("sockcm_ep.c:151", "failed to connect to 10.0.0.9:9001")],
)  # fmt: skip
def test_a_connect_of_ucx_names_its_address(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "job.log").write_text(_UCX_ERROR.format(place, said))
    report = analyze([str(tmp_path / "job.log")])
    assert [(c.host, c.either) for c in report.culprits] == [("10.0.0.9", False)]
    assert "could not connect to 10.0.0.9" in report.reason


def test_two_processes_that_may_be_each_others_peers_are_not_said_to_have_others(tmp_path: Path) -> None:
    error = _UCX.format("Transport retry count exceeded")
    (tmp_path / "job.log").write_text(error + error.replace("n0:70:0:71", "n1:80:0:81"))
    text = render(analyze([str(tmp_path / "job.log")]), "text")
    assert "a peer of 2 processes" in text and "the others" not in text
