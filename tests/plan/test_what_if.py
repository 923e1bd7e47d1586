"""A small run at another size."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from psmkit.plan import Config, Func, Scheduler, Step, StepKind, Task, packed
from psmkit.plan.own import own_plans
from psmkit.plan.scaling import Pattern, peers
from psmkit.plan.small import Ends, Setup, SmallRun, WhatIfError
from psmkit.plan.what_if import WhatIf, groups_of, replayed, what_if
from psmkit.plan.what_if_page import layout, render

RING, ALL = Pattern("shift", 1), Pattern("all")


def small(
    ranks: int, *patterns: Pattern, count: int = 1024, links: Pattern | None = None, known: bool = True
) -> SmallRun:
    """Ranks that send by these patterns, beside a collective, and the plans that they record."""
    config = Config(ranks=ranks, scheduler=Scheduler.PLANNER, channels=2, p2p_channels=4, pass_sm=True)
    groups = []
    for rank in range(ranks):
        mine = [Task(Func.ALLREDUCE, 4096)]
        for source in range(ranks):
            for peer, times in peers(patterns, source, ranks).items():
                mine += [Task(Func.SEND, count, peer=peer)] * times if source == rank else []
                mine += [Task(Func.RECV, count, peer=source)] * times if peer == rank else []
        groups.append((tuple(mine),) * 2)
    out = SmallRun(
        ranks=ranks,
        processors=2,
        config=config if known else Config(ranks=ranks, scheduler=Scheduler.PLANNER),
        config_known=known,
    )
    out.groups = tuple(groups)
    for rank, mine in enumerate(groups):
        steps = [
            s
            for group in mine
            for s in [*(Step(StepKind.TASK, t, rank) for t in group), Step(StepKind.GROUP_END, None, rank)]
        ]
        made = own_plans(config, rank, packed.pack(steps)).plans
        out.plans[rank] = [(int(p["group"]), int(p["channelMask"]), int(p["ncolls"]), int(p["np2ps"])) for p in made]
    table = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        for peer, times in peers([links or ALL], rank, ranks).items():
            table[rank, peer] += times
    out.links, out.fifo, out.control = table, [1 << 20] * 4, [448] * 4
    for case, (some, ends) in enumerate(((0, 0), (1, 2), (2, 4), (3, 6)) * 3):
        whole = Ends(some * ranks, ends * ranks, 0, 0)
        seconds = (ranks * 0.004 + whole.ends * 0.0005) / 2
        out.setups += [
            Setup(case, Ends(some, ends, 0, 0), whole, ranks, seconds, 2 + 2 * some + ends // 2) for _ in range(ranks)
        ]
    return out


def of(done: WhatIf, name: str) -> float:
    return next(q.most for q in done.quantities if q.name == name)


@pytest.mark.parametrize("patterns", [[RING], [ALL], [RING, Pattern("kept", 0, 2)], [Pattern("to-hub", 0), RING]])
def test_a_replay_at_the_recorded_size_gives_the_recorded_plans(patterns: list[Pattern]) -> None:
    run = small(4, *patterns)
    done = replayed(run, groups_of(run))
    assert done is not None
    assert (done.same, done.first) == (done.recorded, "")
    assert done.recorded == sum(map(len, run.plans.values())) > 0


def test_a_plan_that_does_not_come_back_is_named() -> None:
    run = small(4, RING)
    group, mask, colls, p2ps = run.plans[2][0]
    run.plans[2][0] = (group, mask ^ 1, colls, p2ps)
    done = replayed(run, groups_of(run))
    assert done is not None
    assert done.same == done.recorded - 1
    assert done.first.startswith("rank 2, plan 1: recorded")


def test_settings_that_nobody_recorded_are_those_that_give_the_plans_back() -> None:
    done = what_if(small(4, ALL, known=False), 64, 8)
    assert done.replay is not None and done.replay.same == done.replay.recorded
    assert any("give the recorded plans back" in note for note in done.notes)


def test_each_number_grows_with_the_ranks() -> None:
    run = small(4, ALL)
    answers = [what_if(run, ranks, 8, processors=2) for ranks in (4, 16, 64, 256, 1024)]
    for name in (
        "tasks",
        "plan cycles",
        "proxy operations",
        "connection ends",
        "memory of connections",
        "descriptors",
        "set-up time",
    ):
        values = [of(done, name) for done in answers]
        assert values == sorted(values), name
    assert of(answers[-1], "tasks") == 2 * (1 + 2 * 1023)


def test_set_up_of_a_shared_node_costs_what_its_ranks_cost_together() -> None:
    done = what_if(small(4, ALL), 16, 16, processors=2)
    assert of(done, "set-up time") == pytest.approx((16 * 0.004 + 16 * 15 * 2 * 0.0005) / 2, rel=1e-6)
    alone = what_if(small(4, ALL), 16, 16)
    assert of(alone, "set-up time") == pytest.approx(0.004 + 15 * 2 * 0.0005, rel=1e-6)


def test_the_worst_rank_is_the_hub() -> None:
    run = small(5, Pattern("to-hub", 2), links=Pattern("to-hub", 2))
    done = what_if(run, 1000, 8)
    worst = {q.name: q for q in done.quantities}
    for name in ("tasks", "connection ends", "set-up time", "descriptors"):
        assert worst[name].worst == 2, name
        assert worst[name].most > worst[name].median
    assert "serves most peers" in worst["connection ends"].why
    assert done.connections == {"within a node": 7, "between nodes": 992}


def test_what_was_not_measured_is_said_to_be_assumed() -> None:
    done = what_if(small(4, ALL), 64, 8)
    kinds = {p.name: p.measured for p in done.parameters}
    assert kinds["handshake of an end"] and not kinds["handshake of an end to another node"]
    assert not kinds["pidfd of a peer"]
    assert done.missing


def test_all_to_all_of_10240_ranks_is_counted_in_bounded_time_and_memory() -> None:
    code = (
        "import time\n"
        "from tests.plan.test_what_if import ALL, small\n"
        "from psmkit.plan.what_if import what_if\n"
        "begun = time.process_time()\n"
        "done = what_if(small(4, ALL), 10240, 8)\n"
        # not ru_maxrss: a process takes that over from the one that started it
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print(time.process_time() - begun, peak, sum(done.connections.values()))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True).stdout
    seconds, kib, connections = map(float, out.split())
    assert connections == 10240 * 10239
    assert seconds < 30 and kib < 512 << 10


def test_ranks_that_call_other_collectives_are_refused() -> None:
    run = small(4, RING)
    run.groups = (*run.groups[:3], ((Task(Func.REDUCE, 8), *run.groups[3][0][1:]),))
    with pytest.raises(WhatIfError, match="rank 3 calls other collectives than rank 0"):
        what_if(run, 64, 8)


def test_nothing_and_fewer_ranks_are_refused() -> None:
    with pytest.raises(WhatIfError, match="nothing to replay"):
        what_if(SmallRun(ranks=4), 64, 8)
    with pytest.raises(WhatIfError, match="expected as many or more"):
        what_if(small(4, RING), 3, 8)


def test_text_and_json_say_the_same() -> None:
    done = what_if(replace(small(4, ALL)), 10_240, 8)
    text = layout(done, 100).text()
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "4 recorded ranks as 10,240 ranks, 8 on a node" in text
    assert "8 of 8 recorded plans come back" in text
    assert '"schema": "psmkit.plan-what-if/1"' in render(done)
