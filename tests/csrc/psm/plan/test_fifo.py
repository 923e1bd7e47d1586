"""The work FIFO, pools and memory of plans."""

from __future__ import annotations

import pytest

from tests.csrc.psm.plan.scheduling import (
    ALLGATHER,
    BROADCAST,
    LEGACY,
    MIB,
    PLANNER,
    Comm,
    Driver,
    Json,
    Task,
    all_reduce,
    column,
    recv,
    send,
)

KINDS = [LEGACY, PLANNER]
POOLS = ("plans", "ops", "tasks", "copies", "tables")


def alternating(n: int) -> list[Task]:
    """Kinds that do not share slots."""
    return [all_reduce(MIB) if i % 2 else Task(BROADCAST, MIB) for i in range(n)]


def groups(comm: Comm, *parts: str | Task) -> list[str]:
    return [comm.line(), *(part if isinstance(part, str) else part.line() for part in parts)]


def last(answer: list[Json]) -> Json:
    return answer[-1]


# ---- legacy: slots ----


def test_first_slots_of_channels_lie_side_by_side_and_the_others_behind(scheduler: Driver) -> None:
    comm = Comm(nchannels=3, depth=64)
    plan = last(scheduler.obey(*groups(comm, *alternating(3), "schedule 0", "upload", "done")))
    assert column(plan["works"], "channel", "place") == [
        *[(0, 0), (0, 3), (0, 4)],
        *[(1, 1), (1, 5), (1, 6)],
        *[(2, 2), (2, 7), (2, 8)],
    ]
    assert plan["acks"] == {"0": 5, "1": 7, "2": 9}


def test_the_next_plan_follows_in_the_fifo(scheduler: Driver) -> None:
    comm = Comm(nchannels=3, depth=64)
    again = (*alternating(1), "schedule 0", "upload")
    answers = scheduler.obey(*groups(comm, *again, *again, "done", "done"))
    assert [column(answer["works"], "place") for answer in answers if "works" in answer] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("sent", "places"), [(61, [61, 62, 63]), (62, [0, 1, 2]), (63, [0, 1, 2]), (2**32 - 2, [0, 1, 2])]
)
def test_first_slots_never_go_over_the_end_of_the_fifo(scheduler: Driver, sent: int, places: list[int]) -> None:
    comm = Comm(nchannels=3, depth=64)
    plan = last(scheduler.obey(*groups(comm, f"fifo {sent}", *alternating(1), "schedule 0", "upload", "done")))
    assert column(plan["works"], "place") == places


def test_other_slots_do_go_over_it(scheduler: Driver) -> None:
    comm = Comm(nchannels=3, depth=64)
    plan = last(scheduler.obey(*groups(comm, "fifo 60", *alternating(3), "schedule 0", "upload", "done")))
    assert sorted(column(plan["works"], "place")) == [0, 1, 2, 3, 4, 60, 61, 62, 63]
    assert plan["acks"] == {"0": 65, "1": 67, "2": 69}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nchannels", "pauses"), [(1, [0, 0, 1, 2]), (4, [0, 0, 2, 2])])
