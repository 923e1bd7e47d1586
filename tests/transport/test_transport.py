"""Two processes send each other data through psmkit.transport, on emulated CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit._native.psm import ffi
from psmkit.proxy import ShareKind
from psmkit.testing import Ranks
from psmkit.transport import Mode
from psmkit.transport.memory import place_of
from tests.transport import calls

APART = Path(__file__).parents[1] / "csrc" / "psm" / "p2p" / "apart.toml"


@pytest.mark.ranks(2, deadline=60, cuda=True)
@pytest.mark.parametrize("zero_copy", [False, True], ids=["fifo", "zero-copy"])
@pytest.mark.parametrize(
    ("share", "on_host", "mode"),
    [
        (ShareKind.AUTO, False, Mode.CUMEM),
        (ShareKind.AUTO, True, Mode.CUMEM),
        (ShareKind.CUDA_IPC, False, Mode.IPC),
        (ShareKind.MEMFD, True, Mode.SHM),
        (ShareKind.POSIX, False, Mode.SHM),
    ],
    ids=["device", "host", "ipc", "memfd", "posix"],
)
def test_data_arrives_and_nothing_is_left_open(
    ranks: Ranks, zero_copy: bool, share: ShareKind, on_host: bool, mode: Mode
) -> None:
    # Of two ranks that share by files with names, neither can register device memory: it goes through the FIFO.
    registered = zero_copy and share is not ShareKind.POSIX
    assert ranks.run(calls.data_across, zero_copy, on_host, int(share)) == [(mode, registered, [])] * 2


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_host_arrays_are_sent_and_received_as_they_are(ranks: Ranks) -> None:
    refused = ["BufferError", "ValueError", "InvalidError", "TypeError", "ValueError"]
    assert ranks.run(calls.arrays_across) == [(True, b"hello", refused)] * 2


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_wait_with_a_limit_leaves_the_group_as_it_is(ranks: Ranks) -> None:
    said, _ = ranks.run(calls.late_peer)
    assert said == [
        "WaitTimeoutError: the group has not ended in 0.05 s: look what its peers do",
        "InvalidError: the end to rank 1 is in use: wait for its group, or abort the proxy",
        "False",
        "here",
    ]


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_sizes_that_differ_are_told_on_both_sides(ranks: Ranks) -> None:
    got = ranks.run(calls.short_send)
    assert ("MismatchError", True) in [(name, "3" in text and "5" in text) for name, text in got]
    # the other rank may see the abort, or only that its peer has gone
    assert {name for name, _ in got} <= {"MismatchError", "AbortedError", "PeerClosedError"}


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_exception_in_a_block_gives_up_what_runs_and_tells_the_others(ranks: Ranks) -> None:
    first, second = ranks.run(calls.given_up)
    assert first == "'changed its mind'[]"
    assert second.startswith("PSM_ERR_ABORTED: ") and "a group was abandoned" in second


@pytest.mark.ranks(1, deadline=60, cuda=True)
def test_memory_is_bounded_and_given_back(ranks: Ranks) -> None:
    ((*kinds, text),) = ranks.run(calls.memory_alone)
    assert kinds == ["ValueError", "ValueError", "TypeError", "BufferError"] and text == "the memory is closed"


@pytest.mark.ranks(2, deadline=60, cuda=True)
@pytest.mark.parametrize("kind", ["legacy", "blocking", "nonblocking"])
def test_group_waits_for_the_applications_stream(ranks: Ranks, kind: str) -> None:
    assert ranks.run(calls.by_stream, kind) == [True, True]


@pytest.mark.ranks(3, deadline=60, cuda=True)
def test_data_goes_by_the_memory_of_a_rank_between(ranks: Ranks) -> None:
    first, second, third = ranks.run(calls.by_a_rank_between, environment={"PSM_TOPOLOGY": str(APART)})
    assert first == second == ["SHM", "2", "INTERMEDIATE", "True"] and third == ["SHM", "2"]


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_registration_of_another_end_is_refused(ranks: Ranks) -> None:
    assert ranks.run(calls.wrong_registrations) == [["the registration is closed, or belongs to another end"] * 2] * 2


class Array:
    """As CuPy and PyTorch give it."""

    def __init__(self, shape: tuple[int, ...], kind: str, *, read_only: bool = False, strides: object = None) -> None:
        self.__cuda_array_interface__ = {
            "data": (0x7000_0000, read_only),
            "shape": shape,
            "typestr": kind,
            "strides": strides,
            "version": 3,
        }


def test_cuda_arrays_are_buffers() -> None:
    pointer, size, _ = place_of(Array((3, 5), "<f4"), writable=True)
    assert (int(ffi.cast("uintptr_t", pointer)), size) == (0x7000_0000, 60)
    assert place_of(Array((), "|u1", read_only=True), writable=False)[1] == 1
    with pytest.raises(BufferError, match="cannot be written to"):
        place_of(Array((1,), "|u1", read_only=True), writable=True)
    with pytest.raises(TypeError, match="not contiguous"):
        place_of(Array((4,), "<f4", strides=(8,)), writable=False)
