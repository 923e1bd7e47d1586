"""Who is named by a traceback that ends at torch's store, by the attempts to connect, by several reports of one failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from tests.analysis.texts import analyzed

TRACE = (
    'Traceback (most recent call last):\n  File "/a/train.py", line 7, in <module>\n'
    '    dist.init_process_group("nccl", init_method="tcp://10.4.1.2:23456", rank=1, world_size=2)\n'
    '  File "/opt/site-packages/torch/distributed/{}", line 611, in {}\n    store = f()\nRuntimeError: {}\n'
)
RETRY = "n7:4711:4799 [4] NCCL INFO socketPollConnect: connect to 10.4.1.3<52333> returned {}, retrying ({}/34) after sleep for 1800 msec\n"


def _who(report: Report) -> list[tuple[int | None, str | None, bool]]:
    return [(c.rank, c.host, c.either) for c in report.culprits]


@pytest.mark.parametrize(
    ("place", "error", "what"),
    [
        (("distributed_c10d.py", "init_process_group"), "Connection reset by peer", "lost"),
        (("distributed_c10d.py", "_set_sequence_number_for_group"), "Broken pipe", "lost"),
        (("rendezvous.py", "_tcp_rendezvous_handler"), "Connection refused", "could not reach"),
        (("rendezvous.py", "_env_rendezvous_handler"), "connect() timed out. Original timeout was 900 ms.", "could not reach"),
    ],
)  # fmt: skip
def test_a_bare_socket_error_below_the_start_of_torch_is_about_its_store(
    place: tuple[str, str], error: str, what: str, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, TRACE.format(*place, error))
    assert report.verdict == "failed" and f"{what} torch's store at 10.4.1.2:23456" in report.reason
    assert _who(report) == [(None, "10.4.1.2", True)]


@pytest.mark.parametrize("place", [("distributed_c10d.py", "all_reduce"), ("elsewhere.py", "init_process_group")])
def test_a_socket_error_elsewhere_is_not_put_down_to_the_store(place: tuple[str, str], tmp_path: Path) -> None:
    report = analyzed(tmp_path, TRACE.format(*place, "Connection reset by peer"))
    assert "store" not in report.reason and not report.culprits


@pytest.mark.parametrize("stack", [True, False])
def test_a_rank_whose_store_is_gone_and_the_store_are_the_two_ends(stack: bool, tmp_path: Path) -> None:
    """Also where the excerpt lacks the stack: torch puts the rank before the lines of an exception that nothing caught."""
    trace = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a/train.py", line 7, in <module>\n[rank1]:     dist.barrier()\n'
    report = analyzed(
        tmp_path,
        "[rank1]:[W501 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=84, addr=[n8]:43210, remote=[n7]:29500): Broken pipe\n"
        + (trace if stack else "")
        + "[rank1]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n",
    )
    assert report.verdict == "failed" and "rank 1 lost torch's store at n7:29500" in report.reason
    assert _who(report) == [(1, None, True), (None, "n7", True)]


@pytest.mark.parametrize("cut", ["", "onnection refused, retrying"])
def test_an_address_that_refuses_every_attempt_is_named(cut: str, tmp_path: Path) -> None:
    """Also where the last attempt is cut: it shows no progress."""
    tries = [RETRY.format("Connection refused", n) for n in range(18, 22)]
    tries[-1] = tries[-1].partition(cut)[0] if cut else tries[-1]
    report = analyzed(tmp_path, "".join(tries))
    assert report.verdict == "failed" and "cannot reach" in report.reason
    assert _who(report) == [(None, "10.4.1.3", False)]


def test_each_end_of_a_route_that_is_missing_is_named(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(RETRY.format("No route to host", n) for n in range(18, 21)))
    assert _who(report) == [(None, "n7", True), (None, "10.4.1.3", True)]


def test_of_two_ranks_with_an_error_of_nccl_the_launcher_names_one(tmp_path: Path) -> None:
    error = "[rank{}]: torch.distributed.DistBackendError: NCCL error in: x/NCCLUtils.cpp:77, unhandled system error, NCCL version 2.26.2\n"
    ended = "E0612 10:00:02.000000 400 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: {} (pid: 412) of binary: /usr/bin/python3\n"
    both = error.format(2) + error.format(1)
    assert [c.pid for c in analyzed(tmp_path, both + ended.format(2)).culprits] == [412]
    assert not analyzed(tmp_path, both).culprits


def test_a_device_is_read_from_the_long_text_of_torch_about_its_memory(tmp_path: Path) -> None:
    text = "RuntimeError: CUDA out of memory. Tried to allocate 382.00 MiB (GPU {}; 15.78 GiB total capacity; 339.50 MiB free) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management\n"
    report = analyzed(tmp_path, text.format(1) + text.format(2))
    assert [c.device for c in report.culprits] == [1, 2]


def test_a_scheduler_of_sglang_without_a_time_in_its_tag_is_named(tmp_path: Path) -> None:
    line = "[TP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    assert "rank 3" in analyzed(tmp_path, line).reason
