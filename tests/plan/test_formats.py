"""What a simulation looks like: text that fits, JSON that is whole, HTML and pictures that are safe."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from psmkit.model.timeline import Timeline
from psmkit.plan import Simulation, What, data, html, picture, text, view
from tests.plan.made import RULES, simulation

HOSTILE = 'x</script><svg onload=alert(1)>"\x1b[31m\u202e & <b>'


def page(of: Simulation, width: int = 100, **options: bool) -> str:
    return text.layout(of, RULES, width, **options).text()


def section(name: str, whole: str) -> list[str]:
    """The lines below a heading."""
    lines = whole.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(name))
    end = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
    return lines[at + 1 : end]


def test_the_first_line_is_the_rule_that_breaks() -> None:
    assert page(simulation()).startswith("broken: cut.differs: rank 1, plan 1: plan 1 holds one collective")
    assert page(simulation(False)).startswith("right: no rule is broken\n")
    stuck = replace(simulation(), breaches=())
    assert page(stuck).startswith("stuck: no thread can continue")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_text_fits_into_the_width(width: int) -> None:
    for wrong in (True, False):
        assert max(map(len, page(simulation(wrong), width).splitlines())) <= width


def test_ranks_with_equal_plans_share_a_column_and_the_difference_is_marked() -> None:
    lines = section("Plans", page(simulation()))
    assert [word.strip() for word in lines[0].split("  ") if word.strip()] == ["rank 0", "rank 1", "ranks 2, 3"]
    assert lines[1].startswith("  > 1 #0 allreduce: ch 0-3")
    assert "#1 allgather: ch 2, 3" in lines[2] and lines[2].count("allgather") == 2
    assert not any(line.startswith("  >") for line in section("Plans", page(simulation(False))))


def test_the_rank_of_the_first_breach_is_followed() -> None:
    lines = section("Reclaim on rank 1", page(simulation()))
    assert lines[0].split()[:4] == ["plan", "made", "launched", "posted"]
    assert lines[1].startswith("  > 1") and lines[2].startswith("    2")
    assert "host task" in lines[1]
    assert "Reclaim on rank 3" in text.layout(simulation(), RULES, 100, rank=3).text()


def test_who_is_stuck_is_told_with_what_it_waits_for() -> None:
    assert section("Stuck", page(simulation())) == [
        "  rank 2, plan 1: kernel waits for all ranks to enter the channel of a collective"
    ]


def test_ranks_that_wait_for_the_same_are_told_once_and_the_main_thread_last() -> None:
    made = simulation()
    ends = [e for e in made.events if e.what is What.STUCK]
    waits = tuple(replace(ends[0], rank=r, a=a) for r in (0, 1, 3) for a in (2, 5))
    assert section("Stuck", page(replace(made, events=made.events + waits))) == [
        "  ranks 0-3, plan 1: kernel waits for all ranks to enter the channel of a collective",
        "  ranks 0, 1, 3, plan 1: main thread waits for a plan to reclaim",
    ]


def test_a_broken_rule_is_told_with_the_events_that_lead_to_it() -> None:
    lines = section("Broken rules", page(simulation()))
    assert "  reclaim.early: A plan is reclaimed after its last op." in lines
    (at,) = [line for line in lines if line.startswith("    >")]
    assert "plan 1: reclaimed, 2 ops not ended, 1 kernel not ended" in at
    assert lines.index(at) == len(lines) - 1


def test_many_plans_are_folded_and_verbose_unfolds_them() -> None:
    made = simulation(False)
    plans = tuple(tuple(replace(p[0], id=i) for i in range(1, 101)) for p in made.plans)
    many = replace(made, plans=plans)
    assert "… 76 more plans (-v shows all)" in page(many)
    assert len(section("Plans", page(many, verbose=True))) == 1 + 100 * 3
    assert "Trace of rank 0" in page(many, verbose=True)


def test_what_many_collectives_have_in_common_is_folded_and_what_differs_is_not() -> None:
    made = simulation(False)
    first = made.plans[0][0]
    works = tuple(replace(first.works[0], task=task) for task in range(40))
    steps = tuple(s for s in made.steps if s.rank is None and s.task is not None)[:1] * 40
    plans = tuple((replace(first, rank=r, ops=(), works=works if r else works[:-1]),) for r in range(4))
    lines = section("Plans", page(replace(made, steps=steps, plans=plans)))
    assert lines[0].split("  ")[-1].strip() == "ranks 1-3"
    assert lines[2].count("… 38 more as on all ranks") == 2
    assert "#39 allreduce: ch 0" in lines[3] and lines[3].startswith("      kernel ")


def test_json_has_all_of_it() -> None:
    made = simulation()
    found = json.loads(data.render(made))
    assert found["schema"] == "psmkit.plan/1" and found["right"] is False and found["stuck"] is True
    assert found["config"]["scheduler"] == "legacy" and found["config"]["ranks"] == 4
    assert len(found["events"]) == len(made.events) and len(found["ranks"]) == 4
    assert found["divergence"] == found["breaches"][0] and found["breaches"][0]["event"] is None
    assert found["waiting"] == [
        {"rank": 2, "plan": 1, "who": "kernel", "waits_for": "all ranks to enter the channel of a collective"}
    ]
    assert found["ranks"][0]["plans"][1]["ops"][0]["peer"] == 1
    assert json.loads(data.render(simulation(False)))["right"] is True


def test_of_a_thousand_plans_html_shows_those_around_the_breach() -> None:
    made = simulation()
    plans = tuple(tuple(replace(p[0], id=i) for i in range(1, 1001)) for p in made.plans)
    late = (replace(made.breaches[0], plan=700),)
    shown = html.render(replace(made, plans=plans, breaches=late), RULES)
    assert "<td>700</td>" in shown and "<td>1000</td>" not in shown and "700 more plans left out" in shown


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[str]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_needs_no_other_file_and_runs_nothing() -> None:
    found = _Page(html.render(simulation(), RULES))
    names = {tag for tag, _ in found.tags}
    assert {"svg", "table"} <= names
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "form"}
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on") or a in ("src", "href")]
    assert "cut.differs" in found.text and "reclaim.early" in found.text


def test_hostile_text_is_text_in_every_format() -> None:
    made = simulation(text=HOSTILE)
    made = replace(made, config=replace(made.config, variant=HOSTILE))
    shown = html.render(made, RULES)
    assert (
        "<b>" not in shown.replace("<b>rank", "").replace("<b>cut", "").replace("<b>reclaim", "")
        and "alert(1)>" not in shown
        and "\x1b" not in shown
    )
    assert [tag for tag, _ in _Page(shown).tags].count("svg") == 1
    assert "\x1b" not in page(made) and "\u202e" not in page(made)
    assert "\x1b" not in picture.draw(made, 1)
    ElementTree.fromstring(picture.draw(made, 1))


SVG = "{http://www.w3.org/2000/svg}"


def entries(root: ElementTree.Element) -> list[str]:
    """The words of a picture's legend."""
    return [t.text or "" for g in root.iter(f"{SVG}g") if g.get("class") == "entry" for t in g.iter(f"{SVG}text")]


