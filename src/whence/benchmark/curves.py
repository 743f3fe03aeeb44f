"""Curves of all methods, drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import Curve
from whence.render.colors import THEMES
from whence.render.drawing import Figure, Picture, Rectangle, TextLine, measure_text, shorten

# Okabe and Ito's colours, which colour-blind readers tell apart, and darker ones for more methods.
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6072", "#7b3294"),
    *("#8c510a", "#1b7837", "#b2182b", "#01665e"),
)
_ACROSS, _WIDTH, _HEIGHT = 2, 400.0, 220.0
_LEFT, _TOP, _BELOW, _GAP, _MARGIN = 46.0, 26.0, 36.0, 28.0, 20.0
_FINER = 3

Floats = NDArray[np.float64]


def means(curve: Curve, results: Mapping[str, Columns]) -> dict[str, Floats]:
    """The mean line of each method that has the curve."""
    found = {}
    for method, columns in results.items():
        values = columns.get(curve.column)
        if values is None or values.dtype == object or values.ndim != 2:
            continue
        rows = values[np.isfinite(values).all(1)]
        if len(rows) and rows.shape[1] == len(curve.x):
            found[method] = rows.mean(0)
    return found


def drawn(curves: Sequence[Curve], results: Mapping[str, Columns], title: str) -> Figure | None:
    """A figure of all curves, a panel each, with one legend; None if there is nothing to draw."""
    panels = [(curve, lines) for curve in curves if (lines := means(curve, results))]
    if not panels:
        return None
    theme = THEMES["light"]
    across = min(_ACROSS, len(panels))
    width = 2 * _MARGIN + across * (_LEFT + _WIDTH) + (across - 1) * _GAP
    colors = {method: _COLORS[at % len(_COLORS)] for at, method in enumerate(results)}
    parts: list[Rectangle | TextLine | Picture] = []
    heading = shorten(title, 17, width - 2 * _MARGIN)
    parts.append(TextLine(_MARGIN, _MARGIN + 12, heading, 17, theme.ink))
    y = _legend(parts, list(results), colors, width, _MARGIN + 38)
    for at, (curve, lines) in enumerate(panels):
        left = _MARGIN + _LEFT + (at % across) * (_LEFT + _WIDTH + _GAP)
        top = y + (at // across) * (_TOP + _HEIGHT + _BELOW) + _TOP
        _panel(parts, curve, lines, colors, left, top)
    height = y + math.ceil(len(panels) / across) * (_TOP + _HEIGHT + _BELOW) + _MARGIN / 2
    return Figure(width, height, theme.background, parts)


def _legend(
    parts: list[Rectangle | TextLine | Picture],
    methods: Sequence[str],
    colors: Mapping[str, str],
    width: float,
    y: float,
) -> float:
    x = _MARGIN
    for method in methods:
        label = shorten(method, 12, width - 2 * _MARGIN - 30)
        needed = 24 + measure_text(label, 12) + 18
        if x + needed > width - _MARGIN and x > _MARGIN:
            x, y = _MARGIN, y + 18
        parts.append(Rectangle(x, y - 6, 18, 3, colors[method]))
        parts.append(TextLine(x + 24, y, label, 12, THEMES["light"].ink))
        x += needed
    return y + 12


def _panel(
    parts: list[Rectangle | TextLine | Picture],
    curve: Curve,
    lines: Mapping[str, Floats],
    colors: Mapping[str, str],
    left: float,
    top: float,
) -> None:
    theme = THEMES["light"]
    low, high, step = _range(curve, lines)
    first, last = min(curve.x), max(curve.x)
    spread = (last - first) or 1.0
    parts.append(TextLine(left, top - 8, shorten(curve.title, 13, _WIDTH), 13, theme.ink))
    ticks = [low + step * n for n in range(round((high - low) / step) + 1)]
    for value in ticks:
        y = top + _HEIGHT * (1 - (value - low) / (high - low))
        parts.append(Rectangle(left, y - 0.5, _WIDTH, 1, theme.track))
        said = f"{100 * value:g} %" if curve.percent else f"{value:.3g}"
        parts.append(TextLine(left - 6, y + 4, said, 10.5, theme.muted, right=True))

    def draw(size: tuple[int, int]) -> Image.Image:
        wide, tall = size[0] * _FINER, size[1] * _FINER
        canvas = Image.new("RGB", (wide, tall), theme.background)
        pen = ImageDraw.Draw(canvas)
        for value in ticks:
            y = tall * (1 - (value - low) / (high - low))
            pen.line([(0, y), (wide, y)], theme.track, max(1, round(tall / _HEIGHT)))
        for method, line in lines.items():
            points = [
                (wide * (x - first) / spread, tall * (1 - (float(y) - low) / (high - low)))
                for x, y in zip(curve.x, line, strict=True)
            ]
            pen.line(points, colors[method], max(2, round(1.8 * tall / _HEIGHT)), joint="curve")
        return canvas.reduce(_FINER)

    parts.append(Picture(left, top, _WIDTH, _HEIGHT, draw, curve.title))
    for value in dict.fromkeys((first, curve.x[len(curve.x) // 2], last)):
        said, x = f"{value:g}", left + _WIDTH * (value - first) / spread
        parts.append(
            TextLine(x - measure_text(said, 10.5) / 2, top + _HEIGHT + 14, said, 10.5, theme.muted)
        )
    said = curve.x_title
    middle = left + _WIDTH / 2 - measure_text(said, 10.5) / 2
    parts.append(TextLine(middle, top + _HEIGHT + 28, said, 10.5, theme.muted))


def _range(curve: Curve, lines: Mapping[str, Floats]) -> tuple[float, float, float]:
    """Where the vertical axis begins and ends, and the step between its marks."""
    low = min(float(line.min()) for line in lines.values())
    high = max(float(line.max()) for line in lines.values())
    if curve.percent:
        low, high = min(0.0, low), high
    spread = max(high - low, 1e-9)
    rough = spread / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 2.5, 5, 10) if size * n >= rough - 1e-12)
    bottom = math.floor(low / step + 1e-9)
    return bottom * step, max(math.ceil(high / step - 1e-9), bottom + 1) * step, step
