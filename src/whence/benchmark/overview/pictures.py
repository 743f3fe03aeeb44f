"""Draw an overview: mean ranks with groups that do not differ, and the agreement of criteria."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from whence._util.extras import import_extra
from whence.benchmark.charts import escape_text
from whence.benchmark.overview.agreement import Agreement
from whence.benchmark.overview.summary import RankComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 160
_BEST, _OTHER, _SINGLE = "#0072b2", "#333333", "#9aa5b1"
_ROW = 0.25  # height of a method's row, in inches
_MOST_NUMBERS = 30  # criteria of a matrix whose cells show numbers; larger ones only colours
_BAR = 0.14  # width of a group's bar, in inches


def draw_ranks(comparison: RankComparison) -> bytes:
    """Draw mean ranks as a critical-difference diagram with a row for each method, as PNG.

    Bars at the right join methods that do not differ significantly. Small dots are the ranks in
    single runs.
    """
    methods = list(comparison.mean_ranks)
    labels = max(len(method) for method in methods) * 0.075 + 0.6
    bars = max(0.4, _BAR * (len(comparison.groups) + 1))
    plot = 5.2
    figure = _open_figure(labels + plot + bars, len(methods) * _ROW + 1.35)
    axes, side = figure.subplots(1, 2, sharey=True, width_ratios=[plot, bars])
    _draw_means(axes, comparison)
    if comparison.critical_difference is not None:
        _draw_ruler(axes, comparison.critical_difference, len(methods))
    for at, (first, last) in enumerate(comparison.groups):
        side.plot([at, at], [first - 0.15, last + 0.15], color=_OTHER, linewidth=3.2)
    side.set_xlim(-1, max(1, len(comparison.groups)))
    side.axis("off")
    axes.set_ylim(len(methods) - 0.4, -0.6)
    return _to_png(figure)


def _draw_means(axes: Axes, comparison: RankComparison) -> None:
    methods = list(comparison.mean_ranks)
    means = list(comparison.mean_ranks.values())
    rows = np.arange(len(methods))
    if comparison.blocks == "runs":
        for ranks in comparison.ranks:
            axes.plot(ranks, rows, "o", color=_SINGLE, markersize=3.5, alpha=0.6, markeredgewidth=0)
    colors = [_BEST] + [_OTHER] * (len(methods) - 1)
    axes.hlines(rows, 1, means, color="0.85", linewidth=0.8, zorder=0)
    axes.scatter(means, rows, s=34, c=colors, zorder=3)
    listed = [
        f"{escape_text(method)}  {mean:.2f}" for method, mean in comparison.mean_ranks.items()
    ]
    axes.set_yticks(rows, listed, fontsize=8)
    axes.set_xlim(0.6, len(methods) + 0.4)
    axes.set_xlabel(
        f"rank, over {comparison.count} {comparison.blocks} (1 is best); bars join methods that "
        f"do not differ",
        fontsize=8,
        color="0.35",
    )
    axes.tick_params(length=0)
    axes.tick_params(axis="x", labelsize=8, labelcolor="0.35")
    axes.locator_params(axis="x", integer=True)
    axes.spines[:].set_visible(False)


def _draw_ruler(axes: Axes, length: float, methods: int) -> None:
    """Draw the critical difference as a ruler above the ranks."""
    end = min(1 + length, methods + 0.4)
    axes.annotate(
        "",
        (1, 1.02),
        (end, 1.02),
        xycoords=("data", "axes fraction"),
        textcoords=("data", "axes fraction"),
        arrowprops={"arrowstyle": "|-|,widthA=0.25,widthB=0.25", "shrinkA": 0, "shrinkB": 0},
        annotation_clip=False,
    )
    axes.set_title(f"critical difference {length:.2f}", loc="left", fontsize=8, pad=18)


def draw_agreement(agreement: Agreement, names: list[str]) -> bytes:
    """Draw Kendall's tau of each two criteria as a matrix of colours, with numbers, as PNG."""
    count = len(names)
    cell = 0.42 if count <= 16 else 0.34 if count <= _MOST_NUMBERS else 0.2
    labels = max(map(len, names)) * 0.07 + 0.5
    figure = _open_figure(count * cell + labels + 0.9, count * cell + 0.6)
    axes = figure.subplots()
    image = axes.imshow(agreement.tau, cmap="RdBu", vmin=-1, vmax=1)
    numbered = [f"{escape_text(name)}   {at}" for at, name in enumerate(names, 1)]
    axes.set_xticks(range(count), list(map(str, range(1, count + 1))), fontsize=7)
    axes.set_yticks(range(count), numbered, fontsize=7)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(agreement.tau):
        if np.isfinite(value) and count <= _MOST_NUMBERS:
            color = "white" if abs(value) > 0.6 else "black"
            text = f"{value:.2f}".replace("0.", ".").replace("1.00", "1")
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    bar.ax.tick_params(labelsize=7, length=0)
    bar.outline.set_visible(False)
    bar.set_label("Kendall's τ", fontsize=8)
    return _to_png(figure)


def _open_figure(width: float, height: float) -> Figure:
    # A figure of its own, without pyplot: no global state, and the Agg backend for PNG.
    figures = import_extra("matplotlib.figure", "matplotlib", "benchmark")
    figure: Figure = figures.Figure((width, height), layout="constrained")
    return figure


def _to_png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()
