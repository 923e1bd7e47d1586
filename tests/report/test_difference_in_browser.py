"""The page of a comparison in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.report.difference_html import render
from tests.report.browser import Page, browser, needed
from tests.report.test_difference import hostile, real
from tests.report.test_html import NASTY

pytestmark = needed

OPEN = "return [...document.querySelectorAll('details.pairs')].filter((each) => each.open && !each.hidden).length"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("stopped") / "diff.html"
    file.write_text(render(real(), "good", "bad"), encoding="utf-8")
    return file


def test_page_shows_both_sides_without_a_complaint(page: Page, stopped: Path) -> None:
    page.open(stopped)
    assert not page.complaints()
    assert page.js("return document.querySelector('h1').innerText").startswith("differs: rank 1 first")
    left, right = page.js(
        "return [...document.querySelectorAll('#rank-1 .p-first td + td')].map((cell) => cell.getBoundingClientRect().x)"
    )
    assert left < right
    assert page.js("return document.body.scrollWidth <= innerWidth")


def test_groups_open_close_and_can_be_chosen(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.click("close-all")
    assert page.js(OPEN) == 0
    page.click("open-all")
    assert page.js(OPEN) == 3  # ranks 0 and 2 part in the same way
    page.type("ranks-filter", "1-2")
    assert page.js(OPEN) == 2 and page.text("shown") == "2 of 3 groups"
    page.js(
        "const box = document.getElementById('ranks-filter'); box.value = '9'; box.dispatchEvent(new Event('input'))"
    )
    assert page.text("shown") == "no such rank differs"


def test_address_opens_a_rank(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.click("close-all")
    page.js("location.hash = '#rank-2'")
    page.expect(lambda: page.js("return document.getElementById('rank-0').open"))  # the group of ranks 0 and 2


def test_dark_mode_changes_the_page(page: Page, stopped: Path) -> None:
    page.open(stopped)
    background = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(background)
    page.driver.find_element("tag name", "body").send_keys("d")
    page.expect(lambda: page.js(background) != light)


def test_printed_page_has_the_steps_of_all_ranks(page: Page, stopped: Path) -> None:
    page.open(stopped)
    page.click("close-all")
    page.js("dispatchEvent(new Event('beforeprint'))")
    assert page.js(OPEN) == 3
    page.js("dispatchEvent(new Event('afterprint'))")
    assert page.js(OPEN) == 0
    assert len(page.driver.print_page()) > 10_000


def test_hostile_logs_stay_inert(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    file.write_text(render(hostile(), NASTY, NASTY), encoding="utf-8")
    page.open(file)
    assert page.js("return document.title") != "owned"
    assert page.js("return document.querySelectorAll('main img, main script').length") == 0
    assert not page.complaints()
