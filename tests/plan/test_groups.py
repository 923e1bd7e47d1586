"""The comparison of NCCL's plans with those of the model: what it takes for equal, and a few groups over a real NCCL, with the library of its
kernels, that PSM_TEST_NCCL_PLANS names (LIBRARY,KERNELS; docs/kernels.md says how they are built)."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import plan_groups
from benchmarks.plan_groups import Job, Launched, Result, by_group, compare, difference, of_model, of_nccl
from psmkit.lab import nccl_library
from psmkit.lab.works import Launch, Message, Work
from psmkit.plan import Config, Plan, Scheduler, Step, StepKind, simulate
from psmkit.plan.releases import releases

REAL = os.environ.get("PSM_TEST_NCCL_PLANS", "")
FIFO = 8192
ROWS = releases()


def config(release: int, ranks: int) -> Config:
    return Config(
        ranks=ranks,
        scheduler=Scheduler.PLANNER,
        pass_sm=False,
        release=release,
        p2p_channels=16,
        p2p_channels_per_peer=16,
        p2p_chunk_bytes=8192,
        work_fifo_bytes=FIFO,
    )


def launches(plans: tuple[Plan, ...], rank: int) -> list[Launch]:
    """As NCCL would launch these plans: works of arguments lie behind their batches, those of the FIFO one after the other."""
    out, begin = [], 5 * FIFO
    for plan in plans:
        base = begin if plan.storage == "fifo" else 32 + 16 * sum(work.first for work in plan.works)
        made: dict[tuple[int, int], Work] = {}
        batch: dict[int, int] = {}
        for work in plan.works:
            if work.first:
                batch[work.channel] = batch.get(work.channel, -1) + 1
            one = made.setdefault(
                (work.channel, work.place),
                Work(
                    channel=work.channel,
                    batch=batch[work.channel],
                    extends=work.extends,
                    offset=base + work.place,
                    function="SendRecv",
                    round_to=work.round_to,
                    round_from=work.round_from,
                    part=int(any(place == work.place for _, place in made)),
                    send=None,
                    recv=None,
                ),
            )
            message = Message(work.peer, work.nbytes, work.nbytes, 1, ll=False)
            side = {"send": message} if work.func.label == "send" else {"recv": message}
            made[work.channel, work.place] = replace(one, **side)  # type: ignore[arg-type]
        out.append(Launch(1, rank, plan.id, plan.storage, tuple(made.values())))
        begin += plan.work_bytes * (plan.storage == "fifo")
    return out


def group(seed: int, ranks: int) -> list[Step]:
    return plan_groups.group(random.Random(seed), ranks, FIFO)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_a_launch_says_is_what_the_model_says(row) -> None:  # type: ignore[no-untyped-def]
    several = 0
    for seed in range(5):
        ranks = 2 + seed
        for rank, plans in enumerate(simulate(config(row.since, ranks), group(seed, ranks)).plans):
            model = list(of_model(plans, FIFO))
            real = [of_nccl(launch, FIFO) for launch in launches(plans, rank)]
            assert difference(real, model) is None
            several += len(plans) > 1
    assert several > 2


def test_models_of_releases_that_cut_in_other_places_differ() -> None:
    """Carried rounds, groups of rounds, and passes each show in groups of this kind."""
    kinds = {(row.grouped_rounds, row.round_groups, row.epochs, row.carries, row.reversed_rounds): row for row in ROWS}
    seen = set()
    for seed in range(40):
        if len(seen) == len(kinds) - 1:
            break
        ranks = 9 if seed % 2 else 5
        plans = {
            row.name: [
                list(of_model(mine, FIFO)) for mine in simulate(config(row.since, ranks), group(seed, ranks)).plans
            ]
            for row in kinds.values()
        }
        names = list(plans)
        seen |= {(a, b) for a, b in pairwise(names) if plans[a] != plans[b]}
    assert len(seen) == len(kinds) - 1, seen


def launched(**changes: object) -> Launched:
    piece = (0, (1, 1), (1, 300), None)
    values = {"storage": "fifo", "begin": 48, "channels": ((2, ((False, (piece,)),)),), "messages": 1}
    return Launched(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"storage": "arguments"}, "plan 1: in fifo at 48, in the model in arguments at 48"),
        ({"begin": 96}, "plan 1: in fifo at 48, in the model in fifo at 96"),
        (
            {"channels": ((3, ((False, ((0, (1, 1), (1, 300), None),)),)),)},
            r"plan 1: channels \[2\], in the model \[3\]",
        ),
        ({"channels": ((2, ((True, ((0, (1, 1), (1, 300), None),)),)),)}, "plan 1, channel 2, batch 0"),
        ({"channels": ((2, ((False, ((0, (1, 2), (1, 300), None),)),)),)}, "plan 1, channel 2, batch 0"),
        ({"channels": ((2, ((False, ((0, (1, 1), (1, 301), None),)),)),)}, "plan 1, channel 2, batch 0"),
        ({"channels": ((2, ((False, ((0, (1, 1), None, (1, 300)),)),)),)}, "plan 1, channel 2, batch 0"),
    ],
)
def test_each_difference_is_named(changes: dict[str, object], words: str) -> None:
    text = difference([launched()], [launched(**changes)])
    assert text is not None
    assert re.match(words, text), text
    assert difference([launched()], []) == "NCCL has 1 plans, the model 0"


def test_groups_are_found_by_their_messages() -> None:
    one, two = launched(), launched(messages=2)
    assert by_group([one, two, two], [3, 0, 2]) == [[one, two], [], [two]]
    assert by_group([one, two], [2, 1]) is None  # a plan with messages of two groups
    assert by_group([one], [1, 1]) is None and by_group([one, two], [1]) is None


def test_only_groups_whose_plans_are_equal_on_all_ranks_agree() -> None:
    result, one, other = Result(groups=2), launched(), launched(begin=96)
    compare(result, "here", [[one, one], [one, one]], [[one, one], [one, other]], [[1, 1], [1, 1]])
    assert (result.agree, result.cut, result.plans) == (1, 0, 4)
    assert result.log == ["here: group 1, rank 1: plan 1: in fifo at 48, in the model in fifo at 96"]
    result = Result(groups=1)
    compare(result, "here", [[one]], [[]], [[1]])
    assert result.agree == 0 and "the plans of the model do not have the messages of the groups" in result.log[0]


def test_a_random_group_has_the_recv_of_each_send() -> None:
    for seed in range(20):
        steps = group(seed, 4)
        assert steps[-1].kind is StepKind.GROUP_END
        sides: dict[str, list[tuple[int, int, int]]] = {"send": [], "recv": []}
        for step in steps[:-1]:
            assert step.task is not None and step.rank is not None
            ends = (step.rank, step.task.peer) if step.task.func.label == "send" else (step.task.peer, step.rank)
            sides[step.task.func.label].append((*ends, step.task.count))
        # those of one pair in their order
        assert sorted(sides["send"], key=lambda m: m[:2]) == sorted(sides["recv"], key=lambda m: m[:2])


def test_jobs_have_all_numbers_of_ranks() -> None:
    made = [job for job, _ in zip(plan_groups.jobs(1), range(7), strict=False)]
    assert sorted(job.ranks for job in made) == [2, 3, 4, 5, 6, 7, 8]
    assert all(isinstance(job, Job) for job in made)


def test_a_release_goes_on_behind_the_groups_that_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Job, int, int]] = []

    def go(_library: object, _kernels: Path, job: Job, count: int, seed: int, _folder: Path) -> Result:
        seen.append((job, count, seed))
        return Result(count, agree=count - 1, storages=Counter({"fifo": 2}), log=["one differs"])

    monkeypatch.setattr(plan_groups, "go", go)
    library = nccl_library.Library(Path("libnccl.so"), "2.30.7", "", "shared 13", ())
    chosen = argparse.Namespace(seed=1, groups=45, keep=None)
    rows = list(plan_groups.whole("nccl", library, Path(), chosen, None))
    assert [(row["groups"], row["agree"], len(row["log"])) for row in rows] == [(20, 19, 1), (40, 38, 2), (45, 42, 3)]
    whole, seen = seen, []
    first = json.loads(json.dumps(rows[0]))
    assert list(plan_groups.whole("nccl", library, Path(), chosen, first))[-1] == rows[-1]
    assert seen == whole[1:] and [seed for _, _, seed in whole] == [1000, 1001, 1002]
    assert "| 2.30.7 | `planner-2.30.3` | 45 | 42 |" in plan_groups.render(rows[-1:])
    assert "- one differs" in plan_groups.render(rows[-1:])


@pytest.mark.skipif(not REAL, reason="PSM_TEST_NCCL_PLANS names no NCCL library and no library of its kernels")
def test_a_real_nccl_cuts_random_groups_as_the_model_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_groups.main([f"nccl={REAL}", "--groups", "4", "--seed", "7"]) == 0, capsys.readouterr().err
