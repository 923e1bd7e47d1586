"""Numbers with units, ticks, text that fits: what static pictures share."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from psmkit.report.drawing import SHAPES, Sheet, duration, fit, log_scale, log_ticks, shape, size, step, ticks, wide


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (1e-5, "10 us"),
        (1.5e-3, "1.5 ms"),
        (999.9999e-6, "1 ms"),
        (3.6e-8, "36 ns"),
        (1.0, "1 s"),
        (90, "90 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (17.81e-3, "17.81 ms"),
    ],
)
def test_times_have_the_unit_that_fits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (100, "100 B"),
        (4096, "4 KiB"),
        (1 << 20, "1 MiB"),
        (3 << 29, "1.5 GiB"),
        (1023 * 1024, "1,023 KiB"),
    ],
)
def test_sizes_have_the_unit_that_fits(count: int, said: str) -> None:
    assert size(count) == said


def test_no_number_has_an_exponent() -> None:
    assert not [
        n for n in range(-9, 7) for f in (1, 1.01, 9.99, 4.567) if "e" in duration(f * 10.0**n).replace("sec", "")
    ]
    assert size(1020 << 10, 3) == "1,020 KiB"


def test_ticks_are_round_and_not_too_many() -> None:
    for high in (0.00037, 7.3e-5, 12.0, 79e-3, 1e4):
        distance = step(0, high, 8)
        found = ticks(0, high, distance)
        assert 2 <= len(found) <= 9 and found[0] == 0 and found[-1] <= high
        assert f"{distance:e}"[0] in "125"
    assert ticks(3, 11, step(3, 11, 100, least=1.0)) == list(range(3, 12)), "no halves of places"
    assert log_ticks(256, 1 << 28, 11, 2) == [2.0**n for n in range(8, 29, 2)]
    assert log_ticks(10, 1e6, 12, 10) == [10.0**n for n in range(1, 7)]


def test_a_scale_of_logarithms_stays_within_its_ends() -> None:
    x = log_scale(1, 1024, 0, 100)
    assert x(1) == 0 and x(32) == pytest.approx(50) and x(1024) == 100 and x(4096) == 100 and x(0.5) == 0


def test_text_is_cut_at_a_comma_else_with_an_ellipsis_else_left_out() -> None:
    assert fit("to 1, 3 steps, 4 KiB", 500) == "to 1, 3 steps, 4 KiB"
    assert fit("to 1, 3 steps, 4 KiB", wide("to 1, 3 steps") + 1) == "to 1, 3 steps"
    assert fit("AllReduce 7", 50).endswith("…") and wide(fit("AllReduce 7", 50)) <= 50
    assert fit("AllReduce 7", 5) == ""


def test_shapes_differ() -> None:
    assert len({shape(name, 7, 6, 4) for name in (*SHAPES, "cross")}) == len(SHAPES) + 1


def test_a_legend_takes_the_rows_that_it_needs_and_no_text_is_markup() -> None:
    sheet = Sheet(400, "<b>&")
    sheet.legend([("", "a kind of mark with a long name")] * 5)
    root = ElementTree.fromstring(sheet.render(200))
    assert root.get("aria-label") == "<b>&" and len(list(root.iter("{http://www.w3.org/2000/svg}g"))) == 5
    assert len({g.get("transform", "").split()[1] for g in root.iter("{http://www.w3.org/2000/svg}g")}) == 5


def test_a_picture_has_colours_for_light_and_dark_and_reaches_nothing_around_it() -> None:
    drawn = Sheet(400, "title").render(100)
    assert "prefers-color-scheme:dark" in drawn
    rules = drawn.partition("<style>")[2].partition("</style>")[0].replace("@media(prefers-color-scheme:dark){", "")
    for rule in filter(None, (r.strip("} ") for r in rules.split("}"))):
        assert all(s.startswith(".drawing") for s in rule.partition("{")[0].split(",")), rule