def test_upload_waits_until_kernels_have_given_room_back(
    scheduler: Driver, kind: int, nchannels: int, pauses: list[int]
) -> None:
    """Each plan fills half: the third waits for the kernel of the first. With more channels it waits for the second, too:
    a channel tells of its own last work only, and while it has more to run, the others may have come no further."""
    comm = Comm(scheduler=kind, nchannels=nchannels, depth=16, args_bytes=160, fifo_bytes=1024)
    tasks = alternating(8 // nchannels) if kind == LEGACY else [all_reduce(8)] * 5
    group = (*tasks, "schedule 0", "upload")
    answers = scheduler.obey(*groups(comm, *group, *group, *group, *group, "done", "done"))
    assert [answer["pauses"] for answer in answers if "pauses" in answer] == pauses


@pytest.mark.parametrize("kind", KINDS)
def test_channels_that_stand_still_hold_nobody_up_over_all_of_the_counter(scheduler: Driver, kind: int) -> None:
    """Channel 3 runs once, then only 0 for as long as it takes the 32-bit counter to run over; then 3 again."""
    comm = Comm(scheduler=kind, nchannels=4, depth=16, args_bytes=160, fifo_bytes=1024)
    wide = (
        [*alternating(1), "schedule 0", "upload", "done"]
        if kind == LEGACY
        else [*[all_reduce(MIB)] * 2, "schedule 0", "upload", "done"]
    )
    narrow = [*([all_reduce(8)] if kind == LEGACY else [all_reduce(8)] * 2), "schedule 0", "upload", "done"]
    start = f"fifo {2**32 - 200}"
    answers = scheduler.obey(*groups(comm, start, *wide, *(narrow * 300), *wide))
    assert {answer["pauses"] for answer in answers if "pauses" in answer} == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_ends_the_wait_for_room(scheduler: Driver, kind: int) -> None:
    comm = Comm(scheduler=kind, nchannels=4, depth=16, args_bytes=160, fifo_bytes=1024)
    tasks = alternating(2) if kind == LEGACY else [all_reduce(8)] * 5
    group = (*tasks, "schedule 0", "upload")
    answers = scheduler.obey(*groups(comm, *group, *group, "abort", *group, "done", "done"))
    assert last(answers)["status"] == "PSM_ERR_ABORTED"
    taken = "16 of 16" if kind == LEGACY else "960 of 1024"
    assert last(answers)["error"] == (
        f"plan 3 was waiting for space in the work FIFO when the communicator was aborted: {taken} are in use; destroy it"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_plans_without_a_kernel_take_no_room(scheduler: Driver, kind: int) -> None:
    comm = Comm(scheduler=kind, nchannels=4, depth=16, pass_sm=1, args_bytes=160, fifo_bytes=1024)
    group = (send(1, 8), "schedule 0", "upload")
    answers = scheduler.obey(*groups(comm, *group * 40, *["done"] * 40))
    assert {(answer["pauses"], len(answer["acks"])) for answer in answers if "pauses" in answer} == {(0, 0)}


def test_slots_of_a_mixed_plan_are_those_of_its_kernel(scheduler: Driver) -> None:
    comm = Comm(nchannels=3, depth=64, pass_sm=1)
    plan = last(scheduler.obey(*groups(comm, *alternating(1), send(1, 8), "schedule 0", "upload", "done")))
    assert plan["acks"] == {"0": 1, "1": 2, "2": 3} and plan["mask"] == 0b10111


@pytest.mark.parametrize("kind", KINDS)
def test_a_persistent_plan_has_memory_of_its_own(scheduler: Driver, kind: int) -> None:
    comm = Comm(scheduler=kind, nchannels=3, depth=4, args_bytes=160, fifo_bytes=256)
    answers = scheduler.obey(*groups(comm, *[Task(ALLGATHER, MIB)] * 12, "schedule 1", "upload", "done"))
    assert last(answers)["acks"] == {} and last(answers)["pauses"] == 0 and last(answers)["ncolls"] == 12


# ---- planner: bytes ----


def test_works_of_the_planner_go_over_the_end_of_the_fifo(scheduler: Driver) -> None:
    comm = Comm(scheduler=PLANNER, nchannels=2, args_bytes=160, fifo_bytes=1024)
    tasks = [all_reduce(MIB)] * 3
    plan = last(scheduler.obey(*groups(comm, "fifo 928", *tasks, "schedule 0", "upload", "done")))
    assert sorted(set(column(plan["works"], "place"))) == [0, 96, 928]
    assert plan["acks"] == {"0": 928 + 192, "1": 928 + 288}, "each channel acknowledges its own last work"


# ---- memory ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("persistent", [0, 1])
def test_groups_give_everything_back_and_memory_stays_flat(scheduler: Driver, kind: int, persistent: int) -> None:
    comm = Comm(scheduler=kind, nchannels=4, pass_sm=1)
    tasks = [*alternating(5), send(1, 100_000), recv(7, 0), send(0, 8, at=64), recv(0, 8, at=128)]
    group = [*tasks, f"schedule {persistent}", "upload", "done"]
    counts = [
        answer for answer in scheduler.obey(*groups(comm, *group, "count", *group * 50, "count")) if "depth" in answer
    ]
    assert counts[0] == counts[1]
    assert [counts[0][name][0] for name in POOLS] == [0] * 5 and counts[0]["depth"] == 0
    assert [counts[0][name][1] for name in ("plans", "tasks", "copies")] == [1, 9, 1]


def test_a_table_that_is_large_and_one_that_is_small_take_turns_without_growing(scheduler: Driver) -> None:
    comm = Comm(nchannels=4)
    small, large = [all_reduce(8)], alternating(200)
    turn = [*small, "schedule 0", "drop", *large, "schedule 0", "drop"]
    counts = [a for a in scheduler.obey(*groups(comm, *turn, "count", *turn * 3, "count")) if "depth" in a]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nth", range(1, 9))
def test_memory_that_is_refused_leaves_nothing_and_the_next_group_is_whole(
    scheduler: Driver, kind: int, nth: int
) -> None:
    """The group's tasks are enqueued without a failure, or with it: blocks are asked for now and then only."""
    comm = Comm(scheduler=kind, nchannels=4, pass_sm=1)
    tasks = [*alternating(600), *[send(1 + i % 7, 8) for i in range(300)], send(0, 8, at=64), recv(0, 8, at=128)]
    fresh = scheduler.obey(*groups(comm, *tasks, "schedule 0", "drop"))[0]
    for parts in ((*tasks, f"fail {nth}", "schedule 0"), (f"fail {nth}", *tasks, "schedule 0")):
        answers = scheduler.obey(*groups(comm, *parts, "drop", "fail 0", "count", *tasks, "schedule 0", "drop"))
        *failed, left, again = answers
        assert {answer["status"] for answer in failed if "status" in answer} <= {"PSM_ERR_NO_MEMORY"}
        assert [left[name][0] for name in POOLS] == [0] * 5 and left["depth"] == 0
        for plan in (plan for answer in (fresh, again) for plan in answer["plans"]):
            plan["id"] = 0
            for item in (*plan["works"], *plan["ops"]):
                item["task"] = 0
        assert again["plans"] == fresh["plans"]


def test_refused_memory_is_told(scheduler: Driver) -> None:
    comm = Comm(nchannels=4)
    found = set()
    for nth in range(1, 12):
        for answer in scheduler.obey(*groups(comm, *alternating(3000), f"fail {nth}", "schedule 0", "drop")):
            found.add(answer.get("error", "").split(":")[0])
    assert found >= {
        "",
        "no memory for a work of plan 1",
        "no memory for a proxy op of plan 1",
        "no memory for the table of plan 1",
        "no memory for a frame of 24 bytes on a stack that holds 0 bytes",
    }


# ---- what is refused ----


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": 8}, "psmPlanCommCreate: rank 8 of 8; expected a rank from 0 to nranks - 1"),
        (
            {"nnodes": 3},
            "psmPlanCommCreate: 8 ranks on 3 nodes; expected the same number of ranks on each node",
        ),
        ({"scheduler": 2}, "psmPlanCommCreate: scheduler 2; expected 0 (legacy) or 1 (planner)"),
        ({"nchannels": 65}, "psmPlanCommCreate: 65 channels; expected 1 to 64"),
        ({"p2pn": 6}, "psmPlanCommCreate: 6 p2p channels; expected a power of two up to 64"),
        (
            {"per_peer": 16},
            "psmPlanCommCreate: 16 p2p channels per peer of 8; expected a power of two that is not larger",
        ),
        ({"depth": 48}, "psmPlanCommCreate: a work FIFO of 48 slots; expected a power of two up to 2^30"),
        (
            {"fifo_bytes": 3},
            "psmPlanCommCreate: a work FIFO of 3 bytes; expected a power of two up to 2^30",
        ),
        ({"args_bytes": 8}, "psmPlanCommCreate: 8 bytes of kernel arguments; expected 64 to 2^20"),
        ({"chunk": 12}, "psmPlanCommCreate: p2p chunks of 12 bytes; expected a multiple of 8 up to 2^30"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(scheduler: Driver, changes: dict[str, int], text: str) -> None:
    assert scheduler.obey(Comm().with_(**changes).line()) == [{"status": "PSM_ERR_INVALID", "error": text}]


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (Task(5, 1), "a task has func 5; expected 0 to 4 (collectives), 6 (send) or 7 (recv)"),
        (send(8, 1), "Send has peer 8 in a communicator of 8 ranks; expected 0 to 7"),
        (Task(BROADCAST, 1, -1), "Broadcast has root -1 in a communicator of 8 ranks; expected 0 to 7"),
        (all_reduce(1, 12), "AllReduce has datatype 12; expected one of NCCL's, 0 to 11"),
        (
            all_reduce(1, redop=5),
            "AllReduce has redop 5; expected 0 (sum), 1 (prod), 2 (max), 3 (min) or 4 (avg); user-defined "
            "operations are not modelled",
        ),
        (
            all_reduce(2**60),
            "AllReduce of 1152921504606846976 elements of 1 bytes among 8 ranks does not fit in 63 bits: count may be at most "
            "576460752303423487",
        ),
    ],
)
def test_a_task_that_cannot_be_is_refused(scheduler: Driver, task: Task, text: str) -> None:
    for kind in KINDS:
        answers = scheduler.obey(Comm(scheduler=kind).line(), task.line(), "count")
        assert answers[0] == {"status": "PSM_ERR_INVALID", "error": text} and answers[1]["tasks"] == [0, 0]
