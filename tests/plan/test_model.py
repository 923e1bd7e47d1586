"""The Promela model of reclaim: right in every order, wrong in at least one for every wrong variant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.plan import What, rules, spin, variants
from psmkit.plan.model import (
    ModelError,
    ModelResult,
    Scope,
    model_variants,
    right_scopes,
    verify,
    verify_ends,
)

ROOT = Path(__file__).parents[2]
WRONG = [variant.name for variant in model_variants().values() if variant.rule]


pytestmark = pytest.mark.usefixtures("spin")


def story(result: ModelResult) -> list[tuple[str, str]]:
    return [(step.thread, step.what) for step in result.steps]


@pytest.mark.parametrize("scope", right_scopes(), ids=str)
def test_no_order_of_the_threads_breaks_a_rule_or_hangs_under_the_right_variant(scope: Scope) -> None:
    result = verify("coll-first", scope)
    assert result.rule == ""
    assert result.steps == ()
    assert result.complete
    assert result.states > 10_000


def test_every_run_of_the_right_variant_ends() -> None:
    result = verify_ends(Scope(1, 2, abort=True))
    assert result.rule == ""
    assert result.complete


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_breaks_the_rule_that_it_is_made_for(name: str) -> None:
    result = verify(name)
    assert result.rule == model_variants()[name].rule
    assert result.steps
    assert not result.complete


def test_variants_of_the_model_and_of_libpsm_with_one_name_break_the_same_rule() -> None:
    modelled, library = model_variants(), variants()
    shared = modelled.keys() & library.keys()
    assert {name: modelled[name].rule for name in shared} == {name: library[name].outcome for name in shared}
    # What the others do, other ranks, opCounts, streams or kernels see, which the model has not.
    beyond = {"p2p.first", "op.order", "stream.before", "stream.after", "launch.attributes", "work.header"}
    assert {library[name].outcome for name in library.keys() - shared - {"prescheduled-p2p"}} == beyond


def test_rules_of_the_model_are_those_of_the_table() -> None:
    text = "".join(path.read_text() for path in (ROOT / "csrc/psm/plan/model").glob("*.pml"))
    named = set(re.findall(r'"! ([\w.]+) ', text))
    assert named <= {rule.name for rule in rules()}
    assert {variant.rule for variant in model_variants().values()} - {""} <= named


def test_a_counterexample_speaks_of_the_events_of_the_library() -> None:
    result = verify("free-in-callback")
    assert {step.what for step in result.steps} <= {what.name for what in What}
    freed = story(result).index(("launch stream", "CALLBACK_OVER"))
    assert "it freed the sync condition" in str(result.steps[freed])
    assert [step.what for step in result.steps[-2:]] == ["ARMED", "TOUCHED"]
    assert story(result).count(("main", "REPLAY")) == 2


def test_a_plan_that_is_freed_early_is_freed_while_its_ops_or_its_kernel_run() -> None:
    last = verify("reclaim-early").steps[-1]
    assert (last.thread, last.what) == ("main", "RECLAIM")
    assert (last.a, last.b, last.c) != (0, 0, 0)


def test_a_count_of_all_ops_never_gets_to_zero() -> None:
    result = verify("count-all-ops", Scope(1, kinds=8), hang=True)
    assert result.rule == "stuck"
    last = result.steps[-1]
    assert (last.what, last.plan) == ("STUCK", result.plan)
    assert ("launch stream", "CALLBACK") in story(result)
    assert ("launch stream", "CALLBACK_OVER") not in story(result)


def test_a_lost_host_function_hangs() -> None:
    result = verify("lost-callback", Scope(1, kinds=4))
    assert result.rule == "callback.lost"
    assert "CALLBACK" not in {step.what for step in result.steps}


def test_a_host_task_after_an_abort_that_arms_again_counts_below_zero() -> None:
    result = verify("arm-after-abort")
    assert result.rule == "count.below"
    threads = story(result)
    assert threads.index(("abort", "ABORT")) < len(threads) - 1
    assert threads.count(("host stream", "ARMED")) == 2


def test_main_posts_beside_the_host_stream_once_the_graph_is_gone() -> None:
    """What NCCL counts host tasks for: persistentRefs is 0 again, and an older group's host task has not run."""
    result = verify("main-posts")
    assert result.rule == "op.order"
    posted = [thread for thread, what in story(result) if what == "HOST_TASK"]
    assert set(posted[-2:]) == {"main", "host stream"}


def test_the_same_scope_gives_the_same_counterexample() -> None:
    assert verify("reclaim-twice").steps == verify("reclaim-twice").steps


def test_an_installed_psmkit_has_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = model_variants()
    monkeypatch.setattr(spin, "_ROOT", tmp_path)
    assert model_variants() == before


def test_an_unknown_variant_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ModelError, match=r"unknown variant 'nosuch'.*coll-first, reclaim-early"):
        verify("nosuch")


def test_a_machine_without_spin_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PSM_SPIN", str(tmp_path / "spin"))
    with pytest.raises(ModelError, match="PSM_SPIN"):
        verify("reclaim-early")


def test_a_model_that_spin_does_not_read_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "spin"
    broken.write_text("#!/bin/sh\necho 'spin: Error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PSM_SPIN", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="rejects the model"):
        verify("reclaim-early")
