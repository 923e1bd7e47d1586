"""Numbers with units, ticks, text that fits: what static pictures share."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

from psmkit.report import drawing
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


#: What colour-blind people see of light (linear red, green, blue), after Machado, Oliveira and Fernandes.
SEEN = {
    "all": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """A colour in CIELAB, in which distances are about those that people see."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    light = np.clip(seen @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ light
    xyz = xyz / [0.9505, 1, 1.0888]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("column", range(3))
def test_any_two_colours_differ_for_everybody(seen: str, column: int) -> None:
    colours = [lab(row[column], SEEN[seen]) for row in drawing._PALETTE]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colours, 2)) > 15


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
