"""What the test of plans runs in other processes."""

from __future__ import annotations

import os
import time

import numpy as np

from psmkit.live import state
from psmkit.model.inspection import Note, StateObject
from psmkit.plan.types import Config
from psmkit.testing import Rank
from tests.plan.communicator_calls import communicator


def a_send_without_its_recv(rank: Rank, config: Config) -> tuple[list[StateObject], list[Note]]:
    """Rank 0 launches a send, reads its own memory while rank 1 does not receive, and goes on."""
    with communicator(rank, config) as comm:
        data = np.full(1000, rank.number, np.uint8)
        objects: list[StateObject] = []
        notes: list[Note] = []
        if rank.number == 0:
            with comm.group() as group:
                group.send(data, 1)
            end = time.monotonic() + 30
            while time.monotonic() < end and not any(one.kind == "plan" for comm in objects for one in comm.parts):
                comm.poll()
                objects, _, notes = state.read(os.getpid(), deadline=30, gap=0.01)
        rank.barrier("read")
        if rank.number == 1:
            with comm.group() as group:
                group.recv(data, 0)
        comm.wait()
        assert (data == 0).all()
        rank.barrier("over")
        return objects, notes
