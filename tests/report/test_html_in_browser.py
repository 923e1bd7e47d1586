"""The page in a browser: what a user sees and clicks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.analysis.story import story as tell
from psmkit.report.html import render
from tests.analysis.texts import Rank
from tests.loggen.crowd import write_merged
from tests.report.browser import Page, browser, needed
from tests.report.test_html import hostile

pytestmark = needed

STOPPED = Path(__file__).parents[1] / "data" / "logs" / "fault_a2_n4_sigstop_rank1_in_setup"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def written(folder: Path, log: Path) -> Path:
    file = folder / "report.html"
    file.write_text(render(tell([str(log)])), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("stopped"), STOPPED)


@pytest.fixture(scope="module", params=[2, 64, 1024])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs of 2 to 1,024 ranks; of the large ones, one rank does not get an answer."""
    folder = tmp_path_factory.mktemp(f"crowd{request.param}")
    if request.param == 2:
        lines = [line for rank in range(2) for line in Rank(rank, 2).ready().work(3).lines]
        (folder / "job.log").write_text("\n".join(lines) + "\n")
    else:
        write_merged(folder / "job.log", "unanswered", request.param, 2_000_000)
    return written(folder, folder / "job.log")


def test_page_draws_itself_without_a_complaint(page: Page, stopped: Path) -> None:
    page.open(stopped)
    assert (
        page.pixels("rows") > 10 and page.pixels("axis") > 2 and page.pixels("mini") > 2 and page.pixels("matrix") > 2
    )
    assert page.js("return document.querySelectorAll('#graph line').length") == 3
    assert not page.complaints()


def test_jobs_of_any_size_are_drawn(page: Page, crowd: Path, request: pytest.FixtureRequest) -> None:
    page.open(crowd)
    assert page.pixels("rows") > 3
    ranks = int(request.node.callspec.params["crowd"])
    told = page.js("return JSON.parse(document.getElementById('story').textContent)")
    assert sum(track["parent"] < 0 and track["rank"] is not None for track in told["tracks"]) == ranks
    assert any("does not go on" in label for label in told["labels"]) == (ranks > 2)
    assert not page.complaints()


def test_search_finds_lines_and_opens_them(page: Page, stopped: Path) -> None:
    page.open(stopped).type("search", "New proxy send connection 2")
    page.expect(lambda: page.text("results"))
    assert page.text("results").startswith("4 matches")
    page.type("search", "\n")
    page.expect(lambda: page.shown("drawer"))
    assert "New proxy send connection 2" in page.js("return document.querySelector('#drawer .hit').innerText")
    assert page.text("results") == "1 of 4"


def test_proof_link_opens_its_line_with_the_lines_around_it(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.js("document.querySelector('dl.answer a[data-place]').click()")
    page.expect(lambda: page.shown("drawer"))
    lines = page.js(
        "return [...document.querySelectorAll('#drawer pre span')].map((line) => line.innerText.trim().split(' ')[0])"
    )
    assert lines[:1] == ["289"] and "295" in lines
    assert page.js("return document.querySelector('#drawer .hit').innerText").lstrip().startswith("295")


def test_address_of_the_page_holds_what_is_shown(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.type("ranks-filter", "1-2")
    page.click("zoom-in")
    page.js("document.querySelector('dl.answer a[data-place]').click()")
    page.expect(lambda: all(part in page.js("return location.hash") for part in ("ranks=1-2", "view=", "line=")))
    address = page.js("return location.hash")
    page.open(stopped, address)
    assert page.js("return document.getElementById('ranks-filter').value") == "1-2"
    page.expect(lambda: page.shown("drawer"))
    page.expect(lambda: page.js("return location.hash") == address)


def test_groups_and_ranks_can_be_hidden(page: Page, stopped: Path) -> None:
    page.open(stopped)
    before = page.js("return document.getElementById('scroll').clientHeight")
    page.type("ranks-filter", "3")
    page.expect(lambda: page.js("return document.getElementById('scroll').clientHeight") < before)
    page.js("document.querySelector('#groups input').click()")
    page.expect(lambda: "hide=" in page.js("return location.hash"))


def test_keys_move_zoom_and_close(page: Page, stopped: Path) -> None:
    page.open(stopped)
    body = page.driver.find_element("tag name", "body")
    body.send_keys("++")
    page.expect(lambda: "view=" in page.js("return location.hash"))
    body.send_keys("0")
    page.expect(lambda: "view=" not in page.js("return location.hash"))
    page.js("document.querySelector('dl.answer a[data-place]').click()")
    page.expect(lambda: page.shown("drawer"))
    first = page.text("drawer")
    page.driver.find_element("tag name", "body").send_keys(".")
    page.expect(lambda: page.text("drawer") != first)
    page.driver.find_element("tag name", "body").send_keys("\ue00c")  # Escape
    page.expect(lambda: not page.shown("drawer"))


def test_click_on_a_rank_opens_and_closes_its_threads(page: Page, stopped: Path) -> None:
    page.open(stopped)
    tall = "return document.getElementById('scroll').scrollHeight"
    before = page.js(tall)
    click = """
        const rows = document.getElementById('rows'), box = rows.getBoundingClientRect();
        for (const kind of ['pointerdown', 'pointerup'])
            rows.dispatchEvent(new PointerEvent(kind, {pointerId: 1, clientX: box.x + 30, clientY: box.y + 10, bubbles: true}));
    """
    page.js(f"document.getElementById('rows').setPointerCapture = () => {{}}; {click}")
    page.expect(lambda: page.js(tall) < before)
    page.js(click)
    page.expect(lambda: page.js(tall) == before)


def test_dark_mode_changes_the_page_and_its_pictures(page: Page, stopped: Path) -> None:
    page.open(stopped)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(background)
    page.click("theme")
    page.expect(lambda: page.js(background) != light)
    assert page.pixels("rows") > 10


def test_printed_page_has_the_verdict_and_all_tables(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.js("return getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert page.js("return document.querySelector('h1').innerText").startswith("hung")
        assert page.js(
            "return document.querySelector('#ranks .table').scrollHeight <= document.querySelector('#ranks .table').clientHeight"
        )
        assert len(page.driver.print_page()) > 10_000
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_hostile_log_stays_inert(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(hostile()), encoding="utf-8")
    page.open(file)
    assert page.js("return document.title") != "owned"
    assert page.js("return document.querySelectorAll('main img, main script').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.js("return document.querySelector('h1').textContent")
    assert not [text for text in page.complaints() if "Refused" in text or "violates" in text]


def test_a_timeline_of_a_recording_is_drawn_with_a_colour_for_each_kind(page: Page, tmp_path: Path) -> None:
    from psmkit.telemetry.picture import page as recorded
    from tests.telemetry.takes import made

    file = tmp_path / "run.html"
    file.write_text(recorded([made()]), encoding="utf-8")
    page.open(file)
    assert page.pixels("rows") > 10
    page.type("search", "broadcast")
    page.expect(lambda: page.text("results"))
    assert page.text("results").startswith("1 match")
    assert "error" not in page.text("legend")
    assert "proxy send" in page.text("legend")
    assert not page.complaints()
