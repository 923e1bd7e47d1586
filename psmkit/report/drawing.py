"""What all static pictures share: colours in light and dark, shapes, numbers with units, ticks, text that fits, legends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from psmkit.report.escape import html_text

__all__ = [
    "COLOURS",
    "DASHES",
    "PAGE_STYLE",
    "SHAPES",
    "Sheet",
    "duration",
    "fit",
    "log_scale",
    "log_ticks",
    "shape",
    "size",
    "step",
    "swatch",
    "ticks",
    "wide",
]

#: Colours near Okabe and Ito's, in which any two differ for colour-blind readers, too: what fills, a line in light and in dark, text on the fill.
#: The class ``cN`` fills and outlines, ``sN`` only draws a line, ``hN`` fills like a line, ``tN`` is text. The last is for what belongs to no group.
_PALETTE = (
    ("#7cc4f0", "#3a94d4", "#7cc4f0", "#111"),
    ("#e69f00", "#d98200", "#e69f00", "#111"),
    ("#009e73", "#007a58", "#009e73", "#111"),
    ("#b8559a", "#c2589a", "#c2589a", "#fff"),
    ("#f7ee7a", "#6e6600", "#f0e442", "#111"),
    ("#1d4684", "#1d4684", "#3f6fc4", "#fff"),
    ("#d4d9df", "#4a505a", "#d4d9df", "#111"),
)
#: How many colours differ; colour ``COLOURS`` is the grey one.
COLOURS = len(_PALETTE) - 1
#: Strokes for curves beyond the number of colours.
DASHES = ("", "7 3", "2 3", "9 3 2 3")
#: Names of shapes, in the order in which kinds of marks get them. "cross" is kept for errors.
SHAPES = ("down", "square", "circle", "diamond", "up", "hexagon")

_LIGHT = {
    "bg": "#fff", "text": "#16191d", "dim": "#5b6570", "line": "#d9dde3", "lane": "#f3f5f8", "error": "#c2261c", "wait": "#d55e00", "good": "#0a6b3d",
    "odd": "#f9cdd3",
}  # fmt: skip
_DARK = {
    "bg": "#14171b", "text": "#e8eaed", "dim": "#9aa4b0", "line": "#343a43", "lane": "#1e2329", "error": "#ff7b70", "wait": "#ff9a56", "good": "#6fd69a",
    "odd": "#5c2528",
}  # fmt: skip
_RULES = (
    ".bg{{fill:{bg}}}.text,.head,.name{{fill:{text}}}.dim{{fill:{dim}}}.lane{{fill:{lane}}}.rule{{stroke:{line}}}.axis{{stroke:{dim}}}"
    ".error{{fill:{error}}}.warning{{fill:{wait}}}.note{{fill:{dim}}}.line.error,.cross{{stroke:{error};fill:none}}.line.warning{{stroke:{wait}}}"
    ".line.note{{stroke:{dim}}}.under{{stroke:{bg};fill:none}}.hatch{{stroke:{wait}}}.wait{{stroke:{wait}}}.open{{stroke:{text}}}.halo{{stroke:{bg}}}.tick{{stroke:{text}}}"
)  # fmt: skip


def _scoped(colours: dict[str, str]) -> str:
    # A picture may stand inside a page: its rules must not reach what is around it.
    rules = _RULES.format(**colours).replace(",.", ",.drawing .")
    return ".drawing " + rules.replace("}.", "}.drawing .")


def _style() -> str:
    hues = "".join(
        f".drawing .c{n}{{fill:{fill};stroke:{line}}}.drawing .s{n}{{stroke:{line};fill:none}}.drawing .h{n}{{fill:{line}}}.drawing .t{n}{{fill:{text}}}"
        for n, (fill, line, _, text) in enumerate(_PALETTE)
    )
    lit = "".join(
        f".drawing .c{n}{{fill:{line if text == '#fff' else fill};stroke:{_DARK['bg']}}}.drawing .s{n}{{stroke:{line}}}.drawing .h{n}{{fill:{line}}}"
        for n, (fill, _, line, text) in enumerate(_PALETTE)
    )
    # What belongs to no group stays in the background.
    lit += f".drawing .c{COLOURS}{{fill:#4a525c;stroke:#8b95a1}}.drawing .t{COLOURS}{{fill:#e8eaed}}"
    plain = (
        ".drawing{font:11px system-ui,sans-serif}.drawing .head{font-size:15px;font-weight:600}.drawing .name{font-weight:600}"
        ".drawing .bar{stroke-width:.8}.drawing .open{stroke-width:1.2;stroke-dasharray:4 3;fill-opacity:.55}"
        ".drawing .cross{stroke-width:2.2}.drawing .under{stroke-width:5}.drawing .tick.on{stroke:#111}.drawing .curve{stroke-width:2}"
        ".drawing .halo{stroke-width:3;paint-order:stroke}.drawing .bold{font-weight:600}.drawing .rule{stroke-width:1}"
    )
    return f"{plain}{hues}{_scoped(_LIGHT)}@media(prefers-color-scheme:dark){{{lit}{_scoped(_DARK)}}}"


_STYLE = _style()


def _variables(colours: dict[str, str]) -> str:
    return ":root{" + "".join(f"--{name}:{value};" for name, value in colours.items()) + "}"


#: The style of a page around pictures: its colours are variables such as ``--dim``.
PAGE_STYLE = (
    f"{_variables(_LIGHT)}@media(prefers-color-scheme:dark){{{_variables(_DARK)}}}:root{{color-scheme:light dark}}"
    "body{font:14px/1.45 system-ui,sans-serif;color:var(--text);background:var(--bg)}"
)

# ---- numbers ----------------------------------------------------------------------------------------------------------

_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def _unit(value: float, units: Sequence[tuple[float, str]], digits: int) -> str:
    if not value:
        return f"0 {units[-1][1]}"
    # Rounded first: 999.9996 us is 1 ms.
    value = float(f"{value:.{digits}g}")
    scale, name = next(((s, n) for s, n in units if abs(value) >= s * (1 - 1e-12)), units[-1])
    return f"{float(f'{value / scale:.{digits}g}'):,.10g} {name}"


def duration(seconds: float, digits: int = 4) -> str:
    """A time with its unit: ``10 us``, ``1.5 ms``, ``0 s``."""
    if not seconds:
        return "0 s"
    return _unit(seconds, _TIMES if abs(seconds) >= 120 else _TIMES[2:], digits)


def size(count: float, digits: int = 4) -> str:
    """A number of bytes with its unit: ``100 B``, ``4 KiB``, ``1 MiB``."""
    return _unit(count, _SIZES, digits)


def step(low: float, high: float, most: int, least: float = 0.0) -> float:
    """The distance of round places of which about ``most`` lie from ``low`` to ``high``: 1, 2 or 5 times a power of ten, at least ``least``."""
    room = max(high - low, least, 1e-12) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(room))
    return max(least, next(f * power for f in (1, 2, 5, 10) if f * power >= room * (1 - 1e-9)))


def ticks(low: float, high: float, distance: float) -> list[float]:
    """The multiples of a distance from ``low`` to ``high``."""
    first, last = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
    return [n * distance for n in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int, base: float) -> list[float]:
    """Powers of ``base`` from ``low`` to ``high``, every n-th so that there are at most ``most``."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return [base**n for n in range(first, last + 1, every)]


