"""Draw the mean curves of all methods as one chart, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from whence._util.extras import import_extra
from whence._util.text import to_printable
from whence.benchmark.columns import Columns
from whence.benchmark.protocols.base import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers tell apart, and darker ones for more methods.
_COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6072", "#7b3294"),
    *("#8c510a", "#1b7837", "#b2182b", "#01665e"),
)
_LINES = ("-", "--", ":", "-.")
_PANEL = (4.8, 2.8)  # width and height, in inches
_LEGEND = 0.24
_DPI = 160

Floats = NDArray[np.float64]


def average_curves(curve: Curve, results: Mapping[str, Columns]) -> dict[str, Floats]:
    """Average a curve over samples, for each method that has it."""
    means = {}
    for method, columns in results.items():
        values = columns.get(curve.column)
        if values is None or values.dtype == object or values.ndim != 2:
            continue
        rows = values[np.isfinite(values).all(1)]
        if len(rows) and rows.shape[1] == len(curve.x):
            means[method] = rows.mean(0)
    return means


def draw_chart(curves: Sequence[Curve], results: Mapping[str, Columns], title: str) -> bytes | None:
    """Draw a panel for each curve with one legend, as PNG; None if there is nothing to draw."""
    panels = [(curve, means) for curve in curves if (means := average_curves(curve, results))]
    if not panels:
        return None
    columns = min(2, len(panels))
    rows, keys = math.ceil(len(panels) / columns), math.ceil(len(results) / (3 * columns))
    height = rows * _PANEL[1] + keys * _LEGEND + 0.4
    # A figure of its own, without pyplot: no global state, and the Agg backend for PNG.
    figure = import_extra("matplotlib.figure", "matplotlib", "benchmark").Figure(
        (columns * _PANEL[0], height), layout="constrained"
    )
    styles = dict(zip(results, cycle(product(_LINES, _COLORS)), strict=False))
    lines = {}
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[len(panels) :]:
        ax.remove()
    for ax, (curve, means) in zip(axes, panels, strict=False):
        _style_panel(ax, curve)
        for method, mean in means.items():
            line, color = styles[method]
            lines[method] = ax.plot(curve.x, mean, line, color=color, linewidth=1.5)[0]
        if curve.percent:
            low, high = (float(edge(list(means.values()))) for edge in (np.min, np.max))
            bottom = min(0.0, low)
            ax.set_ylim(bottom, high + 0.05 * (high - bottom or 1))
    shown = [method for method in results if method in lines]
    handles, labels = [lines[method] for method in shown], [escape_text(method) for method in shown]
    place = {"loc": "outside upper left", "alignment": "left", "ncols": 3 * columns}
    figure.legend(handles, labels, title=escape_text(title), fontsize=8, frameon=False, **place)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()


def _style_panel(ax: Axes, curve: Curve) -> None:
    ax.set_title(curve.title, loc="left", fontsize=9)
    ax.set_xlabel(curve.x_title, fontsize=8, color="0.35")
    ax.tick_params(labelsize=8, labelcolor="0.35", length=0)
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.spines[:].set_visible(False)
    ax.margins(x=0.01)
    ax.locator_params(nbins=6)
    if curve.percent:
        ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def escape_text(text: str) -> str:
    """Text without control characters, which matplotlib does not read as a formula."""
    return to_printable(text).replace("$", r"\$")
