"""The HTML page: complete without a network, true to the story, and inert whatever the log holds."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.analysis.story import story as tell
from psmkit.model import Evidence, Report
from psmkit.model.story import Excerpt, Story
from psmkit.model.timeline import Axis, Kind, Marks, Spans, Timeline, Track, Unit
from psmkit.report.columns import Columns
from psmkit.report.html import render
from tests.report import samples

LOGS = Path(__file__).parents[1] / "data" / "logs"
STOPPED = LOGS / "fault_a2_n4_sigstop_rank1_in_setup"


@pytest.fixture(scope="module")
def story() -> Story:
    return tell([str(STOPPED)])


@pytest.fixture(scope="module")
def page(story: Story) -> str:
    return render(story)


class Elements(html.parser.HTMLParser):
    """The elements of a page, with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.texts.append((self.found[-1][0], data))


def block(page: str, name: str) -> str:
    """The text of the data block with this id."""
    match = re.search(rf'<script type="[^"]+" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert match, name
    return match[1]


def told(page: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(block(page, "story"))
    return data


def unpacked(index: list[tuple[str, str, int, int]], packed: str) -> dict[str, npt.NDArray[Any]]:
    raw = zlib.decompress(base64.b64decode(packed))
    return {name: np.frombuffer(raw, f"<{kind}", count, offset) for name, kind, offset, count in index}


def test_page_leads_with_verdict_who_proof_and_remedy(page: str) -> None:
    body = page[page.index("<main>") :]
    order = [
        "<h1>",
        "<dt>who</dt>",
        "<dt>proof</dt>",
        "<dt>do this</dt>",
        'id="timeline"',
        'id="findings"',
        'id="ranks"',
    ]
    places = [body.index(part) for part in order]
    assert places == sorted(places)
    assert "sent no Setup after Init" in body[: body.index("</h1>")]


def test_page_loads_nothing(page: str) -> None:
    elements = Elements(page)
    for tag, attributes in elements.found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img")
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith("#")
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] or "" for t, a in elements.found if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_only_the_script_and_the_style_of_psmkit_may_run(page: str) -> None:
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in page


def test_data_blocks_hold_the_timeline(story: Story, page: str) -> None:
    data = told(page)
    columns = unpacked(data["columns"], block(page, "columns"))
    starts, marks = columns["markStart"], story.timeline.marks
    assert starts[-1] == len(marks)
    for track in range(len(story.timeline.tracks)):
        mine = slice(int(starts[track]), int(starts[track + 1]))
        assert np.cumsum(columns["markAt"][mine].astype(np.int64)) == pytest.approx(marks.at[mine])
        assert np.cumsum(columns["markLine"][mine]).tolist() == marks.line[mine].tolist()
    labels = [data["labels"][number] for number in columns["spanLabel"]]
    assert labels == list(story.timeline.spans.label)


def test_page_holds_the_lines_of_the_logs(story: Story, page: str) -> None:
    name = f"{STOPPED}/nccl.rank1.vm.20406.log"
    number = told(page)["files"].index(name)
    text = zlib.decompress(base64.b64decode(block(page, f"text-{number}"))).decode()
    assert text.split("\n")[294] == (STOPPED / "nccl.rank1.vm.20406.log").read_text().split("\n")[294]


def test_culprit_is_marked_in_timeline_and_table(page: str) -> None:
    data = told(page)
    assert [data["tracks"][at]["rank"] for at in data["blamed"]] == [1]
    assert page.count('<tr class="blamed">') == 1
    assert {"from": "rank 0", "to": "rank 1"}.items() <= data["graph"][0].items()


def test_matrix_has_the_channels_and_the_stage_of_each_rank(page: str) -> None:
    data = told(page)
    assert {(link["source"], link["target"], link["channels"]) for link in data["links"]} >= {(0, 1, 2), (1, 2, 1)}
    assert [(row["rank"], row["stage"], row["state"]) for row in data["stages"]][1] == (1, "proxy Setup", "stuck")


def test_pins_are_the_lines_that_findings_rest_on(page: str) -> None:
    data = told(page)
    first = [pin for pin in data["pins"] if pin["first"]]
    assert (data["files"][first[0]["file"]].rsplit("/", 1)[1], first[0]["line"]) == ("nccl.rank1.vm.20406.log", 295)


NASTY = samples.NASTY + '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>\u2028]]>--><!--'


def nasty(report: Report) -> Report:
    """The report with such a text wherever a log can put one."""
    findings = tuple(
        replace(f, title=NASTY, explanation=NASTY, next_step=NASTY, evidence=(Evidence(NASTY, 1, NASTY),))
        for f in report.findings
    )
    rows = tuple(replace(row, host=NASTY, stage=NASTY, last=f"{NASTY}:1") for row in report.ranks)
    culprits = tuple(replace(c, why=NASTY, host=NASTY) for c in report.culprits)
    return replace(report, reason=NASTY, findings=findings, ranks=rows, culprits=culprits)


def hostile() -> Story:
    """A story all of whose texts are made to break out of where they stand."""
    report = nasty(samples.hung())
    timeline = Timeline(
        axis=Axis(Unit.ORDER, NASTY),
        tracks=[Track(NASTY, "rank", -1, 0)],
        kinds=[Kind(NASTY, NASTY, NASTY, meaning=NASTY)],
        files=[NASTY],
        marks=Marks(*(np.zeros(1, t) for t in (np.int32, np.float64, np.int32, np.int32, np.int32))),
        spans=Spans(label=()),
    )
    return Story(report, timeline, texts={NASTY: [Excerpt(1, [NASTY, "<b>bold</b>"])]}, title=NASTY)


def test_log_text_never_becomes_markup() -> None:
    page = render(hostile())
    elements = Elements(page)
    scripts = [a for t, a in elements.found if t == "script"]
    assert [a.get("id") for a in scripts] == ["story", "columns", "text-0", None]
    assert not any(tag in ("img", "b") and attributes for tag, attributes in elements.found)
    assert "\u202e" not in page and "\x1b" not in page and "\u2028" not in page


@given(st.text(max_size=60))
def test_any_text_keeps_the_page_whole(text: str) -> None:
    story = hostile()
    page = render(Story(story.report, story.timeline, texts={text: [Excerpt(1, [text])]}, title=text))
    assert [a.get("id") for t, a in Elements(page).found if t == "script"][-1] is None
    assert told(page)["files"].count(text) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e6)), max_size=50), st.sampled_from(list(Unit)))
