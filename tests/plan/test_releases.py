"""What each release's planner does with sends and recvs, in cases whose plans were derived by hand from the rules of the release."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from psmkit.plan import Config, Func, Plan, Scheduler, Step, StepKind, Task, parse, simulate
from psmkit.plan.releases import named, number, release_of, releases, scheduler_name, version

# Half of the FIFO holds two works of 48 bytes, and the kernel's arguments the batches of two: a plan is two works.
TWO_WORKS = {"work_fifo_bytes": 256, "work_args_bytes": 64}


def config(release: str, ranks: int, **more: object) -> Config:
    code = number(release)
    assert code is not None
    values: dict[str, object] = {"p2p_channels": 1, "channels": 1, "pass_sm": False, **more}
    return Config(ranks=ranks, scheduler=Scheduler.PLANNER, release=code, **values)  # type: ignore[arg-type]


def plans(made: Config, tasks: str, rank: int = 0) -> tuple[Plan, ...]:
    return simulate(made, parse(tasks, made.ranks)).plans[rank]


def sends(plan: Plan) -> list[int]:
    return [work.peer for work in plan.works if work.func is Func.SEND]


def batches(plan: Plan, func: Func = Func.SEND) -> list[list[int]]:
    """The peers of each batch; of a work's two directions, one."""
    out: list[list[int]] = []
    for work in plan.works:
        if work.first or not out:
            out.append([])
        if work.func is func:
            out[-1].append(work.peer)
    return out


def test_versions_are_read_and_written() -> None:
    assert [number(text) for text in ("2.29.7", "v2.30.7-1", "2.27.5+cuda12.9", "2.29", "x", "")] == [
        *(22907, 23007, 22705),
        *(None, None, None),
    ]
    assert version(22907) == "2.29.7" and version(22203) == "2.22.3"


def test_rows_follow_each_other_and_each_change_stays() -> None:
    rows = releases()
    assert [row.name for row in rows] == [
        "planner",
        *(f"planner-{name}" for name in ("2.27.3", "2.28.3", "2.28.7", "2.29.2", "2.29.7", "2.30.3")),
    ]
    for row, after in itertools.pairwise(rows):
        assert row.since <= row.until < after.since
        for name in ("grouped_rounds", "reversed_rounds", "round_groups", "epochs", "carries", "event_room"):
            assert getattr(after, name) >= getattr(row, name), (after.name, name)
    found = {
        text: release_of(number(text) or 0) for text in ("2.22.3", "2.26.6", "2.27.5", "2.28.5", "2.29.3", "2.30.7")
    }
    assert {text: row and row.name for text, row in found.items()} == {
        "2.22.3": "planner",
        "2.26.6": "planner",
        "2.27.5": "planner-2.27.3",
        "2.28.5": "planner-2.28.3",
        "2.29.3": "planner-2.29.2",
        "2.30.7": "planner-2.30.3",
    }
    assert release_of(22105) is None
    known = {(row.event_room, row.round_groups, row.epochs, row.carries) for row in rows}
    assert known == {
        *((False, False, False, False), (True, False, False, False), (True, True, False, False)),
        *((True, True, True, False), (True, True, True, True)),
    }


def test_names_of_schedulers() -> None:
    assert named("legacy") == (Scheduler.LEGACY, 0) and named("planner") == (Scheduler.PLANNER, 0)
    assert named("planner-2.29.7") == (Scheduler.PLANNER, 22907)
    with pytest.raises(ValueError, match=r"'planner-2\.29\.8'; expected one of legacy, planner, planner-2\.27\.3"):
        named("planner-2.29.8")
    assert scheduler_name(config("2.29.7", 2)) == "planner-2.29.7"
    assert scheduler_name(Config(ranks=2)) == "legacy"


# Two messages from each rank to each of three, itself included: a pass over the rounds is three works, a plan two of them.
THRICE = "alltoall 64 int8\nalltoall 64 int8\nend"


@pytest.mark.parametrize("release", ["2.26.6", "2.27.7", "2.28.9", "2.29.3"])
def test_up_to_2_29_3_the_plan_after_a_cut_begins_again_at_round_0(release: str) -> None:
    # Plan 1 is cut before the third round. Plan 2 takes the second messages of rounds 0 and 1 before the first of round 2.
    found = plans(config(release, 3, **TWO_WORKS), THRICE)
    assert [sends(plan) for plan in found] == [[0, 1], [0, 1], [2, 2]]


@pytest.mark.parametrize("release", ["2.29.7", "2.30.3", "2.30.7"])
def test_from_2_29_7_the_plan_after_a_cut_goes_on_at_its_round(release: str) -> None:
    found = plans(config(release, 3, **TWO_WORKS), THRICE)
    assert [sends(plan) for plan in found] == [[0, 1], [2, 0], [1, 2]]


def test_a_group_begins_at_round_0_whatever_the_last_one_was_cut_at() -> None:
    once = "alltoall 64 int8\nend\n"
    found = plans(config("2.30.7", 3, **TWO_WORKS), once + once)
    assert [sends(plan) for plan in found] == [[0, 1], [2], [0, 1], [2]]