def test_a_picture_shows_bars_of_each_plan_and_where_the_rule_breaks() -> None:
    root = ElementTree.fromstring(picture.draw(simulation(), 1))
    titles = [e.text or "" for e in root.iter(f"{SVG}title")]
    for wanted in ("kernels: plan 1, ", "host functions: plan 2, ", "proxy ops: plan 2, ", "reclaim queue: plan 1, "):
        assert [t for t in titles if t.startswith(wanted)], wanted
    assert "a rule breaks: reclaim.early, plan 1" in titles
    words = "".join(root.itertext())
    assert "reclaim.early, plan 1" in words and "main thread" in words and "event 10" in words
    right = ElementTree.fromstring(picture.draw(simulation(False), 0))
    assert not {"a rule breaks", "no end seen"} & set(entries(right))


def test_a_picture_has_a_legend_and_no_empty_lane() -> None:
    root = ElementTree.fromstring(picture.draw(simulation(), 1))
    assert set(entries(root)) == {
        "group", "plan 1", "plan 2", "plan is launched", "hostStreamPlanTask posts its proxy ops", "plan is freed", "proxy op ends",
        "a rule breaks", "the launch starts it", "its reclaimer runs",
    }  # fmt: skip
    assert "host stream" not in [t.text for t in root.iter(f"{SVG}text")], "nothing runs on it"


