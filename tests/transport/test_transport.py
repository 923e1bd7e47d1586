"""Two processes send each other data through psmkit.transport, on emulated CUDA."""

from __future__ import annotations

import pytest

from psmkit.testing import Ranks
from psmkit.transport import Mode
from tests.transport import calls


@pytest.mark.ranks(2, deadline=60, cuda=True)
@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("zero_copy", [False, True], ids=["fifo", "zero-copy"])
def test_data_arrives_and_nothing_is_left_open(ranks: Ranks, zero_copy: bool, on_host: bool) -> None:
    assert ranks.run(calls.data_across, zero_copy, on_host) == [(Mode.CUMEM, [])] * 2
