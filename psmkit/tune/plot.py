"""Plot the time of each algorithm against the size, as one SVG: self-contained, with labels so that it is readable without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from psmkit.tune.fit import Fit
from psmkit.tune.measure import Sample
from psmkit.tune.rules import Rule

__all__ = ["html", "size_name", "svg"]

_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 44, 74
_COLOURS = ("#3b6fb6", "#c2543c", "#2f8f5b", "#8a5ab5", "#b8862b", "#4a9fb0", "#a8447c", "#6b7280")
_DASHES = ("", "6 3", "2 3", "9 3 2 3")


def size_name(size: float) -> str:
    """4M, 64K, 100."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:.4g}{letter}"
    return f"{size:.0f}"


def _label(fit: Fit) -> str:
    return str(fit.kind)


def svg(title: str, fits: Sequence[Fit], samples: Sequence[Sample] = (), rules: Sequence[Rule] = ()) -> str:
    """Fitted lines, measured points, and below them the choice of the rules, for one operation and shape."""
    sizes = [*(f.low for f in fits), *(f.high for f in fits), *(s.bytes for s in samples)]
    low, high = max(1, min(sizes)), max(2, *sizes)
    times = [f.time(s) for f in fits for s in (f.low, f.high)] + [s.microseconds for s in samples]
    least, most = 10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times) * 1.0001))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(size: float) -> float:
        share = math.log(max(size, low) / low) / math.log(high / low)
        return _LEFT + min(1.0, share) * (right - _LEFT)

    def y(time: float) -> float:
        return bottom - math.log(time / least) / math.log(most / least) * (bottom - _TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="{escape(title, quote=True)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_axes(low, high, least, most, x, y),
    ]
    names = list(dict.fromkeys(_label(f) for f in fits))
    style = {n: (_COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)]) for i, n in enumerate(names)}
    for s in samples:
        name = f"{s.algorithm}/{s.protocol}" + (f" x{s.channels}" if s.channels else "")
        colour = style.get(name, ("#999999", ""))[0]
        out.append(
            f'<circle cx="{x(s.bytes):.1f}" cy="{y(s.microseconds):.1f}" r="1.8" fill="{colour}" fill-opacity="0.45"/>'
        )
    for f in fits:
        steps = 80
        points = [f.low * (f.high / f.low) ** (i / steps) for i in range(steps + 1)]
        colour, dash = style[_label(f)]
        line = " ".join(f"{x(p):.1f},{y(f.time(p)):.1f}" for p in points)
        out.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    for i, name in enumerate(names):
        colour, dash = style[name]
        top = _TOP + 10 + 20 * i
        out.append(
            f'<line x1="{right + 14}" x2="{right + 40}" y1="{top}" y2="{top}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{right + 46}" y="{top + 4}">{escape(name)}</text>'
        )
    for rule in rules:
        name = f"{rule.algorithm}/{rule.protocol}" + (f" x{rule.channels}" if rule.channels else "")
        a, b = x(max(rule.bytes[0], low)), x(min(rule.bytes[1], high))
        colour = style.get(name, ("#999999", ""))[0]
        said = escape(f"{size_name(rule.bytes[0])} to {size_name(rule.bytes[1])}: {name} ({rule.note})")
        out.append(
            f'<rect x="{a:.1f}" y="{bottom + 2}" width="{max(1.0, b - a):.1f}" height="8" fill="{colour}"><title>{said}</title></rect>'
        )
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _axes(
    low: float, high: float, least: float, most: float, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    out = []
    for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1, 2):
        at = x(2.0**power)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#eeeeee"/>')
        out.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 26}" text-anchor="middle">{size_name(2.0**power)}</text>'
        )
    for power in range(round(math.log10(least)), round(math.log10(most)) + 1):
        at = y(10.0**power)
        out.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    out.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 24}" text-anchor="middle">bytes; bar: choice of the rules</text>')
    out.append(f'<text x="16" y="{_TOP - 8}">microseconds</text>')
    return out


def html(title: str, pictures: Sequence[str]) -> str:
    """A self-contained page of plots."""
    body = "\n".join(f"<figure>{picture}</figure>" for picture in pictures)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f"{escape(title)}</title><style>figure{{margin:1em 0;max-width:60em}}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
