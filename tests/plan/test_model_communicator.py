"""What real communicators over four processes did is held against the model of reclaim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psmkit.plan import What
from psmkit.plan.model import admit
from psmkit.plan.types import Config, Event, Scheduler
from psmkit.testing import Ranks
from tests.plan import communicator_calls as calls

RANKS = 4
CONFIG = Config(ranks=RANKS, channels=3, p2p_channels=2)

pytestmark = [pytest.mark.ranks(RANKS, deadline=120, cuda=True), pytest.mark.usefixtures("spin")]


def refused(traces: list[tuple[Event, ...]]) -> str:
    """Up to what cannot happen."""
    for trace, found in zip(traces, admit(traces), strict=True):
        if found.event is not None:
            around = trace[max(0, found.event - 15) : found.event + 1]
            return "\n".join(f"{e.what.name} {e.plan} {e.a} {e.b} {e.c}" for e in around) + f"\n{found}"
    return ""


@pytest.mark.parametrize("blocking", [False, True], ids=["after-launch", "host-stream"])
@pytest.mark.parametrize("scheduler", list(Scheduler), ids=lambda s: s.label)
def test_the_model_admits_mixed_groups_of_a_real_communicator(
    ranks: Ranks, scheduler: Scheduler, blocking: bool
) -> None:
    config = replace(CONFIG, scheduler=scheduler, launch_blocking=blocking)
    traces = [got.trace for got in ranks.run(calls.mixed_groups, config, 3, False)]
    assert {What.CALLBACK, What.COUNTED_OFF, What.KERNEL_DONE} <= {event.what for trace in traces for event in trace}
    assert refused(traces) == ""


def test_the_model_admits_a_graph_of_a_real_communicator(ranks: Ranks) -> None:
    traces = [ended.trace for _, ended in ranks.run(calls.replayed, CONFIG, 0)]
    assert What.DESTRUCTOR in {event.what for trace in traces for event in trace}
    assert refused(traces) == ""