def test_a_picture_shows_who_waits_from_its_last_sign_of_life_on() -> None:
    made = simulation()
    launched = next(e.order for e in made.events if e.rank == 2 and e.what is What.LAUNCHED)
    (wait,) = (s for s in zip_spans(picture.timeline(made, 2)) if s[3].startswith("waits for"))
    last = max(e.order for e in made.events if e.rank == 2 and e.what is What.KERNEL_DONE)
    assert wait[:3] == ("kernels", max(launched, last), True)
    assert wait[3] == "waits for all ranks to enter the channel of a collective, plan 1"
    assert "waits for what does not come" in entries(ElementTree.fromstring(picture.draw(made, 2)))


def test_a_wait_ends_where_the_simulation_is_aborted() -> None:
    made = simulation()
    stuck = next(e for e in made.events if e.what is What.STUCK)
    aborted = replace(stuck, order=stuck.order + 1, what=What.ABORT, plan=0)
    ended = replace(made, events=(*made.events, aborted))
    (wait,) = (s for s in zip_spans(picture.timeline(ended, 2)) if s[3].startswith("waits for"))
    assert not wait[2]


def zip_spans(made: Timeline) -> list[tuple[str, float, bool, str]]:
    """Track, begin, open and label of each span."""
    spans = made.spans
    return [
        (made.tracks[track].name, begin, open_, label)
        for track, begin, open_, label in zip(spans.track, spans.begin, spans.open, spans.label, strict=True)
    ]


def test_what_had_not_ended_stays_open() -> None:
    made = simulation(False)
    cut = tuple(
        e for e in made.events if e.what not in (What.RECLAIM, What.KERNEL_DONE, What.CALLBACK_OVER, What.OP_DONE)
    )
    found = {(name, open_) for name, _, open_, _ in zip_spans(picture.timeline(replace(made, events=cut), 0))}
    assert {(lane, True) for lane in ("kernels", "host functions", "proxy ops", "reclaim queue")} <= found
    assert "no end seen" in entries(ElementTree.fromstring(picture.draw(replace(made, events=cut), 0)))


def test_a_long_trace_is_cut_to_what_is_around_the_breach() -> None:
    made = simulation()
    pads = tuple(replace(made.events[0], order=i, rank=1) for i in range(500))
    moved = tuple(replace(e, order=e.order + 500) for e in made.events)
    late = tuple(replace(b, order=None if b.order is None else b.order + 500) for b in made.breaches)
    drawn = picture.draw(replace(made, events=pads + moved, breaches=late), 1)
    assert "reclaim.early, plan 1" in drawn and float(ElementTree.fromstring(drawn).get("width", "0")) <= 1000
    assert "events, " in drawn and " are shown." in drawn and "event 300" not in drawn


def test_the_rank_to_look_at_is_that_of_the_breach_else_who_is_stuck_else_the_first() -> None:
    made = simulation()
    assert view.focus(made) == 1
    assert view.focus(replace(made, breaches=())) == 2
    assert view.focus(simulation(False)) == 0


def test_timeline_page_has_all_ranks_and_their_broken_rules() -> None:
    told = picture.page(simulation())
    block = told[told.index('id="story">') + len('id="story">') :]
    drawn = json.loads(block[: block.index("</script>")])
    tops = [track["name"] for track in drawn["tracks"] if track["parent"] < 0]
    assert tops == [f"rank {rank}" for rank in range(simulation().config.ranks)]
    assert "plan 1" in drawn["labels"]
    assert drawn["axis"]["step"] == "event"