def log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Maps ``low`` to ``start`` and ``high`` to ``end`` by their logarithms; what lies beyond them stays at the edge."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * min(max(math.log(value / low) / span, 0.0), 1.0)


# ---- text -------------------------------------------------------------------------------------------------------------

_NARROW, _BROAD = frozenset("fijlrtI.,:;'|!()[] "), frozenset("mwMW@%")


def wide(text: str, points: float = 11) -> float:
    """About the width of a text, for a font of the wider kind."""
    return points * sum(
        0.36 if c in _NARROW else 0.92 if c in _BROAD else 0.64 if ord(c) < 0x2E80 else 1.0 for c in text
    )


def fit(text: str, room: float, points: float = 11) -> str:
    """``text``, or what comes before one of its commas, or its beginning, so that it fits; "" if that would say nothing."""
    if wide(text, points) <= room:
        return text
    parts = text.split(", ")
    for count in range(len(parts) - 1, 0, -1):
        if wide(", ".join(parts[:count]), points) <= room:
            return ", ".join(parts[:count])
    kept = parts[0]
    while len(kept) > 3 and wide(kept, points) + points > room:
        kept = kept[:-1]
    return f"{kept.rstrip()}\N{HORIZONTAL ELLIPSIS}" if len(kept) > 3 else ""