def test_a_batch_mixes_no_passes_from_2_29_2_unless_the_setting_is_off() -> None:
    # Plan 2 of a carried cut has round 2 of the first pass and round 0 of the second.
    made = config("2.29.7", 3, **TWO_WORKS)
    assert [batches(plan) for plan in plans(made, THRICE)] == [[[0, 1]], [[2], [0]], [[1, 2]]]
    off = replace(made, mix_epochs=True)
    assert [batches(plan) for plan in plans(off, THRICE)] == [[[0, 1]], [[2, 0]], [[1, 2]]]


TO_NINE = "".join(f"0: send 64 int8 to={peer}\n{peer}: recv 64 int8 from=0\n" for peer in range(1, 10))


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        # Distances 0, 1, 3, 6, 5, 4, 7, 2, 9, 8 of ten ranks, eight works to a batch.
        ("2.26.6", [[1, 3, 6, 5, 4, 7, 2, 9], [8]]),
        ("2.28.3", [[1, 3, 6, 5, 4, 7, 2, 9], [8]]),
        # Distances in order; rounds 1 to 7 are of the first group of 8, and 8 and 9 of the second.
        ("2.28.7", [[1, 2, 3, 4, 5, 6, 7], [8, 9]]),
        ("2.30.7", [[1, 2, 3, 4, 5, 6, 7], [8, 9]]),
    ],
)
def test_rounds_of_a_batch(release: str, expected: list[list[int]]) -> None:
    (plan,) = plans(config(release, 10), TO_NINE)
    assert batches(plan) == expected


@pytest.mark.parametrize(
    ("release", "channels"),
    [
        # Round 1 on 4 channels: at channel 1, its second part at 1 + 2; from 2.28.3 at channel 2, and its second part at 3.
        ("2.26.6", [1, 3]),
        ("2.27.7", [1, 3]),
        ("2.28.3", [2, 3]),
        ("2.30.7", [2, 3]),
    ],
)
def test_channels_of_a_round_and_its_parts(release: str, channels: list[int]) -> None:
    made = config(release, 8, p2p_channels=4, p2p_channels_per_peer=2, p2p_chunk_bytes=128)
    (plan,) = plans(made, "0: send 8192 int8 to=1\n1: recv 8192 int8 from=0")
    assert [work.channel for work in plan.works] == channels


@pytest.mark.parametrize(("release", "parts"), [("2.26.6", 2), ("2.28.9", 2), ("2.29.2", 1), ("2.30.7", 1)])
def test_parts_of_a_small_message(release: str, parts: int) -> None:
    # 12,000 bytes have protocol LL: parts of at least an eighth of its step, 8 KiB; from 2.29.2 of Simple's chunk, 16 KiB.
    made = config(release, 2, p2p_channels=4, p2p_channels_per_peer=2, ll_threshold=16 << 10)
    (plan,) = plans(made, "0: send 12000 int8 to=1\n1: recv 12000 int8 from=0")
    assert len(plan.works) == parts


def test_rounds_over_nodes_go_by_groups_of_ranks_from_2_28_7() -> None:
    # Two nodes of four: groups of 4 ranks. Before: nodes by distance, ranks on them by 0, 1, 3, 2.
    tasks = "".join(f"0: send 64 int8 to={peer}\n{peer}: recv 64 int8 from=0\n" for peer in range(1, 8))
    for release, expected in (("2.28.3", [1, 3, 2, 4, 5, 7, 6]), ("2.28.7", [1, 2, 3, 4, 5, 6, 7])):
        (plan,) = plans(config(release, 8, nodes=2), tasks)
        assert sends(plan) == expected, release


# ---- the work FIFO ----

RING = [Step(StepKind.TASK, Task(Func.SEND, 64, peer=1), 0), Step(StepKind.TASK, Task(Func.RECV, 64, peer=0), 1)]
END = Step(StepKind.GROUP_END)


def small_fifo(release: str) -> Config:
    # 256 bytes: five works of 48; a plan may have two, and none fits into the arguments.
    return config(release, 2, **TWO_WORKS)


@pytest.mark.parametrize(
    ("release", "most"), [("2.26.6", 60), ("2.27.3", 5), ("2.28.9", 5), ("2.29.7", 5), ("2.30.7", 5)]
)
def test_one_group_waits_for_itself_if_it_needs_more_than_the_fifo_holds(release: str, most: int) -> None:
    made = small_fifo(release)
    assert not simulate(made, [*RING * most, END]).stuck
    done = simulate(made, [*RING * (most + 1), END])
    assert done.stuck is (most == 5)
    if done.stuck:
        assert {(event.rank, event.waits) for event in done.waiting()} == {
            (rank, ("main thread", "room in the work FIFO")) for rank in (0, 1)
        }


def test_groups_that_fit_give_their_room_back() -> None:
    assert not simulate(small_fifo("2.30.7"), [*RING * 4, END] * 20).stuck


def test_an_eighth_of_the_fifo_is_given_back_only_with_more() -> None:
    # 1 KiB: a group of two works (96 bytes) is below an eighth, and nothing is recorded behind it. 19 works fit in the other 928 bytes, 20 do not.
    made = replace(small_fifo("2.30.7"), work_fifo_bytes=1024)
    small = [*RING * 2, END]
    assert not simulate(made, [*small, *RING * 19, END]).stuck
    assert simulate(made, [*small, *RING * 20, END]).stuck
    assert not simulate(made, [*small, *small, *RING * 20, END]).stuck  # 192 bytes were recorded
