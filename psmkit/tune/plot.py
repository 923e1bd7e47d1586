"""Plot the time of each algorithm against the size, as one SVG: self-contained, light and dark, readable without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from psmkit.report import drawing
from psmkit.report.drawing import COLOURS, DASHES, SHAPES, Sheet, duration, log_scale, shape, size, wide
from psmkit.report.escape import html_text
from psmkit.tune.fit import Fit
from psmkit.tune.measure import Sample
from psmkit.tune.rules import Rule

__all__ = ["html", "svg"]

_WIDTH, _LEFT, _TALL, _LABEL = 900.0, 66.0, 360.0, 15.0
_POINTS = 80  # of a curve
_ENDLESS = 1 << 60
_Scale = Callable[[float], float]


def svg(title: str, fits: Sequence[Fit], samples: Sequence[Sample] = (), rules: Sequence[Rule] = ()) -> str:
    """Fitted lines, measured points, and below them the choice of the rules, for one operation and shape."""
    sizes = [*(f.low for f in fits), *(f.high for f in fits), *(s.bytes for s in samples)]
    low, high = max(1, min(sizes)), max(2, *sizes)
    times = [f.time(s) for f in fits for s in (f.low, f.high)] + [s.microseconds for s in samples]
    least, most = 10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times) * 1.0001))
    names = list(dict.fromkeys(str(f.kind) for f in fits))
    right = _WIDTH - 46 - max(map(wide, names), default=0)
    sheet = Sheet(_WIDTH, title, "Time of one operation against its size; both axes are logarithmic.")
    sheet.legend(_legend(names, samples, rules))
    top = sheet.top + 14
    bottom = top + max(_TALL, _LABEL * len(names))
    x, y = log_scale(low, high, _LEFT, right), log_scale(least, most, bottom, top)
    _axes(sheet, (low, high, x), (least, most, y), (top, bottom + (22 if rules else 0), right))
    look = _Look(names)
    for s in samples:
        name = _name(s)
        told = f"{name}, {size(s.bytes)}: {duration(s.microseconds / 1e6)}"
        path = shape(look.shape(name), x(s.bytes), y(s.microseconds), 2.6)
        sheet.path(path, f"bar c{look.colour(name)}", ' fill-opacity=".6"', told)
    ends = _apart([(y(f.time(f.high)), str(f.kind)) for f in fits], top, bottom)
    for f in fits:
        name = str(f.kind)
        points = [f.low * (f.high / f.low) ** (i / _POINTS) for i in range(_POINTS + 1)]
        line = "L".join(f"{x(p):.1f} {y(f.time(p)):.1f}" for p in points)
        colour, more, beside = look.colour(name), look.dash(name), ends[name]
        sheet.path(f"M{line}", f"curve s{colour}", more, name)
        sheet.line(x(f.high), y(f.time(f.high)), right + 10, beside, f"s{colour}")
        sheet.line(right + 10, beside, right + 22, beside, f"curve s{colour}", more)
        sheet.path(shape(look.shape(name), right + 28, beside, 4), f"bar c{colour}")
        sheet.text(right + 36, beside + 4, name, "text")
    for rule in rules:
        name = _name(rule)
        begin, end = x(max(rule.bytes[0], low)), x(max(min(rule.bytes[1], high), low))
        upper = f"to {size(rule.bytes[1])}" if rule.bytes[1] < _ENDLESS else "and more"
        told = f"{size(rule.bytes[0])} {upper}: {name} ({rule.note})"
        sheet.rect(begin, bottom + 5, max(1.0, end - begin), 16, f"bar c{look.colour(name)}", ' rx="2"', told)
        if end - begin > 30:
            sheet.text(begin + 5, bottom + 17, name, f"t{look.colour(name)}", room=end - begin - 8)
    return sheet.render(bottom + (66 if rules else 44))


class _Look:
    """Colour, shape and dashes of each fitted kind; what was not fitted is grey."""

    def __init__(self, names: Sequence[str]) -> None:
        self._number = {name: at for at, name in enumerate(names)}

    def colour(self, name: str) -> int:
        return self._number[name] % COLOURS if name in self._number else COLOURS

    def shape(self, name: str) -> str:
        number = self._number.get(name)
        # Another pair of colour and shape in each round.
        return "cross" if number is None else SHAPES[(number + number // COLOURS) % len(SHAPES)]

    def dash(self, name: str) -> str:
        dash = DASHES[self._number[name] // COLOURS % len(DASHES)]
        return f' stroke-dasharray="{dash}"' if dash else ""


def _name(what: Sample | Rule) -> str:
    return f"{what.algorithm}/{what.protocol}" + (f" x{what.channels}" if what.channels else "")


def _legend(names: Sequence[str], samples: Sequence[Sample], rules: Sequence[Rule]) -> Iterator[tuple[str, str]]:
    grey = f"bar c{COLOURS}"
    yield f'<path d="M0 6H14" class="curve s{COLOURS}"/>', "fitted: latency + bytes / bandwidth"
    if any(_name(s) in names for s in samples):
        pair = (("square", 3.0), ("circle", 11.0))
        icons = "".join(f'<path d="{shape(form, at, 6, 2.6)}" class="{grey}"/>' for form, at in pair)
        yield icons, "one measurement"
    if any(_name(s) not in names for s in samples):
        yield f'<path d="{shape("cross", 7, 6, 2.6)}" class="{grey}"/>', "measured, too few to fit"
    if rules:
        yield drawing.swatch(grey), "below: what the rules choose"


def _apart(wanted: Sequence[tuple[float, str]], top: float, bottom: float) -> dict[str, float]:
    """Where labels go so that none covers another, in their order and around where they want to be."""
    ordered = sorted(wanted)
    blocks: list[list[float]] = []  # labels that touch: where the first of each wants to be, less those before it
    for n, (y, _) in enumerate(ordered):
        blocks.append([y - _LABEL * n])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    firsts = [fmean(block) for block in blocks for _ in block]
    least, most = top, bottom - _LABEL * (len(ordered) - 1)
    return {
        name: min(max(first, least), most) + _LABEL * n
        for n, (first, (_, name)) in enumerate(zip(firsts, ordered, strict=True))
    }


def _axes(
    sheet: Sheet,
    sizes: tuple[float, float, _Scale],
    times: tuple[float, float, _Scale],
    edges: tuple[float, float, float],
) -> None:
    top, bottom, right = edges
    low, high, x = sizes
    for at in drawing.log_ticks(low, high, int((right - _LEFT) / 62), 2):
        sheet.line(x(at), top, x(at), bottom + 4, "rule")
        sheet.text(x(at), bottom + 18, size(at), "dim", anchor="middle")
    sheet.text((_LEFT + right) / 2, bottom + 35, "size", "text", anchor="middle")
    least, most, y = times
    for at in drawing.log_ticks(least, most, 12, 10):
        sheet.line(_LEFT - 4, y(at), right, y(at), "rule")
        sheet.text(_LEFT - 9, y(at) + 4, duration(at / 1e6), "dim", anchor="end")


def html(title: str, pictures: Sequence[str]) -> str:
    """A self-contained page of plots."""
    body = "\n".join(f"<figure>{picture}</figure>" for picture in pictures)
    name = html_text(title)
    style = f"{drawing.PAGE_STYLE}figure{{margin:1em 0}}figure>svg{{max-width:100%;height:auto}}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{style}</style></head>\n'
        f"<body><h1>{name}</h1>\n{body}\n</body></html>\n"
    )
