"""Test your own transport with the `ranks` fixture: run `pytest examples/test_my_transport.py`.

The transport is small: the receiver creates a mailbox in shared memory and sends its name, the sender attaches it and writes. The fixture adds
the rest: processes, an exchange before the transport exists, barriers, a deadline with the stacks of all ranks, and checks for files left in
/dev/shm and for processes that still run.
"""

from __future__ import annotations

import mmap
import os
import secrets

import pytest

from psmkit.testing import Rank, Ranks, RanksFailedError

SIZE = 4096


class Mailbox:
    """A page of shared memory: byte 0 is the length of the message that follows."""

    def __init__(self, name: str, *, create: bool) -> None:
        self.path = f"/dev/shm/{name}"
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = os.open(self.path, flags, 0o600)
        if create:
            os.ftruncate(descriptor, SIZE)
        self.memory = mmap.mmap(descriptor, SIZE)
        os.close(descriptor)

    def post(self, message: bytes) -> None:
        self.memory[1 : 1 + len(message)] = message
        self.memory[0] = len(message)

    def poll(self) -> bytes | None:
        return self.memory[1 : 1 + self.memory[0]] if self.memory[0] else None


def handshake(rank: Rank, message: bytes) -> bytes:
    """Rank 0 receives what rank 1 sends. This runs in each process; the test gets the return values."""
    mine = Mailbox(f"my-transport-{secrets.token_hex(8)}", create=True) if rank.number == 0 else None
    rank.stage("tell")
    (name, *_) = rank.gather(mine.path.rpartition("/")[2].encode() if mine else b"")
    assert name is not None
    box = mine or Mailbox(name.decode(), create=False)
    rank.barrier("attached")
    if mine:
        os.unlink(mine.path)  # both ranks have it mapped: nothing is left behind, however this ends
    rank.stage("message")
    if rank.number == 1:
        box.post(message)
    while (got := box.poll()) is None:
        pass
    return got


def without_an_answer(rank: Rank) -> None:
    """Rank 0 forgets to post, so rank 1 waits for ever."""
    path = f"/dev/shm/my-transport-{os.getppid()}-{rank.number}"
    box = Mailbox(os.path.basename(path), create=True)
    os.unlink(path)
    rank.stage("message")
    while rank.number == 1 and box.poll() is None:
        pass


@pytest.mark.ranks(2, deadline=60)
def test_message_arrives(ranks: Ranks) -> None:
    assert ranks.run(handshake, b"hello") == [b"hello", b"hello"]


@pytest.mark.ranks(2, deadline=2)
def test_a_hang_is_reported_with_its_stage_and_line(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError, match="rank 1: hung, stage message") as caught:
        ranks.run(without_an_answer)
    assert "in without_an_answer" in str(caught.value)  # the stack of rank 1
