"""The comparison of two runs: where a rank parts, what only one side has, where ranks and channels are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import scanned
from psmkit.analysis.views import diff
from psmkit.analysis.views.tracks import Step
from psmkit.logparse.types import Ref
from psmkit.model.difference import Difference

LOGS = Path(__file__).parents[2] / "data" / "logs"
GOOD = LOGS / "ok_n4_psm_64K"


def compared(good: Path, bad: Path) -> Difference:
    with scanned([str(good)], keep_calls=True) as left, scanned([str(bad)], keep_calls=True) as right:
        return diff.compare(make_job(left), make_job(right))


def changed(folder: Path, change: Callable[[int, str], str]) -> Path:
    """The good logs, each text changed by its rank."""
    for rank, log in enumerate(sorted(GOOD.glob("*.log"))):
        (folder / log.name).write_text(change(rank, log.read_text()))
    return folder


def steps(*texts: str) -> list[Step]:
    return [Step(text, Ref(0, line, line, line), text.partition(" ")[0]) for line, text in enumerate(texts, 1)]


def rows(good: list[Step], bad: list[Step]) -> list[tuple[str, str | None, str | None]]:
    found = diff._parting(0, {"t": good}, {"t": bad})
    assert found is not None
    return [(mark, x and x.text, y and y.text) for mark, x, y in found.rows]


def test_steps_are_paired_again_after_the_first_difference() -> None:
    assert rows(steps("a", "b", "c", "d"), steps("a", "c", "x", "d", "e")) == [
        ("same", "a", "a"),
        ("good", "b", None),
        ("same", "c", "c"),
        ("bad", None, "x"),
        ("same", "d", "d"),
        ("bad", None, "e"),
    ]
    assert rows(steps("a"), steps("b")) == [("differs", "a", "b")]


def test_only_the_steps_around_the_difference_are_kept_and_the_others_counted() -> None:
    good = steps(*(f"s {n}" for n in range(100)))
    found = diff._parting(0, {"t": good}, {"t": good[:50]})
    assert found is not None
    assert [row[0] for row in found.rows] == ["same"] * 4 + ["good"] * 12
    assert (found.common, found.good_more, found.bad_more) == (50, 38, 0)


def test_steps_of_one_side_only_are_counted_by_kind_in_all_tracks() -> None:
    found = compared(GOOD, LOGS / "fault_a2_n4_sigstop_rank1_in_setup")
    mine = {o.kind: (o.good, o.bad, o.missing, o.extra) for o in found.operations if o.rank == 1}
    assert mine["proxy Setup"] == (12, 2, 10, 0)
    assert mine["proxy Connect"] == (12, 0, 12, 0)
    assert mine["fd exchanges done"] == (12, 0, 12, 0)
    assert mine["sends in a communicator of 4"] == (12, 4, 8, 0)
    assert found.steps[1].last_common is not None and found.steps[1].last_common.good == "proxy Init (16 bytes)"


def test_step_with_another_value_counts_on_both_sides(tmp_path: Path) -> None:
    bad = changed(
        tmp_path,
        lambda rank, text: text.replace("Chunksize set to 131072", "Chunksize set to 65536") if rank == 2 else text,
    )
    found = compared(GOOD, bad)
    assert [s.rank for s in found.steps] == [2] and found.equal_ranks == (0, 1, 3)
    assert [(o.kind, o.good, o.bad, o.missing, o.extra) for o in found.operations] == [("init.p2p_chunk", 1, 1, 1, 1)]


def test_same_steps_in_another_order_are_no_operations_of_one_side() -> None:
    side = diff._Side(None, 0)  # type: ignore[arg-type]
    assert diff._operations(0, side, {"t": steps("a", "b")}, side, {"t": steps("b", "a")}) == []


def test_ranks_that_moved_to_another_host_are_named(tmp_path: Path) -> None:
    found = compared(GOOD, changed(tmp_path, lambda rank, text: text.replace("vm:", "n1:") if rank > 1 else text))
    hosts = {(s.good, s.bad, s.ranks) for s in found.settings if s.name == "ranks on one host"}
    assert hosts == {("0-3", "0-1", (0, 1)), ("0-3", "2-3", (2, 3))}


def test_hosts_with_other_names_are_the_same_topology(tmp_path: Path) -> None:
    found = compared(GOOD, changed(tmp_path, lambda _rank, text: text.replace("vm:", "other:")))
    assert not [s for s in found.settings if s.name == "ranks on one host"]


@pytest.mark.parametrize("ranks", [(1,), (0, 3)])
def test_channels_over_another_transport_are_named(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    found = compared(
        GOOD, changed(tmp_path, lambda rank, text: text.replace("via PSM", "via SHM") if rank in ranks else text)
    )
    [via] = [s for s in found.settings if s.name == "transport of channels"]
    assert via.ranks == ranks and via.bad is not None and via.good is not None
    assert via.good.replace("PSM", "SHM", 1) == via.bad


def test_channels_over_a_network_instead_of_shared_memory_are_named() -> None:
    found = compared(GOOD, LOGS / "ok_n4_2nodes_psmnet")
    vias = {(s.good, s.bad, s.ranks) for s in found.settings if s.name == "transport of channels"}
    [(good, bad, ranks)] = vias
    assert good == "PSM_P2P/CUMEM" and bad is not None and bad.startswith("NET/") and ranks == (0, 1, 2, 3)
