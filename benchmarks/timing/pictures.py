"""Pictures of how cost grows, from the rows of a run."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from whence._util.files import write_atomically

from .runs import Run, refuse

# Colours of Okabe and Ito, which colour-blind people tell apart; markers differ as well.
STYLES = {
    "forward": ("#000000", "o", ":"),
    "whence": ("#0072B2", "s", "-"),
    "gae": ("#E69F00", "^", "--"),
    "tiba": ("#009E73", "D", "-."),
}
OTHERS = [("#CC79A7", "v", "-"), ("#D55E00", "P", "--"), ("#56B4E9", "X", "-.")]
FIGURES = {"fastest": "milliseconds", "ratio": "forwards"}


def draw_growth(run: Run, path: Path) -> None:
    """Write a picture: a column for each thing that was varied, time above and forwards below."""
    rows = [row for row in run.rows if row["section"] == "growth" and row["times"]]
    if not rows:
        refuse(f"Run {run.run} has no section 'growth': python benchmarks/speed.py --only growth.")
    axes_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        (varied,) = row["setting"]
        axes_of.setdefault((varied, row["title"].rpartition(" ")[2]), []).append(row)
    devices = dict.fromkeys(device for _, device in axes_of)
    if len(devices) > 1:
        refuse(f"Run {run.run} measured growth on {' and '.join(devices)}: draw one of them.")
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.3 * len(axes_of), 4.6), layout="constrained")
        panels = figure.subplots(2, len(axes_of), squeeze=False, sharex="col")
        for column, ((varied, _), own) in enumerate(axes_of.items()):
            for panel, key in zip(panels[:, column], FIGURES, strict=True):
                _draw_panel(panel, own, varied, key)
            panels[1, column].set_xlabel(varied)
        for panel, label in zip(panels[:, 0], FIGURES.values(), strict=True):
            panel.set_ylabel(label)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:], dpi=160)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


def _draw_panel(panel: Axes, rows: list[dict[str, Any]], varied: str, key: str) -> None:
    others = iter(OTHERS)
    for name in dict.fromkeys(row["what"] for row in rows):
        color, marker, line = STYLES.get(name) or next(others)
        points = sorted((row["setting"][varied], row[key]) for row in rows if row["what"] == name)
        xs, ys = zip(*points, strict=True)
        panel.plot(
            xs, ys, line, color=color, marker=marker, markersize=4, linewidth=1.4, label=name
        )
    xs = sorted({row["setting"][varied] for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_xticks(xs, [str(x) for x in xs])
    panel.xaxis.set_minor_locator(NullLocator())
    if key == "fastest":
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        panel.yaxis.set_minor_locator(NullLocator())
    else:
        panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
