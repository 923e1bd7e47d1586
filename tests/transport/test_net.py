"""Two processes send each other data through a network, from Python, on emulated CUDA."""

from __future__ import annotations

import pytest

from psmkit.proxy import NotFoundError
from psmkit.testing import Ranks
from psmkit.transport import net_variant, net_variants
from tests.transport import net_calls


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_arrays_arrive_through_the_network(ranks: Ranks) -> None:
    got = ranks.run(net_calls.arrays_across)
    assert got == [([True] * 3, f"<NetEnd of rank {r} -> rank {1 - r}, channel 0, PSM>") for r in (0, 1)]


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_info_that_is_not_the_peers_is_refused(ranks: Ranks) -> None:
    for r, said in enumerate(ranks.run(net_calls.swapped)):
        assert said.startswith("MismatchError: ") and f"the peer's rank is {1 - r} at rank {r} and {r} at rank" in said


def test_variants_have_what_libpsm_says() -> None:
    found = net_variants()
    assert not net_variant().wrong and net_variant().name == "split" and net_variant().code == ""
    assert found["whole-struct"].code == "PSM507" and found["wrong-size"].faults.startswith("net.send.post:")
    with pytest.raises(NotFoundError):
        net_variant("nonsense")