# ---- shapes -----------------------------------------------------------------------------------------------------------


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def shape(name: str, x: float, y: float, r: float) -> str:
    """The path of a shape around a point."""
    points: dict[str, Sequence[tuple[float, float]]] = {
        "down": ((-1, -0.9), (1, -0.9), (0, 1)),
        "up": ((-1, 0.9), (1, 0.9), (0, -1)),
        "square": ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
        "diamond": ((0, -1.15), (1.15, 0), (0, 1.15), (-1.15, 0)),
        "hexagon": ((-1, 0), (-0.5, -0.9), (0.5, -0.9), (1, 0), (0.5, 0.9), (-0.5, 0.9)),
    }
    if name == "cross":
        return f"M{_n(x - r)} {_n(y - r)}l{_n(2 * r)} {_n(2 * r)}m0 {_n(-2 * r)}l{_n(-2 * r)} {_n(2 * r)}"
    if name == "circle":
        return f"M{_n(x - r)} {_n(y)}a{_n(r)} {_n(r)} 0 1 0 {_n(2 * r)} 0a{_n(r)} {_n(r)} 0 1 0 {_n(-2 * r)} 0Z"
    return "M" + "L".join(f"{_n(x + r * a)} {_n(y + r * b)}" for a, b in points[name]) + "Z"


def swatch(classes: str, more: str = "") -> str:
    """The icon of a legend for something that lasts, 14 wide and 12 high."""
    return f'<rect x="0" y="1" width="14" height="10" rx="2" class="{classes}"{more}/>'


# ---- the sheet --------------------------------------------------------------------------------------------------------


class Sheet:
    """A picture in the making: a title in words, a legend, and whatever is drawn below them, from :attr:`top` on."""

    def __init__(self, width: float, title: str, about: str = "") -> None:
        self.width, self.title = width, title
        self.top = 30.0
        self._parts: list[str] = []
        self.text(12, 22, title, "head", room=width - 24, points=15)
        for line in _wrapped(about, width - 24):
            self.top += 15
            self.text(12, self.top - 4, line, "dim")

    def add(self, part: str) -> None:
        """Append markup."""
        self._parts.append(part)

    def text(
        self, x: float, y: float, text: str, classes: str, *, anchor: str = "", room: float = 0, points: float = 11
    ) -> None:
        """Append a text; with ``room``, as much of it as fits."""
        shown = fit(text, room, points) if room else text
        if shown:
            more = f' text-anchor="{anchor}"' if anchor else ""
            self.add(f'<text x="{_n(x)}" y="{_n(y)}" class="{classes}"{more}>{html_text(shown)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str, more: str = "") -> None:
        """Append a straight line."""
        self.add(f'<path d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}" class="{classes}"{more}/>')

    def rect(
        self, x: float, y: float, width: float, height: float, classes: str, more: str = "", title: str = ""
    ) -> None:
        """Append a rectangle; ``title`` is shown when the pointer rests on it."""
        told = f"><title>{html_text(title)}</title></rect>" if title else "/>"
        self.add(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" class="{classes}"{more}{told}'
        )

    def path(self, d: str, classes: str, more: str = "", title: str = "") -> None:
        """Append a path."""
        told = f"><title>{html_text(title)}</title></path>" if title else "/>"
        self.add(f'<path d="{d}" class="{classes}"{more}{told}')

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Append a legend of (icon, words), in as many rows as it needs; an icon is 14 wide and 12 high."""
        x, y = 12.0, self.top + 4
        for icon, words in entries:
            room = 20 + wide(words)
            if x > 12 and x + room > self.width - 12:
                x, y = 12.0, y + 18
            self.add(f'<g transform="translate({_n(x)} {_n(y)})" class="entry">{icon}')
            self.text(20, 10, words, "text")
            self.add("</g>")
            x += room + 18
            self.top = y + 22

    def render(self, height: float) -> str:
        """The picture as a file of its own, or as a part of a page."""
        wide_, high = math.ceil(self.width), math.ceil(height)
        hatch = '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6" class="hatch" stroke-width="3"/></pattern>'
        parts = "\n".join(self._parts)
        defs = f"<defs>{hatch}</defs>\n" if "#hatch" in parts else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide_} {high}" width="{wide_}" height="{high}" class="drawing" role="img" '
            f'aria-label="{html_text(self.title)}">\n<style>{_STYLE}</style>\n{defs}<rect width="{wide_}" height="{high}" class="bg"/>\n{parts}\n</svg>\n'
        )


def _wrapped(text: str, room: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and wide(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
