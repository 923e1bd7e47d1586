"""Each form of a tag that a launcher puts before a line, or a framework into it, and the numbers that it holds."""

from __future__ import annotations

import pytest

from psmkit.analysis.facts import tags

# tag: rank, local rank, number of a process, process id
BEFORE = {
    "[rank5]:": (5, None, 5, None),
    "rank 5": (5, None, 5, None),
    "[node7 rank5]": (5, None, None, None),
    "[2]:": (None, 2, 2, None),
    "[default2]:": (None, 2, None, None),
    "[trainer_12]:": (None, 12, None, None),
    "[1,5]<stdout>:": (5, None, 5, None),
    "1,5": (5, None, 5, None),
    "5:": (5, None, 5, None),
    '"rank": 5': (5, None, None, None),
    '"global_rank":5': (5, None, None, None),
    '"local_rank": 5': (None, None, None, None),
    "(VllmWorker rank=5 pid=812)": (5, None, 5, 812),
    "(VllmWorker TP5 pid=812)": (5, None, 5, 812),
    "(Worker_DP0_PP0_TP5_EP5 pid=812)": (5, None, 5, 812),
    "(Worker_DP1_TP1_EP3 pid=812)": (3, None, 3, 812),
    "(Worker_PP1_TP5 pid=812)": (None, None, None, 812),
    "(Worker_DP1_TP5 pid=812)": (None, None, None, 812),
    "(RayWorker pid=812, ip=10.0.0.7)": (None, None, None, 812),
    "worker-5": (None, None, None, None),
    "": (None, None, None, None),
}
INSIDE = {
    "  [role0|8]: step": 8,
    "[trainer12|4]: step": 12,
    "node7: [rank5]: step": 5,
    " [1,5]<stderr>:step": 5,
    "[5]<stdout>:step": 5,
    "[1,mpirank:5,algo-2]<stderr>:step": 5,
    "[2026-03-01T10:00:00Z] 1a2b [rank=5] || step": 5,
    "[2026-03-01 10:00:00 DP1 PP0 TP5 EP5] step": 5,
    "[10:00:00.123 TP5] step": 5,
    "[2026-03-01 10:00:00 PP1 TP5] step": None,
    "[03/01/2026-10:00:00] [TRT-LLM] [RANK 5] [E] step": 5,
    "[rank: 5] step": 5,
    "2026-03-01 10:00:00,123: rank5[11][MainThread]: INFO: step": 5,
    "[workload:5(1) infra:0(0)] step": 5,
    "[process=5][thread=MainThread] step": 5,
    "[TensorRT-LLM][ERROR][5] step": 5,
    "[TRT-LLM] [E] [5] step": 5,
    "[HUGECTR][10:00:00][INFO][RANK5]: step": 5,
    "[HCTR][10:00:00.123][ERROR][RK5][main]: step": 5,
    "[pod-3] (VllmWorker rank=5 pid=812) step": 5,
    "> (Worker_DP0_PP0_TP5_EP5 pid=812) step": 5,
    "> (Worker_DP1_TP1_EP5 pid=812) step": 5,
    "rank=13 local_rank=5 step": 13,
    "10:00:00 ERROR [local_rank=5, global_rank=13] step": 13,
    "rank=13 world_size=16 local_rank=5 step": 13,
    "no answer from rank=13": None,
    "rank 5 of 8, [5] step, [GPU 5]": None,
}


@pytest.mark.parametrize("tag", BEFORE)
def test_a_tag_before_a_line_gives_the_numbers_that_it_holds(tag: str) -> None:
    read = tags.rank_of_tag, tags.local_rank_of_tag, tags.slot_of_tag, tags.pid_of_tag
    assert tuple(of(tag) for of in read) == BEFORE[tag]
    assert all(of(None) is None for of in read)


@pytest.mark.parametrize("text", INSIDE)
def test_a_tag_inside_a_line_gives_the_rank(text: str) -> None:
    assert tags.rank_in_line(text) == INSIDE[text]


def test_the_last_tag_of_several_actors_names_the_process() -> None:
    assert tags.process_of_tags("(Runner pid=7) (WorkerDict pid=903, ip=10.0.0.7) step") == (903, "10.0.0.7")
    assert tags.process_of_tags("(EngineCore_DP0 pid=77) step") == (77, None)
    assert tags.process_of_tags("(worker1, rank=1, pid=903, ip=10.0.0.7) step") == (903, "10.0.0.7")
    assert tags.process_of_tags("pid=77") == (None, None)


def test_each_form_has_a_line_in_these_tables() -> None:
    for forms, lines in ((tags.BEFORE, BEFORE), (tags.INSIDE, INSIDE)):
        unused = [f.text.pattern for f in forms if not any(f.text.search(line) for line in lines)]
        assert unused == []


@pytest.mark.parametrize(
    ("tag", "host"),
    [
        ("[pod/train-worker-3/main]", "train-worker-3"),
        ("train-worker-3", "train-worker-3"),
        ("worker3-1", "worker3-1"),
        ("[rank3]", None),
        ("[default3]", None),
        ("3", None),
        (None, None),
    ],
)
def test_a_tag_names_a_pod_or_container_where_it_names_no_rank(tag: str | None, host: str | None) -> None:
    assert tags.host_of_tag(tag) == host


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("worker 3 exited with status 9", (3, None)),
        ("child process 4711 died", (None, 4711)),
        ("worker 3 exited, worker 4 failed", (None, None)),
        ("3 tests failed", (None, None)),
    ],
)
def test_the_end_of_a_worker_in_a_text_names_its_number_or_its_id(
    text: str, found: tuple[int | None, int | None]
) -> None:
    assert tags.ended_in(text) == found


@pytest.mark.parametrize(
    ("text", "rank"),
    [("[Rank 3/8] step", 3), ("10:00:00 (rank3) step", 3), ("RANK 3 | step", 3), ("[R3] step", 3), ("rank 3 of 8 lost", None), ("a [rank 3] b", None)],
)  # fmt: skip
def test_a_rank_that_begins_a_line_is_that_of_who_prints_it(text: str, rank: int | None) -> None:
    assert tags.rank_at_start(text) == rank


@pytest.mark.parametrize(
    ("text", "rank"),
    [("[n1.lab] Rank 6, Local Rank 2, lost it", 6), ("Rank 6 (local rank 2): x", 6), ("10:00:00 Global Rank: 6, local_rank: 2 x", 6), ("lost Rank 6, Local Rank 2", None), ("[ERROR] Rank 6: lost", None), ("Rank 6, Local Ranking 2", None)],
)  # fmt: skip
def test_a_rank_with_its_local_rank_that_begins_a_line_is_that_of_who_prints_it(text: str, rank: int | None) -> None:
    assert tags.rank_at_start(text) == rank