def test_columns_keep_the_order_and_the_place_of_marks(rows: list[tuple[int, float]], unit: Unit) -> None:
    rows = sorted((track, float(int(at)) if unit is Unit.ORDER else at) for track, at in rows)
    count = len(rows)
    marks = Marks(
        np.array([track for track, _ in rows], dtype=np.int32),
        np.array([at for _, at in rows], dtype=np.float64),
        np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32),
    )  # fmt: skip
    columns = Columns()
    tracks = [Track(str(n), "rank") for n in range(4)]
    step = columns.add_timeline(Timeline(Axis(unit, ""), tracks, [Kind("a", "a", "a")], ["f"], marks))
    found = unpacked(columns.index, columns.packed())
    for track in range(4):
        mine = slice(int(found["markStart"][track]), int(found["markStart"][track + 1]))
        places = np.cumsum(found["markAt"][mine].astype(np.int64)) * step
        assert places == pytest.approx([at for own, at in rows if own == track], abs=step)


def test_64_ranks_fit_in_5_megabytes(tmp_path: Path) -> None:
    from tests.loggen.crowd import write_merged

    log = tmp_path / "job.log"
    write_merged(log, "unanswered", 64, 8_000_000)
    assert len(render(tell([str(log)]))) < 5_000_000


def test_report_without_a_timeline_still_makes_a_page() -> None:
    page = render(Story(samples.hung(), Timeline(Axis(Unit.ORDER, "")), title="x"))
    assert 'id="rows"' not in page and "<h1>" in page
