"""Plans of a communicator of libpsm, in a rank that waits for its peer."""

from __future__ import annotations

import pytest

from psmkit.plan.types import Config
from psmkit.testing import Ranks
from tests.live.state import plan_calls
from tests.live.state.conftest import Seen, values


@pytest.mark.ranks(2, deadline=100, cuda=True)
def test_a_plan_whose_operation_waits_is_shown_with_what_is_open(ranks: Ranks) -> None:
    objects, notes = ranks.run(plan_calls.a_send_without_its_recv, Config(ranks=2, channels=1, p2p_channels=1))[0]
    seen = Seen(objects, [], notes)
    comm = seen.only("communicator")
    assert (comm.rank, values(comm)["openPlans"]) == (0, 1)
    plan = seen.only("plan")
    assert int(values(plan)["open"]) >= 1
    assert (values(plan)["np2ps"], values(plan)["reclaimed"]) == (1, 0)
    assert set(values(seen.only("work fifo"))) == {"produced", "consumed", "depth"}
    assert [op.peer for op in seen.all("proxy op")] == [1]
    assert seen.said == ""
