"""Groups of collectives, sends and recvs over four processes, by plans: data, rules, pools."""

from __future__ import annotations

import pytest

from psmkit.plan.types import Config, Scheduler
from psmkit.testing import Ranks
from tests.plan import communicator_calls as calls

RANKS = 4


@pytest.mark.ranks(RANKS, deadline=120, cuda=True)
@pytest.mark.parametrize("pass_sm", [True, False], ids=["pass-sm", "kernels"])
@pytest.mark.parametrize("scheduler", list(Scheduler), ids=lambda s: s.label)
def test_mixed_groups_complete_with_right_data_and_whole_pools(
    ranks: Ranks, scheduler: Scheduler, pass_sm: bool
) -> None:
    config = Config(ranks=RANKS, scheduler=scheduler, pass_sm=pass_sm, channels=3, p2p_channels=2)
    for got in ranks.run(calls.mixed_groups, config, 3, True):
        assert got.wrong == [] and got.breaches == [] and got.whole
        assert got.plans >= 3
